"""Loads that are awaited: the event loop runs on, and cancelling ends them."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest
import tensora_py
from helpers import Stored, roomy, sparse, stored, write_safetensors


def huge(folder: Path) -> Path:
    """128 GiB of zeros in tensors of 32 MiB, which take minutes to go through."""
    shapes = {f"t{number:04}": (1 << 23,) for number in range(1 << 12)}
    return sparse(folder / "huge.safetensors", "F32", shapes)


def test_a_load_is_awaited(folder: Path, model: dict[str, Stored], backend: str) -> None:
    tensors = asyncio.run(tensora_py.aload(folder, framework="dlpack", backend=backend))
    assert {n: bytes(t) for n, t in tensors.items()} == {n: t.data for n, t in model.items()}


def test_tensors_are_awaited_one_by_one(
    folder: Path, model: dict[str, Stored], backend: str
) -> None:
    async def collect() -> dict[str, bytes]:
        tensors = tensora_py.aiter_tensors(folder, framework="dlpack", backend=backend)
        return {name: bytes(tensor) async for name, tensor in tensors}

    assert asyncio.run(collect()) == {name: tensor.data for name, tensor in model.items()}


def test_errors_are_those_of_loads(tmp_path: Path) -> None:
    with pytest.raises(tensora_py.CheckpointNotFoundError):
        asyncio.run(tensora_py.aload(tmp_path / "nothing.safetensors", framework="dlpack"))

    async def first() -> Any:
        async for item in tensora_py.aiter_tensors(tmp_path / "no.safetensors", framework="dlpack"):
            return item

    with pytest.raises(FileNotFoundError):
        asyncio.run(first())


@pytest.mark.heavy
def test_the_event_loop_runs_meanwhile(tmp_path: Path) -> None:
    path = sparse(tmp_path / "large.safetensors", "U8", {"w": (512 << 20,)})

    async def both() -> int:
        loading = asyncio.ensure_future(tensora_py.aload(path, framework="dlpack"))
        turns = 0
        while not loading.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert (await loading)["w"].nbytes == 512 << 20
        return turns

    assert asyncio.run(both()) > 3


def test_several_loads_run_at_once(shards: Path, model: dict[str, Stored]) -> None:
    async def many() -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(tensora_py.aload(shards, framework="dlpack") for _ in range(8))
        )

    for tensors in asyncio.run(many()):
        assert {n: bytes(t) for n, t in tensors.items()} == {n: t.data for n, t in model.items()}


@pytest.mark.heavy
def test_a_cancelled_load_ends(tmp_path: Path) -> None:
    # Takes seconds, and it is ended after a twentieth of one.
    path = sparse(tmp_path / "large.safetensors", "U8", {"w": (roomy(8 << 30),)})

    async def cancel() -> float:
        loading = asyncio.ensure_future(tensora_py.aload(path, framework="dlpack", backend="sync"))
        await asyncio.sleep(0.05)
        asked = time.monotonic()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        return asked

    asked = asyncio.run(cancel())
    # asyncio.run has waited for the threads of the pool.
    assert time.monotonic() - asked < 2


def test_leaving_an_iterator_ends_its_load(tmp_path: Path) -> None:
    path = huge(tmp_path)

    async def leave() -> None:
        tensors = tensora_py.aiter_tensors(path, framework="dlpack", memory_budget=128 << 20)
        async for _ in tensors:
            break
        await tensors.aclose()

    asyncio.run(asyncio.wait_for(leave(), 60))


def test_a_cancelled_task_leaves_its_iterator(tmp_path: Path) -> None:
    path = huge(tmp_path)

    async def cancel() -> int:
        seen = 0

        async def consume() -> None:
            nonlocal seen
            options = {"framework": "dlpack", "memory_budget": 128 << 20}
            async for _ in tensora_py.aiter_tensors(path, **options):
                seen += 1

        task = asyncio.ensure_future(consume())
        while seen < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(asyncio.wait_for(cancel(), 60)) < 1 << 12


def test_a_dtype_that_numpy_lacks_is_raised(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"a": stored("F6_E2M3", (4,))})

    async def first() -> None:
        async for _ in tensora_py.aiter_tensors(path, framework="numpy"):
            pass

    with pytest.raises(tensora_py.DtypeError, match="F6_E2M3"):
        asyncio.run(first())


def test_an_iterator_goes_on_after_what_a_framework_cannot_have(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "m.safetensors", {"a": stored("F4", (4,)), "w": stored("F32", (2,))}
    )

    async def names() -> list[str | None]:
        found: list[str | None] = []
        async with tensora_py.aiter_tensors(path, framework="numpy") as tensors:
            while True:
                try:
                    found.append((await anext(tensors))[0])
                except tensora_py.DtypeError as error:
                    found.append(error.tensor)
                except StopAsyncIteration:
                    return found

    assert sorted(asyncio.run(names()), key=str) == ["a", "w"]


def test_a_load_that_is_cancelled_twice_ends_before_its_task(tmp_path: Path) -> None:
    path = sparse(tmp_path / "m.safetensors", "U8", {"w": (roomy(2 << 30),)})
    told: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        task = asyncio.ensure_future(tensora_py.aload(path, framework="dlpack"))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gc.collect()
    assert not told
