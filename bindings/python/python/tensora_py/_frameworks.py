"""From a tensor in memory to the array of a framework: no byte is copied."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from ._errors import DtypeError, InvalidArgumentError
from ._native import Tensor

Wrap = Callable[[Tensor], Any]

FRAMEWORKS = ("torch", "numpy", "dlpack")

_ALIASES = {"pt": "torch", "pytorch": "torch", "np": "numpy"}

# Names of the attributes of torch.
TORCH_DTYPES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}

# Dtypes that every torch takes through DLPack, which makes a tensor with its shape in one step:
# 20,000 of them in 14 ms, where frombuffer and view took 97 ms.
_THROUGH_DLPACK = frozenset(
    ("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "C64", "F64", "I64")
)

NUMPY_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "C64": "<c8",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}

# Names of the attributes of ml_dtypes. Its 4-bit and 6-bit floats take a byte each, ours are packed.
ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def framework_name(framework: str) -> str:
    """The one name of a framework, or an error with all of them."""
    name = _ALIASES.get(framework, framework)
    if name not in FRAMEWORKS:
        raise InvalidArgumentError(
            f"unknown framework {framework!r}; known are {', '.join(FRAMEWORKS)}"
        )
    return name


def wrapper(framework: str, device: Any = "cpu") -> Wrap:
    """What makes arrays of ``framework`` on ``device`` of tensors."""
    name = framework_name(framework)
    if name == "torch":
        return _torch(device)
    if str(device) != "cpu":
        raise InvalidArgumentError(
            f"framework {name!r} has arrays on the CPU only, not on {device!r}"
        )
    return _numpy() if name == "numpy" else _itself


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _no_dtype(tensor: Tensor, what: str) -> DtypeError:
    error = DtypeError(f"tensor {tensor.name!r}: {what}")
    error.tensor = tensor.name
    return error


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f"framework {name!r} was asked for, but {name} is not installed; "
            "install it, or choose another framework",
            name=name,
        ) from None


def _torch(device: Any) -> Wrap:
    torch = _module("torch")
    if isinstance(device, int):
        device = torch.device("cuda", device)
    target = torch.device(device)
    here = target.type == "cpu"
    frombuffer, empty = torch.frombuffer, torch.empty
    # What torch.from_dlpack calls with a capsule, after checks that take longer than it does.
    from_dlpack = getattr(torch._C, "_from_dlpack", torch.from_dlpack)
    dtypes: dict[str, Any] = {}

    def known(tensor: Tensor) -> Any:
        name = TORCH_DTYPES.get(tensor.dtype)
        dtype = None if name is None else getattr(torch, name, None)
        if dtype is None:
            raise _no_dtype(
                tensor,
                f"torch {torch.__version__} has no dtype for {tensor.dtype}; leave it out with "
                "names=, or take its bytes with framework='dlpack'",
            )
        dtypes[tensor.dtype] = dtype
        return dtype

    def wrap(tensor: Tensor) -> Any:
        code = tensor.dtype
        if code in _THROUGH_DLPACK and len(tensor):
            made = from_dlpack(tensor.__dlpack__())
            return made if here else made.to(target)
        shape = tensor.shape
        dtype = dtypes.get(code)
        if dtype is None:
            dtype = known(tensor)
        if code == "F4":
            if not shape or shape[-1] % 2:
                raise _no_dtype(tensor, f"torch packs F4 in pairs, shape {shape} has none")
            shape = (*shape[:-1], shape[-1] // 2)
        if len(tensor):
            made = frombuffer(tensor, dtype=dtype)
            if len(shape) != 1:
                made = made.view(shape)
        else:
            made = empty(shape, dtype=dtype)
        return made if here else made.to(target)

    return wrap


def _numpy() -> Wrap:
    numpy = _module("numpy")
    dtypes = {code: numpy.dtype(name) for code, name in NUMPY_DTYPES.items()}

    def known(tensor: Tensor) -> Any:
        name = ML_DTYPES.get(tensor.dtype)
        if name is None:
            raise _no_dtype(
                tensor,
                f"numpy has no dtype for {tensor.dtype}, whose elements are packed; leave it out "
                "with names=, or take its bytes with framework='dlpack'",
            )
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ModuleNotFoundError:
            raise _no_dtype(
                tensor,
                f"numpy itself has no dtype for {tensor.dtype}; install ml_dtypes, which has it",
            ) from None
        dtype = numpy.dtype(getattr(ml_dtypes, name))
        dtypes[tensor.dtype] = dtype
        return dtype

    def wrap(tensor: Tensor) -> Any:
        dtype = dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = known(tensor)
        if not len(tensor):
            return numpy.empty(tensor.shape, dtype)
        return numpy.frombuffer(tensor, dtype).reshape(tensor.shape)

    return wrap


def reshaped(made: Any, shape: tuple[int, ...]) -> Any:
    """An array in the shape that its index gives it, without what was indexed by numbers."""
    if isinstance(made, Tensor):
        raise InvalidArgumentError(
            f"tensor {made.name!r}: with framework='dlpack' every dimension stays; "
            "index with 7:8 instead of 7"
        )
    return made.reshape(shape)


class Loaded(dict[str, Any]):
    """What a load gives when a framework has no dtype for some of the tensors.

    Looking up one of these raises the `DtypeError` that says why it is missing.
    """

    def __init__(self, made: dict[str, Any], failed: dict[str, DtypeError]) -> None:
        super().__init__(made)
        self.failed = failed

    def __missing__(self, name: str) -> Any:
        raise self.failed.get(name) or KeyError(name)


def wrap_all(tensors: Iterable[Tensor], wrap: Wrap) -> dict[str, Any]:
    """A dict of arrays by name. What cannot be one is told in a warning, and when it is looked up."""
    made: dict[str, Any] = {}
    failed: dict[str, DtypeError] = {}
    for tensor in tensors:
        try:
            made[tensor.name] = wrap(tensor)
        except DtypeError as error:
            failed[tensor.name] = error
    if not failed:
        return made
    for reason in failed.values():
        warnings.warn(f"left out: {reason}", stacklevel=3)
    return Loaded(made, failed)
