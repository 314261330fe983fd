"""Converting, verifying, hashing, comparing, downloading, and what this machine can do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from . import _native
from ._arguments import check
from ._checkpoint import open_native
from ._progress import Progress

Path = str | os.PathLike[str]


def _path(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def _with_bar(show: bool, total: Callable[[], int], work: Callable[[Any], str]) -> Any:
    """What ``work`` reports, with a bar over it where one is wanted."""
    check(progress=show)
    if not show:
        return json.loads(work(None))
    bar = Progress(total())
    try:
        return json.loads(work(bar.add))
    finally:
        bar.close()


def convert(
    path_or_id: Path,
    out: Path,
    *,
    to: str | None = None,
    partitions: int | None = None,
    max_shard_size: int | None = None,
    dialect: str = "tensora",
    packed: bool = False,
    backend: str = "default",
    memory_budget: int | None = None,
    resume: bool = False,
    force: bool = False,
    verify: bool = False,
    progress: bool = False,
    revision: str | None = None,
) -> dict[str, Any]:
    """Converts a checkpoint into the other layout, or into other files of the same.

    Args:
        path_or_id: what to read.
        out: the folder to write into; without ``force`` it must be empty or not there.
        to: ``"safetensors"`` or ``"serverlessllm"``; by default the other layout.
        partitions: how many data files; by default one for each 512 MiB begun.
        max_shard_size: bytes of tensors in a SafeTensors file at most.
        dialect: of a ServerlessLLM target: ``"tensora"`` or ``"store"``.
        packed: no bytes between tensors.
        backend: who reads.
        memory_budget: bytes in memory at most; 512 MiB by default.
        resume: go on where the same conversion was interrupted.
        force: write into a folder that is not empty; an earlier checkpoint in it is replaced.
        verify: read back what was written, and compare every tensor's hash.
        progress: show a progress bar.
        revision: branch, tag or commit of a model.

    Returns:
        What was written: ``folder``, ``files``, ``tensors``, ``tensor_bytes``, ``file_bytes``, the
        files that were ``copied`` along, and what had to be ``untied``.

    Raises:
        TensoraError: one of its subclasses; an earlier checkpoint in ``out`` stays whole until the
            new one is complete.
    """
    wanted = {
        "to": to,
        "partitions": partitions,
        "max_shard_size": max_shard_size,
        "dialect": dialect,
        "packed": packed,
        "backend": backend,
        "memory_budget": memory_budget,
        "resume": resume,
        "force": force,
        "verify": verify,
    }
    check(path_or_id=path_or_id, out=out, revision=revision, **wanted)

    def total() -> int:
        return open_native(path_or_id, revision=revision).nbytes * (2 if verify else 1)

    source, target = os.fspath(path_or_id), os.fspath(out)
    report: dict[str, Any] = _with_bar(
        progress,
        total,
        lambda tell: _native.convert(source, revision, target, wanted, tell),
    )
    return report


def verify(
    path_or_id: Path,
    *,
    manifest: Path | None = None,
    deep: bool = False,
    backend: str = "default",
    memory_budget: int | None = None,
    progress: bool = False,
    revision: str | None = None,
    layout: str | None = None,
) -> dict[str, Any]:
    """Checks a checkpoint: headers, indexes and sizes, and more where it is asked for.

    Args:
        path_or_id: what to check.
        manifest: a file of `hash`: every tensor must be what it says.
        deep: every byte must be readable.
        backend: who reads.
        memory_budget: bytes in memory at most; 512 MiB by default.
        progress: show a progress bar while bytes are read.
        revision: branch, tag or commit of a model.
        layout: ``"safetensors"`` or ``"serverlessllm"``, where a folder holds both.

    Returns:
        A report: ``ok``, and the ``problems``, each with its tensor. A damaged checkpoint is a
        report and no exception.

    Raises:
        TensoraError: nothing could be checked: a path that is not there, a broken manifest.
    """
    check(
        path_or_id=path_or_id,
        manifest=manifest,
        deep=deep,
        backend=backend,
        memory_budget=memory_budget,
        progress=progress,
        revision=revision,
        layout=layout,
    )

    def total() -> int:
        return open_native(path_or_id, revision=revision, layout=layout).nbytes

    report: dict[str, Any] = _with_bar(
        progress and (deep or manifest is not None),
        total,
        lambda tell: _native.verify(
            os.fspath(path_or_id),
            revision,
            layout,
            _path(manifest),
            deep,
            backend,
            memory_budget,
            tell,
        ),
    )
    return report


def hash(
    path_or_id: Path,
    *,
    manifest: Path | None = None,
    backend: str = "default",
    memory_budget: int | None = None,
    progress: bool = False,
    revision: str | None = None,
    layout: str | None = None,
) -> dict[str, dict[str, Any]]:
    """SHA-256 of every tensor, by name: ``{"dtype", "shape", "nbytes", "sha256"}``.

    Args:
        path_or_id: what to read.
        manifest: a file to write the same to, for `verify`.
        backend: who reads.
        memory_budget: bytes in memory at most; 512 MiB by default.
        progress: show a progress bar.
        revision: branch, tag or commit of a model.
        layout: ``"safetensors"`` or ``"serverlessllm"``, where a folder holds both.

    Raises:
        TensoraError: one of its subclasses; a manifest is written whole or not at all.
    """
    check(
        path_or_id=path_or_id,
        manifest=manifest,
        backend=backend,
        memory_budget=memory_budget,
        revision=revision,
        layout=layout,
    )

    def total() -> int:
        return open_native(path_or_id, revision=revision, layout=layout).nbytes

    entries: dict[str, dict[str, Any]] = _with_bar(
        progress,
        total,
        lambda tell: _native.hash(
            os.fspath(path_or_id),
            revision,
            layout,
            _path(manifest),
            backend,
            memory_budget,
            tell,
        ),
    )
    return entries


def diff(
    a: Path,
    b: Path,
    *,
    backend: str = "default",
    memory_budget: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """What differs between two checkpoints, whatever their layouts.

    Args:
        a: a path or an id.
        b: another one.
        backend: who reads.
        memory_budget: bytes in memory at most; 512 MiB by default.
        progress: show a progress bar.

    Returns:
        ``same`` (how many tensors are), ``only_in_a``, ``only_in_b``, and ``differing``, each with
        what differs first: dtype, shape, or the first byte.

    Raises:
        TensoraError: one of the two cannot be opened or read.
    """
    check(a=a, b=b, backend=backend, memory_budget=memory_budget)

    def total() -> int:
        return open_native(a).nbytes + open_native(b).nbytes

    found: dict[str, Any] = _with_bar(
        progress,
        total,
        lambda tell: _native.diff(os.fspath(a), os.fspath(b), backend, memory_budget, tell),
    )
    return found


def pull(
    model_id: str,
    *,
    revision: str | None = None,
    layout: str | None = None,
    side_files: bool = True,
) -> str:
    """Downloads a model into the cache of the Hub, as far as it is not there, and gives its folder.

    Args:
        model_id: such as ``"Qwen/Qwen3-0.6B"``.
        revision: branch, tag or commit.
        layout: ``"safetensors"`` or ``"serverlessllm"``, where the repository has both.
        side_files: the files for configuration and tokenizer, too.

    Raises:
        NetworkError: the Hub does not answer, and the cache does not have all of it.
        AccessError: the Hub refuses: a token is missing, or access was not granted.
        TensoraError: another of its subclasses.
    """
    check(model_id=model_id, revision=revision, layout=layout, side_files=side_files)
    return os.fspath(_native.pull(model_id, revision, layout, side_files))


def capabilities() -> dict[str, Any]:
    """What this machine offers to loads: cores, memory in bytes, huge pages, io_uring or why not."""
    facts: dict[str, Any] = json.loads(_native.capabilities())
    return facts
