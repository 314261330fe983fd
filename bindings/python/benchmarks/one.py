"""One load in a process of its own: ``python one.py LOADER PATH cold|warm|peak``.

Writes a JSON object: seconds until the tensors were there, seconds until a byte of every page of them
was read, the sum of these bytes, the part of the files that was in the page cache before, and by how
much memory in bytes the process grew at its peak.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import samples
from loaders import LOADERS, Tensors, touch

STREAM_BUDGET = 256 << 20
"""Bytes that the stream whose peak is measured may hold."""


def streamed(path: Path, files: list[Path]) -> Tensors:
    """Goes through a checkpoint and keeps nothing; for its memory, not for its time."""
    import tensora_py

    for name, tensor in tensora_py.iter_tensors(path, memory_budget=STREAM_BUDGET):
        touch({name: tensor})
        del tensor
    return {}


def _status(key: str) -> int:
    """A figure of the process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def back_memory(nbytes: int) -> None:
    """Touches so much memory and gives it back, until that is no faster than it was before: a virtual
    machine's host that has taken freed memory away gives it again now, at a tenth of the speed of
    memory that is there, and not to whoever is measured first."""
    before = math.inf
    while (took := _touched(nbytes)) < before * 0.7:
        before = took


def _touched(nbytes: int) -> float:
    """Seconds that it takes to touch so much new memory."""
    start = time.perf_counter()
    with mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, nbytes, mmap.PAGESIZE):
            memory[at] = 1
    return time.perf_counter() - start


def measure(
    load: Callable[[Path, list[Path]], Tensors], path: Path, files: list[Path], state: str
) -> dict[str, Any]:
    """Brings the files into the state, loads, and touches."""
    if state == "cold":
        samples.evict(files)
    else:
        samples.read(files)
    there = samples.resident(files)
    back_memory(sum(file.stat().st_size for file in files))
    # The peak starts from here, not from that of the imports.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS:")
    start = time.perf_counter()
    tensors = load(path, files)
    loaded = time.perf_counter()
    total = touch(tensors)
    touched = time.perf_counter()
    return {
        "load": loaded - start,
        "touched": touched - start,
        "sum": total,
        "resident": there,
        "peak": _status("VmHWM:") - before,
    }


def main() -> None:
    """Measures what the arguments say."""
    name, where, state = sys.argv[1:]
    path = Path(where)
    load: Callable[[Path, list[Path]], Tensors]
    needs: tuple[str, ...]
    if name == "streamed":
        load, needs, files = streamed, ("torch", "tensora_py"), samples.files_of(path)
    else:
        [loader] = [loader for loader in LOADERS if loader.name == name]
        load, needs, files = loader.load, loader.needs, loader.files(path)
    for package in needs:
        importlib.import_module(package)
    if "safetensors" in needs:
        importlib.import_module("safetensors.torch")
    if "torch" in needs:
        # What torch does once, on its first tensors, is not part of a load.
        import torch

        touch({"": torch.frombuffer(bytearray(1 << 20), dtype=torch.bfloat16).view(-1, 16)})
    # Some loaders write what they think to standard output.
    out = os.dup(1)
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        found = measure(load, path, files, state)
    os.write(out, json.dumps(found).encode() + b"\n")
    # Without giving the memory back piece by piece: nobody measures that.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
