"""A progress bar where there is somebody to see it."""

from __future__ import annotations

import os
import sys
from typing import Any


class Progress:
    """Counts bytes towards a total, with tqdm where it is installed, in terminals and notebooks."""

    def __init__(self, total: int | None) -> None:
        self._bar = None if total is None else _bar(total)

    def add(self, nbytes: int) -> None:
        """So many bytes more."""
        if self._bar is not None:
            self._bar.update(nbytes)

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(total: int) -> Any:
    # One process of many says enough.
    if os.environ.get("RANK", "0") not in ("", "0"):
        return None
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return _Line(total) if sys.stderr is not None and sys.stderr.isatty() else None
    # A notebook is no terminal, and shows bars of its own.
    notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
    if sys.stderr is None and not notebook:
        return None
    # None: only where it is a terminal.
    disable = False if notebook else None
    return tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=disable)


class _Line:
    """One line on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._shown = -1

    def update(self, nbytes: int) -> None:
        self._done += nbytes
        percent = 100 * self._done // max(self._total, 1)
        if percent != self._shown:
            self._shown = percent
            print(f"\rloading {percent:3} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)
