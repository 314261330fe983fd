"""Exceptions: classes that Python has for the same trouble, and what they know."""

from __future__ import annotations

import errno
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensora_py
from helpers import Stored, run, stored, write_safetensors, write_serverlessllm, write_shards
from tensora_py import _errors

BUILTIN = {
    "AccessError": PermissionError,
    "ArgumentTypeError": TypeError,
    "CancelledError": RuntimeError,
    "CheckpointNotFoundError": FileNotFoundError,
    "DtypeError": TypeError,
    "InvalidArgumentError": ValueError,
    "InvalidCheckpointError": ValueError,
    "LoadError": OSError,
    "NetworkError": ConnectionError,
    "OutOfMemoryError": MemoryError,
    "TensorIndexError": IndexError,
    "TensorNotFoundError": KeyError,
    "UnavailableError": RuntimeError,
}


def test_every_class_is_also_one_of_python() -> None:
    public = {name for name in tensora_py.__all__ if name.endswith("Error")} - {"TensoraError"}
    assert public == set(BUILTIN)
    assert set(_errors.__all__) == public | {"TensoraError"}
    for name, builtin in BUILTIN.items():
        cls = getattr(tensora_py, name)
        assert issubclass(cls, tensora_py.TensoraError)
        assert issubclass(cls, builtin)
        assert cls.__doc__


def test_messages_are_shown_as_they_are() -> None:
    # KeyError would show quotes, OSError a number.
    for name in BUILTIN:
        assert str(getattr(tensora_py, name)("as it is: 'x'")) == "as it is: 'x'"
        assert str(getattr(tensora_py, name)()) == ""


def every_way(path: Path, **options: Any) -> list[Callable[[], object]]:
    return [
        lambda: tensora_py.load(path, framework="dlpack", **options),
        lambda: list(tensora_py.iter_tensors(path, framework="dlpack", **options)),
        lambda: tensora_py.open(path),
    ]


def test_a_damaged_file_is_named_with_its_numbers(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": stored("F32", (100,))})
    size = path.stat().st_size
    os.truncate(path, size - 9)
    for use in every_way(path):
        with pytest.raises(tensora_py.InvalidCheckpointError) as caught:
            use()
        error = caught.value
        assert (error.kind, error.path) == ("Truncated", str(path))
        assert str(size) in str(error) and str(size - 9) in str(error)
        assert str(path) in str(error)


def test_a_tensor_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    entry = {"dtype": "Q4_K", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"blk.0": entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(
        tensora_py.InvalidCheckpointError, match=r"blk\.0.*Q4_K|Q4_K.*blk\.0"
    ) as caught:
        tensora_py.open(path)
    assert (caught.value.kind, caught.value.tensor) == ("UnknownDtype", "blk.0")


@pytest.mark.torch
def test_brackets_name_what_is_near(shards: Path) -> None:
    with pytest.raises(KeyError, match=r"layers\.1\.weight"):
        tensora_py.open(shards)["layers.1.wieght"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nothing.safetensors"
    for use in every_way(path):
        with pytest.raises(FileNotFoundError) as caught:
            use()
        error = caught.value
        assert isinstance(error, tensora_py.CheckpointNotFoundError)
        assert error.filename == error.path == str(path)
        assert error.kind == "NotFound"


def test_missing_shards_and_partitions_are_named(tmp_path: Path) -> None:
    tensors = {"a": stored("F32", (4,)), "b": stored("F32", (4,))}
    folder = write_shards(tmp_path / "s", tensors, 2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(tensora_py.CheckpointNotFoundError, match="model-00002-of-00002") as caught:
        tensora_py.open(folder)
    assert caught.value.kind == "MissingShard"
    folder = write_serverlessllm(tmp_path / "p", tensors)
    (folder / "tensor.data_1").unlink()
    with pytest.raises(tensora_py.CheckpointNotFoundError, match=r"tensor\.data_1") as caught:
        tensora_py.open(folder)
    assert caught.value.kind == "PartitionMissing"


def test_an_empty_folder_has_no_weights(tmp_path: Path) -> None:
    with pytest.raises(tensora_py.CheckpointNotFoundError) as caught:
        tensora_py.open(tmp_path)
    assert (caught.value.kind, caught.value.path) == ("NoWeights", str(tmp_path))


def test_an_unknown_name_comes_with_those_that_are_near(shards: Path, backend: str) -> None:
    checkpoint = tensora_py.open(shards, backend=backend)
    for use in (
        lambda: checkpoint.info("layers.1.wieght"),
        lambda: checkpoint.get_slice("layers.1.wieght", framework="numpy"),
        lambda: checkpoint.get("layers.1.wieght", framework="numpy"),
        lambda: checkpoint.plan(names=["layers.1.wieght"]),
        lambda: tensora_py.load(shards, framework="numpy", names=["layers.1.wieght"]),
        lambda: tensora_py.iter_tensors(shards, framework="numpy", names=["layers.1.wieght"]),
    ):
        with pytest.raises(KeyError) as caught:
            use()
        assert isinstance(caught.value, tensora_py.TensorNotFoundError)
        assert caught.value.kind == "NoSuchTensor"
        assert "layers.1.weight" in str(caught.value)
        assert not str(caught.value).startswith(("'", '"'))


def test_a_file_that_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        path = write_safetensors(folder / "m.safetensors", {"w": stored("F32", (1,))})
        path.chmod(0)
        inner = folder / "inner"
        inner.mkdir(0o700)
        hidden = write_safetensors(inner / "m.safetensors", {"w": stored("F32", (1,))})
        inner.chmod(0)
        # Root may read everything, and becomes somebody else.
        out = run(
            """
            import os, sys, tensora_py
            if os.geteuid() == 0:
                os.setuid(65534)
            for path in sys.argv[1:]:
                try:
                    tensora_py.open(path)
                except PermissionError as error:
                    assert isinstance(error, tensora_py.AccessError)
                    assert error.filename == error.path
                    print(error.errno, error.path)
            """,
            path,
            hidden,
        )
        inner.chmod(0o700)
    assert out == f"13 {path}\n13 {hidden}\n"


@pytest.mark.parametrize(
    ("errno", "expected"),
    [(13, "AccessError"), (1, "AccessError"), (5, "LoadError"), (None, "LoadError")],
)
def test_numbers_of_the_system_are_kept(errno: int | None, expected: str) -> None:
    error = _errors.make("Io", "cannot read", "/x", None, errno)
    assert type(error).__name__ == expected
    assert isinstance(error, OSError)
    assert (error.errno, error.filename, error.path) == (errno, "/x", "/x")
    assert str(error) == "cannot read"


def test_errors_reach_other_processes(tmp_path: Path) -> None:
    with pytest.raises(tensora_py.CheckpointNotFoundError) as caught:
        tensora_py.open(tmp_path / "nothing.safetensors")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value)
    assert str(copied) == str(caught.value)
    assert (copied.kind, copied.path, copied.tensor) == ("NotFound", caught.value.path, None)


def test_a_load_gives_all_or_nothing(
    tmp_path: Path, model: dict[str, Stored], backend: str
) -> None:
    folder = write_shards(tmp_path, model, 2)
    path = folder / "model-00002-of-00002.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(tensora_py.InvalidCheckpointError):
        tensora_py.load(folder, framework="dlpack", backend=backend)


def test_odd_paths_are_errors_and_no_crash(tmp_path: Path) -> None:
    for path in ("", "\0", "a\0b", "/dev/null", "/proc/self/mem", "." * 5000, "no/such/dir/"):
        with pytest.raises((tensora_py.TensoraError, ValueError, OSError)):
            tensora_py.open(path)
    fifo = tmp_path / "fifo.safetensors"
    os.mkfifo(fifo)
    # It is not waited for.
    with pytest.raises(tensora_py.TensoraError):
        tensora_py.open(fifo)
    for wrong in (None, 7, 1.5, ["x"], object()):
        with pytest.raises(TypeError):
            tensora_py.open(wrong)  # type: ignore[arg-type]


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    write_shards(folder, {"w": stored("U8", (1,))}, 1)
    assert tensora_py.open(folder).path == str(folder)
    with pytest.raises(tensora_py.CheckpointNotFoundError) as caught:
        tensora_py.open(folder / "no.safetensors")
    assert caught.value.path == str(folder / "no.safetensors")


def test_an_explicit_backend_that_cannot_run_says_why(tiny: Path) -> None:
    out = run(DENIED, tiny)
    assert "io-uring" in out or "io_uring" in out
    assert out.startswith("RuntimeError UnavailableError Unavailable")


DENIED = """
import ctypes, os, struct, sys, tensora_py
# A filter of system calls that answers io_uring_setup (425) with EPERM, as containers have it.
def instruction(code, jt, jf, k):
    return struct.pack("HBBI", code, jt, jf, k)
program = (
    instruction(0x20, 0, 0, 0)
    + instruction(0x15, 0, 1, 425)
    + instruction(0x06, 0, 0, 0x00050000 | 1)
    + instruction(0x06, 0, 0, 0x7FFF0000)
)
buffer = ctypes.create_string_buffer(program, len(program))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
tensora_py.load(sys.argv[1], framework="dlpack")
assert tensora_py.capabilities()["io_uring"]["status"] != "available"
try:
    tensora_py.load(sys.argv[1], framework="dlpack", backend="io-uring")
except RuntimeError as error:
    print("RuntimeError", type(error).__name__, error.kind, error)
"""


def test_a_process_that_may_have_no_more_threads_is_told(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": stored("U8", (4,))})
    tmp_path.chmod(0o755)
    out = run(
        """
        import os, resource, sys, tensora_py
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        for use in (tensora_py.open, lambda path: tensora_py.load(path, framework="dlpack")):
            try:
                use(sys.argv[1])
            except tensora_py.TensoraError as error:
                print(error.kind)
        """,
        path,
    )
    assert out.split() == ["Io", "Io"]


def test_what_is_not_there_has_a_number_and_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        tensora_py.open(tmp_path / "no")
    assert caught.value.errno == errno.ENOENT
