"""The frameworks that `safetensors` knows by name, and how tensors become theirs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .. import _frameworks
from ._errors import SafetensorError

_NAMES = {
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "np": "numpy",
    "numpy": "numpy",
    "flax": "jax",
    "jax": "jax",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "mlx": "mlx",
    "paddle": "paddle",
}

# What makes arrays of numpy theirs: a module, imported when it is needed, and a function of it.
_MAKERS = {
    "jax": ("jax.numpy", "asarray"),
    "tensorflow": ("tensorflow", "convert_to_tensor"),
    "mlx": ("mlx.core", "array"),
    "paddle": ("paddle", "to_tensor"),
}

Move = Callable[[Any], Any]


def is_torch(framework: str) -> bool:
    """Whether this is a name of torch."""
    return _NAMES.get(framework) == "torch"


def copied(array: Any) -> Any:
    """An array of its own."""
    return array.clone() if hasattr(array, "clone") else array.copy()


def wrapper(framework: str, device: Any) -> tuple[_frameworks.Wrap, Move | None]:
    """What makes arrays that can be indexed of tensors, and what brings them to where they belong,
    where this is somewhere else."""
    if not isinstance(framework, str):
        raise TypeError(f"framework is {framework!r}; give one of {', '.join(sorted(_NAMES))}")
    name = _NAMES.get(framework)
    if name is None:
        raise SafetensorError(
            f"framework {framework} is invalid; known are {', '.join(sorted(_NAMES))}"
        )
    if device is None:
        device = "cpu"
    if name == "torch":
        return _frameworks.wrapper("torch"), _torch_device(device)
    placed = {"place": str(device)} if name == "paddle" else {}
    if str(device) != "cpu" and not placed:
        raise SafetensorError(f"Device {device} is not supported for framework {name}")
    wrap = _frameworks.wrapper("numpy")
    if name == "numpy":
        return wrap, None
    module, function = _MAKERS[name]
    return wrap, lambda array: getattr(importlib.import_module(module), function)(array, **placed)


def _torch_device(device: Any) -> Move | None:
    torch = importlib.import_module("torch")
    try:
        target = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SafetensorError(f"device {device} is invalid: {error}") from None
    return None if target.type == "cpu" else lambda tensor: tensor.to(target)
