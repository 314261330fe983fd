"""From a tensor in memory to the array of a framework: no byte is copied."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from ._arguments import check, shown, wrong_type
from ._errors import DtypeError, InvalidArgumentError, UnavailableError
from ._native import Tensor

Wrap = Callable[[Tensor], Any]

_PACKAGE = __name__.partition(".")[0]

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


def chosen(framework: str, device: Any) -> str:
    """The one name of a framework, or an error with all of them, or about the device."""
    check(framework=framework)
    name = _ALIASES.get(framework, framework)
    if name not in FRAMEWORKS:
        raise InvalidArgumentError(
            f"unknown framework {shown(framework)}; known are {', '.join(FRAMEWORKS)}"
        )
    if name != "torch" and str(device) != "cpu":
        raise InvalidArgumentError(
            f"device is {shown(device)}, and framework {name!r} has arrays on the CPU only"
        )
    return name


def wrapper(framework: str, device: Any = "cpu") -> Wrap:
    """What makes arrays of ``framework`` on ``device`` of tensors."""
    name = chosen(framework, device)
    if name == "torch":
        return _torch(device)
    return _numpy() if name == "numpy" else _itself


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _no_dtype(tensor: Tensor, what: str) -> DtypeError:
    error = DtypeError(f"tensor {tensor.name!r}: {what}")
    error.tensor = tensor.name
    return error


def _no_shape(tensor: Tensor, what: str, error: Exception) -> DtypeError:
    """The error where a framework has no arrays of a shape, in its own words."""
    shape = tensor.shape
    return _no_dtype(
        tensor,
        f"{what} has no array of {len(shape)} dimensions, {shown(shape)}: {_words(error)}; leave it "
        "out with names=, or take its bytes with framework='dlpack'",
    )


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
    target = _device(torch, device)
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
            try:
                made = from_dlpack(tensor.__dlpack__())
            except (RuntimeError, TypeError, ValueError, BufferError) as error:
                raise _no_shape(tensor, f"torch {torch.__version__}", error) from None
            return made if here else made.to(target)
        shape = tensor.shape
        dtype = dtypes.get(code)
        if dtype is None:
            dtype = known(tensor)
        if code == "F4":
            if not shape or shape[-1] % 2:
                raise _no_dtype(tensor, f"torch packs F4 in pairs, shape {shape} has none")
            shape = (*shape[:-1], shape[-1] // 2)
        try:
            if not len(tensor):
                made = empty(shape, dtype=dtype, device="cpu")
            elif len(shape) == 1:
                made = frombuffer(tensor, dtype=dtype)
            else:
                made = frombuffer(tensor, dtype=dtype).view(shape)
        except (RuntimeError, TypeError, ValueError) as error:
            raise _no_shape(tensor, f"torch {torch.__version__}", error) from None
        return made if here else made.to(target)

    return wrap


def _device(torch: Any, given: Any) -> Any:
    """A device of torch, which is there; numbers are those of CUDA devices."""
    try:
        if given is None or isinstance(given, bool):
            raise TypeError
        target = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
    except TypeError:
        raise wrong_type(
            "device", given, "a device of torch, such as 'cpu' or 'cuda:0', or a number"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(f"device is {shown(given)}: {_words(error)}") from None
    if target.type == "cpu":
        return target
    module = getattr(torch, target.type, None)
    there, count = getattr(module, "is_available", None), getattr(module, "device_count", None)
    if there is not None and not there():
        found = f"none of type {target.type}"
    elif count is not None and target.index is not None and target.index >= count():
        found = f"{count()} of type {target.type}"
    else:
        return target
    raise UnavailableError(
        f"device is {str(target)!r}, and torch {torch.__version__} finds {found} here; choose another"
    )


def _words(error: Exception) -> str:
    """What somebody else's error says, without the call stacks of torch."""
    return (str(error).splitlines() or [type(error).__name__])[0]


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
        try:
            if not len(tensor):
                return numpy.empty(tensor.shape, dtype)
            return numpy.frombuffer(tensor, dtype).reshape(tensor.shape)
        except ValueError as error:
            raise _no_shape(tensor, f"numpy {numpy.__version__}", error) from None

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
    """What a load gives when a framework has no dtype, or no arrays of its shape, for some tensors.

    Looking up one of these raises the `DtypeError` that says why it is missing.
    """

    def __init__(self, made: dict[str, Any], failed: dict[str, DtypeError]) -> None:
        super().__init__(made)
        self.failed = failed

    def __missing__(self, name: str) -> Any:
        raise self.failed.get(name) or KeyError(name)


def wrap_all(tensors: Iterable[Tensor], wrap: Wrap) -> dict[str, Any]:
    """A dict of arrays by name; a `Loaded` where some cannot be made, of which `told` tells."""
    made: dict[str, Any] = {}
    failed: dict[str, DtypeError] = {}
    for tensor in tensors:
        try:
            made[tensor.name] = wrap(tensor)
        except DtypeError as error:
            failed[tensor.name] = error
    return Loaded(made, failed) if failed else made


def told(made: dict[str, Any]) -> dict[str, Any]:
    """The same, with a warning for each that was left out: at the line that called this package."""
    if isinstance(made, Loaded):
        level, frame = 1, inspect.currentframe()
        while frame is not None and _is_ours(frame):
            level, frame = level + 1, frame.f_back
        for reason in made.failed.values():
            warnings.warn(f"left out: {reason}", stacklevel=level)
    return made


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE
