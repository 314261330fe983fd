"""Reads of the files as they are, to compare loads with: no header is looked at, no tensor made."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

THREADS = 8
CHUNK = 4 << 20
"""Threads, and bytes of a read: with these this machine's raw reads are at their best."""

HUGE = 2 << 20


def fromfile(path: Path, files: list[Path]) -> dict[str, Any]:
    """One call a file."""
    import numpy

    return {file.name: numpy.fromfile(file, numpy.uint8) for file in files}


def memmap(path: Path, files: list[Path]) -> dict[str, Any]:
    """Mapped; bytes come when they are touched."""
    import numpy

    return {file.name: numpy.memmap(file, numpy.uint8, "r") for file in files}


def direct(path: Path, files: list[Path]) -> dict[str, Any]:
    """Threads that read around the page cache into fresh memory."""
    return _parallel(files, os.O_DIRECT)


def buffered(path: Path, files: list[Path]) -> dict[str, Any]:
    """Threads that read through the page cache into fresh memory."""
    return _parallel(files, 0)


def _parallel(files: list[Path], flags: int) -> dict[str, Any]:
    import numpy

    made = {}
    with ThreadPoolExecutor(THREADS) as pool:
        reads = []
        for file in files:
            size = file.stat().st_size
            memory = mmap.mmap(-1, -(-size // HUGE) * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            descriptor = os.open(file, os.O_RDONLY | flags)
            whole = memoryview(memory)
            for start in range(0, size, CHUNK):
                # Its end may lie beyond that of the file: direct reads have whole blocks.
                part = whole[start : start + CHUNK]
                reads.append(pool.submit(_read, descriptor, start, part, size))
            made[file.name] = (numpy.frombuffer(memory, numpy.uint8)[:size], descriptor)
        for read in reads:
            read.result()
    for _, descriptor in made.values():
        os.close(descriptor)
    return {name: array for name, (array, _) in made.items()}


def _read(descriptor: int, start: int, into: memoryview, size: int) -> None:
    wanted = min(len(into), size - start)
    done = 0
    while done < wanted:
        count = os.preadv(descriptor, [into[done:]], start + done)
        if not count:
            raise EOFError(f"the file ends at byte {start + done}, not at {size}")
        done += count
