"""Warm loads by every loader that is installed, until a byte of every page was read.

These run in one process and share its memory allocator; ``scripts/bench_python.sh`` measures each load
in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import samples
from loaders import Loader, chosen, prepare, touch


@pytest.mark.parametrize("loader", chosen(), ids=lambda loader: loader.name.replace(" ", "-"))
def test_load(benchmark: Any, loader: Loader, checkpoint: Path) -> None:
    if missing := loader.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    prepare(loader, checkpoint)
    files = loader.files(checkpoint)
    samples.read(files)
    benchmark.extra_info["bytes"] = sum(file.stat().st_size for file in files)
    total = benchmark.pedantic(
        lambda: touch(loader.load(checkpoint, files)), rounds=3, warmup_rounds=1
    )
    if loader.kind != "raw":
        from safetensors.torch import load_file

        expected = sum(touch(load_file(file)) for file in samples.files_of(checkpoint))
        assert total == expected
