"""The one file that was opened, whatever becomes of its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _native
from .._checkpoint import request
from .._errors import CheckpointNotFoundError, LoadError
from ._errors import SafetensorError, as_safetensors

T = TypeVar("T")

DESCRIPTORS = "/proc/self/fd"
"""Where Linux has the open files of a process under their numbers."""

SHORT = 1 << 20
"""Tensors up to this length, in bytes, are read by one thread: planning takes as long as that."""


class File:
    """A SafeTensors file.

    The native module opens files by their names when it reads. Here a descriptor is kept, by which
    the file is found when it was removed, or when another one has got its name.
    """

    def __init__(self, filename: str) -> None:
        self._descriptor: int | None = None
        # An absolute path: processes change their folder, and nothing shall be taken for a model's id.
        self._path = os.path.abspath(filename)
        descriptor = _descriptor(self._path)
        try:
            self.header = _opened(filename, self._path)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        self._native = self.header
        if descriptor is not None:
            self._descriptor = descriptor
            self._status = os.fstat(descriptor)
            # Another one may have got the name between the two.
            self.header = self.native

    def __del__(self, close: Any = os.close) -> None:
        if self._descriptor is not None:
            close(self._descriptor)
            self._descriptor = None

    @property
    def native(self) -> _native.Checkpoint:
        """What reads this file now."""
        if self._descriptor is not None and self._native is self.header and not self._has_name():
            now = os.fstat(self._descriptor)
            # What was written over is another file, too, and the native module says so.
            if (now.st_size, now.st_mtime_ns) == (self._status.st_size, self._status.st_mtime_ns):
                with as_safetensors():
                    self._native = _native.Checkpoint.open(self._place(), "safetensors", None, None)
        return self._native

    def _has_name(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), self._status)
        except OSError:
            return False

    def _place(self) -> str:
        return self._path if self._descriptor is None else f"{DESCRIPTORS}/{self._descriptor}"

    def metadata(self) -> dict[str, str] | None:
        """The ``__metadata__`` of the header; ``None`` where there is none."""
        return self.header.metadata or ({} if self._has_metadata() else None)

    def _has_metadata(self) -> bool:
        with open(self._place(), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            # No tensor can have this name, and no other string these quotes.
            return b'"__metadata__"' in file.read(length)

    def using(self, use: Callable[[_native.Checkpoint], T]) -> T:
        """What ``use`` makes of the file; again, where its name was given to another one meanwhile."""
        native = self.native
        try:
            return use(native)
        except LoadError as error:
            now = self.native
            if error.kind != "SourceChanged" or now is native:
                raise
            return use(now)

    def read(self, name: str, *, mapped: bool, index: Any = None) -> _native.Tensor:
        """A tensor, or a part of it, in memory that nobody else has."""

        def use(native: _native.Checkpoint) -> _native.Tensor:
            if index is None and mapped:
                return native.tensor(name)
            if index is None and native.info(name)[2] <= SHORT:
                return native.read(name)
            slices = None if index is None else {name: index}
            asked, _ = request(native, names=[name], slices=slices)
            [tensor] = native.map(asked) if mapped else native.load(asked)
            return tensor

        return self.using(use)


def _descriptor(path: str) -> int | None:
    """The file's, where such a one leads back to its file; elsewhere names have to do."""
    if not os.path.isdir(DESCRIPTORS) or not os.path.isfile(path):
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # Either there are too many, or the native module has the same trouble and the better words.
        return None


def _opened(filename: str, path: str) -> _native.Checkpoint:
    if not filename or not os.path.exists(path):
        error = CheckpointNotFoundError(f"No such file or directory: {filename}")
        error.kind, error.path = "NotFound", filename
        error.errno, error.filename = errno.ENOENT, filename
        raise error
    if os.path.isdir(path):
        raise _NotAFile(errno.EISDIR, "this is a folder, and a file is needed", filename)
    with as_safetensors():
        return _native.Checkpoint.open(path, "safetensors", None, None)


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
