"""Tensora: checkpoints of large language models, from storage into memory.

>>> import tensora_py
>>> tensors = tensora_py.load("path/to/model", framework="numpy")  # doctest: +SKIP
"""

from ._checkpoint import Checkpoint, Plan, Slice, TensorInfo, open
from ._errors import (
    AccessError,
    ArgumentTypeError,
    CancelledError,
    CheckpointNotFoundError,
    DtypeError,
    InvalidArgumentError,
    InvalidCheckpointError,
    LoadError,
    NetworkError,
    OutOfMemoryError,
    TensoraError,
    TensorIndexError,
    TensorNotFoundError,
    UnavailableError,
)
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
from ._load import AsyncTensorIterator, TensorIterator, aiter_tensors, aload, iter_tensors, load
from ._native import Tensor
from ._save import save, save_bytes
from ._tools import capabilities, convert, diff, hash, pull, verify

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "ArgumentTypeError",
    "AsyncTensorIterator",
    "CancelledError",
    "Checkpoint",
    "CheckpointNotFoundError",
    "DtypeError",
    "InvalidArgumentError",
    "InvalidCheckpointError",
    "LoadError",
    "NetworkError",
    "OutOfMemoryError",
    "Plan",
    "Slice",
    "Tensor",
    "TensorIndexError",
    "TensorInfo",
    "TensorIterator",
    "TensorNotFoundError",
    "TensoraError",
    "UnavailableError",
    "aiter_tensors",
    "aload",
    "capabilities",
    "convert",
    "convert_safetensors_to_serverlessllm",
    "diff",
    "hash",
    "iter_safetensors",
    "iter_serverlessllm",
    "iter_tensors",
    "load",
    "load_safetensors",
    "load_serverlessllm",
    "open",
    "open_safetensors",
    "open_serverlessllm",
    "pull",
    "save",
    "save_bytes",
    "save_safetensors",
    "save_safetensors_bytes",
    "verify",
]
