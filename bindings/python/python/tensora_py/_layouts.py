"""A function for each layout, under the names that the package of the paper has.

Programs that were written for it run on this one. Each function stands for one of ours, with the
layout said instead of found out: a folder that has only the other one is an error. In new code,
`load`, `open`, `iter_tensors`, `save` and `convert` do the same, and take more options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ._arguments import check
from ._checkpoint import Checkpoint, open
from ._load import TensorIterator, iter_tensors, load
from ._tools import convert

Path = str | os.PathLike[str]


def load_safetensors(
    path: Path, backend: str = "default", framework: str = "torch", device: Any = "cpu"
) -> dict[str, Any]:
    """``load(path, layout="safetensors", ...)``: all tensors by name.

    Args:
        path: a folder, a file, an index, or the id of a model on the Hub.
        backend: ``"default"``, ``"sync"``, ``"async"``, ``"io-uring"`` or ``"mmap"``.
        framework: ``"torch"``, ``"numpy"`` or ``"dlpack"``.
        device: where torch tensors shall be.

    Raises:
        TensoraError: as `load` does.
    """
    check(path=path)
    return load(path, layout="safetensors", backend=backend, framework=framework, device=device)


def load_serverlessllm(
    path: Path, backend: str = "default", framework: str = "torch", device: Any = "cpu"
) -> dict[str, Any]:
    """``load(path, layout="serverlessllm", ...)``: all tensors by name.

    Args:
        path: a folder with a ``tensor_index.json``, or the id of a model on the Hub.
        backend: ``"default"``, ``"sync"``, ``"async"``, ``"io-uring"`` or ``"mmap"``.
        framework: ``"torch"``, ``"numpy"`` or ``"dlpack"``.
        device: where torch tensors shall be.

    Raises:
        TensoraError: as `load` does.
    """
    check(path=path)
    return load(path, layout="serverlessllm", backend=backend, framework=framework, device=device)


def open_safetensors(
    path: Path, backend: str = "default", framework: str = "torch", device: Any = "cpu"
) -> Checkpoint:
    """``open(path, layout="safetensors", ...)``: a handle with ``keys()`` and ``get_tensor(name)``.

    Arguments are those of `load_safetensors`; a tensor is read when it is asked for.

    Raises:
        TensoraError: as `open` does.
    """
    check(path=path)
    return open(path, layout="safetensors", backend=backend, framework=framework, device=device)


def open_serverlessllm(
    path: Path, backend: str = "default", framework: str = "torch", device: Any = "cpu"
) -> Checkpoint:
    """``open(path, layout="serverlessllm", ...)``: a handle with ``keys()`` and ``get_tensor(name)``.

    Arguments are those of `load_serverlessllm`; a tensor is read when it is asked for.

    Raises:
        TensoraError: as `open` does.
    """
    check(path=path)
    return open(path, layout="serverlessllm", backend=backend, framework=framework, device=device)


def iter_safetensors(
    path: Path, backend: str = "default", framework: str = "torch", device: Any = "cpu"
) -> TensorIterator:
    """``iter_tensors(path, layout="safetensors", ...)``: names and tensors as they arrive.

    Arguments are those of `load_safetensors`; 512 MiB are in flight and not yet taken at most.

    Raises:
        TensoraError: as `iter_tensors` does.
    """
    check(path=path)
    return iter_tensors(
        path, layout="safetensors", backend=backend, framework=framework, device=device
    )


def iter_serverlessllm(
    path: Path, backend: str = "default", framework: str = "torch", device: Any = "cpu"
) -> TensorIterator:
    """``iter_tensors(path, layout="serverlessllm", ...)``: names and tensors as they arrive.

    Arguments are those of `load_serverlessllm`; 512 MiB are in flight and not yet taken at most.

    Raises:
        TensoraError: as `iter_tensors` does.
    """
    check(path=path)
    return iter_tensors(
        path, layout="serverlessllm", backend=backend, framework=framework, device=device
    )


def save_safetensors(
    tensors: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """``save(tensors, path, metadata)``: writes a SafeTensors file.

    Args:
        tensors: torch tensors, numpy arrays, or what has the buffer protocol or DLPack, by name.
        path: the file; one that is there is replaced when the new one is complete.
        metadata: strings by name, for the ``__metadata__`` of the file.

    Raises:
        TensoraError: as `save` does.
    """
    from ._save import save

    save(tensors, path, metadata)


def save_safetensors_bytes(
    tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> bytes:
    """``save_bytes(tensors, metadata)``: what `save_safetensors` would write, as bytes.

    Args:
        tensors: torch tensors, numpy arrays, or what has the buffer protocol or DLPack, by name.
        metadata: strings by name, for the ``__metadata__`` of the file.

    Raises:
        TensoraError: as `save_bytes` does.
    """
    from ._save import save_bytes

    return save_bytes(tensors, metadata)


def convert_safetensors_to_serverlessllm(
    input_dir: Path, output_dir: Path, partitions: int | None = None
) -> dict[str, Any]:
    """``convert(input_dir, output_dir, to="serverlessllm", partitions=...)``.

    Args:
        input_dir: a folder or file in the SafeTensors layout, or the id of a model on the Hub.
        output_dir: the folder to write into; it must be empty or not there.
        partitions: how many data files; by default one for each 512 MiB begun.

    Returns:
        What was written: folder, files, tensors, bytes.

    Raises:
        TensoraError: as `convert` does.
    """
    check(input_dir=input_dir, output_dir=output_dir)
    return convert(input_dir, output_dir, to="serverlessllm", partitions=partitions)
