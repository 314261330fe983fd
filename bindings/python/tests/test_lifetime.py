"""Memory: who keeps it, when it goes back, and that no file ever changes."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensora_py
from helpers import Stored, run, sparse, stored, usable_backends, write_safetensors

MIB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def zeros(tmp_path: Path) -> Path:
    """Four tensors of 64 MiB."""
    shapes = {f"t{number}": (64 * MIB,) for number in range(4)}
    return sparse(tmp_path / "zeros.safetensors", "U8", shapes)


@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_arrays_live_on_when_everything_else_is_gone(
    tmp_path: Path, model: dict[str, Stored], backend: str, framework: str
) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", model)
    tensors = tensora_py.load(path, framework=framework, backend=backend)
    checkpoint = tensora_py.open(path, backend=backend)
    kept = {
        "load": tensors["embed.weight"],
        "get": checkpoint.get("embed.weight", framework=framework),
        "slice": checkpoint.get_slice("embed.weight", framework=framework)[:],
        "view": tensors["embed.weight"][7:],
    }
    del tensors
    checkpoint.close()
    del checkpoint
    gc.collect()
    path.unlink()
    data = model["embed.weight"].data
    for way, array in kept.items():
        expected = data[7 * 1024 :] if way == "view" else data
        found = np.asarray(array)
        assert found.tobytes() == expected, way


def test_memory_goes_back_with_the_last_tensor(zeros: Path, backend: str) -> None:
    tensora_py.load(zeros, framework="numpy", backend=backend, names=["t0"])
    gc.collect()
    before = resident()
    tensors = tensora_py.load(zeros, framework="numpy", backend=backend)
    for array in tensors.values():
        array[:] = 1
    del array
    held = resident()
    assert held - before > 240 * MIB
    del tensors["t0"], tensors["t1"]
    # One by one: no tensor keeps the others.
    assert held - resident() > 120 * MIB
    tensors.clear()
    assert resident() - before < 32 * MIB


@pytest.mark.heavy
def test_an_iterator_holds_no_more_than_its_budget(zeros: Path, backend: str) -> None:
    before = resident()
    most = 0
    options = {"framework": "dlpack", "backend": backend, "memory_budget": 64 * MIB}
    for _, tensor in tensora_py.iter_tensors(zeros, **options):
        most = max(most, resident() - before)
        del tensor
    # What is in flight, and what was taken.
    assert most < 64 * MIB * 2 + 32 * MIB


@pytest.mark.heavy
def test_many_loads_leave_nothing(shards: Path, backend: str) -> None:
    def once() -> None:
        tensora_py.load(shards, framework="dlpack", backend=backend)
        list(tensora_py.iter_tensors(shards, framework="dlpack", backend=backend))
        tensora_py.open(shards, backend=backend).get("scalar", framework="numpy")

    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        once()
    gc.collect()
    before = resident()
    for _ in range(60):
        once()
    gc.collect()
    # 60 times the 700 KB of two loads would be 42 MB.
    assert resident() - before < 24 * MIB
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 8


@pytest.mark.heavy
def test_capsules_that_nobody_takes_leave_nothing(zeros: Path) -> None:
    before = resident()
    for _ in range(20):
        tensor = tensora_py.load(zeros, framework="dlpack", backend="sync", names=["t0"])["t0"]
        tensor.__dlpack__()
        tensor.__dlpack__(max_version=(1, 1))
        np.from_dlpack(tensor)
        memoryview(tensor).release()
        del tensor
    assert resident() - before < 128 * MIB


def test_what_is_written_never_reaches_the_file(
    tmp_path: Path, model: dict[str, Stored], backend: str
) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", model)
    original = path.read_bytes()
    path.chmod(0o444)
    checkpoint = tensora_py.open(path, backend=backend)
    mine = checkpoint.get("embed.weight", framework="numpy")
    other = checkpoint.get("embed.weight", framework="numpy")
    loaded = tensora_py.load(path, framework="numpy", backend=backend)["embed.weight"]
    mine[:] = 7
    loaded[:] = 8
    assert path.read_bytes() == original
    # Nor does it reach others who have taken the same tensor.
    assert other.tobytes() == model["embed.weight"].data
    fresh = checkpoint.get("embed.weight", framework="numpy")
    assert fresh.tobytes() == model["embed.weight"].data


FORK = """
import hashlib, os, sys, warnings
warnings.simplefilter("ignore")
import tensora_py

def digest(tensors):
    return hashlib.sha256(b"".join(bytes(tensors[n]) for n in sorted(tensors))).hexdigest()

def load(backend):
    return digest(tensora_py.load(sys.argv[1], framework="dlpack", backend=backend))

backends = sys.argv[2].split(",")
before = tensora_py.load(sys.argv[1], framework="dlpack")
checkpoint = tensora_py.open(sys.argv[1])
loaded = {load(backend) for backend in backends}
assert loaded == {digest(before)}, loaded
children = []
for backend in backends:
    if not (child := os.fork()):
        status = 1
        try:
            # What was loaded before, a checkpoint that was open, and loads of the child's own.
            assert digest(before) in loaded
            taken = {name: checkpoint.get(name, framework="dlpack") for name in checkpoint}
            assert digest(taken) in loaded
            assert load(backend) in loaded
            streamed = dict(
                tensora_py.iter_tensors(sys.argv[1], framework="dlpack", backend=backend)
            )
            assert digest(streamed) in loaded
            status = 0
        finally:
            os._exit(status)
    children.append(child)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert load("default") in loaded
print("fine")
"""


def test_children_of_a_fork_have_the_tensors_and_can_load(shards: Path) -> None:
    assert run(FORK, shards, ",".join(usable_backends())) == "fine\n"


def test_threads_load_at_once(shards: Path, model: dict[str, Stored], backend: str) -> None:
    wrong: list[Any] = []
    checkpoint = tensora_py.open(shards, backend=backend)
    start = threading.Barrier(8)

    def work() -> None:
        try:
            start.wait(30)
            for _ in range(5):
                tensors = tensora_py.load(shards, framework="dlpack", backend=backend)
                for name, tensor in model.items():
                    assert bytes(tensors[name]) == tensor.data
                    assert bytes(checkpoint.get(name, framework="dlpack")) == tensor.data
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_share_an_iterator(shards: Path, model: dict[str, Stored]) -> None:
    tensors = tensora_py.iter_tensors(shards, framework="dlpack")
    taken: list[tuple[str, bytes]] = []

    def work() -> None:
        for name, tensor in tensors:
            taken.append((name, bytes(tensor)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted((name, tensor.data) for name, tensor in model.items())


def test_a_process_may_end_in_the_middle(tmp_path: Path) -> None:
    path = sparse(tmp_path / "m.safetensors", "U8", {f"t{i:04}": (MIB,) for i in range(4096)})
    out = run(
        """
        import sys, threading, tensora_py
        tensors = tensora_py.iter_tensors(sys.argv[1], framework="dlpack", memory_budget=16 << 20)
        next(tensors)
        load = lambda: tensora_py.load(sys.argv[1], framework="dlpack", names=["t0001"])
        threading.Thread(target=load, daemon=True).start()
        print("ends")
        """,
        path,
    )
    assert out == "ends\n"


def test_weak_references_end_with_the_tensor(tiny: Path) -> None:
    tensor = tensora_py.load(tiny, framework="dlpack")["w"]
    watched = weakref.ref(tensor)
    array = np.frombuffer(tensor, "<f4")
    del tensor
    assert watched() is not None
    del array
    assert watched() is None


@pytest.mark.torch
def test_tensors_of_torch_are_pickled_and_copied(tmp_path: Path) -> None:
    import torch

    tensors = {"w": stored("BF16", (300, 16)), "bias": stored("I64", (9,))}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    loaded = tensora_py.load(path)
    lazy = {name: tensora_py.open(path)[name] for name in tensors}
    file = io.BytesIO()
    torch.save(loaded, file)
    file.seek(0)
    # One tensor's storage and no more is saved with it.
    assert len(file.getvalue()) < 20_000
    for copied in (
        pickle.loads(pickle.dumps(loaded)),
        copy.deepcopy(loaded),
        torch.load(file),
        pickle.loads(pickle.dumps(lazy)),
    ):
        for name, tensor in tensors.items():
            assert bytes(copied[name].view(torch.uint8).flatten().tolist()) == tensor.data
            assert copied[name].data_ptr() != loaded[name].data_ptr()


@pytest.mark.torch
def test_tensors_of_torch_are_shared_with_processes(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": stored("U8", (1000,))})
    script = tmp_path / "share.py"
    script.write_text(
        """
import sys
import torch.multiprocessing as mp
import tensora_py

def work(tensor, queue):
    queue.put(int(tensor.sum()))
    tensor.zero_()

if __name__ == "__main__":
    tensor = tensora_py.load(sys.argv[1])["w"]
    total = int(tensor.sum())
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(tensor, queue))
    process.start()
    assert queue.get(timeout=60) == total
    process.join(60)
    assert int(tensor.sum()) == 0
    print("shared")
"""
    )
    done = subprocess.run(
        [sys.executable, script, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "shared\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_an_iterator_is_of_the_process_that_made_it(tmp_path: Path) -> None:
    """A child that was forked off has none of its threads: an error, and a quiet end."""
    script = """
import os, sys, numpy, tensora_py
tensora_py.save({f"t{i}": numpy.ones(100_000) for i in range(50)}, "m.safetensors")
tensors = tensora_py.iter_tensors("m.safetensors", framework="numpy", memory_budget=1 << 20)
next(tensors)
child = os.fork()
if child == 0:
    try:
        next(tensors)
    except tensora_py.InvalidArgumentError as error:
        assert "fork" in str(error) and error.kind == "InvalidArgument"
        tensors.close()
        del tensors
        sys.exit(0)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(list(tensors)) == 49
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
