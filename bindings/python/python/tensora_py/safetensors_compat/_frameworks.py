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
}

Move = Callable[[Any], Any]


def wrapper(framework: str, device: Any) -> tuple[_frameworks.Wrap, Move | None]:
    """What makes arrays that can be indexed of tensors, and what brings them to where they belong,
    where this is somewhere else."""
    name = _NAMES.get(framework)
    if name is None:
        raise SafetensorError(
            f"framework {framework} is invalid; known are {', '.join(sorted(_NAMES))}"
        )
    if name == "torch":
        return _frameworks.wrapper("torch"), _torch_device(device)
    if str(device) != "cpu":
        raise SafetensorError(f"Device {device} is not supported for framework {name}")
    wrap = _frameworks.wrapper("numpy")
    if name == "numpy":
        return wrap, None
    if name == "jax":
        return wrap, importlib.import_module("jax.numpy").asarray
    return wrap, importlib.import_module("tensorflow").convert_to_tensor


def _torch_device(device: Any) -> Move | None:
    torch = importlib.import_module("torch")
    try:
        target = torch.device("cuda", device) if type(device) is int else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SafetensorError(f"device {device} is invalid: {error}") from None
    return None if target.type == "cpu" else lambda tensor: tensor.to(target)
