"""`safetensors.torch`: tensors and models of torch to and from files and bytes."""

from __future__ import annotations

import os
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _frameworks
from .._save import entries
from .._sources import Entry
from ._bytes import to_bytes, to_file
from ._errors import as_safetensors
from ._file import of_bytes
from ._open import safe_open
from ._tied import is_whole, removable, together

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of the file that `save_file` would write."""
    return to_bytes(_entries(tensors), metadata)


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes tensors to a file.

    Args:
        tensors: contiguous tensors that share no memory, on any device.
        filename: the file; one that is there is replaced when the new one is complete, also where
            the tensors are mapped from it.
        metadata: strings for the header.

    Raises:
        ValueError: something that is no dense, contiguous tensor with data.
        RuntimeError: tensors that share memory; `save_model` keeps one of them.
        SafetensorError: either of these, a dtype that the format does not have, and a file that
            cannot be written.
    """
    to_file(_entries(tensors), filename, metadata)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a file that is in memory."""
    wrap = _frameworks.wrapper("torch")
    with as_safetensors():
        made: dict[str, Any] = {tensor.name: wrap(tensor) for tensor in of_bytes(data)}
    return made


def load_file(
    filename: str | os.PathLike[str],
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> dict[str, torch.Tensor]:
    """The tensors of a file on ``device``.

    With ``backend="mmap"`` those on the CPU are mapped, and read when they are touched; with
    ``"pread"`` they are read on several threads into memory of their own.
    """
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def save_model(
    model: torch.nn.Module,
    filename: str,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Writes the tensors of a model to a file; of those that share memory, one.

    The metadata gets an entry for each that is left out, with the name of the one that is kept.

    Args:
        model: what has the tensors.
        filename: the file.
        metadata: strings for the header; its entries win.
        force_contiguous: save contiguous copies of tensors that are not.

    Raises:
        RuntimeError: tensors share memory, and none of them is all of it.
    """
    tensors = model.state_dict()
    noted = dict(metadata or {})
    for kept, left_out in removable(tensors).items():
        for name in left_out:
            noted.setdefault(name, kept)
            del tensors[name]
    if force_contiguous:
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, filename, metadata=noted)


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Copies the tensors of a file into a model, also one that `save_model` has written.

    Args:
        model: what has the tensors.
        filename: the file.
        strict: whether names that are missing or not known are an error.
        device: where the tensors of the file are loaded to before they are copied.
        backend: as in `load_file`.

    Returns:
        Names of the model that the file does not have, and names of the file that the model does
        not have. Of tensors that share memory one is enough.

    Raises:
        RuntimeError: with ``strict``, names that are missing or not known; shapes that differ.
    """
    tensors = load_file(filename, device=device, backend=backend)
    shared = removable(model.state_dict(), preferred=tensors.keys())
    lacking, unexpected = model.load_state_dict(tensors, strict=False)
    missing = set(lacking)
    for left_out in shared.values():
        for name in left_out:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)
    if strict and (missing or unexpected):
        told = [f"Error(s) in loading {os.fspath(filename)} into {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                told.append(f"{what} key(s): " + ", ".join(f'"{name}"' for name in sorted(names)))
        raise RuntimeError("\n    ".join(told))
    return missing, unexpected


# Names without a place in the documentation there, which other packages import nevertheless.

_TYPES = {
    code: getattr(torch, name)
    for code, name in _frameworks.TORCH_DTYPES.items()
    if hasattr(torch, name)
}
_SIZE = {dtype: dtype.itemsize for dtype in _TYPES.values()}

_find_shared_tensors = together
_is_complete = is_whole


def _getdtype(dtype_str: str) -> torch.dtype:
    return _TYPES[dtype_str]


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 where it has no memory."""
    return int(tensor.untyped_storage().data_ptr())


def storage_size(tensor: torch.Tensor) -> int:
    """The length of a tensor's storage in bytes."""
    return int(tensor.untyped_storage().nbytes())


def _remove_duplicate_names(
    state_dict: dict[str, torch.Tensor],
    *,
    preferred_names: list[str] | None = None,
    discard_names: list[str] | None = None,
) -> dict[str, list[str]]:
    return removable(state_dict, preferred_names or (), discard_names or ())


def _entries(tensors: dict[str, torch.Tensor]) -> list[Entry]:
    if not isinstance(tensors, dict):
        raise ValueError(
            f"tensors is a {type(tensors).__name__}; give a dict of names and torch tensors"
        )
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name!r} is a {type(tensor).__name__}, and no torch.Tensor")
    with as_safetensors():
        return entries(tensors)
