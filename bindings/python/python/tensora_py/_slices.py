"""From what stands between brackets to rows for each dimension: pure."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from ._arguments import shown
from ._errors import ArgumentTypeError, InvalidArgumentError, TensorIndexError

# First row, how many, and how far apart; None takes the whole dimension.
Dim = tuple[int, int, int] | None


class Window(NamedTuple):
    """A part of a tensor."""

    dims: list[Dim]
    shape: tuple[int, ...]
    """The shape of the result: dimensions that were indexed by a number are gone."""


def window_of(name: str, shape: tuple[int, ...], index: Any) -> Window:
    """As `window`; errors name the tensor."""
    try:
        return window(shape, index)
    except InvalidArgumentError as error:
        error.tensor = name
        error.args = (f"tensor {shown(name)}: {error}",)
        raise


def window(shape: tuple[int, ...], index: Any) -> Window:
    """What ``tensor[index]`` takes of a tensor of this shape.

    Integers, slices with positive steps and one ``...`` are understood, as numpy has them.

    Raises:
        TensorIndexError: more indices than dimensions, or a number out of range.
        ArgumentTypeError: an index of another type.
        InvalidArgumentError: a step that is not positive.
    """
    given = index if isinstance(index, tuple) else (index,)
    dots = sum(1 for item in given if item is Ellipsis)
    if dots > 1:
        raise TensorIndexError("an index can only have a single ellipsis ('...')")
    spare = len(shape) - (len(given) - dots)
    if spare < 0:
        raise TensorIndexError(
            f"too many indices: the tensor has {len(shape)} dimensions (shape {shape}), "
            f"but {len(given) - dots} were indexed"
        )
    if not dots:
        given = (*given, Ellipsis)
    items: list[Any] = []
    for item in given:
        items.extend([slice(None)] * spare if item is Ellipsis else [item])
    dims: list[Dim] = []
    result: list[int] = []
    for dim, (item, rows) in enumerate(zip(items, shape, strict=True)):
        if isinstance(item, slice):
            start, stop, step = _indices(item, rows, dim)
            count = len(range(start, stop, step))
            whole = (start, count, step) == (0, rows, 1)
            # A step that leads to no second row may be larger than any file.
            dims.append(None if whole else (start if count else 0, count, step if count > 1 else 1))
            result.append(count)
        else:
            dims.append((_row(item, rows, dim), 1, 1))
    return Window(dims, tuple(result))


def _indices(item: slice, rows: int, dim: int) -> tuple[int, int, int]:
    start, stop, step = (
        None if part is None else _integer(part, dim) for part in (item.start, item.stop, item.step)
    )
    step = 1 if step is None else step
    if step < 1:
        raise InvalidArgumentError(
            f"dimension {dim}: step {shown(step)} is not positive; flip the loaded tensor instead"
        )
    return slice(start, stop, step).indices(rows)


def _row(item: Any, rows: int, dim: int) -> int:
    row = _integer(item, dim)
    if not -rows <= row < rows:
        raise TensorIndexError(
            f"index {shown(row)} is out of range: dimension {dim} has {rows} rows"
        )
    return row % rows


def _integer(item: Any, dim: int) -> int:
    if not isinstance(item, bool):
        try:
            return operator.index(item)
        except TypeError:
            pass
    raise ArgumentTypeError(
        f"dimension {dim}: integers, slices and '...' can index a stored tensor, not "
        f"{type(item).__name__}; load it first, and index that"
    )
