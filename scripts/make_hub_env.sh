#!/usr/bin/env bash
# Makes the Python environment of tests/hub_python.rs: a virtual environment with a pinned
# huggingface_hub, in .test-env/hub. What is there already is kept.
#
#   scripts/make_hub_env.sh [FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-${TENSORA_HUB_ENV:-.test-env/hub}}
version=2.4.0

python=$(command -v python3 || command -v python) || {
    echo "make_hub_env.sh: Python 3 is missing; it is needed to install huggingface_hub." >&2
    exit 1
}
if [[ $("$folder/bin/python" -c 'import huggingface_hub; print(huggingface_hub.__version__)' 2>/dev/null) == "$version" ]]; then
    exit 0
fi
"$python" -m venv --clear "$folder" || {
    echo "make_hub_env.sh: cannot make a virtual environment; the venv module of Python may be missing." >&2
    exit 1
}
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "huggingface_hub==$version" || {
    echo "make_hub_env.sh: pip could not install huggingface_hub $version; is there a network?" >&2
    exit 1
}
