#!/usr/bin/env bash
# Tests tensora_py as it is installed: one wheel, in environments of scripts/make_python_env.sh.
#
#   scripts/test_python.sh [STEP...] [-- ARGUMENTS OF PYTEST]
#
#   wheel    builds it into target/wheels
#   types    formatting, lints, mypy, and the types of the native module against the module itself
#   numpy    the tests without PyTorch, with every CPython from 3.11 on that is there, and in an
#            environment that has the wheel and nothing else; those marked heavy with one of them
#   torch    all but the heavy ones with PyTorch (5 GB are installed)
#
# Without a step: all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wheels=target/wheels
# What is tested is what was installed, whatever the caller has set.
unset PYTHONPATH

fail() {
    echo "test_python.sh: $1" >&2
    exit 1
}

the_wheel() {
    local found=("$wheels"/tensora_py-*.whl)
    [[ ${#found[@]} -eq 1 && -f ${found[0]} ]] || fail "there is no wheel in $wheels; run the step wheel."
    echo "${found[0]}"
}

# Puts the wheel into the environment of an interpreter, in the place of an earlier one.
put_wheel() {
    .test-env/tools/bin/uv pip install --quiet --python "$1" --no-index --no-deps --reinstall "$(the_wheel)"
}

# Runs pytest from the folder of the tests, where the sources of the package cannot be imported.
pytest_with() {
    local python=$1
    shift
    "$python" -c 'import sys; print("CPython", sys.version.split()[0])'
    (cd bindings/python && TENSORA_TEST_INSTALLED=1 "$python" -m pytest --quiet -p no:cacheprovider "$@")
}

wheel() {
    local python
    python=$(scripts/make_python_env.sh tools)
    rm -rf "$wheels"
    "${python%/*}/maturin" build --quiet --profile wheel --locked --interpreter "$python" \
        --manifest-path bindings/python/Cargo.toml --out "$wheels"
    the_wheel
}

types() {
    local python bin
    python=$(scripts/make_python_env.sh lint)
    bin=${python%/*}
    put_wheel "$python"
    (
        cd bindings/python
        "$bin/ruff" format --no-cache --check .
        "$bin/ruff" check --no-cache .
        "$bin/mypy" --cache-dir "$OLDPWD/target/mypy" --strict python/tensora_py
        "$bin/stubtest" --ignore-unused-allowlist --allowlist tests/stubtest.txt tensora_py._native
    )
}

numpy() {
    local bare python found marks="not torch"
    bare=$(scripts/make_python_env.sh bare)
    put_wheel "$bare"
    found=$(scripts/make_python_env.sh np)
    while IFS= read -r python <&3; do
        put_wheel "$python"
        TENSORA_TEST_BARE=$bare pytest_with "$python" -m "$marks" "$@"
        marks="not torch and not heavy"
    done 3<<<"$found"
}

torch() {
    local python
    python=$(scripts/make_python_env.sh torch)
    put_wheel "$python"
    TENSORA_TEST_TORCH=1 pytest_with "$python" -m "torch or not heavy" "$@"
}

steps=()
while [[ $# -gt 0 ]]; do
    case $1 in
        wheel | types | numpy | torch) steps+=("$1") ;;
        --)
            shift
            break
            ;;
        *)
            sed -n '2,13s/^# \{0,1\}//p' scripts/test_python.sh >&2
            exit 2
            ;;
    esac
    shift
done
[[ ${#steps[@]} -gt 0 ]] || steps=(wheel types numpy torch)
for step in "${steps[@]}"; do
    case $step in
        wheel | types) "$step" ;;
        numpy | torch) "$step" "$@" ;;
    esac
done
