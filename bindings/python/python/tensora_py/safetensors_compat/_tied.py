"""Tensors of a model that share memory: which of them is kept in a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class _Part(NamedTuple):
    """A tensor's part of its storage."""

    start: int
    stop: int
    name: str
    whole: bool


def removable(
    tensors: Mapping[str, Any], preferred: Iterable[str] = (), discarded: Iterable[str] = ()
) -> dict[str, list[str]]:
    """For each name that is kept, the sorted names of those that are in the same memory.

    Kept is a tensor that is all of its storage: one of ``preferred`` where there is one, else one
    that is not ``discarded`` where there is one, and of these the first in the alphabet.

    Raises:
        RuntimeError: none of them is all of its storage.
    """
    wanted, unwanted = set(preferred), set(discarded)
    kept: dict[str, list[str]] = {}
    for group in _groups(tensors):
        if len(group) == 1:
            continue
        names = sorted(part.name for part in group)
        whole = sorted(part.name for part in group if part.whole)
        if not whole:
            raise RuntimeError(
                f"the tensors {', '.join(names)} share memory, and none of them is all of it, so "
                "that there is none to keep for the others; save copies (.clone()), or add the "
                "whole tensor to the model"
            )
        # In the order of the alphabet among equals.
        keep = min(whole, key=lambda name: (name not in wanted, name in unwanted))
        kept[keep] = [name for name in names if name != keep]
    return kept


def together(tensors: Mapping[str, Any]) -> list[set[str]]:
    """Names of tensors that overlap, and of each of the others by itself; those without memory are in
    no set."""
    return [{part.name for part in group} for group in _groups(tensors)]


def is_whole(tensor: Any) -> bool:
    """Whether a tensor is all of its storage."""
    storage = tensor.untyped_storage()
    size: int = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == storage.data_ptr() and size == storage.nbytes())


def _groups(tensors: Mapping[str, Any]) -> list[list[_Part]]:
    """Those that overlap, and each of the others by itself."""
    storages: dict[tuple[Any, int], list[_Part]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or not tensor.numel():
            continue
        storage = tensor.untyped_storage()
        if not storage.data_ptr():
            continue
        start, size = tensor.data_ptr(), tensor.element_size()
        # Strides are never negative, so that the last element has the largest address.
        last = sum(
            (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        part = _Part(start, start + (last + 1) * size, name, is_whole(tensor))
        storages[tensor.device, storage.data_ptr()].append(part)
    groups: list[list[_Part]] = []
    for parts in storages.values():
        parts.sort()
        stop = 0
        for part in parts:
            if groups and part.start < stop:
                groups[-1].append(part)
            else:
                groups.append([part])
            stop = max(stop, part.stop)
    return groups
