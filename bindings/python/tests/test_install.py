"""What an installed wheel brings, and that it needs nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tensora_py

# The interpreter of an environment that has the wheel and nothing else; the gate makes one.
BARE = os.environ.get("TENSORA_TEST_BARE")

HIDE = """
import sys
for module in ("numpy", "torch", "tqdm", "ml_dtypes"):
    sys.modules[module] = None
"""

PROGRAM = """
import asyncio, sys
import tensora_py

path = sys.argv[1]
tensors = tensora_py.load(path, framework="dlpack", progress=True)
tensor = tensors["w"]
assert bytes(tensor) == bytes(memoryview(tensor)) and tensor.shape == (2,) and tensor.dtype == "F32"
assert list(dict(tensora_py.iter_tensors(path, framework="dlpack"))) == ["w"]
assert list(asyncio.run(tensora_py.aload(path, framework="dlpack"))) == ["w"]
checkpoint = tensora_py.open(path)
assert bytes(checkpoint.get_slice("w", framework="dlpack")[1:]) == bytes(tensor)[4:]
assert tensora_py.verify(path)["ok"] and list(tensora_py.hash(path)) == ["w"]
for framework in ("torch", "numpy"):
    for use in (
        lambda: tensora_py.load(path, framework=framework),
        lambda: tensora_py.iter_tensors(path, framework=framework),
        lambda: checkpoint.get("w", framework=framework),
        lambda: checkpoint.get_slice("w", framework=framework),
    ):
        try:
            use()
        except ModuleNotFoundError as error:
            assert error.name == framework, error.name
            assert "not installed" in str(error) and framework in str(error), error
        else:
            raise AssertionError(framework)
# The default is torch.
try:
    tensora_py.load(path)
except ImportError as error:
    print(error)
"""


def check(python: str, code: str, path: Path) -> None:
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code), path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "torch" in done.stdout and "not installed" in done.stdout


def test_nothing_else_needs_to_be_installed(tiny: Path) -> None:
    check(sys.executable, HIDE + PROGRAM, tiny)


@pytest.mark.skipif(
    BARE is None, reason="TENSORA_TEST_BARE names an interpreter with the wheel alone"
)
def test_the_wheel_alone_is_enough(tiny: Path) -> None:
    assert BARE is not None
    listed = subprocess.run(
        [BARE, "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == ["tensora-py"]
    check(BARE, PROGRAM, tiny)


def test_every_public_name_is_there() -> None:
    for name in tensora_py.__all__:
        assert getattr(tensora_py, name).__doc__, name


@pytest.mark.skipif(
    os.environ.get("TENSORA_TEST_INSTALLED") != "1", reason="the folder of the sources is tested"
)
def test_the_wheel_says_what_it_is() -> None:
    about = importlib.metadata.metadata("tensora-py")
    assert about["Version"] == tensora_py.__version__
    assert about["Requires-Python"] == ">=3.11"
    needed = importlib.metadata.requires("tensora-py") or []
    assert all("extra ==" in line for line in needed)
    assert set(about.get_all("Provides-Extra") or ()) == {"numpy", "torch"}
    files = {str(file) for file in importlib.metadata.files("tensora-py") or ()}
    assert {"tensora_py/py.typed", "tensora_py/_native.pyi", "tensora_py/_native.abi3.so"} <= files
    [wheel] = [
        file for file in importlib.metadata.files("tensora-py") or () if file.name == "WHEEL"
    ]
    assert "cp311-abi3" in wheel.read_text()
    # Nothing but the package and its description.
    assert {file.split("/")[0].split("-")[0] for file in files} <= {"tensora_py", "tensora_py.libs"}
