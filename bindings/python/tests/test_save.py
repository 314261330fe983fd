"""Saving: files that others read, what is refused, and what happens to files that are there."""

from __future__ import annotations

import json
import os
import stat
import struct
import threading
from array import array

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensora_py as tp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

PLAIN = ["?", "i1", "u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8", "<c8"]
ML = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]


def header(data: bytes) -> dict:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def filled(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape)) * dtype.itemsize
    values = (np.arange(count) % 2 if dtype.kind == "b" else np.arange(count) % 120).astype("u1")
    return values.view(dtype).reshape(shape)


@pytest.mark.parametrize("name", PLAIN + ML)
def test_every_dtype_comes_back(name, tmp_path):
    dtype = np.dtype(getattr(ml_dtypes, name) if name in ML else name)
    tensors = {
        "w": filled(dtype, (3, 4)),
        "scalar": filled(dtype, ()),
        "none": filled(dtype, (0, 2)),
    }
    path = tmp_path / "file of any name"
    assert tp.save(tensors, path) == [str(path)]
    assert path.read_bytes() == tp.save_bytes(tensors)
    loaded = tp.load(path, framework="numpy")
    assert all(same(loaded[key], tensors[key]) for key in tensors)
    if name in PLAIN:
        theirs = safetensors.numpy.load_file(path)
        assert all(same(theirs[key], tensors[key]) for key in tensors)


arrays = hnp.arrays(
    dtype=st.sampled_from(PLAIN).map(np.dtype), shape=hnp.array_shapes(min_dims=0, min_side=0)
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: name != "__metadata__"
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, arrays, max_size=6), st.dictionaries(names, names, max_size=3))
def test_safetensors_reads_what_we_write_and_we_what_it_writes(tmp_path, tensors, metadata):
    ours = tp.save_bytes(tensors, metadata)
    read = safetensors.numpy.load(ours)
    assert read.keys() == tensors.keys()
    assert all(same(read[name], tensors[name]) for name in tensors)
    assert header(ours).get("__metadata__", {}) == metadata
    path = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata)
    if tensors:
        loaded = tp.load(path, framework="numpy")
        assert all(same(loaded[name], tensors[name]) for name in tensors)


def test_the_bytes_depend_on_nothing_but_the_input():
    tensors = {f"t{n}": np.arange(n, dtype="f4") for n in range(8)}
    metadata = {f"key{n}": str(n) for n in range(20)}
    backwards = dict(reversed(metadata.items()))
    assert tp.save_bytes(tensors, metadata) == tp.save_bytes(tensors, backwards)
    assert "__metadata__" not in header(tp.save_bytes(tensors, {}))


def test_byte_orders_and_buffers_of_all_kinds(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "big": np.arange(6, dtype=">f4").reshape(2, 3),
        "number": np.float32(7),
        "bytes": b"abc",
        "array": array("d", [1.5, 2.5]),
        "view": memoryview(np.arange(4, dtype="i2").reshape(2, 2)),
        "readonly": np.broadcast_to(np.float32(1), ()),
    }
    tp.save(tensors, path)
    loaded = tp.load(path, framework="numpy")
    assert loaded["big"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["number"].shape == () and loaded["number"] == 7
    assert loaded["bytes"].tobytes() == b"abc" and loaded["bytes"].dtype == "u1"
    assert loaded["array"].tolist() == [1.5, 2.5]
    assert loaded["view"].tolist() == [[0, 1], [2, 3]]
    # Our own tensors, without any framework, and whatever their dtype is.
    own = tp.load(path, framework="dlpack")
    again = tmp_path / "b.safetensors"
    tp.save(own, again)
    assert again.read_bytes() == path.read_bytes()


def test_dlpack_is_understood():
    class Foreign:
        def __init__(self, held):
            self.held = held

        def __dlpack__(self, **options):
            return self.held.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    value = np.arange(6, dtype="f4").reshape(2, 3)
    assert tp.save_bytes({"a": Foreign(value)}) == tp.save_bytes({"a": value})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((4, 4))[:, ::2], "ascontiguousarray"),
        (np.zeros((4, 4)).T[1:], "ascontiguousarray"),
        (np.broadcast_to(np.float32(1), (3,)), "ascontiguousarray"),
        (np.ma.masked_array([1.0], mask=[True]), "filled"),
        (memoryview(b"abcd")[::2], "contiguous"),
    ],
)
def test_what_has_no_bytes_as_they_are_is_refused_by_name(value, told):
    with pytest.raises(tp.InvalidArgumentError, match=told) as raised:
        tp.save_bytes({"fine": np.zeros(1), "the.bad": value})
    assert raised.value.tensor == "the.bad"
    assert "the.bad" in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [
        np.array(["text"]),
        np.array([object()]),
        np.zeros(1, "c16"),
        np.zeros(1, [("a", "f4")]),
        np.zeros(1, "M8[s]"),
        np.zeros(1, np.longdouble),
        np.zeros(2, ml_dtypes.float4_e2m1fn),
        np.zeros(2, ml_dtypes.int4),
        [1, 2],
        None,
        "text",
        3,
    ],
)
def test_what_the_format_has_no_dtype_for_is_refused_by_name(value):
    with pytest.raises(tp.DtypeError, match="the.bad") as raised:
        tp.save_bytes({"the.bad": value})
    assert raised.value.tensor == "the.bad"


def test_shared_memory_is_refused_with_all_names():
    base = np.arange(10.0)
    with pytest.raises(tp.InvalidArgumentError, match="share memory") as raised:
        tp.save_bytes({"a": base, "other": np.zeros(1), "b": base[:5], "c": base[9:]})
    assert all(repr(name) in str(raised.value) for name in "abc")
    assert "'other'" not in str(raised.value)
    # Parts that do not overlap are tensors like any others; so are those without bytes.
    tp.save_bytes({"a": base[:5], "b": base[5:], "c": base[5:5], "d": base[5:5]})


def test_names_and_metadata_are_strings():
    value = {"a": np.zeros(1)}
    for bad in ({"a": 1}, {1: "a"}, {"a": None}, ["a"], "text"):
        with pytest.raises(TypeError, match="metadata"):
            tp.save_bytes(value, bad)
    with pytest.raises(TypeError, match="tensors is 1, .*give strings"):
        tp.save_bytes({1: np.zeros(1)})
    with pytest.raises(TypeError, match="give a dict"):
        tp.save_bytes([np.zeros(1)])
    with pytest.raises(tp.InvalidArgumentError):
        tp.save_bytes({"__metadata__": np.zeros(1)})
    for arguments in (({"\ud800": np.zeros(1)},), (value, {"\ud800": ""}), (value, {"": "\ud800"})):
        with pytest.raises(tp.InvalidArgumentError, match="UTF-8"):
            tp.save_bytes(*arguments)


def test_shards_have_an_index(tmp_path):
    tensors = {f"w{n}": np.full(256, n, "f4") for n in range(5)}
    folder = tmp_path / "model"
    files = tp.save(tensors, folder, {"format": "pt"}, max_shard_size=2048)
    assert [os.path.basename(file) for file in files] == [
        *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
    loaded = tp.load(folder, framework="numpy")
    assert all(same(loaded[name], tensors[name]) for name in tensors)
    # Fewer of them now, and one file is no longer described by an index.
    tp.save({"w": tensors["w1"]}, folder, max_shard_size=2048)
    assert list(tp.open(folder)) == ["w"]


def test_saving_to_the_file_that_is_mapped(tmp_path):
    path = tmp_path / "a.safetensors"
    tp.save({"a": np.arange(100_000, dtype="i4"), "b": np.ones(7)}, path)
    with tp.open(path) as checkpoint:
        mapped = {name: checkpoint.get(name, "numpy") for name in checkpoint}
    mapped["b"][0] = 5
    tp.save(mapped, path)
    assert mapped["a"].tolist() == list(range(100_000))
    loaded = tp.load(path, framework="numpy")
    assert loaded["a"].tolist() == list(range(100_000))
    assert loaded["b"][0] == 5


def test_links_and_permissions_stay(tmp_path):
    real = tmp_path / "real"
    link = tmp_path / "link"
    tp.save({"a": np.zeros(1)}, real)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~mask
    real.chmod(0o640)
    link.symlink_to("real")
    tp.save({"a": np.ones(1)}, link)
    assert link.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert tp.load(real, framework="numpy")["a"] == 1
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_name_is_as_long_as_the_file_system_allows(tmp_path):
    tp.save({"a": np.zeros(1)}, tmp_path / ("n" * 255))
    with pytest.raises(tp.TensoraError) as caught:
        tp.save({"a": np.zeros(1)}, tmp_path / ("n" * 256))
    # And not a name that only we know of.
    assert caught.value.path == str(tmp_path / ("n" * 256))


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    tp.save({"a": np.zeros(3)}, path)
    before = path.read_bytes()

    class Failing:
        shape = (2,)
        dtype = np.dtype("f4")

        def __array__(self, *_args, **_options):
            raise RuntimeError("no longer there")

    with pytest.raises(RuntimeError, match="no longer there"):
        tp.save({"a": np.zeros(2), "b": Failing()}, path)
    assert path.read_bytes() == before
    with pytest.raises(tp.CheckpointNotFoundError):
        tp.save({"a": np.zeros(1)}, tmp_path / "no" / "file")
    with pytest.raises(tp.InvalidArgumentError, match="folder"):
        tp.save({"a": np.zeros(1)}, tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_ranks_save_side_by_side(tmp_path):
    def work(rank: int) -> None:
        for step in range(5):
            tp.save({"rank": np.full(10_000, rank + step)}, tmp_path / f"{rank}.safetensors")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(os.listdir(tmp_path)) == [f"{rank}.safetensors" for rank in range(6)]
    for rank in range(6):
        loaded = tp.load(tmp_path / f"{rank}.safetensors", framework="numpy")
        assert set(loaded["rank"].tolist()) == {rank + 4}


# Tensors of torch.


def torch_dtypes():
    import torch

    names = [
        *("bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32"),
        *("float32", "complex64", "float64", "int64", "uint64", "float8_e5m2", "float8_e4m3fn"),
        *("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    ]
    return [getattr(torch, name) for name in names]


@pytest.mark.torch
def test_every_torch_dtype_comes_back(tmp_path):
    import safetensors.torch
    import torch

    tensors = {}
    for dtype in torch_dtypes():
        raw = torch.arange(dtype.itemsize * 12, dtype=torch.uint8) % (
            2 if dtype == torch.bool else 99
        )
        tensors[str(dtype)] = raw.view(dtype).reshape(3, 4)
        tensors[f"{dtype} scalar"] = raw[: dtype.itemsize].clone().view(dtype).reshape(())
        tensors[f"{dtype} none"] = torch.empty(0, 5, dtype=dtype)
    packed = torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(2, 3)
    tensors["packed"] = packed
    path = tmp_path / "a.safetensors"
    tp.save(tensors, path)
    assert header(path.read_bytes())["packed"]["shape"] == [2, 6]
    ours, theirs = tp.load(path), safetensors.torch.load_file(path)
    for loaded in (ours, theirs):
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
            if tensor.numel():
                raw = [t.reshape(-1).view(torch.uint8) for t in (loaded[name], tensor)]
                assert torch.equal(*raw), name


@pytest.mark.torch
def test_torch_tensors_that_are_refused():
    import torch

    base = torch.arange(12.0).reshape(3, 4)
    for value, told in [
        (base.t(), r"\.contiguous\(\)"),
        (base[:, 1], r"\.contiguous\(\)"),
        (base.to_sparse(), "to_dense"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.quantize_per_tensor(base, 0.1, 0, torch.qint8), "quantized"),
    ]:
        with pytest.raises(tp.InvalidArgumentError, match=told) as raised:
            tp.save_bytes({"the.bad": value})
        assert raised.value.tensor == "the.bad"
    with pytest.raises(tp.DtypeError, match="complex128"):
        tp.save_bytes({"a": torch.zeros(1, dtype=torch.complex128)})
    with pytest.raises(tp.InvalidArgumentError, match="clone"):
        tp.save_bytes({"a": base, "b": base.view(-1), "c": base[1]})
    tp.save_bytes({"a": base[:1], "b": base[1:], "c": base.clone()})


@pytest.mark.torch
def test_gradients_and_conjugates_are_saved_as_their_values():
    import torch

    weight = torch.nn.Parameter(torch.arange(3.0))
    conjugate = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    data = tp.save_bytes({"w": weight, "c": conjugate})
    loaded = safetensors.numpy.load(data)
    assert loaded["w"].tolist() == [0, 1, 2]
    assert loaded["c"].tolist() == [1 - 2j]


@pytest.mark.torch
def test_torch_tensors_whose_memory_is_gone_are_refused(tmp_path):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    freed = torch.ones(1000)
    freed.untyped_storage().resize_(0)
    short = torch.ones(1000)
    short.untyped_storage().resize_(40)
    with FakeTensorMode():
        fake = torch.ones(1000)
    for value in (freed, short, fake):
        with pytest.raises(tp.InvalidArgumentError, match="'x'"):
            tp.save({"x": value}, tmp_path / "a")

    def inside(value):
        with pytest.raises(tp.InvalidArgumentError, match="'x'"):
            tp.save({"x": value}, tmp_path / "a")
        return value

    torch.func.functionalize(inside)(torch.ones(1000))
    assert not (tmp_path / "a").exists()


def test_a_pipe_that_nobody_reads_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tp.TensoraError, match="nobody has read"):
        tp.save({"a": np.zeros(1)}, tmp_path / "pipe")


def test_a_header_that_is_too_long_has_the_path_of_the_file(tmp_path):
    with pytest.raises(tp.InvalidArgumentError) as caught:
        tp.save({"a": np.zeros(1)}, tmp_path / "a", metadata={"long": "x" * (100 << 20)})
    assert caught.value.path == str(tmp_path / "a") and "metadata" in str(caught.value)
