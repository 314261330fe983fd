"""Tensors as they arrive."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import tensora_py
from helpers import Stored, read_safetensors, sparse, stored, write_safetensors, write_shards


def test_every_tensor_comes_once(folder: Path, model: dict[str, Stored], backend: str) -> None:
    seen = {}
    for name, tensor in tensora_py.iter_tensors(folder, framework="dlpack", backend=backend):
        assert name not in seen
        seen[name] = bytes(tensor)
    assert seen == {name: tensor.data for name, tensor in model.items()}


@pytest.mark.parametrize("memory_budget", [1, 4096, 1 << 30])
def test_any_budget_gives_everything(
    shards: Path, model: dict[str, Stored], backend: str, memory_budget: int
) -> None:
    options = {"framework": "dlpack", "backend": backend, "memory_budget": memory_budget}
    largest = max(len(tensor.data) for tensor in model.values())
    try:
        seen = {name: bytes(tensor) for name, tensor in tensora_py.iter_tensors(shards, **options)}
    except tensora_py.OutOfMemoryError as error:
        # Not with less than one tensor takes: and that is said before the first.
        assert memory_budget < largest
        assert str(memory_budget) in str(error)
        return
    assert seen == {name: tensor.data for name, tensor in model.items()}


def test_what_is_left_is_counted(shards: Path, model: dict[str, Stored]) -> None:
    with tensora_py.iter_tensors(shards, framework="dlpack") as tensors:
        assert len(tensors) == len(model)
        next(tensors)
        assert len(tensors) == len(model) - 1
    assert len(tensors) == 0
    assert list(tensors) == []


@pytest.mark.heavy
def test_leaving_early_ends_the_load(tmp_path: Path, backend: str) -> None:
    # 256 GiB take minutes.
    shapes = {f"t{number:04}": (1 << 24,) for number in range(1 << 12)}
    path = sparse(tmp_path / "huge.safetensors", "F32", shapes)
    options = {"framework": "dlpack", "backend": backend, "memory_budget": 128 << 20}
    for _ in tensora_py.iter_tensors(path, **options):
        break
    gc.collect()
    with tensora_py.iter_tensors(path, **options) as tensors:
        next(tensors)
    tensors = tensora_py.iter_tensors(path, **options)
    next(tensors)
    tensors.close()
    tensors.close()
    with pytest.raises(StopIteration):
        next(tensors)


def test_tensors_stay_when_the_iterator_is_gone(shards: Path, model: dict[str, Stored]) -> None:
    kept = dict(
        tensora_py.iter_tensors(shards, framework="numpy", names=["embed.weight", "scalar"])
    )
    gc.collect()
    assert kept["embed.weight"].tobytes() == model["embed.weight"].data
    assert kept["scalar"].shape == ()


def test_slices_lose_the_dimensions_that_numbers_index(
    shards: Path, model: dict[str, Stored]
) -> None:
    slices = {"embed.weight": np.s_[-1, ::50]}
    [(name, row)] = tensora_py.iter_tensors(
        shards, framework="numpy", names=["embed.weight"], slices=slices
    )
    whole = np.frombuffer(model["embed.weight"].data, "<f4").reshape(300, 256)
    assert name == "embed.weight"
    np.testing.assert_array_equal(row.view("u4"), whole[-1, ::50].copy().view("u4"))


def test_a_dtype_that_numpy_lacks_does_not_end_the_rest(tmp_path: Path) -> None:
    tensors = {
        "a": stored("F6_E2M3", (4, 4)),
        "b": stored("F32", (3,)),
        "c": stored("F6_E3M2", (8,)),
        "d": stored("U8", (2,)),
    }
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    found, failed = [], []
    with tensora_py.iter_tensors(path, framework="numpy") as iterator:
        while True:
            try:
                name, _ = next(iterator)
            except StopIteration:
                break
            except tensora_py.DtypeError as error:
                failed.append(error.tensor)
            else:
                found.append(name)
    assert (sorted(found), sorted(failed)) == (["b", "d"], ["a", "c"])


def test_a_file_that_shrinks_is_an_error_and_never_short_data(tmp_path: Path) -> None:
    tensors = {f"t{number}": stored("U8", (1 << 18,), number) for number in range(64)}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    iterator = tensora_py.iter_tensors(
        path, framework="dlpack", backend="sync", workers=1, memory_budget=1 << 19
    )
    first, tensor = next(iterator)
    assert bytes(tensor) == tensors[first].data
    with path.open("r+b") as file:
        file.truncate(5 << 19)
    got = [first]
    with pytest.raises(tensora_py.TensoraError) as caught:
        for name, tensor in iterator:
            assert bytes(tensor) == tensors[name].data
            got.append(name)
    assert caught.value.kind in ("Truncated", "SourceChanged")
    assert caught.value.path == str(path)
    assert len(got) < 64


def test_published_bytes_are_read_as_they_are(tmp_path: Path) -> None:
    tensors = {f"t{number}": stored("U8", (number * 997,), number) for number in range(200)}
    folder = write_shards(tmp_path, tensors, 7)
    oracle = {}
    for file in folder.glob("*.safetensors"):
        oracle.update(read_safetensors(file))
    assert {n: bytes(t) for n, t in tensora_py.iter_tensors(folder, framework="dlpack")} == {
        name: tensor.data for name, tensor in oracle.items()
    }


def test_a_failure_is_told_again(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "m.safetensors", {f"w{i}": stored("U8", (1 << 20,)) for i in range(8)}
    )
    tensors = tensora_py.iter_tensors(path, framework="dlpack", memory_budget=1 << 20)
    next(tensors)
    os.utime(path, ns=(1, 1))
    time.sleep(0.1)
    for _ in range(3):
        with pytest.raises(tensora_py.LoadError) as caught:
            next(tensors)
        assert caught.value.kind == "SourceChanged"
    tensors.close()


def test_an_iterator_is_not_copied(shards: Path) -> None:
    tensors = tensora_py.iter_tensors(shards, framework="dlpack")
    for use in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copied or pickled"):
            use(tensors)
    gc.collect()
    assert len(list(tensors)) == len(tensora_py.open(shards))
