"""Arguments that no function can take: every refusal names the argument, what it is, what it shall be."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensora_py
from helpers import stored, write_serverlessllm

PATHS = {"path_or_id", "path", "out", "manifest", "a", "b", "input_dir", "output_dir"}
TEXTS = {
    "backend", "dialect", "framework", "layout", "model_id", "name", "revision", "to",
}  # fmt: skip
FLAGS = {"deep", "force", "packed", "progress", "resume", "side_files", "verify"}
NUMBERS = {"align", "max_shard_size", "memory_budget", "partitions", "workers"}

# What each kind of argument is not, with what the message says that it shall be.
NO_PATHS: list[tuple[Any, str]] = [(7, "path"), (1.5, "path"), (["x"], "path"), (b"x", "fsdecode")]
BAD_PATHS: list[tuple[Any, str]] = [
    ("", "empty"), ("a\0b", "NUL"), (Path("a\0b"), "NUL"), ("\ud800", "encoded"),
]  # fmt: skip
NO_TEXTS: list[tuple[Any, str]] = [(7, "string"), (b"x", "string"), (["x"], "string")]
NO_FLAGS: list[tuple[Any, str]] = [(1, "True or False"), ("no", "True or False"), ([], "True or")]
NO_NUMBERS: list[tuple[Any, str]] = [
    (True, "integer"), (1.0, "integer"), (float("nan"), "integer"), ("1", "integer"),
]  # fmt: skip
BAD_NUMBERS: list[tuple[Any, str]] = [
    (-1, "-1"), (0, "0"), (1 << 64, str(1 << 64)), (-(10**5000), "int"),
]  # fmt: skip


def functions(shards: Path, folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Everything that is public and takes arguments, with those that make it work."""
    value = {"w": np.zeros(3, "f4")}
    here = {"path_or_id": shards, "framework": "numpy"}
    alias = {"path": shards, "framework": "numpy"}
    partitions = write_serverlessllm(folder / "partitions", {"w": stored("F32", (3,))})
    other = {"path": partitions, "framework": "numpy"}

    def waited(**options: Any) -> Any:
        return asyncio.run(tensora_py.aload(**options))

    def taken(**options: Any) -> Any:
        async def take() -> list[Any]:
            return [item async for item in tensora_py.aiter_tensors(**options)]

        return asyncio.run(take())

    signed = tensora_py.load, tensora_py.iter_tensors
    for function, like in zip((waited, taken), signed, strict=True):
        function.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
    opened = tensora_py.open(shards, framework="numpy")
    named = {"name": "scalar", "framework": "numpy"}
    return {
        "load": (tensora_py.load, here),
        "iter_tensors": (tensora_py.iter_tensors, here),
        "aload": (waited, here),
        "aiter_tensors": (taken, here),
        "open": (tensora_py.open, here),
        "save": (tensora_py.save, {"tensors": value, "path": folder / "s"}),
        "save_bytes": (tensora_py.save_bytes, {"tensors": value}),
        "convert": (tensora_py.convert, {"path_or_id": shards, "out": folder / "o"}),
        "verify": (tensora_py.verify, {"path_or_id": shards}),
        "hash": (tensora_py.hash, {"path_or_id": shards}),
        "diff": (tensora_py.diff, {"a": shards, "b": shards}),
        "pull": (tensora_py.pull, {"model_id": "a/b"}),
        "Checkpoint.info": (opened.info, {"name": "scalar"}),
        "Checkpoint.get": (opened.get, named),
        "Checkpoint.get_tensor": (opened.get_tensor, {"name": "scalar"}),
        "Checkpoint.get_slice": (opened.get_slice, named),
        "Checkpoint.plan": (opened.plan, {}),
        "load_safetensors": (tensora_py.load_safetensors, alias),
        "load_serverlessllm": (tensora_py.load_serverlessllm, other),
        "open_safetensors": (tensora_py.open_safetensors, alias),
        "open_serverlessllm": (tensora_py.open_serverlessllm, other),
        "iter_safetensors": (tensora_py.iter_safetensors, alias),
        "iter_serverlessllm": (tensora_py.iter_serverlessllm, other),
        "save_safetensors": (tensora_py.save_safetensors, {"tensors": value, "path": folder / "s"}),
        "save_safetensors_bytes": (tensora_py.save_safetensors_bytes, {"tensors": value}),
        "convert_safetensors_to_serverlessllm": (
            tensora_py.convert_safetensors_to_serverlessllm,
            {"input_dir": shards, "output_dir": folder / "o"},
        ),
    }


def wrong(parameter: inspect.Parameter) -> list[tuple[Any, str, type[Exception]]]:
    """What this argument cannot be, what the message says, and what Python calls the trouble."""
    name = parameter.name
    types, values = {
        name in PATHS: (NO_PATHS, BAD_PATHS),
        name in TEXTS: (NO_TEXTS, [("\ud800", "UTF-8")]),
        name in FLAGS: (NO_FLAGS, []),
        name in NUMBERS: (NO_NUMBERS, BAD_NUMBERS),
        name == "names": (
            [(7, "list of"), ([7], "strings"), (b"x", "list of")],
            [("x", "list of")],
        ),
        name == "slices": ([(7, "dict"), ([], "dict"), ("w", "dict"), ({7: 1}, "strings")], []),
        name == "tensors": ([(7, "dict"), (["x"], "dict"), ({7: 1}, "strings")], []),
        name == "metadata": ([(7, "dict"), ({7: "x"}, "strings"), ({"x": 7}, "string")], []),
        name == "device": ([], [("cuda:0", "CPU")]),
    }[True]
    if name == "metadata":
        values = [({"x": "\ud800"}, "UTF-8"), ({"\ud800": "x"}, "UTF-8")]
    optional = parameter.default is None or "None" in str(parameter.annotation)
    if not optional and name not in ("device", "memory_budget"):
        types = [*types, (None, "give")]
    return [(value, says, TypeError) for value, says in types] + [
        (value, says, ValueError) for value, says in values
    ]


def test_everything_that_is_public_is_among_them(shards: Path, tmp_path: Path) -> None:
    there = functions(shards, tmp_path)
    for name in tensora_py.__all__:
        if inspect.isfunction(getattr(tensora_py, name)) and name != "capabilities":
            assert name in there
    for name, method in inspect.getmembers(tensora_py.Checkpoint, inspect.isfunction):
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1:
            assert f"Checkpoint.{name}" in there


def test_wrong_arguments_are_named(shards: Path, tmp_path: Path) -> None:
    failures = []
    for label, (function, working) in functions(shards, tmp_path).items():
        for parameter in inspect.signature(function).parameters.values():
            for value, says, builtin in wrong(parameter):
                shown = f"{label}({parameter.name}={type(value)} {says})"
                try:
                    function(**(working | {parameter.name: value}))
                except tensora_py.TensoraError as error:
                    text = str(error)
                    good = isinstance(error, tensora_py.InvalidArgumentError)
                    good &= isinstance(error, builtin) and error.kind == "InvalidArgument"
                    named = rf"\b{parameter.name}\b"
                    good &= says in text and re.search(named, text) is not None
                    good &= "\n" not in text and len(text) < 400
                    if not good:
                        failures.append(f"{shown}: {type(error).__name__}: {text}")
                except Exception as error:
                    failures.append(f"{shown}: {type(error).__name__}: {error}")
                else:
                    failures.append(f"{shown}: no error")
    assert not failures, "\n".join(failures)


def test_numbers_and_flags_may_be_of_numpy(shards: Path, tmp_path: Path) -> None:
    tensors = tensora_py.load(
        shards, framework="numpy", workers=np.int64(2), memory_budget=np.uint64(1 << 40),
        align=np.int8(64), progress=np.False_,
    )  # fmt: skip
    assert len(tensors) == len(tensora_py.open(shards))
    assert tensora_py.verify(shards, deep=np.bool_(True))["ok"]
    tensora_py.convert(shards, tmp_path / "o", partitions=np.int32(1), packed=np.bool_(True))


def test_a_negative_budget_is_no_lack_of_memory(shards: Path) -> None:
    with pytest.raises(tensora_py.InvalidArgumentError, match="memory_budget is -1"):
        tensora_py.load(shards, framework="numpy", memory_budget=-1)


def test_what_no_name_can_be_is_not_in_a_checkpoint(shards: Path) -> None:
    checkpoint = tensora_py.open(shards)
    for name in ("\ud800", 7, None, b"scalar"):
        assert name not in checkpoint


def test_unknown_options_are_named(shards: Path) -> None:
    with pytest.raises(TypeError, match="'budget'"):
        asyncio.run(tensora_py.aload(shards, framework="numpy", budget=1))
    with pytest.raises(TypeError, match="'cancel'"):
        asyncio.run(tensora_py.aload(shards, framework="numpy", cancel=None))


@pytest.mark.torch
def test_devices_that_are_none(shards: Path) -> None:
    for value in (None, True, 1.5, [], {}):
        with pytest.raises(tensora_py.ArgumentTypeError, match="device is .*such as 'cpu'"):
            tensora_py.load(shards, device=value)
    for value in ("", "nowhere", "cuda:x", -1, 1 << 64):
        with pytest.raises(tensora_py.InvalidArgumentError, match="device is ") as caught:
            tensora_py.open(shards).get("scalar", device=value)
        assert "\n" not in str(caught.value)


@pytest.mark.torch
def test_devices_that_are_not_there(shards: Path) -> None:
    import torch

    missing = "cuda" if not torch.cuda.is_available() else f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(tensora_py.UnavailableError, match=f"device is '{missing}'"):
        tensora_py.load(shards, device=missing)
    with pytest.raises(RuntimeError, match="device is"):
        tensora_py.iter_tensors(shards, device=torch.device(missing))
