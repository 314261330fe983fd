"""Checkpoints that the benchmarks load, as the environment names them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import samples

# Set where vLLM is not to be started, which takes a minute a benchmark.
collect_ignore_glob = ["*vllm*"] if os.environ.get("TENSORA_BENCH_NO_VLLM") else []

MODELS = os.environ.get("TENSORA_BENCH_MODELS", "").replace(",", " ").split()
SAMPLE = 64 << 20
"""Bytes of the sample that is loaded where no model is named."""


@pytest.fixture(scope="session", params=MODELS or ["sample"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of SafeTensors files, or one file."""
    folder = tmp_path_factory.mktemp("model")
    if not MODELS:
        samples.write(folder, list(samples.dense(SAMPLE)), 2)
        return folder
    import tensora_py

    with tensora_py.open(request.param, layout="safetensors") as opened:
        path = Path(opened.path)
    # Other formats are written beside the files: not into the model's folder.
    for file in samples.files_of(path):
        (folder / file.name).symlink_to(file.resolve())
    return folder
