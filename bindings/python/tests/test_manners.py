"""How calls behave towards the rest of a program: Ctrl-C, threads, signals, terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import sys
import termios
import textwrap
import threading
import time
from pathlib import Path

import pytest
import tensora_py
from fake_hub import FakeHub
from helpers import child, roomy, run, sparse


def soon() -> float:
    """Seconds that a person does not notice, and more where others use the machine, too."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return 0.5 * max(1.0, busy)


CALLS = {
    "load": 'tensora_py.load(path, framework="dlpack", backend="sync")',
    "load by default": 'tensora_py.load(path, framework="dlpack", backend="default")',
    "load with a bar": 'tensora_py.load(path, framework="dlpack", progress=True)',
    "iter_tensors": 'list(tensora_py.iter_tensors(path, framework="dlpack", memory_budget=1 << 40))',
    "aload": 'asyncio.run(tensora_py.aload(path, framework="dlpack"))',
    "hash": "tensora_py.hash(path)",
    "verify": "tensora_py.verify(path, deep=True)",
    "diff": "tensora_py.diff(path, path)",
    "convert": 'tensora_py.convert(path, path + ".out", memory_budget=64 << 20)',
}


def interrupted(call: str, path: object, **environment: str) -> float:
    """Seconds from SIGINT until the call has raised."""
    process = child(
        f"""
        import asyncio, sys, time
        import tensora_py
        path = sys.argv[1]
        print("ready", flush=True)
        try:
            {call}
        except KeyboardInterrupt:
            # The same clock for all processes.
            print(time.monotonic(), flush=True)
        else:
            print("done", flush=True)
        """,
        path,
        **environment,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.25)
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert out.strip() != "done", f"{call} ended before it was interrupted"
    return float(out) - asked


@pytest.mark.heavy
@pytest.mark.parametrize("way", CALLS)
def test_ctrl_c_ends_a_call_soon(tmp_path: Path, way: str) -> None:
    # Loads need the memory; what goes through a checkpoint has a terabyte of zeros to read.
    size = roomy(8 << 30) if "load" in way or way == "iter_tensors" else 1 << 40
    path = sparse(tmp_path / "m.safetensors", "U8", {"w": (size,)})
    waits = []
    while len(waits) < 3 and (not waits or min(waits) > soon()):
        shutil.rmtree(f"{path}.out", ignore_errors=True)
        waits.append(interrupted(CALLS[way], path))
    # A conversion removes, or puts on the disk, what it has written: that is the disk's time.
    assert min(waits) <= soon() + (10 if way == "convert" else 0), waits


def test_ctrl_c_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    with FakeHub({}, stall=True) as hub:
        wait = interrupted(
            "tensora_py.open(path)", "org/name", HF_ENDPOINT=hub.endpoint, HF_HOME=str(tmp_path)
        )
    assert wait <= 2 * soon()


def test_what_was_interrupted_can_be_done_again(tmp_path: Path) -> None:
    path = sparse(tmp_path / "m.safetensors", "U8", {"w": (1 << 40,), "small": (9,)})
    out = run(
        """
        import os, signal, sys, threading, tensora_py
        for _ in range(3):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                tensora_py.hash(sys.argv[1])
            except KeyboardInterrupt:
                print("ended")
        print(bytes(tensora_py.load(sys.argv[1], framework="dlpack", names=["small"])["small"]))
        """,
        path,
    )
    assert out.splitlines() == ["ended"] * 3 + [repr(bytes(9))]


@pytest.mark.heavy
def test_signals_are_handled_meanwhile_and_need_not_end_the_call(tmp_path: Path) -> None:
    path = sparse(tmp_path / "m.safetensors", "U8", {"w": (256 << 20,)})
    out = run(
        """
        import signal, sys, tensora_py
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        for _ in range(50):
            tensors = tensora_py.load(sys.argv[1], framework="dlpack", backend="sync")
            if seen:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(bool(seen), tensors["w"].nbytes)
        """,
        path,
    )
    assert out == f"True {tensora_py.open(path).nbytes}\n"


@pytest.mark.heavy
@pytest.mark.parametrize("call", ["load", "iter_tensors", "hash"])
def test_other_threads_run_meanwhile(tmp_path: Path, call: str) -> None:
    path = sparse(tmp_path / "m.safetensors", "U8", {"w": (roomy(1 << 30),)})
    turns = 0
    ended = threading.Event()

    def count() -> None:
        nonlocal turns
        while not ended.is_set():
            time.sleep(0.001)
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    if call == "hash":
        tensora_py.hash(path)
    elif call == "load":
        tensora_py.load(path, framework="dlpack", backend="sync")
    else:
        list(tensora_py.iter_tensors(path, framework="dlpack", memory_budget=4 << 30))
    counted = turns - before
    ended.set()
    thread.join()
    # Were the interpreter held, there would be two at the most: before and after.
    assert counted >= 5


def test_a_server_in_the_same_process_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server needs the interpreter while we wait for it: this would hang if it were held.
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with FakeHub({}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        with pytest.raises(tensora_py.TensoraError):
            tensora_py.open("org/name")
        assert hub.requests


# Bars.

LOAD = """
import sys
{before}
import tensora_py
for call in (tensora_py.load, lambda *a, **k: list(tensora_py.iter_tensors(*a, **k))):
    call(sys.argv[1], framework="dlpack", progress=True)
tensora_py.hash(sys.argv[1], progress=True)
tensora_py.convert(sys.argv[1], sys.argv[2], progress=True, verify=True)
"""
WITHOUT_TQDM = 'sys.modules["tqdm"] = None'


def on_terminal(code: str, *arguments: object, **environment: str) -> str:
    """What a program writes to a terminal as its standard error."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        os.environ | environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, slave, 2)],
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, shown.decode()
    return shown.decode()


@pytest.mark.parametrize("before", ["", WITHOUT_TQDM])
def test_a_bar_is_shown_on_a_terminal(shards: Path, tmp_path: Path, before: str) -> None:
    shown = on_terminal(LOAD.format(before=before), shards, tmp_path / "out")
    assert shown.count("100") >= 4, shown
    assert "\r" in shown
    # It ends with a line of its own.
    assert shown.endswith("\n")


@pytest.mark.parametrize("rank", ["1", "7"])
@pytest.mark.parametrize("before", ["", WITHOUT_TQDM])
def test_only_the_first_process_shows_a_bar(
    shards: Path, tmp_path: Path, before: str, rank: str
) -> None:
    assert on_terminal(LOAD.format(before=before), shards, tmp_path / "out", RANK=rank) == ""
    assert on_terminal(LOAD.format(before=before), shards, tmp_path / "two", RANK="0") != ""


@pytest.mark.parametrize("before", ["", WITHOUT_TQDM, "sys.stderr = None"])
def test_no_bar_is_shown_to_a_file(shards: Path, tmp_path: Path, before: str) -> None:
    process = child(LOAD.format(before=before), shards, tmp_path / "out")
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out, errors) == (0, "", "")


def test_nothing_is_printed_and_nothing_is_imported(shards: Path) -> None:
    process = child(
        """
        import sys, warnings
        warnings.simplefilter("error")
        import tensora_py
        heavy = {"torch", "numpy", "ml_dtypes", "tqdm", "safetensors"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        tensora_py.load(sys.argv[1], framework="dlpack")
        with tensora_py.open(sys.argv[1]) as checkpoint:
            checkpoint.plan()
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        """,
        shards,
    )
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out, errors) == (0, "", "")
