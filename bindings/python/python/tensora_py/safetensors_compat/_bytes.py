"""Files as bytes, and tensors as addresses: what the functions for each framework stand on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from .._frameworks import TORCH_DTYPES
from .._save import saving
from .._sources import Entry, at_address
from ._errors import SafetensorError, as_safetensors
from ._file import of_bytes

ALIGNMENT = 8
"""Where tensors begin in a file, as `safetensors` writes it."""

# In this order tensors of different dtypes follow each other in a file, the last one first.
_RANKS = {code: rank for rank, code in enumerate(TORCH_DTYPES)}
_CODES = {name: code for code, name in TORCH_DTYPES.items()}


class TensorSpec:
    """A tensor by the address of its bytes, which the caller keeps there.

    Args:
        dtype: as torch and numpy spell it, such as ``"float32"``.
        shape: dimensions; where the dtype packs two elements in a byte, of bytes.
        data_ptr: the address of the first byte.
        data_len: the length in bytes.

    Raises:
        SafetensorError: an unknown dtype.
    """

    __slots__ = ("data_len", "data_ptr", "dtype", "shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        code = _CODES.get(dtype)
        if code is None:
            raise SafetensorError(f"Unknown dtype {dtype!r}; known are {', '.join(_CODES)}")
        self.dtype = code
        self.shape = list(shape)
        if code == "F4" and self.shape:
            self.shape[-1] *= 2
        self.data_ptr = data_ptr
        self.data_len = data_len

    def entry(self, name: str) -> Entry:
        """As it is saved."""
        return Entry(name, self.dtype, self.shape, None, self._take)

    def _take(self) -> tuple[Any, Any]:
        if not self.data_len:
            return b"", self
        return at_address(self.data_ptr, self.data_len), self


def serialize(
    tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of the file that `serialize_file` would write."""
    return to_bytes(_specified(tensor_dict), metadata)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors to a file.

    Raises:
        SafetensorError: lengths that are not those of dtypes and shapes, or the file cannot be
            written; what was there before is still there.
    """
    to_file(_specified(tensor_dict), filename, metadata)


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Names, each with its ``"dtype"``, ``"shape"`` and ``"data"``, in the order of the file."""
    return [
        (
            tensor.name,
            {"shape": list(tensor.shape), "dtype": tensor.dtype, "data": bytearray(tensor)},
        )
        for tensor in of_bytes(bytes)
    ]


def _specified(tensor_dict: Mapping[str, TensorSpec]) -> list[Entry]:
    if not isinstance(tensor_dict, Mapping):
        raise TypeError(f"tensor_dict is a {type(tensor_dict).__name__}; give a dict")
    found = []
    for name, spec in tensor_dict.items():
        if not isinstance(name, str) or not isinstance(spec, TensorSpec):
            raise TypeError(f"tensor_dict has {name!r}: {spec!r}; give strings and TensorSpecs")
        found.append(spec.entry(name))
    return found


def to_bytes(found: list[Entry], metadata: Mapping[str, str] | None) -> bytes:
    """A file in memory, as `safetensors` orders and aligns it."""
    with as_safetensors():
        made: bytes = _native.serialize(saving(_ordered(found), metadata, alignment=ALIGNMENT))
        return made


def to_file(
    found: list[Entry], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None
) -> None:
    """A file on disk, as `safetensors` orders and aligns it."""
    path = os.fspath(filename)
    with as_safetensors(writing=True):
        _native.save(path, saving(_ordered(found), metadata, alignment=ALIGNMENT))


def _ordered(found: list[Entry]) -> list[Entry]:
    return sorted(found, key=lambda item: (-_RANKS.get(item.dtype, 0), item.name))
