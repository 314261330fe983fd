"""A file whose header was read, and whose tensors are taken one by one."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from .. import _native
from .._checkpoint import TensorInfo, request
from .._errors import CheckpointNotFoundError
from .._slices import window
from ._errors import SafetensorError, as_safetensors
from ._frameworks import wrapper

BACKENDS = ("mmap", "pread")

BATCH = 64
"""Tensors that are taken at a time where many are ready."""


class safe_open:
    """Opens a SafeTensors file; its header is read and checked, tensors are read when asked for.

    Args:
        filename: the file.
        framework: ``"pt"``, ``"np"``, ``"flax"`` or ``"tf"``, or one of their longer names.
        device: where tensors of torch shall be; a number is that of a CUDA device.
        backend: ``"mmap"`` maps tensors, which are read when they are touched, and only as far as
            they are; what is written to them never reaches the file. ``"pread"`` reads into memory
            of their own, and of slices only what they take, on several threads where that pays.

    Raises:
        SafetensorError: the file is damaged or no SafeTensors file, or an argument is unknown.
        FileNotFoundError: there is no such file.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        self._file: _native.Checkpoint | None = None
        if backend not in BACKENDS:
            raise SafetensorError(
                f"backend {backend!r} is invalid; known are {', '.join(BACKENDS)}"
            )
        self._mapped = backend == "mmap"
        self._filename = os.fspath(filename)
        self._wrap, self._move = wrapper(framework, device)
        self._lock = threading.Lock()
        self._ready: dict[str, _native.Tensor] | None = None
        self._file = _opened(self._filename)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        self._file = self._ready = None

    @property
    def _open(self) -> _native.Checkpoint:
        if self._file is None:
            raise SafetensorError(f"File is closed: {self._filename}")
        return self._file

    def keys(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._open.keys())

    def offset_keys(self) -> list[str]:
        """Names of all tensors in the order of the file."""
        return list(self._open.keys())

    def metadata(self) -> dict[str, str] | None:
        """The ``__metadata__`` of the header; ``None`` where there is none."""
        return self._open.metadata or None

    def get_tensor(self, name: str) -> Any:
        """A tensor.

        Raises:
            SafetensorError: there is none of this name, or the framework has no dtype for it.
        """
        with as_safetensors():
            return self._moved(self._wrap(self._take(name)))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name."""
        with as_safetensors():
            file = self._open
            asked, _ = request(file)
            if self._move is not None:
                return self._moving(file.stream(asked))
            tensors = file.map(asked) if self._mapped else file.load(asked)
            return {tensor.name: self._wrap(tensor) for tensor in tensors}

    def _take(self, name: str) -> _native.Tensor:
        file = self._open
        if not self._mapped:
            return _read(file, name, mapped=False)
        with self._lock:
            if self._ready is None:
                # To map all of them costs little more than to map one, and reads nothing.
                asked, _ = request(file)
                self._ready = {tensor.name: tensor for tensor in file.map(asked)}
            tensor = self._ready.pop(name, None)
        # Whoever asks twice gets memory that nobody has written to.
        return _read(file, name, mapped=True) if tensor is None else tensor

    def _moving(self, stream: _native.Stream) -> dict[str, Any]:
        """Tensors that go elsewhere as they arrive, and leave the memory here."""
        made = {}
        try:
            while batch := stream.take(BATCH):
                while batch:
                    tensor = batch.pop(0)
                    made[tensor.name] = self._moved(self._wrap(tensor))
        finally:
            stream.close()
        return made

    def _moved(self, array: Any) -> Any:
        return array if self._move is None else self._move(array)

    def get_slice(self, name: str) -> PySafeSlice:
        """A tensor of which parts are taken by indexing."""
        with as_safetensors():
            return PySafeSlice(self, TensorInfo(name, *self._open.info(name)))


class PySafeSlice:
    """A tensor of a file, to be indexed as an array of the framework would be."""

    def __init__(self, owner: safe_open, info: TensorInfo) -> None:
        self._owner, self._file = owner, owner._open
        self._info = info
        self._whole: Any = None

    def get_shape(self) -> list[int]:
        """Dimensions, outermost first."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """As SafeTensors spells it."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        with as_safetensors():
            return self._owner._moved(self._part(index))

    def _part(self, index: Any) -> Any:
        owner, name = self._owner, self._info.name
        if owner._mapped:
            # Of a mapping only the pages are read that are touched, whatever the index is.
            if self._whole is None:
                self._whole = owner._wrap(
                    # The owner may be closed while this is still used.
                    _read(self._file, name, mapped=True)
                    if owner._file is None
                    else owner._take(name)
                )
            return self._whole[index]
        try:
            # What is packed in bytes has other indices in frameworks than in the file.
            part = None if self._info.dtype == "F4" else window(self._info.shape, index)
        except (TypeError, ValueError, IndexError):
            # Lists, None and the like; or an error, which is the framework's to raise.
            part = None
        if part is None:
            return owner._wrap(_read(self._file, name, mapped=False))[index]
        read = _read(self._file, name, mapped=False, index=index)
        return owner._wrap(read).reshape(part.shape)


def _read(
    file: _native.Checkpoint, name: str, *, mapped: bool, index: Any = None
) -> _native.Tensor:
    asked, _ = request(file, names=[name], slices=None if index is None else {name: index})
    [tensor] = file.map(asked) if mapped else file.load(asked)
    return tensor


def _opened(filename: str) -> _native.Checkpoint:
    if not os.path.exists(filename):
        error = CheckpointNotFoundError(f"No such file or directory: {filename}")
        error.kind, error.path = "NotFound", filename
        error.errno, error.filename = errno.ENOENT, filename
        raise error
    if os.path.isdir(filename):
        raise _NotAFile(errno.EISDIR, "this is a folder, and a file is needed", filename)
    with as_safetensors():
        # An absolute path, so that nothing can be taken for the id of a model.
        return _native.Checkpoint.open(os.path.abspath(filename), "safetensors", None, None)


class _NotAFile(SafetensorError, IsADirectoryError):
    """A folder where a file is needed."""


def of_bytes(data: bytes) -> list[_native.Tensor]:
    """The tensors of a file that is in memory, each in memory of its own, in the file's order."""
    with as_safetensors():
        if not isinstance(data, bytes):
            raise TypeError(f"data is a {type(data).__name__}; give bytes")
        file = _native.Checkpoint.of_bytes(data)
        asked, _ = request(file)
        return list(file.load(asked))
