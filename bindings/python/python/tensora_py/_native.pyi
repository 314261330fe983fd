"""The native module: no logic, and no caller but the Python files beside it.

Every call that reads or waits lets the interpreter go meanwhile, and is ended by Ctrl-C. Errors are
the classes of `_errors`, with kind, path and tensor; an unknown backend, layout or dialect is a
`ValueError` with the known ones.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

from typing_extensions import CapsuleType

__all__ = [
    "Cancel",
    "Checkpoint",
    "Stream",
    "Tensor",
    "capabilities",
    "convert",
    "diff",
    "hash",
    "pull",
    "save",
    "serialize",
    "verify",
]

# Told, from any thread, how many bytes more are done.
_Progress: TypeAlias = Callable[[int], object]

@final
class Cancel:
    """Ends, from another thread, the calls that it was given to."""

    def __new__(cls) -> Cancel: ...
    def cancel(self) -> None:
        """What runs ends within a read, with a `CancelledError`; what has not begun does not begin."""

@final
class Tensor:
    """A tensor in memory of its own, which goes back to the system with the last of its users.

    It can be written to, and nothing that is written reaches a file. Arrays are made of it without
    a copy: it has the buffer protocol (its bytes, one dimension) and DLPack.
    """

    @property
    def name(self) -> str:
        """The name in the checkpoint."""

    @property
    def dtype(self) -> str:
        """The dtype as SafeTensors spells it, such as ``"BF16"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, outermost first."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    @property
    def data_ptr(self) -> int:
        """Address of the first byte."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """A capsule as the DLPack protocol has it; of version 1.x where the consumer asks for it.

        Raises:
            BufferError: DLPack has no dtype for it (6-bit floats), or a copy, a stream or another
                device was asked for.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """``(1, 0)``: memory of the CPU."""

@final
class Stream:
    """The tensors of a load while it runs."""

    def take(self, most: int) -> list[Tensor]:
        """Waits for the next tensor, and takes up to ``most`` that are there; none at the end."""

    def remaining(self) -> int:
        """Tensors that are still to come; 0 when closed."""

    def close(self) -> None:
        """Ends the load, and waits for the reads in flight."""

@final
class Checkpoint:
    """An opened checkpoint: its headers were read and checked.

    A *request* is a mapping with all of the keys ``backend``, ``names``, ``slices``, ``workers``,
    ``memory_budget``, ``align`` and ``cancel``, as `_checkpoint.request` makes it.
    """

    @staticmethod
    def open(
        name: str | os.PathLike[str],
        layout: str | None = None,
        revision: str | None = None,
        cancel: Cancel | None = None,
    ) -> Checkpoint:
        """Opens a path, or a model by its id, which is downloaded where it is not in the cache."""

    @staticmethod
    def of_bytes(bytes: bytes) -> Checkpoint:
        """A SafeTensors file that is in memory, which is copied."""

    @staticmethod
    def check_backend(name: str) -> None:
        """Raises `ValueError` unless there is a backend of this name."""

    @property
    def path(self) -> os.PathLike[str]:
        """The folder or file."""

    @property
    def layout(self) -> str:
        """``"safetensors"`` or ``"serverlessllm"``."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""

    @property
    def metadata(self) -> dict[str, str]:
        """The ``__metadata__`` of the files; where several have a key, the first one counts."""

    def keys(self) -> list[str]:
        """Names in the order of the files."""

    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...
    def info(self, name: str) -> tuple[str, tuple[int, ...], int]:
        """Dtype, shape and length in bytes."""

    def selected_bytes(self, request: Mapping[str, Any]) -> int:
        """Bytes of the tensors that a load would return."""

    def load(self, request: Mapping[str, Any]) -> list[Tensor]:
        """Everything that was asked for, in memory."""

    def tensor(self, name: str) -> Tensor:
        """One whole tensor, mapped where it can be."""

    def read(self, name: str) -> Tensor:
        """One whole tensor, read now: for many short ones that are wanted one by one."""

    def map(self, request: Mapping[str, Any]) -> list[Tensor]:
        """Mapped, and read when touched; of the request only ``names`` and ``slices`` count."""

    def stream(self, request: Mapping[str, Any]) -> Stream:
        """One after the other, as they arrive."""

    def plan(self, request: Mapping[str, Any]) -> tuple[str, str]:
        """What a load would read, and how: as JSON, and as text for people."""

def convert(
    name: str | os.PathLike[str],
    revision: str | None,
    out: str | os.PathLike[str],
    wanted: Mapping[str, Any],
    progress: _Progress | None,
) -> str:
    """Converts a checkpoint, and gives the report as JSON.

    ``wanted`` has the keys ``to``, ``partitions``, ``max_shard_size``, ``dialect``, ``packed``,
    ``backend``, ``memory_budget``, ``resume``, ``force`` and ``verify``.
    """

def verify(
    name: str | os.PathLike[str],
    revision: str | None,
    layout: str | None,
    manifest: str | os.PathLike[str] | None,
    deep: bool,
    backend: str,
    memory_budget: int | None,
    progress: _Progress | None,
) -> str:
    """Checks a checkpoint, and gives the report as JSON."""

def hash(
    name: str | os.PathLike[str],
    revision: str | None,
    layout: str | None,
    manifest: str | os.PathLike[str] | None,
    backend: str,
    memory_budget: int | None,
    progress: _Progress | None,
) -> str:
    """SHA-256 of every tensor by name, as JSON; written to a manifest, too, where one is named."""

def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    backend: str,
    memory_budget: int | None,
    progress: _Progress | None,
) -> str:
    """What differs between two checkpoints, as JSON."""

def pull(
    id: str,
    revision: str | None,
    layout: str | None,
    side_files: bool,
) -> os.PathLike[str]:
    """Makes a model complete in the cache of the Hub, and gives its folder."""

def capabilities() -> str:
    """What this machine offers to loads, as JSON."""

def save(path: str, saving: Mapping[str, Any]) -> list[os.PathLike[str]]:
    """Writes tensors to a file, or to shards in a folder, and gives the paths of all files."""

def serialize(saving: Mapping[str, Any]) -> bytes:
    """The bytes of the file."""
