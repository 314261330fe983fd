"""A file whose header was read, and whose tensors are taken one by one."""

from __future__ import annotations

import os
from typing import Any

from .. import _native
from .._checkpoint import TensorInfo, request
from ._errors import SafetensorError, as_safetensors
from ._file import File
from ._frameworks import copied, is_torch, wrapper
from ._index import checked

BACKENDS = ("mmap", "pread")

BATCH = 64
"""Tensors that are taken at a time where many are ready."""


class safe_open:
    """Opens a SafeTensors file; its header is read and checked, tensors are read when asked for.

    Args:
        filename: the file.
        framework: ``"pt"``, ``"np"``, ``"flax"`` or ``"tf"``, or one of their longer names.
        device: where tensors of torch shall be; a number is that of a CUDA device.
        backend: ``"mmap"`` maps tensors, which are read when they are touched, and only as far as
            they are; what is written to them never reaches the file. ``"pread"`` reads into memory
            of their own, and of slices only what they take, on several threads where that pays.

    Raises:
        SafetensorError: the file is damaged or no SafeTensors file, or an argument is unknown.
        FileNotFoundError: there is no such file.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        self._file: File | None = None
        if backend not in BACKENDS:
            raise SafetensorError(
                f"backend {backend!r} is invalid; known are {', '.join(BACKENDS)}"
            )
        self._mapped = backend == "mmap"
        self._filename = os.fspath(filename)
        self._wrap, self._move = wrapper(framework, device)
        # Of the arrays of torch slices are views, others are copied.
        self._views = self._mapped and is_torch(framework)
        self._file = File(self._filename)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        self._file = None

    @property
    def _open(self) -> File:
        if self._file is None:
            raise SafetensorError(f"File is closed: {self._filename}")
        return self._file

    def keys(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._open.header.keys())

    def offset_keys(self) -> list[str]:
        """Names of all tensors in the order of the file."""
        return list(self._open.header.keys())

    def metadata(self) -> dict[str, str] | None:
        """The ``__metadata__`` of the header; ``None`` where there is none."""
        return self._open.metadata()

    def get_tensor(self, name: str) -> Any:
        """A tensor.

        Raises:
            SafetensorError: there is none of this name, or the framework has no dtype for it.
        """
        with as_safetensors():
            return self._moved(self._wrap(self._open.read(name, mapped=self._mapped)))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name."""
        with as_safetensors():
            if self._move is not None:
                return self._open.using(lambda file: self._moving(file.stream(request(file)[0])))
            tensors = self._open.using(self._all)
            return {tensor.name: self._wrap(tensor) for tensor in tensors}

    def _all(self, file: _native.Checkpoint) -> list[_native.Tensor]:
        asked, _ = request(file)
        return file.map(asked) if self._mapped else file.load(asked)

    def _moving(self, stream: _native.Stream) -> dict[str, Any]:
        """Tensors that go elsewhere as they arrive, and leave the memory here."""
        made = {}
        try:
            while batch := stream.take(BATCH):
                while batch:
                    tensor = batch.pop(0)
                    made[tensor.name] = self._moved(self._wrap(tensor))
        finally:
            stream.close()
        return made

    def _moved(self, array: Any) -> Any:
        return array if self._move is None else self._move(array)

    def get_slice(self, name: str) -> PySafeSlice:
        """A tensor of which parts are taken by indexing."""
        with as_safetensors():
            return PySafeSlice(self, TensorInfo(name, *self._open.header.info(name)))


class PySafeSlice:
    """A tensor of a file, to be indexed as an array of the framework would be."""

    def __init__(self, owner: safe_open, info: TensorInfo) -> None:
        self._owner, self._file = owner, owner._open
        self._info = info
        self._whole: Any = None

    def get_shape(self) -> list[int]:
        """Dimensions, outermost first."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """As SafeTensors spells it."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        with as_safetensors():
            return self._owner._moved(self._part(index))

    def _part(self, index: Any) -> Any:
        owner, name, shape = self._owner, self._info.name, self._info.shape
        if owner._views:
            return self._all()[index]
        packed = self._info.dtype == "F4" and shape
        if packed:
            # What is packed in bytes has other indices in frameworks than in the file.
            shape = (*shape[:-1], shape[-1] // 2)
        items = checked(shape, index)
        if owner._mapped or packed:
            # With the dots numpy gives an array where it would give a scalar.
            return copied(self._all()[(*items, ...)])
        read = self._file.read(name, mapped=False, index=items)
        left = [
            len(range(*item.indices(rows)))
            for item, rows in zip(items, shape, strict=True)
            if isinstance(item, slice)
        ]
        return owner._wrap(read).reshape(left)

    def _all(self) -> Any:
        """The whole tensor. Of a mapping only the pages are read that are touched, whatever is taken
        of it."""
        owner = self._owner
        if self._whole is not None:
            return self._whole
        whole = owner._wrap(self._file.read(self._info.name, mapped=owner._mapped))
        if owner._mapped:
            self._whole = whole
        return whole
