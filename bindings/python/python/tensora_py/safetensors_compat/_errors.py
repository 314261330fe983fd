"""The exception that `safetensors` has, and ours in its shape."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._errors import CheckpointNotFoundError, InvalidArgumentError, TensoraError

__all__ = ["SafetensorError", "as_safetensors"]


def _base() -> Any:
    try:
        return importlib.import_module("safetensors").SafetensorError
    except ImportError:
        return Exception


class SafetensorError(_base()):  # type: ignore[misc]
    """Raised for files that are damaged and for requests that make no sense. Where `safetensors` is
    installed it is a subclass of the exception there."""


_made: dict[tuple[type[BaseException], ...], type[BaseException]] = {}


def _both(*classes: type[BaseException]) -> type[BaseException]:
    """A class for handlers of ``SafetensorError``, and of each of the others."""
    # ValueError is a base of some of ours, and shall not be there twice.
    classes = tuple(
        cls
        for cls in classes
        if not any(cls is not other and issubclass(other, cls) for other in classes)
    )
    known = _made.get(classes)
    if known is None:
        name = classes[0].__name__
        known = type(name, (SafetensorError, *classes), {"__module__": __name__})
        known = _made.setdefault(classes, known)
    return known


def converted(error: TensoraError, *also: type[BaseException]) -> BaseException:
    """The same error, also for handlers of ``SafetensorError``."""
    made: Any = _both(type(error), *also)(*error.args)
    made.__dict__.update(error.__dict__)
    if isinstance(error, OSError):
        made.errno, made.filename = error.errno, error.filename
    return made  # type: ignore[no-any-return]


def refusal(message: str, *also: type[BaseException]) -> BaseException:
    """An error for an argument that makes no sense, also for handlers of what Python raises then."""
    return converted(InvalidArgumentError(message), *also)


@contextmanager
def as_safetensors(*, writing: bool = False) -> Iterator[None]:
    """Errors of Tensora within become errors that `safetensors` could have raised, too."""
    try:
        yield
    except SafetensorError:
        raise
    except TensoraError as error:
        # A file that is not there and is to be read is no matter of the format.
        if isinstance(error, CheckpointNotFoundError) and not writing:
            raise
        # Those who share their memory are told by this class there.
        also = (RuntimeError,) if error.kind == "SharedMemory" else ()
        raise converted(error, *also) from None
