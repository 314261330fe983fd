#!/usr/bin/env bash
# How loads from Python compare with other loaders, with plain reads and with the library in Rust,
# written to results/python.tsv: one line a measure, ours and the rival as median (lowest-highest),
# their ratio, the goal and a verdict. A line is missed only where the ranges separate. Each load has
# a process of its own; a loader that is not installed has a line that says so. Wants a quiet machine
# and disk for about six times the size.
#
#   scripts/bench_python.sh [--quick] [--size MIB] [--only WORD]
#
# --quick takes 3 repetitions and not 7. --only takes the sections with the word in their name
# (1-cold, 1-warm, 5-cold, 5-warm, many, memory), and adds to the file. PYTHON is the interpreter that
# has the loaders, and tensora_py; without it scripts/make_bench_env.sh makes one. PROFILE is the program
# `profile`, built where it is not given. Exit code 1 when a line missed its goal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p results target/tmp

python=${PYTHON:-$(scripts/make_bench_env.sh)}
profile=${PROFILE:-}
if [ -z "$profile" ]; then
    cargo build --release --locked --quiet -p tensora-cli --bin profile
    profile=target/release/profile
fi

new=results/python.tsv.new
{
    echo "# scripts/bench_python.sh $*, $(date -u +%Y-%m-%d), $(nproc) cores, $(uname -sr)"
    "$python" bindings/python/benchmarks/bench.py --folder target/tmp/bench-python \
        --profile "$profile" "$@"
} | tee "$new"
case " $* " in
*" --only"*) cat "$new" >>results/python.tsv && rm "$new" ;;
*) mv "$new" results/python.tsv ;;
esac
! grep -q 'MISSED$' results/python.tsv
