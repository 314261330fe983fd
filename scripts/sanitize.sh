#!/usr/bin/env bash
# Looks for undefined behaviour: Miri over the unit tests of the files that hold raw memory, and
# AddressSanitizer over all unit tests of the library, real system calls included. Needs a nightly
# toolchain:
#
#   rustup toolchain install nightly --component rust-src --component miri
#
#   scripts/sanitize.sh          both
#   scripts/sanitize.sh miri     one of them
#   scripts/sanitize.sh asan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where raw memory is handled without system calls, which Miri does not know: regions, and jobs over
# sources in memory, read by threads and by a scripted ring that writes as late as a kernel.
miri_filters=(storage::region storage::arena storage::progress storage::staging storage::backends)
# Leaves memory behind on purpose, as a broken ring does, which the leak detectors would report.
leaks=a_broken_ring_never_answers
host=$(rustc -vV | sed -n 's/^host: //p')

missing() {
    echo "sanitize.sh: $1 is missing." >&2
    echo "             Install it with: $2" >&2
    exit 1
}

cargo +nightly --version >/dev/null 2>&1 ||
    missing "a nightly toolchain" "rustup toolchain install nightly --component rust-src --component miri"

miri() {
    cargo +nightly miri --version >/dev/null 2>&1 ||
        missing "Miri" "rustup component add miri --toolchain nightly"
    [[ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]] ||
        missing "the source of the standard library" "rustup component add rust-src --toolchain nightly"
    echo "==> Miri: ${miri_filters[*]}"
    # Temporary files of the tests are real.
    MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation" \
        cargo +nightly miri test -p tensora --lib --locked -- "${miri_filters[@]}" --skip "$leaks"
}

asan() {
    echo "==> AddressSanitizer: unit tests"
    # A target is named so that build scripts and macros are built without the sanitizer.
    RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address" \
        cargo +nightly test --target "$host" --target-dir target/asan \
        -p tensora --lib --locked -- --skip "$leaks"
}

case ${1:-both} in
    both)
        miri
        asan
        ;;
    miri) miri ;;
    asan) asan ;;
    *)
        echo "sanitize.sh: unknown argument: $1 (miri, asan, or nothing for both)" >&2
        exit 2
        ;;
esac
echo
echo "sanitize.sh: OK"
