"""The functions of `safetensors`, done by Tensora: same names, arguments and results.

>>> from tensora_py.safetensors_compat import safe_open
>>> from tensora_py.safetensors_compat.torch import load_file, save_file

`install` puts them in the place of those of `safetensors`, for programs that cannot be changed.

What differs: a damaged file is told by its name, and more damages are found (names that are given
twice, bytes behind the last tensor); files are the same for the same tensors, also with several
entries of metadata; saving replaces a file only when the new one is on disk. Of slices, those
that Python has and that end in an overflow there work: ``[-100:3]``, ``[5:2]``, ``[:]`` of an empty
dimension.
"""

from ._bytes import TensorSpec, deserialize, serialize, serialize_file
from ._errors import SafetensorError
from ._install import install
from ._open import safe_open

__version__ = "0.8.0"
"""The version of `safetensors` whose interface this is."""

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "deserialize",
    "install",
    "safe_open",
    "serialize",
    "serialize_file",
]
