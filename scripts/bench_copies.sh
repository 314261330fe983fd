#!/usr/bin/env bash
# How conversions compare with cp and fsync of the same files, what verifying and hashing cost, and
# how much memory a conversion of 4 GiB takes, written to results/copies.tsv: one line a measure,
# ours and the rival as median (lowest-highest), their ratio, the goal and a verdict. A line is
# missed only where the ranges separate. Wants a quiet machine, root for nothing, and 13 GiB of disk.
#
#   scripts/bench_copies.sh [--quick] [--size MIB] [--only WORD]
#
# --quick takes 3 repetitions and not 7. Exit code 1 when a line missed its goal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p results

cargo bench --locked --features digest --bench copies --no-run
{
    echo "# scripts/bench_copies.sh $*, $(date -u +%Y-%m-%d), $(nproc) cores, $(uname -sr)"
    # Its exit code says what the last line says.
    cargo bench --quiet --locked --features digest --bench copies -- "$@" || true
} | tee results/copies.tsv.new
mv results/copies.tsv.new results/copies.tsv
grep -q '^# 0 lines missed' results/copies.tsv
