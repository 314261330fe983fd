#!/usr/bin/env bash
# Pins what the Python environments of the tests consist of: bindings/python/requirements/NAME.in to
# NAME.txt, for every CPython from 3.11 on, with hashes and without addresses. Run it to move to newer
# versions; scripts/make_python_env.sh installs what is pinned.
#
#   scripts/pin_python.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=.test-env/tools/bin/uv
if [[ ! -x $uv ]]; then
    scripts/make_python_env.sh tools >/dev/null
fi
for file in bindings/python/requirements/*.in; do
    echo "pinning $file"
    UV_PYTHON_DOWNLOADS=never "$uv" pip compile --quiet --upgrade --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url --no-annotate \
        --custom-compile-command scripts/pin_python.sh "$file" --output-file "${file%.in}.txt"
done
