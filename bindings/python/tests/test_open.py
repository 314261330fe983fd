"""Opened checkpoints: what is known without reading, and tensors taken one by one."""

from __future__ import annotations

import collections.abc
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensora_py
from helpers import NUMPY, Stored, stored, write_safetensors, write_serverlessllm, write_shards


def test_a_checkpoint_has_its_names_as_a_dict_does(
    folder: Path, layout: str, model: dict[str, Stored]
) -> None:
    with tensora_py.open(folder) as checkpoint:
        assert set(checkpoint.keys()) == set(model) == set(checkpoint)
        assert len(checkpoint) == len(model)
        assert "scalar" in checkpoint
        assert "nothing" not in checkpoint
        assert 7 not in checkpoint
        assert checkpoint.layout == layout
        assert checkpoint.nbytes == sum(len(tensor.data) for tensor in model.values())
        assert Path(checkpoint.path) == folder
        assert repr(checkpoint) == f"Checkpoint({str(folder)!r}, {layout}, {len(model)} tensors)"
        for name, tensor in model.items():
            info = checkpoint.info(name)
            assert info == (name, tensor.dtype, tensor.shape, len(tensor.data))
            assert (info.name, info.shape) == (name, tensor.shape)


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_are_text_or_path_objects(shards: Path, kind: type) -> None:
    assert "scalar" in tensora_py.open(kind(shards))


def test_a_file_and_an_index_can_be_opened(tmp_path: Path) -> None:
    one = write_safetensors(tmp_path / "one.safetensors", {"w": stored("U8", (3,))}, {"k": "v"})
    assert tensora_py.open(one).metadata == {"k": "v"}
    assert tensora_py.open(one).path == str(one)
    with pytest.raises(tensora_py.TensorNotFoundError) as caught:
        tensora_py.open(one, framework="dlpack")["no"]
    assert caught.value.path == str(one)
    folder = write_shards(tmp_path / "two", {"a": stored("U8", (1,)), "b": stored("U8", (1,))}, 2)
    assert len(tensora_py.open(folder / "model.safetensors.index.json")) == 2
    assert tensora_py.open(folder).metadata == {"format": "pt"}
    assert tensora_py.open(folder).path == str(folder)


def test_a_folder_with_both_layouts_is_told_which(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": stored("F32", (1,))}, 1)
    write_serverlessllm(tmp_path, {"b": stored("F32", (1,))}, 1)
    assert list(tensora_py.open(tmp_path, layout="safetensors")) == ["a"]
    assert list(tensora_py.open(tmp_path, layout="serverlessllm")) == ["b"]
    with pytest.raises(ValueError, match="safetensors"):
        tensora_py.open(tmp_path, layout="gguf")


def test_tensors_are_taken_one_by_one(folder: Path, model: dict[str, Stored], backend: str) -> None:
    checkpoint = tensora_py.open(folder, backend=backend)
    for name, tensor in model.items():
        taken = checkpoint.get(name, framework="dlpack")
        assert (taken.name, taken.dtype, taken.shape) == (name, tensor.dtype, tensor.shape)
        assert bytes(taken) == tensor.data
        if tensor.dtype in NUMPY:
            array = checkpoint.get(name, framework="numpy")
            expected = np.frombuffer(tensor.data, NUMPY[tensor.dtype]).reshape(tensor.shape)
            np.testing.assert_array_equal(
                array.view("u1") if array.shape else array,
                expected.view("u1") if expected.shape else expected,
            )


def test_a_closed_checkpoint_says_so_and_leaves_its_tensors(
    shards: Path, model: dict[str, Stored]
) -> None:
    checkpoint = tensora_py.open(shards)
    kept = checkpoint.get("embed.weight", framework="numpy")
    part = checkpoint.get_slice("embed.weight", framework="numpy")
    checkpoint.close()
    checkpoint.close()
    assert repr(checkpoint) == "Checkpoint(closed)"
    for use in (
        lambda: checkpoint.keys(),
        lambda: checkpoint.get("scalar", framework="numpy"),
        lambda: checkpoint.nbytes,
        lambda: part[0],
    ):
        with pytest.raises(tensora_py.InvalidArgumentError, match="closed"):
            use()
    assert kept.tobytes() == model["embed.weight"].data


def test_an_unknown_backend_is_an_error_at_once(shards: Path) -> None:
    with pytest.raises(ValueError, match=r"magic.*io-uring|io-uring.*magic"):
        tensora_py.open(shards, backend="magic")


def test_a_plan_reads_nothing_and_says_what_it_would(
    shards: Path, model: dict[str, Stored]
) -> None:
    checkpoint = tensora_py.open(shards)
    plan = checkpoint.plan()
    assert set(plan.details) == {"plan", "schedule"}
    assert str(plan) == plan.text != ""
    total = sum(len(tensor.data) for tensor in model.values())
    assert plan.details["plan"]["figures"]["result_bytes"] == total
    part = checkpoint.plan(
        names=["embed.weight"], slices={"embed.weight": np.s_[:30]}, backend="sync", workers=2
    )
    assert part.details["plan"]["figures"]["result_bytes"] == 30 * 256 * 4
    assert "sync" in part.text


def test_a_handle_for_slices_knows_the_whole_tensor(shards: Path) -> None:
    part = tensora_py.open(shards).get_slice("embed.weight", framework="numpy")
    assert part.shape == (300, 256)
    assert part.dtype == "F32"
    assert part.get_shape() == [300, 256]
    assert part.get_dtype() == "F32"
    assert repr(part) == "Slice('embed.weight', F32, (300, 256))"


def test_a_checkpoint_outlives_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are opened again when tensors are taken, wherever the process is then."""
    monkeypatch.chdir(tmp_path)
    tensora_py.save({"a": np.arange(4.0)}, "m.safetensors")
    opened = tensora_py.open("m.safetensors", framework="numpy")
    monkeypatch.chdir("/")
    assert opened["a"].tolist() == [0, 1, 2, 3]


def test_items_come_one_at_a_time(folder: Path, model: dict[str, Stored], backend: str) -> None:
    checkpoint = tensora_py.open(folder, framework="numpy", backend=backend)
    items = checkpoint.items()
    assert iter(items) is items
    found = {name: array.tobytes() for name, array in items}
    assert found == {name: tensor.data for name, tensor in model.items()}
    assert list(found) == checkpoint.keys()
    assert [array.tobytes() for array in checkpoint.values()] == list(found.values())
    assert dict(checkpoint).keys() == found.keys()


def test_items_are_read_when_they_are_taken(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tensora_py.open(shards, framework="numpy")
    read = checkpoint._read
    asked: list[str] = []

    def noted(name: str, slices: Any) -> Any:
        asked.append(name)
        return read(name, slices)

    monkeypatch.setattr(checkpoint, "_read", noted)
    items, values = checkpoint.items(), checkpoint.values()
    assert asked == []
    name, array = next(items)
    assert asked == [name]
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None  # Nothing is kept.
    next(values)
    assert asked == [name, name]
    checkpoint.close()
    with pytest.raises(tensora_py.InvalidArgumentError, match="closed"):
        next(items)
    with pytest.raises(tensora_py.InvalidArgumentError, match="closed"):
        checkpoint.items()


def test_items_go_on_after_what_a_framework_lacks(tmp_path: Path) -> None:
    tensors = {"a": stored("F6_E2M3", (4,)), "b": stored("F32", (2,))}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    for items in (
        tensora_py.open(path, framework="numpy").items(),
        tensora_py.open(path, framework="numpy").values(),
    ):
        with pytest.raises(tensora_py.DtypeError, match="'a'"):
            next(items)
        assert len(list(items)) == 1


def test_checkpoints_are_compared_by_identity(shards: Path) -> None:
    checkpoint, other = tensora_py.open(shards), tensora_py.open(shards)
    assert checkpoint == checkpoint and checkpoint != other
    assert len({checkpoint, other}) == 2
    assert not isinstance(checkpoint, collections.abc.Mapping)


def test_a_checkpoint_is_pickled_as_its_path(shards: Path, model: dict[str, Stored]) -> None:
    with tensora_py.open(shards, framework="dlpack", backend="sync") as checkpoint:
        again = pickle.loads(pickle.dumps(checkpoint))
    assert again.path == str(shards) and again.layout == "safetensors"
    assert bytes(again["scalar"]) == model["scalar"].data
    with pytest.raises(tensora_py.InvalidArgumentError, match="closed"):
        pickle.dumps(checkpoint)
