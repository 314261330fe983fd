"""`safetensors.numpy`: arrays of numpy to and from files and bytes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .. import _frameworks
from .._save import entries
from ._bytes import to_bytes, to_file
from ._errors import as_safetensors
from ._file import of_bytes
from ._open import safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def save(tensor_dict: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of the file that `save_file` would write."""
    with as_safetensors():
        return to_bytes(entries(tensor_dict, shared=True), metadata)


def save_file(
    tensor_dict: dict[str, np.ndarray],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes arrays to a file.

    Args:
        tensor_dict: contiguous arrays, of either byte order.
        filename: the file; one that is there is replaced when the new one is complete.
        metadata: strings for the header.

    Raises:
        SafetensorError: an array that is not contiguous, a dtype that the format does not have, a
            file that cannot be written.
    """
    with as_safetensors():
        to_file(entries(tensor_dict, shared=True), filename, metadata)


def load(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file that is in memory."""
    wrap = _frameworks.wrapper("numpy")
    with as_safetensors():
        made: dict[str, Any] = {tensor.name: wrap(tensor) for tensor in of_bytes(data)}
    return made


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, np.ndarray]:
    """The arrays of a file, mapped or (with ``backend="pread"``) in memory of their own."""
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


# Names without a place in the documentation there, which other packages import nevertheless.

_TYPES: dict[str, Any] = {
    code: np.dtype(name).type for code, name in _frameworks.NUMPY_DTYPES.items()
}


def _getdtype(dtype_str: str) -> Any:
    return _TYPES[dtype_str]
