"""Putting our functions in the place of those of `safetensors`, in the whole process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

OURS = __package__
"""The package with our modules."""

_PARTS = {
    "": ("safe_open", "serialize", "serialize_file", "deserialize", "TensorSpec"),
    ".torch": ("load", "load_file", "load_model", "save", "save_file", "save_model"),
    ".numpy": ("load", "load_file", "save", "save_file"),
}

Undo = Callable[[], None]

_installed: Undo | None = None


def install() -> Undo:
    """Puts our functions in the place of those of `safetensors`.

    That is in the modules ``safetensors``, ``safetensors.torch`` and ``safetensors.numpy``, and in
    every module that was imported before and holds one of the functions under any name, such as
    ``transformers.modeling_utils``. Where `safetensors` is not installed our modules are imported
    under its name.

    Returns:
        What puts everything back when it is called. To install a second time changes nothing.
    """
    global _installed
    if _installed is None:
        _installed = _replace() if _is_there() else _stand_in()
    return _installed


def _is_there() -> bool:
    return "safetensors" in sys.modules or importlib.util.find_spec("safetensors") is not None


def _pairs() -> list[tuple[Any, Any]]:
    """Originals and ours. Modules for frameworks that are not in use are not imported for this:
    they would find ours in ``safetensors`` and build on them."""
    pairs = []
    for part, names in _PARTS.items():
        if part and part[1:] not in sys.modules:
            continue
        try:
            theirs = importlib.import_module(f"safetensors{part}")
            ours = importlib.import_module(f"{OURS}{part}")
        except ImportError:
            continue
        # An older one does not have them all.
        pairs += [
            (getattr(theirs, name), getattr(ours, name)) for name in names if hasattr(theirs, name)
        ]
    return pairs


def _swap(pairs: list[tuple[Any, Any]], spared: set[tuple[int, str]]) -> None:
    """Puts the second of each pair wherever a module holds the first, but for the spared."""
    # By identity: what modules hold need not be comparable.
    instead = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if type(held) is not dict or _is_ours(module):
            continue
        for name, value in list(held.items()):
            new = instead.get(id(value))
            if new is not None and (id(module), name) not in spared:
                held[name] = new


def _is_ours(module: Any) -> bool:
    name = getattr(module, "__name__", None)
    return isinstance(name, str) and (name == OURS or name.startswith(f"{OURS}."))


def _replace() -> Undo:
    pairs = _pairs()
    ours = {id(new) for _, new in pairs}
    # Whoever has imported ours by itself keeps it when everything is put back.
    spared = {
        (id(module), name)
        for module in list(sys.modules.values())
        if type(held := getattr(module, "__dict__", None)) is dict
        for name, value in list(held.items())
        if id(value) in ours
    }
    _swap(pairs, set())

    def undo() -> None:
        global _installed
        if _installed is undo:
            _installed = None
            # Also in modules that were imported meanwhile.
            _swap([(new, old) for old, new in pairs], spared)

    return undo


def _stand_in() -> Undo:
    made: dict[str, ModuleType] = {}
    for part in _PARTS:
        # A framework that is not there is an error when it is asked for, as it always was.
        if not part or importlib.util.find_spec(part[1:]) is not None:
            made[f"safetensors{part}"] = _Lazily(f"safetensors{part}", f"{OURS}{part}")
    sys.modules.update(made)

    def undo() -> None:
        global _installed
        if _installed is undo:
            _installed = None
            for name, module in made.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]

    return undo


class _Lazily(ModuleType):
    """A module of ours under another name, imported with the first look at what it has."""

    def __init__(self, name: str, ours: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        self.__path__: list[str] = []
        self.__dict__["_ours"] = ours

    def __getattr__(self, name: str) -> Any:
        if name in ("torch", "numpy") and f"safetensors.{name}" in sys.modules:
            return sys.modules[f"safetensors.{name}"]
        if name.startswith("__") and name not in ("__all__", "__version__"):
            # Whoever looks through all modules shall not import frameworks by this.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(self._ours), name)
