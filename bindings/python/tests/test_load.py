"""Loads: everything at once, selections, budgets, and what they return."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensora_py
from helpers import Stored, sparse, stored, write_safetensors, write_shards


def same(tensors: dict[str, tensora_py.Tensor], model: dict[str, Stored]) -> None:
    assert set(tensors) == set(model)
    for name, tensor in model.items():
        found = tensors[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        assert bytes(found) == tensor.data, name
        assert found.nbytes == len(found) == len(tensor.data), name


def test_a_load_gives_all_tensors(folder: Path, model: dict[str, Stored], backend: str) -> None:
    same(tensora_py.load(folder, framework="dlpack", backend=backend), model)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_workers_change_nothing(
    shards: Path, model: dict[str, Stored], backend: str, workers: int
) -> None:
    same(tensora_py.load(shards, framework="dlpack", backend=backend, workers=workers), model)


def test_names_select(folder: Path, model: dict[str, Stored], backend: str) -> None:
    wanted = ["scalar", "layers.1.weight"]
    for names in (wanted, tuple(wanted), iter(wanted), set(wanted)):
        tensors = tensora_py.load(folder, framework="dlpack", backend=backend, names=names)
        same(tensors, {name: model[name] for name in wanted})
    assert tensora_py.load(folder, framework="dlpack", names=[]) == {}


def test_one_string_is_no_list_of_names(shards: Path) -> None:
    with pytest.raises(ValueError, match="list of names"):
        tensora_py.load(shards, framework="dlpack", names="scalar")


def test_slices_select_parts_along_with_whole_tensors(
    folder: Path, model: dict[str, Stored], backend: str
) -> None:
    tensors = tensora_py.load(
        folder,
        framework="numpy",
        backend=backend,
        names=["scalar", "embed.weight"],
        slices={"embed.weight": np.s_[10:200:7, 3]},
    )
    whole = np.frombuffer(model["embed.weight"].data, "<f4").reshape(300, 256)
    np.testing.assert_array_equal(
        tensors["embed.weight"].view("u4"), whole[10:200:7, 3].copy().view("u4")
    )
    assert tensors["scalar"].tobytes() == model["scalar"].data


def test_a_slice_of_a_tensor_that_is_not_selected_is_an_error(shards: Path) -> None:
    with pytest.raises(tensora_py.InvalidArgumentError, match="not selected"):
        tensora_py.load(
            shards, framework="numpy", names=["scalar"], slices={"embed.weight": np.s_[0]}
        )


def test_a_budget_that_is_too_small_is_refused_before_reading(tmp_path: Path) -> None:
    # 4 TiB: if this were read or allocated, it would be noticed.
    path = sparse(tmp_path / "huge.safetensors", "F32", {"w": (1 << 20, 1 << 20), "small": (4,)})
    with pytest.raises(tensora_py.OutOfMemoryError, match=str(1 << 20)) as caught:
        tensora_py.load(path, framework="dlpack", memory_budget=1 << 20)
    assert str((1 << 42) + 16) in str(caught.value)
    assert "iter_tensors" in str(caught.value)
    assert caught.value.kind == "OutOfMemory"
    # More than any machine has is refused also where tensors come one by one.
    with pytest.raises(tensora_py.OutOfMemoryError, match=str(1 << 42)) as caught:
        tensora_py.iter_tensors(path, framework="dlpack", memory_budget=1 << 20)
    assert caught.value.tensor == "w"
    tensors = tensora_py.load(path, framework="dlpack", memory_budget=16, names=["small"])
    assert list(tensors) == ["small"]
    part = tensora_py.load(
        path, framework="dlpack", names=["w"], memory_budget=80, slices={"w": np.s_[7:8, :20]}
    )
    assert part["w"].nbytes == 80
    with pytest.raises(tensora_py.InvalidArgumentError, match="7:8"):
        tensora_py.load(path, framework="dlpack", names=["w"], slices={"w": np.s_[7, :20]})


def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    path = sparse(tmp_path / "huge.safetensors", "F32", {"w": (1 << 20, 1 << 20)})
    with pytest.raises(MemoryError) as caught:
        tensora_py.load(path, framework="dlpack", backend="sync")
    assert isinstance(caught.value, tensora_py.OutOfMemoryError)


@pytest.mark.parametrize("align", [64, 4096])
def test_addresses_are_aligned_as_asked(folder: Path, backend: str, align: int) -> None:
    tensors = tensora_py.load(folder, framework="dlpack", backend=backend, align=align)
    assert [name for name, tensor in tensors.items() if tensor.data_ptr % align] == []
    for _, tensor in tensora_py.iter_tensors(
        folder, framework="dlpack", backend=backend, align=align
    ):
        assert tensor.data_ptr % align == 0


def test_an_alignment_that_is_no_power_of_two_is_an_error(shards: Path) -> None:
    for align in (3, 0):
        with pytest.raises(tensora_py.InvalidArgumentError):
            tensora_py.load(shards, framework="dlpack", align=align)


def test_nothing_negative_is_taken_for_a_size(shards: Path) -> None:
    for option in ("workers", "align", "memory_budget"):
        with pytest.raises(ValueError, match=f"{option} is -1"):
            list(tensora_py.iter_tensors(shards, framework="dlpack", **{option: -1}))


def test_empty_tensors_and_empty_files(tmp_path: Path, backend: str) -> None:
    tensors = {
        "none": stored("F32", (0, 7)),
        "some": stored("U8", (1,)),
        "also": stored("I64", (3, 0)),
    }
    folder = write_shards(tmp_path / "a", tensors, 1)
    loaded = tensora_py.load(folder, framework="numpy", backend=backend)
    assert {name: array.shape for name, array in loaded.items()} == {
        "none": (0, 7),
        "some": (1,),
        "also": (3, 0),
    }
    empty = write_safetensors(tmp_path / "empty.safetensors", {})
    assert tensora_py.load(empty, framework="numpy", backend=backend) == {}


def test_a_string_shows_name_dtype_and_shape(tiny: Path) -> None:
    tensor = tensora_py.load(tiny, framework="dlpack")["w"]
    assert repr(tensor) == 'Tensor("w", F32, [2])'
    assert tensor.data_ptr % 4 == 0


def test_a_load_is_whole_while_files_are_replaced(tmp_path: Path) -> None:
    """Whoever replaces a file by another one leaves it whole at every moment."""
    path = tmp_path / "m.safetensors"
    versions = [{f"w{i}": np.full(1 << 18, value, "f4") for i in range(4)} for value in (1, 2)]
    tensora_py.save(versions[0], path)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for version in versions:
                tensora_py.save(version, path)
                time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            tensors = tensora_py.load(path, framework="numpy")
            assert (
                len({float(value) for tensor in tensors.values() for value in tensor[::4096]}) == 1
            )
    finally:
        done.set()
        writer.join()


def test_what_memory_cannot_hold_is_refused_by_every_backend(tmp_path: Path, backend: str) -> None:
    path = sparse(tmp_path / "huge.safetensors", "U8", {"w": (1 << 42,)})
    with pytest.raises(tensora_py.OutOfMemoryError) as caught:
        tensora_py.load(path, framework="dlpack", backend=backend)
    # In whole pages, or with the beginning of the file.
    assert caught.value.path == str(path) and str(1 << 42)[:9] in str(caught.value)
    with pytest.raises(tensora_py.TensorNotFoundError) as missing:
        tensora_py.load(path, framework="dlpack", names=["x"])
    assert missing.value.path == str(path)
    with tensora_py.open(path, framework="dlpack") as checkpoint:
        assert checkpoint.get_slice("w")[:3].shape == (3,)
