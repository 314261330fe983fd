"""What `safetensors` takes between the brackets of a slice: pure."""

from __future__ import annotations

import operator
from typing import Any

from ._errors import refusal

WORD = 1 << 63
"""Numbers of 64 bits are below this."""


def checked(shape: tuple[int, ...], index: Any) -> tuple[Any, ...]:
    """An integer or a slice for each dimension.

    Understood are integers (bools are some), slices with positive steps within the dimension, one
    ``...``, and an empty list, which takes nothing. Slices that end before they begin take nothing,
    negative numbers count from the end, and of an empty dimension ``:`` can be taken.

    Raises:
        SafetensorError: anything else; also an ``IndexError``, ``TypeError`` or ``ValueError``.
        TypeError: bounds of a slice that are no integers.
    """
    if isinstance(index, list) and not index:
        index = slice(0, 0)
    given = index if isinstance(index, tuple) else (index,)
    for place, item in enumerate(given):
        if isinstance(item, slice):
            # A TypeError there, and here, whatever else is wrong.
            for bound in (item.start, item.stop, item.step):
                if bound is not None:
                    operator.index(bound)
        elif item is not Ellipsis and _integer(item) is None:
            raise refusal(
                f"index {place} is {item!r}, a {type(item).__name__}; integers, slices and '...' can "
                "index a stored tensor: load it first, and index that",
                IndexError,
                TypeError,
            )
    dots = sum(item is Ellipsis for item in given)
    if dots > 1:
        raise refusal(f"{dots} times '...' in an index; give one at most", IndexError)
    spare = len(shape) - (len(given) - dots)
    if spare < 0:
        raise refusal(
            f"too many indices: {len(given) - dots} for a tensor of {len(shape)} dimensions, "
            f"shape {list(shape)}",
            IndexError,
        )
    items: list[Any] = []
    for item in given if dots else (*given, Ellipsis):
        items.extend([slice(None)] * spare if item is Ellipsis else [item])
    return tuple(
        _rows(item, rows, dim) if isinstance(item, slice) else _row(item, rows, dim)
        for dim, (item, rows) in enumerate(zip(items, shape, strict=True))
    )


def _integer(item: Any) -> int | None:
    try:
        number = operator.index(item)
    except TypeError:
        return None
    return number if -WORD <= number < WORD else None


def _row(item: Any, rows: int, dim: int) -> int:
    row = operator.index(item)
    if not -rows <= row < rows:
        raise refusal(f"index {row} is out of range: dimension {dim} has {rows} rows", IndexError)
    return row % rows


def _rows(item: slice, rows: int, dim: int) -> slice:
    start, stop, step = (
        None if bound is None else operator.index(bound)
        for bound in (item.start, item.stop, item.step)
    )
    if step is not None and step < 1:
        raise refusal(
            f"dimension {dim}: step {step} is not positive; flip the loaded tensor instead",
            ValueError,
        )
    first, last = start or 0, rows if stop is None else stop
    if last > rows or first > rows or first == rows > 0:
        raise refusal(
            f"slice {first}:{last} is out of range: dimension {dim} has {rows} rows", IndexError
        )
    return slice(*slice(start, stop, step).indices(rows))
