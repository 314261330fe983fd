"""`install()` and the modules for frameworks that are not installed here: others stand in for them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import NO_SAFETENSORS, run
from safetensors.numpy import save_file

FAKES = """
import sys, types
import numpy

class Array:
    def __init__(self, value, place=None):
        self.value, self.place = numpy.array(value), place
    def __array__(self, dtype=None, copy=None):
        return self.value
    def numpy(self):
        return self.value

class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name

def module(name, **names):
    made = Anything(name)
    made.__dict__.update(names, __path__=[])
    sys.modules[name] = made
    return made

module("jax", Array=Array, numpy=module("jax.numpy", array=Array, asarray=Array))
module("mlx", core=module("mlx.core", array=Array))
module("tensorflow", convert_to_tensor=Array, Tensor=Array)
module("paddle", to_tensor=Array, Tensor=Array, __version__="3.2.0")
"""

PROGRAM = """
import importlib
from tensora_py import safetensors_compat as compat

path, name, when = sys.argv[1:]
if when == "before":
    module = importlib.import_module(f"safetensors.{name}")
    undo = compat.install()
else:
    undo = compat.install()
    module = importlib.import_module(f"safetensors.{name}")
assert module.safe_open is compat.safe_open
with open(path, "rb") as file:
    data = file.read()
readings = [module.load_file(path), module.load_file(path, backend="pread")]
if name != "paddle":  # which makes tensors of bytes by itself
    readings.append(module.load(data))
for loaded in readings:
    assert sorted(loaded) == ["a", "b"]
    assert type(loaded["a"]) is Array and loaded["b"].value.tolist() == [[0, 1, 2], [3, 4, 5]]
with compat.safe_open(path, name if name != "tensorflow" else "tf") as file:
    part = file.get_slice("b")[0, 1]
    assert type(part) is Array and part.value == 1
if name == "paddle":
    assert {loaded["a"].place for loaded in readings} == {"cpu"}
else:
    assert module.save(readings[0]) == data
    module.save_file(readings[1], path)
    with open(path, "rb") as file:
        assert file.read() == data
undo()
assert module.safe_open is not compat.safe_open
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["flax", "mlx", "paddle", "tensorflow"])
def test_modules_of_other_frameworks(tmp_path, name, when):
    tensors = {"a": np.array(2.5, "f4"), "b": np.arange(6.0).reshape(2, 3)}
    save_file(tensors, tmp_path / "a")
    run(FAKES + PROGRAM, tmp_path / "a", name, when)


STAND_IN = f"""{NO_SAFETENSORS}
from tensora_py.safetensors_compat import install
undo = install()
"""


def test_names_that_are_imported_from_a_stand_in():
    code = """
from safetensors import SafetensorError, TensorSpec, __version__, safe_open
from safetensors.numpy import _TYPES, _getdtype, load_file
import numpy
assert __version__.split(".") >= ["0", "4"]
assert _getdtype("F32") is numpy.float32 and _TYPES["BOOL"] in (bool, numpy.bool_)
"""
    run(STAND_IN + code)


@pytest.mark.torch
def test_names_of_torch_that_are_imported_from_a_stand_in():
    code = """
import safetensors.torch
from safetensors.torch import _getdtype, load, load_file, save, save_file, storage_ptr, storage_size
from safetensors.torch import _SIZE, _TYPES, _find_shared_tensors, _is_complete
from safetensors.torch import _remove_duplicate_names
import torch
assert _getdtype("BF16") is torch.bfloat16 and _SIZE[torch.bfloat16] == 2
import transformers.pytorch_utils, transformers.modeling_utils
assert transformers.modeling_utils.safe_open is safetensors.safe_open
assert transformers.pytorch_utils.storage_size(torch.ones(3)) == 12
"""
    run(STAND_IN + code)
