#!/usr/bin/env bash
# Runs the pytest benchmarks of the Python package: warm loads by every loader that is installed.
#
#   export TENSORA_BENCH_MODELS=openai-community/gpt2
#   scripts/run_benchmarks.sh [PYTEST_ARGUMENT...]
#
# TENSORA_BENCH_MODELS        ids or paths, separated by commas or spaces; a sample where unset
# TENSORA_BENCH_SKIP_LOADERS  names of loaders to leave out, separated by commas
# TENSORA_BENCH_JSON          where the figures are written as JSON, too
# TENSORA_BENCH_NO_VLLM       set: nothing that starts vLLM
# PYTHON                      the interpreter that has the loaders; else scripts/make_bench_env.sh makes one
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python=${PYTHON:-$("$root/scripts/make_bench_env.sh")}
json=()
[ -z "${TENSORA_BENCH_JSON:-}" ] || json=("--benchmark-json=$TENSORA_BENCH_JSON")
exec "$python" -m pytest "$root/bindings/python/benchmarks" "${json[@]}" "$@"
