"""What arguments can be, by their names, which mean the same in every function."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ._errors import ArgumentTypeError, InvalidArgumentError

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def check(**given: Any) -> None:
    """Refuses what an argument cannot be, whatever the checkpoint is.

    Raises:
        ArgumentTypeError: it is of another type.
        InvalidArgumentError: it is of the type, and still nothing that could be meant.
    """
    for name, value in given.items():
        if value is not None or name not in _OPTIONAL:
            _KINDS[name](name, value)


def wrong_type(name: str, value: Any, wanted: str) -> ArgumentTypeError:
    """The error for an argument that is something else than it shall be."""
    what = "" if value is None else f", of type {type(value).__name__}"
    return ArgumentTypeError(f"{name} is {shown(value)}{what}; give {wanted}")


def shown(value: Any) -> str:
    """A value for a message: on one line, and not much of it."""
    try:
        return " ".join(_REPR.repr(value).split())
    except ValueError:  # An integer of thousands of digits.
        return f"an {type(value).__name__} that is too long to show"


def listed(names: Iterable[str]) -> list[str]:
    """Names of tensors as a list; they may come from a generator."""
    made = list(names)
    for name in made:
        text("an item of names", name, "strings")
    return made


def text(name: str, value: Any, wanted: str = "a string") -> None:
    """Refuses what is no string, or none that UTF-8 has."""
    if not isinstance(value, str):
        raise wrong_type(name, value, wanted)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} is {shown(value)}, which is no UTF-8: {error}"
        ) from None


def _names(name: str, value: Any) -> None:
    if isinstance(value, str):
        raise InvalidArgumentError(f"{name} is the string {shown(value)}; give a list of names")
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise wrong_type(name, value, "a list of names")


def _mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a dict, whose keys are strings")
    for key in value:
        text(f"a key of {name}", key, "strings")


def _path(name: str, value: Any) -> None:
    try:
        path = os.fspath(value)
    except TypeError:
        raise wrong_type(name, value, "a path: a str or an os.PathLike") from None
    if isinstance(path, bytes):
        raise wrong_type(name, value, "a str, which os.fsdecode() makes of it")
    if not path:
        raise InvalidArgumentError(f"{name} is empty; give a path, such as '.'")
    if "\0" in path:
        raise InvalidArgumentError(f"{name} is {shown(path)}; no path has a NUL in it")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} is {shown(path)}, which cannot be encoded: {error}"
        ) from None


def _flag(name: str, value: Any) -> None:
    kind = type(value)
    of_numpy = kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")
    if not isinstance(value, bool) and not of_numpy:
        raise wrong_type(name, value, "True or False")


def _number(most: int, name: str, value: Any) -> None:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise wrong_type(name, value, "an integer")
    if number < 1:
        raise InvalidArgumentError(f"{name} is {shown(number)}; it must be 1 or more")
    if number > most:
        raise InvalidArgumentError(f"{name} is {shown(number)}; it can be {most} at most")


_NUMBER = partial(_number, (1 << 64) - 1)

_KINDS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("a", "b", "manifest", "out", "path", "path_or_id"), _path),
    **dict.fromkeys(("input_dir", "output_dir"), _path),
    **dict.fromkeys(("backend", "dialect", "framework", "layout", "model_id"), text),
    **dict.fromkeys(("name", "revision", "to"), text),
    **dict.fromkeys(("deep", "force", "packed", "progress", "resume", "side_files"), _flag),
    **dict.fromkeys(("verify",), _flag),
    **dict.fromkeys(("align", "max_shard_size", "memory_budget", "workers"), _NUMBER),
    **dict.fromkeys(("metadata", "slices", "tensors"), _mapping),
    "names": _names,
    "partitions": partial(_number, (1 << 32) - 1),
}

_OPTIONAL = frozenset(
    ("align", "layout", "manifest", "max_shard_size", "memory_budget", "metadata", "names")
    + ("partitions", "revision", "slices", "to", "workers")
)
