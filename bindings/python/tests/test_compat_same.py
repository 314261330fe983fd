"""Whatever is asked of a file, `safetensors` and ours answer the same."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file
from tensora_py import safetensors_compat as compat
from test_compat import PLAIN

numbers = st.integers(-7, 7)
bounds = st.one_of(st.none(), numbers, numbers.map(np.int64))
steps = st.sampled_from([None, None, None, 1, 2, 3, 100, 0, -1])
odd = st.one_of(
    st.sampled_from([None, True, False, 0.5, "a", 1 << 70, np.bool_(True), np.array(1)]),
    st.lists(st.integers(0, 2), max_size=2),
    st.just(np.array([0, 1])),
    st.builds(slice, st.sampled_from(["a", 0.5]), st.none()),
)
items = st.one_of(
    numbers,
    numbers.map(np.int64),
    st.builds(slice, bounds, bounds, steps),
    st.builds(slice, st.integers(0, 3), st.integers(0, 4)),
    st.just(slice(None)),
    st.just(...),
    odd,
)
indices = st.one_of(items, st.lists(items, max_size=5).map(tuple))
files = st.dictionaries(
    st.text("ab.", min_size=1, max_size=4),
    hnp.arrays(
        st.sampled_from(PLAIN).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)
    ),
    min_size=1,
    max_size=4,
)
examples = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def answer(ask) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ask()
        except Exception as error:
            return error


def told(value: Any) -> Any:
    """All that can be compared of an array."""
    if type(value).__module__.startswith("torch"):
        whole = value.contiguous()
        data = whole.numpy().tobytes()
        return type(value), value.dtype, tuple(value.shape), value.is_contiguous(), data
    return type(value), value.dtype, value.shape, value.flags.writeable, value.tobytes()


def backwards(shape: tuple[int, ...], index: Any) -> bool:
    """Whether a slice ends before it begins, or counts back beyond the first row or without an end:
    there the other one overflows."""
    given_items = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(item, slice)
        and any(isinstance(bound, int | np.int64) for bound in (item.start, item.stop))
        and (
            any(isinstance(b, int | np.int64) and b < 0 for b in (item.start, item.stop))
            or (item.stop is not None and (item.start or 0) > item.stop)
        )
        for item in given_items
    )


def agree(theirs: Any, ours: Any, array: Any, index: Any) -> None:
    if isinstance(theirs, Exception) or backwards(array.shape, index):
        allowed = 0 in array.shape or backwards(array.shape, index)
        if allowed and not isinstance(ours, Exception):
            # What is refused there, and here is as it is in memory.
            expected = np.array(array[index])
            assert np.asarray(ours).dtype == expected.dtype
            assert np.asarray(ours).tobytes() == expected.tobytes()
            assert tuple(ours.shape) == expected.shape
        elif isinstance(theirs, Exception):
            overflow = isinstance(theirs, OverflowError | SystemError) or (
                type(theirs) is ValueError and "reshape" in str(theirs)
            )
            kind = safetensors.SafetensorError if overflow else type(theirs)
            if isinstance(index, tuple) and len(index) > 1:
                # Where several things are wrong either of them may be told.
                kind = kind, safetensors.SafetensorError, TypeError
            assert isinstance(ours, kind), (theirs, ours)
        return
    assert not isinstance(ours, Exception), ours
    assert told(theirs) == told(ours)


def compare(path, framework: str, tensors: dict[str, Any], asked: list[Any], backend: str) -> None:
    theirs = safetensors.safe_open(path, framework, backend=backend)
    ours = compat.safe_open(path, framework, backend=backend)
    with theirs, ours:
        assert ours.keys() == theirs.keys()
        # Empty ones are at the same place, and there in no order.
        there = [[n for n in f.offset_keys() if tensors[n].size] for f in (theirs, ours)]
        assert there[0] == there[1]
        assert ours.metadata() == theirs.metadata()
        everything = theirs.get_tensors(), ours.get_tensors()
        assert everything[0].keys() == everything[1].keys()
        for name, array in tensors.items():
            assert told(everything[0][name]) == told(everything[1][name])
            parts = theirs.get_slice(name), ours.get_slice(name)
            assert parts[0].get_shape() == parts[1].get_shape() == list(array.shape)
            assert parts[0].get_dtype() == parts[1].get_dtype()
            for index in asked:
                answers = [answer(lambda part=part, index=index: part[index]) for part in parts]
                agree(*answers, array, index)
            assert told(theirs.get_tensor(name)) == told(ours.get_tensor(name))


@pytest.fixture(params=["mmap", "pread"])
def backend(request):
    return request.param


metadatas = st.sampled_from([None, {}, {"a": "b"}])


@examples
@given(tensors=files, asked=st.lists(indices, max_size=8), metadata=metadatas)
def test_arrays_of_numpy(tmp_path, backend, tensors, asked, metadata):
    save_file(tensors, tmp_path / "a", metadata)
    compare(tmp_path / "a", "np", tensors, asked, backend)


@pytest.mark.torch
@examples
@given(tensors=files, asked=st.lists(indices, max_size=8), metadata=metadatas)
def test_tensors_of_torch(tmp_path, backend, tensors, asked, metadata):
    save_file(tensors, tmp_path / "a", metadata)
    compare(tmp_path / "a", "pt", tensors, asked, backend)
