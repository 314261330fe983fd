#!/usr/bin/env bash
# Measures what the core promises and writes it to results/: peak memory of eager loads and of
# streams on every backend (memory.tsv), and header parsing against the safetensors crate
# (headers.tsv). About three minutes, and 2 GiB of disk.
#
#   scripts/bench_core.sh [SIZE_MIB]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
size=${1:-2048}
mkdir -p results

{
    echo "# scripts/bench_core.sh $size, $(date -u +%Y-%m-%d), $(nproc) cores, $(uname -sr)"
    cargo bench --locked --bench memory -- "$size" | grep -v '^$'
} >results/memory.tsv

# Criterion prints "name time: [low mid high]"; the three are its 95 % interval of the mean.
{
    echo "# scripts/bench_core.sh, $(date -u +%Y-%m-%d), $(nproc) cores, $(uname -sr)"
    printf 'bench\tlow\tmid\thigh\n'
    cargo bench --locked --bench headers -- --warm-up-time 1 --measurement-time 5 2>/dev/null |
        awk '/^header_/ { name = $1 } /time:/ { gsub(/.*\[|\]/, ""); printf "%s\t%s %s\t%s %s\t%s %s\n", name, $1, $2, $3, $4, $5, $6 }'
} >results/headers.tsv

cat results/headers.tsv
tail -n 1 results/memory.tsv
