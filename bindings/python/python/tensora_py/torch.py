"""The paper's names for loads into PyTorch: ``from tensora_py.torch import load_safetensors``.

They are those of `tensora_py`, whose framework is torch unless another one is named.
"""

from ._layouts import (
    convert_safetensors_to_serverlessllm,
    iter_safetensors,
    iter_serverlessllm,
    load_safetensors,
    load_serverlessllm,
    open_safetensors,
    open_serverlessllm,
    save_safetensors,
    save_safetensors_bytes,
)

__all__ = [
    "convert_safetensors_to_serverlessllm",
    "iter_safetensors",
    "iter_serverlessllm",
    "load_safetensors",
    "load_serverlessllm",
    "open_safetensors",
    "open_serverlessllm",
    "save_safetensors",
    "save_safetensors_bytes",
]
