"""Saving tensors that are in memory, of whatever framework, as SafeTensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native
from ._arguments import check, shown, text
from ._errors import InvalidArgumentError
from ._sources import Entry, entry

__all__ = ["save", "save_bytes"]


def save(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int | None = None,
) -> list[str]:
    """Saves tensors to a SafeTensors file, or to shards in a folder.

    A file is there whole or not at all: it is written beside its place and renamed when it is on
    disk. So tensors that are mapped from a file can be saved to this file. The same tensors in the
    same order give the same bytes.

    Args:
        tensors: by name: torch tensors (on any device; they are moved one at a time), numpy arrays
            (those of ml_dtypes, too), tensors of Tensora, anything with ``__dlpack__`` or the buffer
            protocol. They must be contiguous, and must not share memory.
        path: the file; with ``max_shard_size`` the folder, which is made where it is missing.
        metadata: strings for the header of every file.
        max_shard_size: bytes of tensors in a file at most; several files have an index.

    Returns:
        The paths of the files, the index last.

    Raises:
        InvalidArgumentError: a tensor that is not contiguous, has no data, or shares its memory with
            another; the message names it and says what to do.
        DtypeError: a tensor whose dtype the format does not have.
        ArgumentTypeError: names or metadata that are no strings.
        TensoraError: the file cannot be written; what was there before is still there.
    """
    check(path=path, max_shard_size=max_shard_size)
    files = _native.save(
        os.fspath(path), saving(entries(tensors), metadata, max_shard_size=max_shard_size)
    )
    return [os.fspath(file) for file in files]


def save_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of the file that `save` would write; arguments and errors are those of `save`."""
    made: bytes = _native.serialize(saving(entries(tensors), metadata))
    return made


def entries(tensors: Mapping[str, Any], *, shared: bool = False) -> list[Entry]:
    """What is known of each tensor, after all checks; ``shared`` allows memory that is shared."""
    check(tensors=tensors)
    found = [entry(name, value) for name, value in tensors.items()]
    if not shared:
        _refuse_shared(found)
    return found


def saving(
    found: list[Entry],
    metadata: Mapping[str, str] | None,
    *,
    max_shard_size: int | None = None,
    alignment: int | None = None,
) -> dict[str, Any]:
    """The arguments as the native module takes them."""
    return {
        "tensors": [(item.name, item.dtype, item.shape) for item in found],
        "take": lambda index: found[index].take(),
        "metadata": checked_metadata(metadata),
        "max_shard_size": max_shard_size,
        "alignment": alignment,
    }


def checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata as a dict of strings, or an error that says which entry is none."""
    check(metadata=metadata)
    for key, value in (metadata or {}).items():
        text(f"metadata[{shown(key)}]", value, "a string, by str() or json.dumps()")
    return dict(metadata or {})


def _refuse_shared(found: Iterable[Entry]) -> None:
    """An error where tensors have bytes in common: these would be saved twice, and be apart when they
    are loaded."""
    placed = sorted(
        (item for item in found if item.span is not None and item.span[1] < item.span[2]),
        key=lambda item: item.span or (),
    )
    groups: list[list[Entry]] = []
    device, end = "", 0
    for item in placed:
        where, start, stop = item.span or ("", 0, 0)
        if where == device and start < end:
            groups[-1].append(item)
            end = max(end, stop)
        else:
            groups.append([item])
            device, end = where, stop
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return
    names = "; ".join(
        sorted(", ".join(sorted(repr(item.name) for item in group)) for group in groups)
    )
    error = InvalidArgumentError(
        f"these tensors share memory: {names}; save only one of them and tie the others again after "
        "loading, or save a copy of each (.clone(), .copy())"
    )
    error.kind = "SharedMemory"
    error.tensor = groups[0][0].name
    raise error
