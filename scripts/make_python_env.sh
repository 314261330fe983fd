#!/usr/bin/env bash
# Makes Python environments for the tests of tensora_py, in .test-env, and prints the path of each
# one's interpreter, one a line. What is there already is kept while its requirements, which are
# pinned in bindings/python/requirements, and its interpreter are the same.
#
#   scripts/make_python_env.sh NAME [PYTHON]
#
#   tools    uv and maturin
#   np       numpy and pytest: one environment for each minor version of CPython from 3.11 on
#   torch    the same with PyTorch and transformers: 5 GB
#   lint     mypy and ruff
#   bench    the loaders that tensora_py is compared with, PyTorch among them: 5 GB
#   bare     nothing at all
#
# Interpreters are looked for on PATH and among pyenv's versions, or PYTHON is the only one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requirements=bindings/python/requirements
# No interpreter comes from the network.
export UV_PYTHON_DOWNLOADS=never

fail() {
    echo "make_python_env.sh: $1" >&2
    exit 1
}

# Prints VERSION and PATH of every usable interpreter, the first of each version, oldest first.
interpreters() {
    local candidate versions=${PYENV_ROOT:-$HOME/.pyenv}/versions
    {
        for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
            type -aP "$candidate" || true
        done
        printf '%s\n' "$versions"/3.1[1-4]*/bin/python3
    } | awk '!seen[$0]++' | while IFS= read -r candidate; do
        # pyenv's shims are there for versions that are not active, and fail. The stable interface
        # that the wheel uses is not there without the global lock.
        [[ -x $candidate ]] && "$candidate" -I - 2>/dev/null <<'PYTHON' || true
import sys, sysconfig
if (
    sys.implementation.name == "cpython"
    and (3, 11) <= sys.version_info[:2] <= (3, 14)
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
):
    print(f"{sys.version_info[0]}.{sys.version_info[1]}", sys.executable)
PYTHON
    done | sort -t . -k 2n -s | awk '!seen[$1]++'
}

tools() {
    local python=$1 folder=.test-env/tools
    if is_good "$folder" "$requirements/tools.txt" "$python"; then
        return
    fi
    "$python" -m venv --clear "$folder" >&2 || fail \
        "$python cannot make a virtual environment; its venv module may be missing (Debian: apt install python3-venv)."
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r "$requirements/tools.txt" >&2 || fail "pip could not install uv and maturin; is there a network?"
    stamp "$folder" "$requirements/tools.txt" "$python"
}

# What an environment was made of: its requirements and the interpreter.
made_of() {
    cat "$1"
    "$2" -c 'import sys; print(sys.version, sys.base_prefix)'
}

is_good() {
    [[ -x $1/bin/python && -f $1/made-of.txt ]] && made_of "$2" "$3" | cmp -s - "$1/made-of.txt"
}

stamp() {
    made_of "$2" "$3" >"$1/made-of.txt"
}

# Makes the environment NAME-VERSION of requirements for an interpreter.
environment() {
    local folder=.test-env/$1-$2 python=$3 file=$4
    if ! is_good "$folder" "$file" "$python"; then
        rm -rf "$folder"
        "$uv" venv --quiet --no-project --python "$python" "$folder" >&2
        if [[ -s $file ]]; then
            "$uv" pip install --quiet --python "$folder/bin/python" --require-hashes -r "$file" >&2 ||
                fail "uv could not install $file for $python; is there a network?"
        fi
        stamp "$folder" "$file" "$python"
    fi
    echo "$PWD/$folder/bin/python"
}

name=${1:-}
case $name in
    tools | np | torch | lint | bench | bare) ;;
    *)
        sed -n '2,15s/^# \{0,1\}//p' scripts/make_python_env.sh >&2
        exit 2
        ;;
esac

if [[ -n ${2:-} ]]; then
    path=$(command -v "$2") || fail "there is no $2."
    found="$("$path" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}", sys.executable)')"
else
    found=$(interpreters)
fi
[[ -n $found ]] || fail "CPython 3.11, 3.12, 3.13 or 3.14 is missing; the tests of tensora_py need one of them."
# The oldest makes what is made once: all that is pinned has wheels for it.
read -r version python <<<"$found"
tools "$python"
uv=.test-env/tools/bin/uv
# uv does not read what pip was told about where packages are.
if [[ -z ${UV_DEFAULT_INDEX:-} ]]; then
    index=${PIP_INDEX_URL:-$(.test-env/tools/bin/python -m pip config get global.index-url 2>/dev/null || true)}
    [[ -z $index ]] || export UV_DEFAULT_INDEX=$index
fi

case $name in
    tools) echo "$PWD/.test-env/tools/bin/python" ;;
    np)
        while read -r version python <&3; do
            environment np "$version" "$python" "$requirements/numpy.txt"
        done 3<<<"$found"
        ;;
    bare) environment bare "$version" "$python" /dev/null ;;
    *) environment "$name" "$version" "$python" "$requirements/$name.txt" ;;
esac
