#!/usr/bin/env bash
# How close loads come to what this machine can do, written to results/limits.tsv: one line a
# measure, ours and the rival as median (lowest-highest), their ratio, the goal and a verdict. A line
# is missed only where the ranges separate. Wants a quiet machine, root for nothing, and disk and
# memory for about four times the size.
#
#   scripts/bench_limits.sh [--quick] [--size MIB] [--only WORD]
#
# --quick takes 3 repetitions and not 7. Exit code 1 when a line missed its goal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p results

cargo bench --locked --bench limits --no-run
{
    echo "# scripts/bench_limits.sh $*, $(date -u +%Y-%m-%d), $(nproc) cores, $(uname -sr)"
    # Its exit code says what the last line says.
    cargo bench --quiet --locked --bench limits -- "$@" || true
} | tee results/limits.tsv.new
mv results/limits.tsv.new results/limits.tsv
grep -q '^# 0 lines missed' results/limits.tsv
