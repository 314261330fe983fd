#!/usr/bin/env python3
"""Parts of a tensor, as numpy arrays, without reading the rest of it.

    uv run python examples/numpy_slices.py path/to/model
    uv run python examples/numpy_slices.py path/to/model model.embed_tokens.weight --rank 3 --world 8

Needs numpy, and ml_dtypes for bfloat16 and float8.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import tensora_py


def main() -> int:
    options = arguments()
    try:
        with tensora_py.open(options.path, framework="numpy") as checkpoint:
            show(checkpoint, options.name, options.rank, options.world)
    except (tensora_py.TensoraError, NoRows) as error:
        print(f"numpy_slices.py: {error}", file=sys.stderr)
        return 1
    return 0


class NoRows(Exception):
    """There is nothing to slice."""


def show(checkpoint: tensora_py.Checkpoint, name: str | None, rank: int, world: int) -> None:
    """Reads some parts of a tensor, and says what each one cost."""
    info = checkpoint.info(largest(checkpoint) if name is None else name)
    if not info.shape or not info.nbytes:
        raise NoRows(f"tensor {info.name!r} of shape {info.shape} has no rows to choose from")
    print(f"{info.name}: {info.dtype} {info.shape}, {info.nbytes} bytes")

    rows = info.shape[0]
    # The first ranks get one row more where they cannot all have the same number.
    start = rank * (rows // world) + min(rank, rows % world)
    stop = (rank + 1) * (rows // world) + min(rank + 1, rows % world)
    read(checkpoint, info, f"rows {start} to {stop} (rank {rank} of {world})", slice(start, stop))
    read(checkpoint, info, "the last row", -1)
    read(checkpoint, info, "every fourth row", slice(None, None, 4))
    if len(info.shape) > 1:
        half = info.shape[-1] // 2
        read(checkpoint, info, f"columns 0 to {half}", (..., slice(0, half)))


def largest(checkpoint: tensora_py.Checkpoint) -> str:
    """The name of the tensor with the most bytes, of those that have rows."""
    infos = [info for info in map(checkpoint.info, checkpoint) if info.shape]
    if not infos:
        raise NoRows(f"{checkpoint.path}: no tensor has rows")
    return max(infos, key=lambda info: info.nbytes).name


def read(
    checkpoint: tensora_py.Checkpoint, info: tensora_py.TensorInfo, what: str, index: Any
) -> None:
    """Reads ``index`` of a tensor. The plan knows beforehand how many bytes that takes."""
    plan = checkpoint.plan(names=[info.name], slices={info.name: index})
    figures = plan.details["plan"]["figures"]
    array = checkpoint.get_slice(info.name)[index]
    print(
        f"{what}: shape {array.shape}, {figures['span_bytes']} of {info.nbytes} bytes read, "
        f"{figures['needed_bytes']} needed, sum {array.sum(dtype=float):.6g}"
    )


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Parts of a tensor, as numpy arrays.")
    parser.add_argument("path", help="a folder, a file, or the id of a model on the Hub")
    parser.add_argument("name", nargs="?", help="a tensor; by default the largest one")
    parser.add_argument("--rank", type=int, default=0, help="whose share of the rows (0)")
    parser.add_argument("--world", type=int, default=2, help="how many share them (2)")
    options = parser.parse_args()
    if options.world < 1:
        parser.error(f"--world {options.world} is less than 1")
    if not 0 <= options.rank < options.world:
        parser.error(f"--rank {options.rank} is not one of 0 to {options.world - 1}")
    return options


if __name__ == "__main__":
    sys.exit(main())
