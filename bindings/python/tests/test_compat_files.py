"""Files that are removed, replaced or written over while `safe_open` has them."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest
import tensora_py as tp
from helpers import child, run
from tensora_py.safetensors_compat import SafetensorError, safe_open
from tensora_py.safetensors_compat.numpy import save_file

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere files are found by their names alone"
)

OLD = {"big": np.arange(40_000, dtype="f4"), "small": np.arange(12).reshape(3, 4)}
NEW = {"big": np.ones(40_000, "f4"), "small": np.zeros((3, 4), "i8")}


@pytest.fixture(params=["mmap", "pread"])
def backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    save_file(OLD, tmp_path / "model.safetensors", {"which": "old"})
    return tmp_path / "model.safetensors"


def remove(path):
    path.unlink()


def replace(path):
    save_file(NEW, path.with_name("next"))
    path.with_name("next").replace(path)


def remove_and_write(path):
    path.unlink()
    save_file({"other": np.arange(3)}, path)


def remove_folder(path):
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("change", [remove, replace, remove_and_write, remove_folder])
def test_the_file_that_was_opened_is_read(path, backend, change, before):
    with safe_open(path, "np", backend=backend) as file:
        part = file.get_slice("small")
        if before:
            file.get_tensor("big"), part[0]
        change(path)
        for _ in range(3):
            for name, expected in OLD.items():
                assert np.array_equal(file.get_tensor(name), expected)
                assert np.array_equal(file.get_slice(name)[1:3], expected[1:3])
            assert file.get_tensors().keys() == OLD.keys()
            assert np.array_equal(file.get_tensors()["big"], OLD["big"])
        assert file.keys() == ["big", "small"] and file.metadata() == {"which": "old"}
    assert np.array_equal(part[1:, 2], OLD["small"][1:, 2])


def test_every_handle_has_one_file_while_others_get_its_name(path, backend):
    versions = [
        {"big": np.full(100_000, value, "f4"), "small": np.full(9, value, "f4")} for value in (1, 2)
    ]
    done = threading.Event()

    def write():
        while not done.is_set():
            for version in versions:
                save_file(version, path)

    save_file(versions[0], path)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(60):
            with safe_open(path, "np", backend=backend) as file:
                arrays = [*file.get_tensors().values(), file.get_tensor("big")]
                arrays += [file.get_tensor("small"), file.get_slice("big")[7:9]]
                assert len({float(value) for array in arrays for value in array[::1024]}) == 1
    finally:
        done.set()
        writer.join()


def test_a_link_that_is_turned(path, backend):
    link = path.with_name("link")
    link.symlink_to(path.name)
    save_file(NEW, path.with_name("next"))
    with safe_open(link, "np", backend=backend) as file:
        link.unlink()
        link.symlink_to("next")
        assert np.array_equal(file.get_tensor("big"), OLD["big"])


def test_a_file_that_is_written_over_is_told(path, backend):
    with safe_open(path, "np", backend=backend) as file:
        data = path.read_bytes()
        with path.open("wb") as out:
            out.write(data[:-8])
        os.utime(path, ns=(1, 1))
        with pytest.raises(SafetensorError) as raised:
            file.get_tensor("big")
        assert raised.value.path == str(path) and isinstance(raised.value, tp.LoadError)


def test_descriptors_are_closed(path, backend):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        file = safe_open(path, "np", backend=backend)
        part = file.get_slice("small")
        with file:
            file.get_tensor("big")
        assert np.array_equal(part[1], OLD["small"][1])
        with pytest.raises(SafetensorError):
            safe_open(path, "xx", backend=backend)
        with pytest.raises(TypeError):
            safe_open(path, "np", backend=backend).get_tensor(1)
    del file, part
    # The library keeps some by itself for a while.
    assert len(os.listdir("/proc/self/fd")) < before + 150


def test_without_descriptors_names_have_to_do(path, backend):
    code = """
import sys
import numpy
from tensora_py.safetensors_compat import _file, safe_open
_file.DESCRIPTORS = "/no/such/folder"
with safe_open(sys.argv[1], "np", backend=sys.argv[2]) as file:
    print(file.get_tensor("small").sum(), file.get_slice("big")[:3].sum(), file.metadata())
"""
    assert run(code, path, backend).split(maxsplit=2) == ["66", "3.0", "{'which': 'old'}\n"]


def test_a_file_whose_elements_are_not_aligned_is_not_read_as_a_whole(tmp_path):
    code = """
import json, struct, sys
import numpy
from tensora_py.safetensors_compat import safe_open
size = 128 << 20
names = ["a", "b", "c", "d"]
header = {
    name: {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
    for i, name in enumerate(names)
}
header["z"] = {"dtype": "F32", "shape": [2], "data_offsets": [4 * size, 4 * size + 8]}
text = json.dumps(header).encode()
text += b" " * ((1 - len(text)) % 8)
with open(sys.argv[1], "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    out.truncate(8 + len(text) + 4 * size + 8)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) << 12
before = resident()
with safe_open(sys.argv[1], "np") as file:
    assert file.get_tensor("z").tolist() == file.get_tensor("z").tolist() == [0, 0]
    assert resident() - before < 100 << 20
"""
    run(code, tmp_path / "a")


def test_a_fork_reads_on(path, backend):
    code = """
import os, sys
import numpy
from tensora_py.safetensors_compat import safe_open
file = safe_open(sys.argv[1], "np", backend=sys.argv[2])
os.remove(sys.argv[1])
child = os.fork()
if not child:
    assert file.get_tensor("small").sum() == 66
    file.__exit__()
    del file
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert file.get_tensor("small").sum() == 66
"""
    process = child(code, path, backend)
    assert process.wait(60) == 0, process.stderr.read()
