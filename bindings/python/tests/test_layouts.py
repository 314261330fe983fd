"""The names of the paper's package: each does what the function does that it stands for."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy
import pytest
import tensora_py
import tensora_py.torch as paper
from safetensors.numpy import load as reference_load
from safetensors.numpy import load_file, save_file

TENSORS: dict[str, Any] = {
    "model.embed.weight": numpy.arange(600, dtype=numpy.float32).reshape(50, 12),
    "model.norm.weight": numpy.linspace(-1, 1, 7, dtype=numpy.float16),
    "steps": numpy.array(11, dtype=numpy.int64),
    "empty": numpy.zeros((0, 4), dtype=numpy.uint8),
}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """The same tensors in both layouts."""
    source, converted = tmp_path / "st", tmp_path / "sllm"
    source.mkdir()
    save_file(TENSORS, source / "model.safetensors", {"made": "by a test"})
    report = paper.convert_safetensors_to_serverlessllm(source, converted, 2)
    assert report["data_files"] == 2
    return {"safetensors": source, "serverlessllm": converted}


def same(made: dict[str, Any]) -> None:
    assert made.keys() == TENSORS.keys()
    for name, wanted in TENSORS.items():
        assert made[name].dtype == wanted.dtype
        numpy.testing.assert_array_equal(made[name], wanted)


@pytest.mark.parametrize("layout", ["safetensors", "serverlessllm"])
@pytest.mark.parametrize("backend", ["default", "sync", "async", "mmap"])
def test_every_name_gives_the_tensors(folders: dict[str, Path], layout: str, backend: str) -> None:
    path = folders[layout]
    same(getattr(paper, f"load_{layout}")(path, backend, "numpy"))
    same(dict(getattr(paper, f"iter_{layout}")(path, backend, framework="numpy")))
    with getattr(paper, f"open_{layout}")(path, backend=backend, framework="numpy") as handle:
        assert handle.layout == layout
        same({name: handle.get_tensor(name) for name in handle.keys()})
        same({name: handle[name] for name in handle})
        part = handle.get_slice("model.embed.weight")[10:20, ::3]
        numpy.testing.assert_array_equal(part, TENSORS["model.embed.weight"][10:20, ::3])


@pytest.mark.parametrize("layout", ["safetensors", "serverlessllm"])
@pytest.mark.parametrize("verb", ["load", "open", "iter"])
def test_the_layout_is_not_guessed(folders: dict[str, Path], layout: str, verb: str) -> None:
    [other] = set(folders) - {layout}
    with pytest.raises(tensora_py.CheckpointNotFoundError, match="layout"):
        getattr(paper, f"{verb}_{layout}")(folders[other], framework="numpy")


def test_saving(tmp_path: Path) -> None:
    path = tmp_path / "made.safetensors"
    paper.save_safetensors(TENSORS, path, {"note": "here"})
    same(load_file(path))
    assert tensora_py.open(path).metadata == {"note": "here"}
    same(reference_load(paper.save_safetensors_bytes(TENSORS)))


def test_signatures_are_those_of_the_paper() -> None:
    loads = [
        getattr(paper, f"{verb}_{layout}")
        for verb in ("load", "open", "iter")
        for layout in ("safetensors", "serverlessllm")
    ]
    for function in loads:
        parameters = inspect.signature(function).parameters
        assert list(parameters) == ["path", "backend", "framework", "device"]
        given = [parameter.default for parameter in parameters.values()]
        assert given[1:] == ["default", "torch", "cpu"]
    assert list(inspect.signature(paper.save_safetensors).parameters) == [
        "tensors",
        "path",
        "metadata",
    ]
    for name in paper.__all__:
        assert getattr(tensora_py, name) is getattr(paper, name)
        assert name in tensora_py.__all__


def test_a_handle_has_the_framework_that_it_was_opened_with(folders: dict[str, Path]) -> None:
    with tensora_py.open(folders["safetensors"], framework="numpy") as handle:
        assert isinstance(handle["steps"], numpy.ndarray)
        assert isinstance(handle.get("steps", framework="dlpack"), tensora_py.Tensor)
        assert isinstance(handle.get_slice("steps")[...], numpy.ndarray)
    with pytest.raises(tensora_py.InvalidArgumentError, match="unknown framework 'tensorflo'"):
        tensora_py.open(folders["safetensors"], framework="tensorflo")


def test_every_public_name_is_documented() -> None:
    for name in tensora_py.__all__:
        value = getattr(tensora_py, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for member, what in vars(value).items():
                if not member.startswith("_") and (callable(what) or isinstance(what, property)):
                    assert inspect.getdoc(what), f"{name}.{member}"


@pytest.mark.torch
@pytest.mark.parametrize("layout", ["safetensors", "serverlessllm"])
def test_torch_is_the_framework_by_default(folders: dict[str, Path], layout: str) -> None:
    import torch

    for name, tensor in getattr(paper, f"load_{layout}")(folders[layout]).items():
        assert torch.equal(tensor, torch.from_numpy(TENSORS[name]))
    handle = getattr(paper, f"open_{layout}")(folders[layout])
    assert torch.equal(handle.get_tensor("steps"), torch.tensor(11))
