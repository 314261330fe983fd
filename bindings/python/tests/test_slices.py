"""Slices against numpy: whatever stands between brackets gives the same elements."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensora_py
from helpers import LAYOUTS, SERVERLESS, elements, stored, usable_backends, write_layout
from hypothesis import given, settings
from hypothesis import strategies as st
from tensora_py._slices import window

SETTINGS = settings(max_examples=40, deadline=None)
SIZES = {"F32": "<u4", "F16": "<u2", "BF16": "<u2", "U8": "u1", "I16": "<u2", "I64": "<u8"}
assert set(SIZES) == set(SERVERLESS)

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@st.composite
def indexes(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Anything that is allowed: numbers, slices with positive steps, and one ellipsis, or fewer of
    them than there are dimensions."""
    items: list[Any] = []
    for rows in shape:
        bound = st.none() | st.integers(-rows - 3, rows + 3)
        step = st.none() | st.integers(1, rows + 2)
        cut = st.builds(slice, bound, bound, step)
        row = st.integers(-rows, rows - 1) if rows else cut
        items.append(draw(st.one_of(cut, cut, row, st.just(slice(None)))))
    kept = draw(st.integers(0, len(items)))
    if kept == len(items) and not draw(st.booleans()):
        return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)
    front = draw(st.integers(0, kept))
    given = [*items[:front], *([Ellipsis] if kept < len(items) or draw(st.booleans()) else [])]
    back = kept - front
    if Ellipsis in given:
        given += items[len(items) - back :] if back else []
    else:
        given += items[front : front + back]
    return tuple(given)


def array(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    return np.frombuffer(data, SIZES[dtype]).reshape(shape)


@SETTINGS
@given(st.data())
def test_windows_are_what_numpy_takes(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    index = data.draw(indexes(shape))
    numbers = np.arange(elements(shape)).reshape(shape)
    part = window(shape, index)
    assert part.shape == numbers[index].shape
    cuts = tuple(
        slice(None) if dim is None else slice(dim[0], dim[0] + dim[1] * dim[2], dim[2])
        for dim in part.dims
    )
    np.testing.assert_array_equal(numbers[cuts].reshape(part.shape), numbers[index])


@pytest.mark.parametrize("stored_as", LAYOUTS)
@SETTINGS
@given(data=st.data())
def test_random_slices_are_those_of_numpy(stored_as: str, data: st.DataObject) -> None:
    """Each tensor of a small checkpoint by a random index, by every way to read it."""
    tensors = {
        f"t{number}": stored(dtype, shape, number)
        for number, (dtype, shape) in enumerate(
            data.draw(
                st.lists(st.tuples(st.sampled_from(sorted(SIZES)), shapes), min_size=1, max_size=4)
            )
        )
    }
    slices = {name: data.draw(indexes(tensor.shape)) for name, tensor in tensors.items()}
    backend = data.draw(st.sampled_from(usable_backends()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_layout(Path(temporary) / "m", stored_as, tensors)
        loaded = tensora_py.load(folder, framework="numpy", backend=backend, slices=slices)
        streamed = dict(
            tensora_py.iter_tensors(folder, framework="numpy", backend=backend, slices=slices)
        )
        checkpoint = tensora_py.open(folder, backend=backend)
        for name, tensor in tensors.items():
            expected = array(tensor.dtype, tensor.shape, tensor.data)[slices[name]]
            part = checkpoint.get_slice(name, framework="numpy")[slices[name]]
            for found in (loaded[name], streamed[name], part):
                assert found.shape == expected.shape, (slices[name], tensor.shape)
                assert found.tobytes() == expected.tobytes(), (slices[name], tensor.shape)
                assert found.flags.c_contiguous


def test_larger_slices_on_each_backend(tmp_path: Path, layout: str, backend: str) -> None:
    tensors = {"w": stored("F16", (70, 40, 90))}
    folder = write_layout(tmp_path / "m", layout, tensors)
    whole = array("F16", (70, 40, 90), tensors["w"].data)
    part = tensora_py.open(folder, backend=backend).get_slice("w", framework="numpy")
    for index in (
        np.s_[:],
        np.s_[...],
        np.s_[3],
        np.s_[-1, -1, -1],
        np.s_[10:60],
        np.s_[10:60:7],
        np.s_[:, 5:9],
        np.s_[:, :, 80:],
        np.s_[..., ::13],
        np.s_[1::2, ::3, 4::5],
        np.s_[..., 7, :],
        np.s_[5:5],
        np.s_[::1000],
        np.s_[-5:, ..., :-80],
        (),
    ):
        found, expected = part[index], whole[index]
        assert found.shape == expected.shape, index
        assert found.tobytes() == expected.tobytes(), index


def test_numbers_may_be_of_numpy(shards: Path) -> None:
    part = tensora_py.open(shards).get_slice("embed.weight", framework="numpy")
    row = part[np.int64(3), np.uint8(1) : np.int32(9)]
    assert row.tobytes() == part[3, 1:9].tobytes()


@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        (np.s_[300], IndexError, "300"),
        (np.s_[-301], IndexError, "-301"),
        (np.s_[:, 256], IndexError, "dimension 1"),
        (np.s_[0, 0, 0], IndexError, "2 dimensions"),
        (np.s_[..., ...], IndexError, "ellipsis"),
        (np.s_[::-1], ValueError, "-1"),
        (np.s_[::0], ValueError, "step 0"),
        (np.s_[None], TypeError, "NoneType"),
        (True, TypeError, "bool"),
        (1.0, TypeError, "float"),
        ("w", TypeError, "str"),
        ([1, 2], TypeError, "list"),
        (np.array([1, 2]), TypeError, "ndarray"),
        (np.s_[1.5:], TypeError, "float"),
    ],
)
def test_what_is_no_index_is_said(
    shards: Path, index: Any, error: type[Exception], says: str
) -> None:
    part = tensora_py.open(shards).get_slice("embed.weight", framework="numpy")
    with pytest.raises(error, match=says):
        part[index]
    with pytest.raises(error, match=says):
        tensora_py.load(shards, framework="numpy", slices={"embed.weight": index})


def test_a_slice_of_a_name_that_is_not_there(shards: Path) -> None:
    with pytest.raises(tensora_py.TensorNotFoundError, match="embed.weight"):
        tensora_py.load(shards, framework="numpy", slices={"embed.weigth": np.s_[0]})
    with pytest.raises(KeyError, match="embed.weight"):
        tensora_py.open(shards).get_slice("embed.weigth", framework="numpy")


def test_packed_elements_are_cut_at_bytes(every_dtype: tuple[Path, Any]) -> None:
    folder, tensors = every_dtype
    checkpoint = tensora_py.open(folder)
    part = checkpoint.get_slice("F4", framework="dlpack")
    assert bytes(part[1:3]) == tensors["F4"].data[4:12]
    with pytest.raises(tensora_py.InvalidArgumentError, match="F4"):
        part[:, 1:4]


@pytest.mark.torch
def test_slices_of_torch(shards: Path) -> None:
    import torch

    whole = tensora_py.load(shards)["embed.weight"]
    part = tensora_py.open(shards).get_slice("embed.weight")
    for index in (np.s_[3], np.s_[..., ::7], np.s_[5:100:9, -1], np.s_[0:0], np.s_[2, 2]):
        assert part[index].shape == whole[index].shape
        assert (
            torch.equal(part[index].view(torch.uint8), whole[index].contiguous().view(torch.uint8))
            if part[index].dim()
            else True
        )


def test_steps_beyond_everything(shards: Path) -> None:
    part = tensora_py.open(shards).get_slice("embed.weight", framework="numpy")
    assert part[:: 1 << 70, 1 << 70 :].shape == (1, 0)


def test_errors_of_indices_are_ours_and_name_the_tensor(shards: Path) -> None:
    part = tensora_py.open(shards).get_slice("embed.weight", framework="numpy")
    for index in (300, np.s_[::-1], "w", np.s_[0, 0, 0], np.s_[True:]):
        for use in (
            lambda index=index: part[index],
            lambda index=index: tensora_py.load(
                shards, framework="numpy", slices={"embed.weight": index}
            ),
        ):
            with pytest.raises(tensora_py.InvalidArgumentError, match="'embed.weight'") as caught:
                use()
            assert (caught.value.kind, caught.value.tensor) == ("InvalidArgument", "embed.weight")
    # What iterates by numbers ends there.
    assert (
        sum(1 for _ in tensora_py.open(shards).get_slice("layers.1.bias", framework="numpy")) == 5
    )
