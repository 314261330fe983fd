#!/usr/bin/env bash
# Type-checks the library for Windows and macOS from any machine: no linker, no SDK, no emulator.
# The standard library is built from source, which needs a nightly toolchain with rust-src:
#
#   rustup toolchain install nightly --component rust-src
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=(x86_64-pc-windows-msvc aarch64-apple-darwin)

missing() {
    echo "check_platforms.sh: $1 is missing; nothing was checked." >&2
    echo "                    Install it with: $2" >&2
    exit 1
}

cargo +nightly --version >/dev/null 2>&1 ||
    missing "a nightly toolchain" "rustup toolchain install nightly --component rust-src"
[[ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]] ||
    missing "the source of the standard library" "rustup component add rust-src --toolchain nightly"

# The TLS library has parts in C and assembler. Nothing is linked here, so that nothing needs them:
# instead of a compiler for each platform, something that makes empty files is enough.
stub=$(mktemp -d)
trap 'rm -rf "$stub"' EXIT
cat >"$stub/cc" <<'STUB'
#!/usr/bin/env bash
previous=
for argument in "$@"; do
    case $argument in
        -Fo*) : >"${argument#-Fo}" ;;
        *.a | *.lib) : >"${argument#-out:}" ;;
    esac
    [[ $previous != -o ]] || : >"$argument"
    previous=$argument
done
STUB
chmod +x "$stub/cc"

for target in "${targets[@]}"; do
    export "CC_${target//-/_}=$stub/cc" "AR_${target//-/_}=$stub/cc"
    for features in "" "--no-default-features"; do
        echo "==> $target $features"
        # shellcheck disable=SC2086  # an empty list of features is no argument
        cargo +nightly check -Zbuild-std=std,panic_abort --target "$target" -p tensora --lib --locked $features
    done
done
echo
echo "check_platforms.sh: OK, ${#targets[@]} platforms"
