"""Opened checkpoints: headers are read, tensors are taken one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from . import _frameworks, _native
from ._arguments import check, listed
from ._errors import InvalidArgumentError
from ._slices import Window, window_of

Slices = Mapping[str, Any]
"""For a tensor's name what would stand between brackets: ``{"w": (slice(0, 8), ...)}``."""


class TensorInfo(NamedTuple):
    """What is known of a tensor before a byte of it is read."""

    name: str
    dtype: str
    """As SafeTensors spells it, such as ``"BF16"``."""
    shape: tuple[int, ...]
    nbytes: int


class Plan(NamedTuple):
    """What a load would read, and how."""

    details: dict[str, Any]
    text: str

    def __str__(self) -> str:
        return self.text


def open_native(
    path_or_id: str | os.PathLike[str],
    *,
    revision: str | None = None,
    layout: str | None = None,
    cancel: _native.Cancel | None = None,
) -> _native.Checkpoint:
    """Opens a path or a model's id."""
    check(path_or_id=path_or_id, revision=revision, layout=layout)
    name = os.fspath(path_or_id)
    if os.path.lexists(name):
        # The files are opened again when tensors are taken, wherever the process is then.
        name = os.path.abspath(name)
    return _native.Checkpoint.open(name, layout, revision, cancel)


def request(
    checkpoint: _native.Checkpoint,
    *,
    backend: str = "default",
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    workers: int | None = None,
    memory_budget: int | None = None,
    align: int | None = None,
    cancel: _native.Cancel | None = None,
) -> tuple[dict[str, Any], dict[str, Window]]:
    """The arguments of a load as the native module takes them, and the windows of the sliced."""
    check(backend=backend, names=names, slices=slices)
    check(workers=workers, memory_budget=memory_budget, align=align)
    windows = {
        name: window_of(name, checkpoint.info(name)[1], index)
        for name, index in (slices or {}).items()
    }
    asked = {
        "backend": backend,
        "names": None if names is None else listed(names),
        "slices": {name: window.dims for name, window in windows.items()},
        "workers": workers,
        "memory_budget": memory_budget,
        "align": align,
        "cancel": cancel,
    }
    return asked, windows


class Slice:
    """A tensor that is read when it is indexed, and only those parts: ``handle[10:20, ..., ::2]``."""

    def __init__(self, owner: Checkpoint, info: TensorInfo, wrap: _frameworks.Wrap) -> None:
        self._owner = owner
        self._wrap = wrap
        self.info = info

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self.info.shape

    @property
    def dtype(self) -> str:
        """As SafeTensors spells it."""
        return self.info.dtype

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor, as `safetensors` gives it."""
        return list(self.info.shape)

    def get_dtype(self) -> str:
        """As SafeTensors spells it."""
        return self.info.dtype

    def __getitem__(self, index: Any) -> Any:
        name = self.info.name
        part = window_of(name, self.info.shape, index)
        made = self._wrap(self._owner._read(name, {name: index}))
        if part.shape == _lengths(part, self.info.shape):
            return made
        return _frameworks.reshaped(made, part.shape)

    def __repr__(self) -> str:
        return f"Slice({self.info.name!r}, {self.info.dtype}, {self.info.shape})"


def _lengths(part: Window, shape: tuple[int, ...]) -> tuple[int, ...]:
    """What is read: every dimension is there."""
    return tuple(
        rows if dim is None else dim[1] for dim, rows in zip(part.dims, shape, strict=True)
    )


class Checkpoint:
    """A checkpoint whose headers were read and checked: names, and a tensor for each.

    Made by `open`. Keys, items, values, ``len``, ``in``, brackets and iteration are those of a dict,
    but that nothing is kept: whoever asks twice has two tensors. It is no
    ``collections.abc.Mapping``: `get` takes a framework where a dict's takes a default, and only the
    same object is equal. Tensors are mapped and read when they are touched, as long as ``backend`` is
    ``"default"`` or ``"mmap"``; those shorter than 16 KiB are read at once, and the other backends
    read every tensor when it is asked for. What is written to a tensor never reaches a file, and
    tensors live on when the checkpoint is closed.
    """

    def __init__(
        self,
        native: _native.Checkpoint,
        backend: str = "default",
        framework: str = "torch",
        device: Any = "cpu",
    ) -> None:
        self._native: _native.Checkpoint | None = native
        self._backend = backend
        self._framework = _frameworks.chosen(framework, device)
        self._device = device
        # Made with the first tensor: names and plans need no framework to be installed.
        self._wraps: dict[tuple[str, str], _frameworks.Wrap] = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the files go. Tensors that were taken stay."""
        self._native = None

    @property
    def _open(self) -> _native.Checkpoint:
        if self._native is None:
            raise InvalidArgumentError("the checkpoint is closed")
        return self._native

    @property
    def path(self) -> str:
        """The folder or file."""
        return os.fspath(self._open.path)

    @property
    def layout(self) -> str:
        """``"safetensors"`` or ``"serverlessllm"``."""
        return self._open.layout

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return self._open.nbytes

    @property
    def metadata(self) -> dict[str, str]:
        """The ``__metadata__`` of the files."""
        return self._open.metadata

    def keys(self) -> list[str]:
        """Names in the order of the files."""
        return self._open.keys()

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and tensors, each read when it is its turn, in the order of the files.

        What the framework has no dtype or no shape for raises `DtypeError` in its turn; the next call
        goes on with the one after it.
        """
        # A generator would be at its end after an error.
        return map(lambda name: (name, self.get(name)), self.keys())

    def values(self) -> Iterator[Any]:
        """Tensors, as `items` has them."""
        return map(self.get, self.keys())

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and name in self._open
        except UnicodeEncodeError:
            return False  # No file can have such a name.

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def info(self, name: str) -> TensorInfo:
        """Dtype, shape and bytes of a tensor; nothing is read.

        Raises:
            TensorNotFoundError: there is none of this name.
        """
        check(name=name)
        return TensorInfo(name, *self._open.info(name))

    def get(self, name: str, framework: str | None = None, device: Any = None) -> Any:
        """A tensor as an array.

        Args:
            name: as in `keys`.
            framework: ``"torch"``, ``"numpy"`` or ``"dlpack"``; by default that of `open`.
            device: where a torch tensor shall be; by default that of `open`.

        Raises:
            TensorNotFoundError: there is none of this name.
            DtypeError: the framework has no dtype for it, or no arrays of its shape.
        """
        return self._wrapper(framework, device)(self._read(name, None))

    def get_tensor(self, name: str) -> Any:
        """``get(name)``, by the name that `safetensors` has for it."""
        return self.get(name)

    def get_slice(self, name: str, framework: str | None = None, device: Any = None) -> Slice:
        """A tensor to be indexed: only what is asked for is read, on any dimension, with steps, too.

        Arguments and errors are those of `get`; nothing is read before it is indexed.
        """
        return Slice(self, self.info(name), self._wrapper(framework, device))

    def plan(
        self,
        *,
        names: Iterable[str] | None = None,
        slices: Slices | None = None,
        backend: str | None = None,
        workers: int | None = None,
        memory_budget: int | None = None,
        align: int | None = None,
    ) -> Plan:
        """What a load would read, and how. Nothing is read.

        Args:
            names: only these tensors.
            slices: only parts: for a name what would stand between brackets.
            backend: who would read; by default that of `open`.
            workers: threads, or rings, that would read.
            memory_budget: bytes that may be in flight and not yet taken.
            align: bytes that every tensor's address shall be a multiple of.

        Raises:
            TensoraError: a name, slice or setting that a load would refuse, too.
        """
        native = self._open
        asked, _ = request(
            native,
            backend=self._backend if backend is None else backend,
            names=names,
            slices=slices,
            workers=workers,
            memory_budget=memory_budget,
            align=align,
        )
        details, text = native.plan(asked)
        return Plan(json.loads(details), text)

    def _wrapper(self, framework: str | None, device: Any) -> _frameworks.Wrap:
        """What makes arrays, kept: looking a framework up takes longer than mapping a tensor."""
        if device is None:
            # The device was chosen along with the framework that it belongs to.
            device = self._device if framework in (None, self._framework) else "cpu"
        if framework is None:
            framework = self._framework
        check(framework=framework)
        asked = framework, str(device)
        wrap = self._wraps.get(asked)
        if wrap is None:
            wrap = self._wraps[asked] = _frameworks.wrapper(asked[0], device)
        return wrap

    def _read(self, name: str, slices: Slices | None) -> _native.Tensor:
        check(name=name)
        native = self._open
        lazily = self._backend in ("default", "mmap")
        if lazily and slices is None:
            return native.tensor(name)
        asked, _ = request(native, backend=self._backend, names=[name], slices=slices)
        [tensor] = native.map(asked) if lazily else native.load(asked)
        return tensor

    def __reduce__(self) -> Any:
        # Opened again, as in the workers of a data loader.
        device = self._device if self._device == "cpu" else str(self._device)
        return _reopened, (self.path, self._backend, self._framework, device, self.layout)

    def __repr__(self) -> str:
        if self._native is None:
            return "Checkpoint(closed)"
        return f"Checkpoint({self.path!r}, {self.layout}, {len(self)} tensors)"


def _reopened(path: str, backend: str, framework: str, device: Any, layout: str) -> Checkpoint:
    return open(path, backend=backend, framework=framework, device=device, layout=layout)


def open(
    path_or_id: str | os.PathLike[str],
    *,
    backend: str = "default",
    framework: str = "torch",
    device: Any = "cpu",
    revision: str | None = None,
    layout: str | None = None,
) -> Checkpoint:
    """Opens a checkpoint: a folder, a file, an index, or the id of a model on the Hub.

    Args:
        path_or_id: a path that exists wins; else the Hub's cache, else a download into it.
        backend: who reads tensors: ``"default"`` and ``"mmap"`` map them; ``"sync"``, ``"async"`` and
            ``"io-uring"`` read each when it is asked for.
        framework: of the arrays that the checkpoint gives: ``"torch"``, ``"numpy"`` or ``"dlpack"``.
            It must be installed when the first of them is asked for.
        device: where torch tensors shall be.
        revision: branch, tag or commit of a model.
        layout: ``"safetensors"`` or ``"serverlessllm"``, where a folder holds both.

    Raises:
        TensoraError: one of its subclasses, with the path, the tensor and the numbers.
    """
    # What makes no sense is an error now, and not at the first tensor.
    check(backend=backend)
    _native.Checkpoint.check_backend(backend)
    _frameworks.chosen(framework, device)
    native = open_native(path_or_id, revision=revision, layout=layout)
    return Checkpoint(native, backend, framework, device)
