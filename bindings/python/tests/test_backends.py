"""Every backend on larger files: equal to a reader of the tests' own, and to the reference reader."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import tensora_py
from helpers import BACKENDS, Stored, read_safetensors, stored, usable_backends, write_layout

# The library alone: once is enough.
pytestmark = pytest.mark.heavy

MIB = 1 << 20


def digests(tensors: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], str]]:
    found = {}
    for name, tensor in tensors.items():
        data = tensor.data if isinstance(tensor, Stored) else tensor
        found[name] = (tensor.dtype, tuple(tensor.shape), hashlib.sha256(data).hexdigest())
    return found


@pytest.fixture(scope="module")
def large() -> dict[str, Stored]:
    """Tensors of many chunks, of odd sizes, and between them many that are tiny."""
    random = np.random.default_rng(7)
    tensors = {}
    for number, size in enumerate((23 * MIB + 17, 5 * MIB, 1, 4096, 3 * MIB - 1, 9)):
        data = random.integers(0, 256, size, "u1").tobytes()
        tensors[f"large.{number}"] = Stored("U8", (size,), data)
    for number in range(500):
        tensors[f"tiny.{number}"] = stored("F16", (number % 7, 3), number)
    return tensors


@pytest.fixture(scope="module", params=["safetensors", "serverlessllm"])
def files(
    request: pytest.FixtureRequest,
    large: dict[str, Stored],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    return write_layout(tmp_path_factory.mktemp("large") / "m", request.param, large)


def forget(folder: Path) -> None:
    """Asks the system to drop what it has cached of the files."""
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.mark.parametrize("cold", [False, True], ids=["cached", "from the disk"])
def test_large_and_tiny_tensors_are_equal(
    files: Path, large: dict[str, Stored], backend: str, cold: bool
) -> None:
    expected = digests(large)
    if cold:
        forget(files)
    assert digests(tensora_py.load(files, framework="dlpack", backend=backend)) == expected
    if cold:
        forget(files)
    options = {"framework": "dlpack", "backend": backend, "memory_budget": 32 * MIB}
    assert digests(dict(tensora_py.iter_tensors(files, **options))) == expected
    checkpoint = tensora_py.open(files, backend=backend)
    taken = {name: checkpoint.get(name, framework="dlpack") for name in checkpoint}
    assert digests(taken) == expected


def test_a_reader_of_the_tests_agrees_with_the_reference(
    shards: Path, model: dict[str, Stored]
) -> None:
    """The oracle is right, too."""
    oracle = {}
    for file in shards.glob("*.safetensors"):
        oracle.update(read_safetensors(file))
        for name, entry in safetensors.deserialize(file.read_bytes()):
            assert tuple(entry["shape"]) == oracle[name].shape
            assert bytes(entry["data"]) == oracle[name].data
    assert oracle == model


def test_files_of_the_reference_writer(tmp_path: Path, backend: str) -> None:
    random = np.random.default_rng(1)
    arrays = {
        "a": random.normal(size=(50, 30)).astype("f4"),
        "b": random.integers(-9, 9, (7, 1, 3), "i8"),
        "c": np.array(True),
        "d": np.zeros((0, 4), "f2"),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "m.safetensors", metadata={"from": "there"})
    loaded = tensora_py.load(tmp_path / "m.safetensors", framework="numpy", backend=backend)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    assert tensora_py.open(tmp_path / "m.safetensors").metadata == {"from": "there"}


def test_plans_name_the_backend(shards: Path) -> None:
    checkpoint = tensora_py.open(shards)
    for backend in usable_backends():
        plan = checkpoint.plan(backend=backend)
        decision = plan.details["schedule"]["decision"]
        assert decision["requested"] == backend
        assert decision["reason"]
        assert decision["backend"] in plan.text
        if backend == "default":
            assert decision["backend"] in BACKENDS
        else:
            assert decision["backend"] == backend


def test_backends_have_their_names_and_no_others(tiny: Path) -> None:
    for name in ("tokio", "io_uring"):
        tensora_py.open(tiny, backend=name)
    for name in ("", "SYNC ", "uring", "default\0"):
        with pytest.raises(ValueError, match="default"):
            tensora_py.load(tiny, framework="dlpack", backend=name)


def published() -> list[Path]:
    """Files that packages have published; the gate fetches them."""
    root = Path(__file__).resolve().parents[3]
    folder = Path(os.environ.get("TENSORA_REAL_FILES", root / "target" / "real-files"))
    return sorted(folder.glob("*/*.safetensors"))


@pytest.mark.skipif(not published(), reason="scripts/fetch_real_files.sh fetches published files")
def test_published_files_are_equal(backend: str) -> None:
    for path in published():
        loaded = tensora_py.load(path, framework="dlpack", backend=backend)
        assert digests(loaded) == digests(read_safetensors(path))
