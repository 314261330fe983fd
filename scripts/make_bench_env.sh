#!/usr/bin/env bash
# Makes the environment of the Python benchmarks: the loaders that tensora_py is compared with, and
# tensora_py itself, built with all optimisations from the sources as they are. Prints the path of
# its interpreter.
#
#   scripts/make_bench_env.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wheels=target/wheels-release
python=$(scripts/make_python_env.sh bench)
tools=$(scripts/make_python_env.sh tools)
rm -rf "$wheels"
"${tools%/*}/maturin" build --quiet --release --locked --interpreter "$tools" \
    --manifest-path bindings/python/Cargo.toml --out "$wheels" >&2
"${tools%/*}/uv" pip install --quiet --python "$python" --no-index --no-deps --reinstall \
    "$wheels"/tensora_py-*.whl >&2
echo "$python"
