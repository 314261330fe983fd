"""Exceptions: one base, and classes that are also what Python has for the same trouble."""

from __future__ import annotations

import os
from errno import ENOENT

__all__ = [
    "ArgumentTypeError",
    "CancelledError",
    "CheckpointNotFoundError",
    "DtypeError",
    "InvalidArgumentError",
    "InvalidCheckpointError",
    "LoadError",
    "NetworkError",
    "OutOfMemoryError",
    "AccessError",
    "TensorIndexError",
    "TensorNotFoundError",
    "TensoraError",
    "UnavailableError",
]


class TensoraError(Exception):
    """Anything that goes wrong here.

    Attributes:
        kind: what went wrong, by a stable name such as ``"Truncated"``.
        path: the file or folder concerned, if one is.
        tensor: the name of the tensor concerned, if one is.
    """

    kind: str = "Error"
    path: str | None = None
    tensor: str | None = None

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, OSError a form of its own.
        return str(self.args[0]) if self.args else ""


class InvalidCheckpointError(TensoraError, ValueError):
    """A file or an index is damaged, or is something else."""


class InvalidArgumentError(TensoraError, ValueError):
    """A selection, slice or setting that makes no sense for this checkpoint."""

    kind = "InvalidArgument"


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument, or a part of an index, is of a type that it cannot be."""


class TensorIndexError(InvalidArgumentError, IndexError):
    """An index lies beyond a tensor, or has more dimensions than it."""


class DtypeError(TensoraError, TypeError):
    """A framework has no dtype for a tensor, or no arrays of its shape."""

    kind = "Unsupported"


class TensorNotFoundError(TensoraError, KeyError):
    """No tensor has this name; the message has those that are near."""

    kind = "NoSuchTensor"


class CheckpointNotFoundError(TensoraError, FileNotFoundError):
    """A path, or a file that a checkpoint needs, is not there."""

    kind = "NotFound"


class AccessError(TensoraError, PermissionError):
    """The system, or a server, refuses."""

    kind = "Denied"


class NetworkError(TensoraError, ConnectionError):
    """A server cannot be reached, or does not answer as it should."""

    kind = "Network"


class OutOfMemoryError(TensoraError, MemoryError):
    """What was selected does not fit into memory, or into what may be used of it."""

    kind = "OutOfMemory"


class UnavailableError(TensoraError, RuntimeError):
    """The backend, or the device, that was chosen is not there."""

    kind = "Unavailable"


class CancelledError(TensoraError, RuntimeError):
    """The load was ended from another thread."""

    kind = "Cancelled"


class LoadError(TensoraError, OSError):
    """Any other failure of the operating system."""

    kind = "Io"


_BY_KIND: dict[str, type[TensoraError]] = {
    "NoSuchTensor": TensorNotFoundError,
    "NotFound": CheckpointNotFoundError,
    "NotCached": CheckpointNotFoundError,
    "NoWeights": CheckpointNotFoundError,
    "MissingShard": CheckpointNotFoundError,
    "PartitionMissing": CheckpointNotFoundError,
    "Denied": AccessError,
    "Network": NetworkError,
    "BadDownload": NetworkError,
    "OutOfMemory": OutOfMemoryError,
    "Unavailable": UnavailableError,
    "Cancelled": CancelledError,
    "InvalidArgument": InvalidArgumentError,
    "SharedMemory": InvalidArgumentError,
    "Unsupported": DtypeError,
    "Io": LoadError,
    "SourceChanged": LoadError,
}


def make(
    kind: str,
    message: str,
    path: os.PathLike[str] | str | None,
    tensor: str | None,
    errno: int | None,
) -> TensoraError:
    """The exception for an error of the library; called by the native module."""
    cls = _BY_KIND.get(kind, InvalidCheckpointError)
    if kind == "Io" and errno in (1, 13, 30):  # EPERM, EACCES, EROFS
        cls = AccessError
    error = cls(message)
    error.kind = kind
    error.path = None if path is None else os.fspath(path)
    error.tensor = tensor
    if isinstance(error, OSError):
        # Also where no call of the system has failed.
        missing = ENOENT if cls is CheckpointNotFoundError else None
        error.errno = missing if errno is None else errno
        error.filename = error.path
    return error
