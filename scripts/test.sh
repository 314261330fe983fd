#!/usr/bin/env bash
# The one gate: everything that must pass before a change is merged. Runs from any folder.
#
#   scripts/test.sh           formatting, lints, all tests, documentation, scripts, Python, fuzz targets
#   scripts/test.sh --quick   formatting, lints, unit tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,5s/^# \{0,1\}//p' scripts/test.sh
}

quick=false
for argument in "$@"; do
    case $argument in
        --quick) quick=true ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            echo "test.sh: unknown argument: $argument" >&2
            usage >&2
            exit 2
            ;;
    esac
done

# Ends every run with one line: what passed, or where it stopped.
step="start"
steps=0
summary() {
    local status=$?
    echo
    if [[ $status -eq 0 ]]; then
        echo "test.sh: OK, $steps steps in $SECONDS s"
    else
        echo "test.sh: FAILED at \"$step\" after $steps passed steps and $SECONDS s (exit code $status)"
    fi
}
trap summary EXIT

run() {
    step=$1
    shift
    echo
    echo "==> $step"
    "$@"
    steps=$((steps + 1))
}

# A cargo subcommand that a minimal toolchain lacks.
need_component() {
    local component=$1
    shift
    if "$@" --version >/dev/null 2>&1; then
        return
    fi
    if command -v rustup >/dev/null && rustup component add "$component"; then
        return
    fi
    echo "test.sh: $component is missing, and rustup could not install it." >&2
    echo "         Install it with your toolchain: rustup component add $component," >&2
    echo "         or the $component package of your system." >&2
    return 1
}

check_scripts() {
    local file
    while IFS= read -r file; do
        bash -n "$file"
    done < <(find scripts .ci -name '*.sh' -o -path '.ci/run')
    if command -v python3 >/dev/null; then
        find scripts -name '*.py' -exec python3 -c '
import ast, sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        ast.parse(file.read(), path)
' {} +
    fi
    if command -v shellcheck >/dev/null; then
        find scripts .ci \( -name '*.sh' -o -path '.ci/run' \) -exec shellcheck {} +
    fi
}

run "rustfmt and clippy are here" need_component rustfmt cargo fmt
run "formatting" cargo fmt --all --check
need_component clippy cargo clippy
run "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
# Benches that run only when they are named are not among all targets.
run "lints of benches" cargo clippy --workspace --bench limits --bench memory --bench copies --locked -- -D warnings

if $quick; then
    run "unit tests" cargo test --workspace --lib --locked
    exit 0
fi

# Unit tests, tests/ and the examples of the documentation; never benches.
run "tests" cargo test --workspace --locked
# Published files come from the package index of Python; the tests that read them are ignored
# unless asked for, so that cargo test alone needs no network.
run "published files" scripts/fetch_real_files.sh
run "tests on published files" cargo test --workspace --locked --test real_files -- --ignored
# The same for huggingface_hub, which shares a cache with us in these tests.
run "huggingface_hub for Python" scripts/make_hub_env.sh
run "tests with huggingface_hub" cargo test --workspace --locked --test hub_python -- --ignored
run "unit tests without default features" cargo test -p tensora --no-default-features --lib --locked
run "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
run "scripts" check_scripts
# tensora_py as it is installed, in environments of pinned packages.
run "wheel of tensora_py" scripts/test_python.sh wheel
run "types of tensora_py" scripts/test_python.sh types
run "tensora_py with numpy" scripts/test_python.sh numpy
run "tensora_py with PyTorch" scripts/test_python.sh torch
# Formatted and compiled, but not linked: the fuzzing engine itself is C++ and wants nightly Rust.
# Not locked: a dependency that the library gains reaches this lock file here.
run "formatting of the fuzz targets" cargo fmt --manifest-path fuzz/Cargo.toml --check
run "fuzz targets" cargo check --manifest-path fuzz/Cargo.toml --no-default-features \
    --target-dir target/fuzz
