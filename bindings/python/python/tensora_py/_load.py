"""Loading: all at once, as tensors arrive, and the same for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from . import _frameworks, _native
from ._arguments import check
from ._checkpoint import Slices, open_native, request
from ._errors import LoadError, OutOfMemoryError, TensoraError
from ._progress import Progress
from ._slices import Window

BATCH = 64
"""Tensors that are taken at a time where many are ready."""

ATTEMPTS = 5
"""How often a load is tried while files are replaced."""

DEFAULT_BUDGET = 512 << 20
"""Bytes that an iterator holds in flight and not yet taken where nothing is said: 512 MiB."""


def load(
    path_or_id: str | os.PathLike[str],
    *,
    framework: str = "torch",
    backend: str = "default",
    device: Any = "cpu",
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    workers: int | None = None,
    memory_budget: int | None = None,
    align: int | None = None,
    progress: bool = False,
    revision: str | None = None,
    layout: str | None = None,
) -> dict[str, Any]:
    """Loads a checkpoint into memory and returns its tensors by name.

    Args:
        path_or_id: a folder, a file, an index, or the id of a model on the Hub.
        framework: ``"torch"``, ``"numpy"``, or ``"dlpack"`` for objects with ``__dlpack__`` and the
            buffer protocol, for which nothing needs to be installed.
        backend: ``"default"``, ``"sync"``, ``"async"``, ``"io-uring"`` or ``"mmap"``.
        device: where torch tensors shall be.
        names: only these tensors.
        slices: only parts: for a name what would stand between brackets.
        workers: threads, or rings, that read.
        memory_budget: bytes that the tensors may take. What is larger is refused before a byte is
            read; ``iter_tensors`` goes through it in less.
        align: bytes that every tensor's address shall be a multiple of; 64 for JAX and TensorFlow.
        progress: show a progress bar.
        revision: branch, tag or commit of a model.
        layout: ``"safetensors"`` or ``"serverlessllm"``, where a folder holds both.

    Raises:
        TensoraError: one of its subclasses, with the path, the tensor and the numbers. There are
            no tensors then, and never some of them.
    """
    made = _loaded(
        path_or_id,
        framework=framework,
        backend=backend,
        device=device,
        names=names,
        slices=slices,
        workers=workers,
        memory_budget=memory_budget,
        align=align,
        progress=progress,
        revision=revision,
        layout=layout,
    )
    return _frameworks.told(made)


def iter_tensors(
    path_or_id: str | os.PathLike[str],
    *,
    framework: str = "torch",
    backend: str = "default",
    device: Any = "cpu",
    names: Iterable[str] | None = None,
    slices: Slices | None = None,
    workers: int | None = None,
    memory_budget: int = DEFAULT_BUDGET,
    align: int | None = None,
    progress: bool = False,
    revision: str | None = None,
    layout: str | None = None,
) -> TensorIterator:
    """Names and tensors in the order in which they arrive, while the rest is being read.

    What was taken is the caller's, and its memory goes back to the system with its last reference.

    Args:
        path_or_id: a folder, a file, an index, or the id of a model on the Hub.
        framework: ``"torch"``, ``"numpy"`` or ``"dlpack"``, as for `load`.
        backend: ``"default"``, ``"sync"``, ``"async"``, ``"io-uring"`` or ``"mmap"``.
        device: where torch tensors shall be.
        names: only these tensors.
        slices: only parts: for a name what would stand between brackets.
        workers: threads, or rings, that read.
        memory_budget: bytes that may be in flight and not yet taken, 512 MiB by default; reading
            waits for the taker. A tensor that is larger comes alone.
        align: bytes that every tensor's address shall be a multiple of.
        progress: show a progress bar.
        revision: branch, tag or commit of a model.
        layout: ``"safetensors"`` or ``"serverlessllm"``, where a folder holds both.

    Raises:
        TensoraError: one of its subclasses; from the iterator where it happens while it reads.
    """
    check(progress=progress, memory_budget=memory_budget)
    wrap = _frameworks.wrapper(framework, device)
    job = _Job(
        path_or_id,
        revision=revision,
        layout=layout,
        backend=backend,
        names=names,
        slices=slices,
        workers=workers,
        align=align,
        memory_budget=memory_budget,
    )
    return TensorIterator(job, wrap, progress)


class TensorIterator:
    """Iterates over names and tensors; leaving it early ends the load.

    A tensor that the framework has no dtype or no shape for raises `DtypeError` in its turn; the next
    call goes on with the one after it.
    """

    def __init__(self, job: _Job, wrap: _frameworks.Wrap, progress: bool) -> None:
        self._job = job
        self._wrap = wrap
        self._stream = job.stream()
        self._failure: TensoraError | None = None
        self._bar = Progress(job.nbytes() if progress else None)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self

    def __next__(self) -> tuple[str, Any]:
        # One at a time: what was taken no longer counts against the budget.
        try:
            taken = self._stream.take(1)
        except TensoraError as error:
            # Told again to whoever asks again: it is no end.
            self._failure = error
            raise
        if not taken:
            self.close()
            if self._failure is not None:
                raise self._failure
            raise StopIteration
        [tensor] = taken
        del taken
        self._bar.add(len(tensor))
        return tensor.name, self._job.shaped(self._wrap, tensor)

    def __enter__(self) -> TensorIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_bar"):
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an iterator over tensors cannot be copied or pickled; make another one")

    def __len__(self) -> int:
        return self._stream.remaining()

    def close(self) -> None:
        """Ends the load and waits for the reads in flight. The iterator is at its end then."""
        self._stream.close()
        self._bar.close()


async def aload(path_or_id: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """As `load`, for asyncio: the loop runs on while files are read.

    Cancelling the task ends the load, and waits for the reads in flight.

    Args:
        path_or_id: a folder, a file, an index, or the id of a model on the Hub.
        options: the other arguments of `load`.

    Raises:
        TensoraError: as `load` does.
    """
    asked = inspect.signature(load).bind(path_or_id, **options)
    asked.apply_defaults()
    cancel = _native.Cancel()
    work = asyncio.get_running_loop().run_in_executor(
        None, partial(_loaded, cancel=cancel, **asked.arguments)
    )
    try:
        made = await asyncio.shield(work)
    except asyncio.CancelledError:
        cancel.cancel()
        await _ended(work)
        work.exception()  # It is known why.
        raise
    return _frameworks.told(made)


async def _ended(work: asyncio.Future[Any]) -> None:
    """Waits for it, however often the task is cancelled meanwhile."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])


def _loaded(
    path_or_id: str | os.PathLike[str],
    *,
    framework: str,
    device: Any,
    memory_budget: int | None,
    progress: bool,
    **options: Any,
) -> dict[str, Any]:
    """What `load` gives, before anybody is told of what was left out."""
    check(progress=progress, memory_budget=memory_budget)
    wrap = _frameworks.wrapper(framework, device)
    if isinstance(options["names"], Iterator):
        options["names"] = list(options["names"])
    for left in reversed(range(ATTEMPTS)):
        job = _Job(path_or_id, **options)
        job.refuse_beyond(memory_budget)
        try:
            return job.load(wrap, progress, moves=str(device) != "cpu")
        except LoadError as error:
            # Somebody has saved over it: what is there now may be whole.
            if error.kind != "SourceChanged" or not left:
                raise
    raise AssertionError("the last attempt returns or raises")


def aiter_tensors(path_or_id: str | os.PathLike[str], **options: Any) -> AsyncTensorIterator:
    """As `iter_tensors`, for asyncio: ``async for name, tensor in aiter_tensors(...)``.

    Args:
        path_or_id: a folder, a file, an index, or the id of a model on the Hub.
        options: the other arguments of `iter_tensors`.

    Raises:
        TensoraError: as `iter_tensors` does.
    """
    asked = inspect.signature(iter_tensors).bind(path_or_id, **options)
    return AsyncTensorIterator(partial(iter_tensors, *asked.args, **asked.kwargs))


class AsyncTensorIterator:
    """Iterates over names and tensors on asyncio's loop, as `TensorIterator` does without; the files
    are opened with the first one. Leaving its ``async with``, or `aclose`, ends the load."""

    def __init__(self, start: Callable[[], TensorIterator]) -> None:
        self._start = start
        self._starting = threading.Lock()
        self._tensors: TensorIterator | None = None
        self._closed = False

    def __aiter__(self) -> AsyncTensorIterator:
        return self

    async def __anext__(self) -> tuple[str, Any]:
        if self._closed:
            raise StopAsyncIteration
        work = asyncio.get_running_loop().run_in_executor(None, self._next)
        try:
            item = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(lambda done: done.exception())  # It is known why.
            await self.aclose()
            if self._tensors is not None:
                await _ended(work)
            raise
        if item is None:
            raise StopAsyncIteration
        return item

    def _next(self) -> tuple[str, Any] | None:
        with self._starting:
            if self._tensors is None and not self._closed:
                tensors = self._start()
                if self._closed:
                    # Nobody waits for it any more: to open may take a download.
                    tensors.close()
                self._tensors = tensors
        return None if self._tensors is None else next(self._tensors, None)

    async def __aenter__(self) -> AsyncTensorIterator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the load and waits for the reads in flight. The iterator is at its end then."""
        self._closed = True
        if self._tensors is not None:
            loop = asyncio.get_running_loop()
            await _ended(loop.run_in_executor(None, self._tensors.close))


class _Job:
    """A checkpoint and what is wanted of it."""

    def __init__(
        self,
        path_or_id: str | os.PathLike[str],
        *,
        revision: str | None = None,
        layout: str | None = None,
        cancel: _native.Cancel | None = None,
        **options: Any,
    ) -> None:
        # Before a model is downloaded.
        check(**options)
        self._checkpoint = open_native(path_or_id, revision=revision, layout=layout, cancel=cancel)
        self._asked, self._windows = request(self._checkpoint, cancel=cancel, **options)

    def nbytes(self) -> int:
        """Bytes of all tensors that are wanted."""
        if self._asked["names"] is None and not self._windows:
            return self._checkpoint.nbytes
        return self._checkpoint.selected_bytes(self._asked)

    def refuse_beyond(self, budget: int | None) -> None:
        """An error where the tensors take more than ``budget`` bytes."""
        if budget is None or (needed := self.nbytes()) <= budget:
            return
        raise OutOfMemoryError(
            f"the tensors take {needed} bytes, and memory_budget allows {budget}; "
            "use iter_tensors, or select fewer tensors or slices"
        )

    def stream(self) -> _native.Stream:
        return self._checkpoint.stream(self._asked)

    def load(self, wrap: _frameworks.Wrap, progress: bool, *, moves: bool) -> dict[str, Any]:
        """All of it; tensors that move elsewhere do so as they arrive."""
        shaped = partial(self.shaped, wrap) if self._windows else wrap
        if not progress and not moves:
            return _frameworks.wrap_all(self._checkpoint.load(self._asked), shaped)
        if moves:
            # The host holds what has not moved yet, and may have less memory than the device.
            self._asked["memory_budget"] = DEFAULT_BUDGET
        return _frameworks.wrap_all(self._arriving(progress), shaped)

    def _arriving(self, progress: bool) -> Iterator[_native.Tensor]:
        stream = self.stream()
        bar = Progress(self.nbytes() if progress else None)
        try:
            while tensors := stream.take(BATCH):
                while tensors:
                    tensor = tensors.pop(0)
                    bar.add(len(tensor))
                    yield tensor
                    del tensor
        finally:
            stream.close()
            bar.close()

    def shaped(self, wrap: _frameworks.Wrap, tensor: _native.Tensor) -> Any:
        """An array without the dimensions that were indexed by numbers."""
        made = wrap(tensor)
        part: Window | None = self._windows.get(tensor.name)
        if part is None or part.shape == tensor.shape:
            return made
        return _frameworks.reshaped(made, part.shape)
