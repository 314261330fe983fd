"""The functions of `safetensors` by Tensora: files, handles, slices, and taking their place."""

from __future__ import annotations

import copy
import inspect
import pickle
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy as theirs_np
import tensora_py as tp
from helpers import NO_SAFETENSORS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensora_py import safetensors_compat as compat
from tensora_py.safetensors_compat import SafetensorError, safe_open
from tensora_py.safetensors_compat import numpy as ours_np

PLAIN = ["?", "i1", "u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8", "<c8"]
TENSORS = {
    "b": np.arange(24, dtype="f4").reshape(2, 3, 4),
    "a": np.array(3.0, "f4"),
    "z": np.zeros((0, 3), "f4"),
    "c": np.arange(10),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.safetensors"
    theirs_np.save_file(TENSORS, file, {"format": "np"})
    return file


@pytest.fixture(params=["mmap", "pread"])
def backend(request):
    return request.param


def same(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def parameters(function) -> list[tuple]:
    found = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        # The native functions do not tell their defaults.
        told = default is not inspect.Parameter.empty
        found.append((parameter.name, parameter.kind, told if default is ... else default))
    return found


def test_names_and_signatures_are_those_of_safetensors():
    for name in ("serialize", "serialize_file", "deserialize", "TensorSpec"):
        assert parameters(getattr(compat, name)) == parameters(getattr(safetensors, name)), name
    ours, theirs = (inspect.signature(module.safe_open) for module in (compat, safetensors))
    assert [(p.name, p.kind) for p in ours.parameters.values()] == [
        (p.name, p.kind) for p in theirs.parameters.values()
    ]
    for name in ours_np.__all__:
        assert parameters(getattr(ours_np, name)) == parameters(getattr(theirs_np, name)), name
    assert {name for name in dir(safetensors.safe_open) if not name.startswith("_")} <= set(
        dir(safe_open)
    )


def test_files_are_byte_for_byte_the_same():
    metadata = {"only": "one"}
    assert ours_np.save(TENSORS) == theirs_np.save(TENSORS)
    assert ours_np.save(TENSORS, metadata) == theirs_np.save(TENSORS, metadata)
    assert ours_np.save({}) == theirs_np.save({})
    mixed = {f"{dtype} {n}": np.ones(n, dtype) for dtype in PLAIN for n in (3, 0, 1)}
    assert ours_np.save(mixed) == theirs_np.save(mixed)


arrays = hnp.arrays(
    dtype=st.sampled_from(PLAIN).map(np.dtype), shape=hnp.array_shapes(min_dims=0, min_side=0)
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: name != "__metadata__"
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=st.dictionaries(names, arrays, max_size=6))
def test_round_trips_both_ways(tmp_path, tensors):
    data = ours_np.save(tensors)
    assert data == theirs_np.save(tensors)
    file = tmp_path / "a"
    ours_np.save_file(tensors, file)
    assert file.read_bytes() == data
    readings = [theirs_np.load(data), ours_np.load(data), ours_np.load_file(file)]
    readings.append(ours_np.load_file(file, backend="pread"))
    for read in readings:
        assert read.keys() == tensors.keys()
        assert all(same(read[name], tensors[name]) for name in tensors)


def test_deserialize_gives_what_theirs_gives(path):
    data = path.read_bytes()
    # Theirs are in no order.
    assert dict(compat.deserialize(data)) == dict(safetensors.deserialize(data))
    for bad in (bytearray(data), memoryview(data), "text"):
        with pytest.raises(TypeError):
            compat.deserialize(bad)


def test_specs_are_addresses(tmp_path):
    value = np.arange(4, dtype="f4")

    def spec(module, **changed):
        told = {"dtype": "float32", "shape": [4], "data_ptr": value.ctypes.data, "data_len": 16}
        return module.TensorSpec(**(told | changed))

    assert compat.serialize({"a": spec(compat)}) == safetensors.serialize({"a": spec(safetensors)})
    compat.serialize_file({"a": spec(compat)}, tmp_path / "a", {"k": "v"})
    with safetensors.safe_open(tmp_path / "a", "np") as file:
        assert file.metadata() == {"k": "v"} and same(file.get_tensor("a"), value)
    packed = {"dtype": "float4_e2m1fn_x2", "shape": [2, 3]}
    for module in (compat, safetensors):
        assert list(spec(module, **packed).shape) == [2, 6]
        assert spec(module).dtype == "F32"
        with pytest.raises(safetensors.SafetensorError):
            spec(module, dtype="F32")
        with pytest.raises(safetensors.SafetensorError):
            module.serialize({"a": spec(module, shape=[5])})
    for bad in ({"a": 1}, {1: spec(compat)}, [spec(compat)]):
        with pytest.raises(TypeError):
            compat.serialize(bad)


def test_a_handle_tells_and_gives(path, backend):
    with safe_open(path, framework="np", backend=backend) as ours:
        theirs = safetensors.safe_open(path, framework="np")
        assert ours.keys() == theirs.keys() == ["a", "b", "c", "z"]
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == {"format": "np"}
        for name in ours.keys():
            assert same(ours.get_tensor(name), TENSORS[name])
            part = ours.get_slice(name)
            assert part.get_shape() == theirs.get_slice(name).get_shape()
            assert part.get_dtype() == theirs.get_slice(name).get_dtype()
        assert ours.get_tensors().keys() == TENSORS.keys()
        for call in (ours.get_tensor, ours.get_slice):
            with pytest.raises(SafetensorError, match="nope") as raised:
                call("nope")
            assert isinstance(raised.value, tp.TensorNotFoundError)
    for call in (ours.keys, ours.metadata, ours.get_tensors, lambda: ours.get_tensor("a")):
        with pytest.raises(SafetensorError, match="closed"):
            call()


def test_without_metadata_there_is_none(tmp_path):
    ours_np.save_file(TENSORS, tmp_path / "a", {})
    with safe_open(str(tmp_path / "a"), "np") as file:
        assert file.metadata() is None
    theirs_np.save_file({"__metadata": TENSORS["a"]}, tmp_path / "b")
    theirs_np.save_file(TENSORS, tmp_path / "c", {})
    for name, expected in (("b", None), ("c", {})):
        for module in (compat, safetensors):
            with module.safe_open(tmp_path / name, "np") as file:
                assert file.metadata() == expected


INDICES = [
    "[:]", "[...]", "[0]", "[-1]", "[0:1]", "[1:0]", "[1:1]", "[:,:,1]", "[:,1:2,...]", "[...,1]",
    "[::2]", "[0,0,0]", "[:,-2:]", "[()]", "[:-1]", "[-10:]", "[1,:,::3]", "[np.int64(1)]",
    "[np.array(1)]",
]  # fmt: skip
# Only torch takes these, and only of what is mapped.
WIDER = [
    "[0:10]", "[5:6]", "[:,:,1:100]", "[2:]", "[None]", "[:,None]", "[:,[0,2]]", "[[0,1],]",
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES)
def test_slices_are_those_of_the_array(path, backend, index):
    expected = eval(f"value{index}", {"value": TENSORS["b"], "np": np})
    with safe_open(path, "np", backend=backend) as file:
        part = eval(f"part{index}", {"part": file.get_slice("b"), "np": np})
    assert type(part) is np.ndarray and part.flags.c_contiguous and part.flags.writeable
    assert same(part, expected)


def test_slices_are_apart(path, backend):
    with safe_open(path, "np", backend=backend) as file:
        part = file.get_slice("b")
        first = part[0]
        first[...] = -1
        assert same(part[0], TENSORS["b"][0]) and same(file.get_tensor("b"), TENSORS["b"])
        saved = ours_np.save({"part": part[:, 1]})
    assert same(ours_np.load(saved)["part"], TENSORS["b"][:, 1])


def test_bools_are_numbers_and_an_empty_list_takes_nothing(path, backend):
    with safe_open(path, "np", backend=backend) as file:
        part = file.get_slice("b")
        assert same(part[True], TENSORS["b"][1]) and same(part[False, 2], TENSORS["b"][0, 2])
        assert part[[]].shape == (0, 3, 4)


@pytest.mark.parametrize("index", [*WIDER, "[[],0]", "[2**70]", "[object()]", "[np.bool_(True)]"])
def test_what_only_torch_takes_is_refused(path, backend, index):
    with safe_open(path, "np", backend=backend) as file:
        part = file.get_slice("b")
        with pytest.raises(SafetensorError) as raised:
            eval(f"part{index}", {"part": part, "np": np})
    assert isinstance(raised.value, IndexError) and isinstance(raised.value, tp.TensoraError)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_are_positive(path, backend, step):
    with safe_open(path, "np", backend=backend) as file:
        with pytest.raises(SafetensorError, match=f"step {step} ") as raised:
            file.get_slice("b")[::step]
        assert isinstance(raised.value, ValueError)
        with pytest.raises(TypeError):
            file.get_slice("b")["a":]


def test_slices_out_of_bounds_are_index_errors(path, backend):
    with safe_open(path, "np", backend=backend) as file:
        part = file.get_slice("b")
        for index in (5, -3, (0, 3), (0, 0, 0, 0), (slice(None),) * 4, 0.5, "a"):
            with pytest.raises(IndexError) as raised:
                part[index]
            assert isinstance(raised.value, SafetensorError)
        for index in (0, slice(None)):
            with pytest.raises(SafetensorError, match="too many"):
                file.get_slice("a")[index]
        assert file.get_slice("a")[...] == 3 and file.get_slice("a")[()].shape == ()
        assert file.get_slice("z")[:, 1:].shape == (0, 2)


def test_slices_outlive_the_handle(path, backend):
    with safe_open(path, "np", backend=backend) as file:
        part, whole = file.get_slice("b"), file.get_tensor("b")
    assert same(np.ascontiguousarray(part[1]), TENSORS["b"][1])
    assert same(whole, TENSORS["b"])


def test_what_cannot_be_opened(tmp_path, path):
    with pytest.raises(FileNotFoundError, match="no-such"):
        safe_open(tmp_path / "no-such", "np")
    # Not even where it looks like the id of a model.
    with pytest.raises(FileNotFoundError):
        safe_open("org/name", "np")
    with pytest.raises(OSError, match="folder") as raised:
        safe_open(tmp_path, "np")
    assert isinstance(raised.value, SafetensorError)
    for arguments in (
        {"framework": "xx"},
        {"framework": "np", "backend": "xx"},
        {"framework": "np", "device": "cuda"},
        {"framework": "np", "device": 0},
    ):
        with pytest.raises(SafetensorError):
            safe_open(path, **arguments)
    for framework in (None, 1):
        with pytest.raises(TypeError, match="framework"):
            safe_open(path, framework)
    with safe_open(path, "np", device=None) as file:
        assert same(file.get_tensor("b"), TENSORS["b"])


def damaged(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return {
        "empty": b"",
        "short": data[:7],
        "header cut": data[: 8 + length // 2],
        "data cut": data[:-1],
        "data added": data + b"\0",
        "length lies": struct.pack("<Q", 1 << 62) + data[8:],
        "no json": data[:8] + b"x" * length + data[8 + length :],
        "other dtype": data.replace(b'"F32"', b'"F99"'),
        "other shape": data.replace(b"[2,3,4]", b"[2,3,5]"),
    }


DAMAGES = [
    "empty", "short", "header cut", "data cut", "data added", "length lies", "no json",
    "other dtype", "other shape",
]  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_raise_their_error_and_ours(tmp_path, path, name):
    data = damaged(path)[name]
    file = tmp_path / name
    file.write_bytes(data)
    readings = [
        lambda: ours_np.load_file(file),
        lambda: ours_np.load(data),
        lambda: compat.deserialize(data),
    ]
    for number, read in enumerate(readings):
        if name == "other dtype" and number == 2:
            continue
        with pytest.raises(safetensors.SafetensorError) as raised:
            read()
        assert isinstance(raised.value, SafetensorError)
        assert isinstance(raised.value, tp.TensoraError)
    with pytest.raises(SafetensorError, match=name.split()[0] if name != "other dtype" else "F99"):
        ours_np.load_file(file)


def test_a_file_that_is_cut_while_it_is_open(path):
    with safe_open(path, "np", backend="pread") as file:
        data = path.read_bytes()
        path.write_bytes(data[:-8])
        with pytest.raises(SafetensorError) as raised:
            file.get_tensors()
        assert raised.value.path == str(path)


def test_what_is_refused_when_saving(tmp_path):
    for bad in (np.zeros((4, 4))[:, 1], np.array(["x"])):
        with pytest.raises(SafetensorError, match="the.bad"):
            ours_np.save({"the.bad": bad})
    for metadata in ({"a": 1}, [1]):
        with pytest.raises(TypeError):
            ours_np.save(TENSORS, metadata)
    with pytest.raises(SafetensorError):
        ours_np.save_file(TENSORS, tmp_path / "no" / "file")
    with pytest.raises(SafetensorError):
        ours_np.save_file(TENSORS, tmp_path)
    big = np.arange(3, dtype=">i4")
    assert ours_np.save({"a": big}) == theirs_np.save({"a": big})


def test_results_are_arrays_like_any_others(path, backend):
    before = path.read_bytes()
    loaded = ours_np.load_file(path, backend=backend)
    for made in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert all(same(made[name], TENSORS[name]) for name in TENSORS)
    loaded["b"][...] = 0
    assert path.read_bytes() == before
    ours_np.save_file(loaded, path)
    assert ours_np.load_file(path)["b"].sum() == 0
    assert same(ours_np.load_file(path)["c"], TENSORS["c"])


def test_threads_share_a_handle(path, backend):
    wrong = []
    with safe_open(path, "np", backend=backend) as file:

        def work() -> None:
            for _ in range(50):
                if not same(file.get_tensor("b"), TENSORS["b"]):
                    wrong.append("tensor")
                if not np.array_equal(file.get_slice("c")[3:5], [3, 4]):
                    wrong.append("slice")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_install_and_undo():
    holder = type(sys)("some_program")
    holder.open_it = safetensors.safe_open
    holder.own = compat.safe_open
    sys.modules["some_program"] = holder
    original, original_load = safetensors.safe_open, theirs_np.load_file
    try:
        undo = compat.install()
        try:
            assert compat.install() is undo
            assert safetensors.safe_open is holder.open_it is safe_open
            assert theirs_np.load_file is ours_np.load_file
            assert safetensors.SafetensorError is not SafetensorError
            # A program that is imported meanwhile has ours, and is found, too.
            late = type(sys)("late_program")
            late.load_file = theirs_np.load_file
            sys.modules["late_program"] = late
        finally:
            undo()
        assert safetensors.safe_open is holder.open_it is original
        assert theirs_np.load_file is late.load_file is original_load
        assert holder.own is safe_open
        undo()
        assert compat.install() is not undo
        compat.install()()
        assert safetensors.safe_open is original
    finally:
        sys.modules.pop("some_program")
        sys.modules.pop("late_program", None)


def test_standing_in_where_safetensors_is_not_installed(path):
    code = f"""{NO_SAFETENSORS}
from tensora_py.safetensors_compat import install
assert "numpy" not in sys.modules and "torch" not in sys.modules
undo = install()
import safetensors, safetensors.numpy
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
assert load_file({str(path)!r})["c"].tolist() == list(range(10))
assert "torch" not in sys.modules
undo()
assert "safetensors" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_installed_before_a_framework_is_imported(path, tmp_path):
    code = f"""
import sys
from tensora_py.safetensors_compat import TensorSpec, install, safe_open
undo = install()
assert "numpy" not in sys.modules and "safetensors.numpy" not in sys.modules
import safetensors.numpy
assert safetensors.numpy.safe_open is safe_open and safetensors.numpy.TensorSpec is TensorSpec
loaded = safetensors.numpy.load_file({str(path)!r})
safetensors.numpy.save_file(loaded, {str(tmp_path / "again")!r}, {{"format": "np"}})
undo()
assert safetensors.numpy.safe_open is safetensors.safe_open is not safe_open
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
