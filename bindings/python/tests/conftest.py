"""Which tests run, and the checkpoints that they share."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import tensora_py
from helpers import BACKENDS, BITS, LAYOUTS, SERVERLESS, Stored, stored, write_layout, write_shards
from hypothesis import settings

# A gate gives the same answer to the same code; HYPOTHESIS_PROFILE=default looks for what is new.
settings.register_profile("gate", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

TORCH = os.environ.get("TENSORA_TEST_TORCH") == "1"


def pytest_report_header() -> str:
    return f"tensora_py: {os.path.dirname(tensora_py.__file__)}"


def pytest_configure() -> None:
    # The gate tests the wheel, and not by accident the folder of the sources.
    if os.environ.get("TENSORA_TEST_INSTALLED") == "1":
        assert "site-packages" in tensora_py.__file__, tensora_py.__file__
    # What the caller's environment says about the Hub and about processes is not ours, and neither
    # is a proxy on the way to servers on loopback.
    for name in list(os.environ):
        if name == "RANK" or name.startswith("HF_") or name.lower().endswith("_proxy"):
            del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of PyTorch run where they are asked for; a missing torch fails them there."""
    if TORCH or config.option.markexpr == "torch":
        if importlib.util.find_spec("torch") is None:
            raise pytest.UsageError("the tests of PyTorch are to run, but torch is not installed")
        return
    skip = pytest.mark.skip(reason="tests of PyTorch run with TENSORA_TEST_TORCH=1")
    for item in items:
        if "torch" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tiny: Path) -> str:
    """Each backend that can run here; only io_uring may be unable to."""
    name: str = request.param
    if name == "io-uring":
        try:
            tensora_py.load(tiny, framework="dlpack", backend=name)
        except tensora_py.UnavailableError as error:
            pytest.skip(str(error))
    return name


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tensor of 8 bytes."""
    folder = tmp_path_factory.mktemp("tiny")
    return write_shards(folder, {"w": stored("F32", (2,))}, 1)


@pytest.fixture(scope="session")
def model() -> dict[str, Stored]:
    """Tensors of every dtype that both layouts have, of sizes on both sides of a page."""
    tensors = {}
    for number, dtype in enumerate(SERVERLESS):
        tensors[f"layers.{number}.weight"] = stored(dtype, (33 + number, 64), number)
        tensors[f"layers.{number}.bias"] = stored(dtype, (5,), number)
    tensors["embed.weight"] = stored("F32", (300, 256))
    tensors["scalar"] = stored("F32", ())
    return tensors


@pytest.fixture
def folder(tmp_path: Path, layout: str, model: dict[str, Stored]) -> Path:
    """The model in each layout, in two files."""
    return write_layout(tmp_path / "model", layout, model)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, model: dict[str, Stored]) -> Path:
    """The model as SafeTensors. Nobody may change it."""
    return write_layout(tmp_path_factory.mktemp("shards"), "safetensors", model)


@pytest.fixture(scope="session")
def every_dtype(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Stored]]:
    """A tensor of each dtype, named by it."""
    tensors = {dtype: stored(dtype, (4, 8)) for dtype in BITS}
    return write_shards(tmp_path_factory.mktemp("dtypes"), tensors, 1), tensors
