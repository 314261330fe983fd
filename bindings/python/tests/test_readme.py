"""The README says what is so: its blocks of Python are run, its tables are compared."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path

import numpy
import pytest
import tensora_py
from helpers import DTYPES
from safetensors.numpy import save_file
from tensora_py import _errors, _frameworks

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named model in the current one."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    tensors = {
        "embed.weight": numpy.arange(64 * 48, dtype=numpy.float32).reshape(64, 48),
        "norm.weight": numpy.ones(48, dtype=numpy.float32),
    }
    save_file(tensors, "model/model.safetensors", {"format": "np"})


def needs_torch(block: str) -> bool:
    return "import torch" in block


@pytest.mark.usefixtures("model")
def test_blocks_in_turn() -> None:
    """As a reader would enter them, one after the other."""
    names: dict[str, object] = {}
    blocks = [block for block in BLOCKS if not needs_torch(block)]
    assert len(blocks) >= 5
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.torch
@pytest.mark.usefixtures("model")
def test_blocks_that_need_torch() -> None:
    blocks = [block for block in BLOCKS if needs_torch(block)]
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_public_name_is_there() -> None:
    for name in tensora_py.__all__:
        assert re.search(rf"\b{name}\b", README), name


def test_the_table_of_errors() -> None:
    listed: dict[str, str] = {}
    parts = {"AccessError"}
    for cls, base, kinds in rows("Errors"):
        [cls, *above], [base] = quoted(cls), quoted(base)
        error = getattr(tensora_py, cls)
        assert issubclass(error, tensora_py.TensoraError)
        assert issubclass(error, getattr(builtins, base))
        assert all(issubclass(error, getattr(tensora_py, name)) for name in above)
        if above:
            # A part of the kinds of the class above it.
            assert set(quoted(kinds)) == {error.kind} and error.kind in listed
            parts.add(cls)
            continue
        listed |= {kind: cls for kind in quoted(kinds) if (kind, cls) != ("Io", "AccessError")}
    for kind, cls in listed.items():
        assert type(_errors.make(kind, "", None, None, None)).__name__ == cls
    assert _errors._BY_KIND.keys() <= listed.keys()
    public = {name for name in _errors.__all__ if name != "TensoraError"}
    assert public == set(listed.values()) | parts
    # Kinds of the library that nobody has put anywhere.
    source = (Path(__file__).parents[3] / "src" / "error.rs").read_text(encoding="utf-8")
    [variants] = re.findall(r"pub enum ErrorKind \{(.*?)\n\}", source, re.DOTALL)
    raised = set(re.findall(r"^    (\w+),$", variants, re.MULTILINE))
    # And those that the Python files give by themselves.
    for file in Path(_errors.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        raised |= set(re.findall(r"\bkind(?:: str)? = \"(\w+)\"", text))
        raised |= set(re.findall(r"\.kind, .*? = \"(\w+)\"", text))
    assert raised - {"Error"} == listed.keys()


def test_the_table_of_dtypes() -> None:
    found = {}
    for dtypes, torch, array, _ in rows("Dtypes"):
        for dtype in quoted(dtypes):
            found[dtype] = (torch != "-", array != "-")
    for dtype, known in found.items():
        in_numpy = dtype in _frameworks.NUMPY_DTYPES or dtype in _frameworks.ML_DTYPES
        assert known == (dtype in _frameworks.TORCH_DTYPES, in_numpy), dtype
    assert _frameworks.TORCH_DTYPES.keys() <= found.keys()
    # None that the tests of frameworks do not go through.
    assert found.keys() == set(DTYPES)


def test_the_papers_names() -> None:
    from tensora_py import torch

    listed = {quoted(part)[0].split("(")[0] for row in rows("The paper's names") for part in
              re.findall(r"`[^`]+`", row[0])}  # fmt: skip
    assert listed == set(torch.__all__)


def test_arguments_are_those_of_the_functions() -> None:
    for row in rows("The API"):
        for call in quoted(row[0]):
            name, _, arguments = call.partition("(")
            function = getattr(tensora_py, name, None)
            if function is None or "=" not in arguments:
                continue
            parameters = inspect.signature(function).parameters
            for argument in re.findall(r"(\w+)=", arguments):
                assert argument in parameters, f"{name}({argument}=)"


@pytest.mark.parametrize("name", tensora_py.__all__)
def test_every_argument_is_documented(name: str) -> None:
    """By itself, or by a word about where it is."""
    function = getattr(tensora_py, name)
    if not inspect.isfunction(function):
        return
    text = inspect.getdoc(function) or ""
    if re.search(r"[Aa]rguments .*those of", text):
        return
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in text
