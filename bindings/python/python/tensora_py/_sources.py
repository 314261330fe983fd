"""What tensors of all frameworks are when they are saved: a dtype, a shape, and bytes."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ._errors import DtypeError, InvalidArgumentError
from ._frameworks import ML_DTYPES, TORCH_DTYPES
from ._native import Tensor

Taken = tuple[Any, Any]
"""A contiguous buffer, and whatever has to live as long as it is used."""


class Entry(NamedTuple):
    """A tensor to be saved."""

    name: str
    dtype: str
    """As SafeTensors spells it."""
    shape: list[int]
    """As the header has it: elements, also where several are packed in a byte."""
    span: tuple[str, int, int] | None
    """Device, first address, and the one behind the last, where this is known."""
    take: Callable[[], Taken]


_OF_TORCH = {name: code for code, name in TORCH_DTYPES.items()}
_OF_ML = {name: code for code, name in ML_DTYPES.items()}

# By numpy's letters for kinds, and bytes.
_OF_KIND = {
    ("b", 1): "BOOL",
    ("i", 1): "I8",
    ("i", 2): "I16",
    ("i", 4): "I32",
    ("i", 8): "I64",
    ("u", 1): "U8",
    ("u", 2): "U16",
    ("u", 4): "U32",
    ("u", 8): "U64",
    ("f", 2): "F16",
    ("f", 4): "F32",
    ("f", 8): "F64",
    ("c", 8): "C64",
}

# Letters of the struct module, to those of numpy.
_KIND_OF_FORMAT = dict.fromkeys("bhilqn", "i") | dict.fromkeys("BHILQNc", "u")
_KIND_OF_FORMAT |= dict.fromkeys("efd", "f") | {"?": "b"}


def entry(name: str, value: Any) -> Entry:
    """What is known of a tensor.

    Raises:
        InvalidArgumentError: it has no bytes that could be saved as they are.
        DtypeError: the format does not have its dtype, or it is no tensor at all.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch(name, value, torch)
    if isinstance(value, Tensor):
        span = ("cpu", value.data_ptr, value.data_ptr + value.nbytes)
        return Entry(name, value.dtype, list(value.shape), span, lambda: (value, value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _numpy(name, value, numpy)
    # Arrays of JAX and others know best how they become one of numpy.
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        numpy = importlib.import_module("numpy")
        return _numpy(name, numpy.asarray(value), numpy)
    if hasattr(value, "__dlpack__"):
        return _dlpack(name, value)
    try:
        view = memoryview(value)
    except TypeError:
        raise _no_dtype(
            name, f"a {type(value).__name__} is no tensor; give an array of torch or numpy"
        ) from None
    return _buffer(name, view)


def _torch(name: str, value: Any, torch: Any) -> Entry:
    if value.layout != torch.strided:
        raise _refused(name, f"it is sparse ({value.layout}); call .to_dense() first")
    if value.is_quantized:
        raise _refused(
            name, "it is quantized; save .int_repr(), with scales and zero points as tensors"
        )
    if value.device.type == "meta":
        raise _refused(name, "it is on the meta device, without data; load or make its data first")
    if _is_wrapper(value):
        whole = "; call .full_tensor() first" if hasattr(value, "full_tensor") else ""
        raise _refused(
            name, f"it is a {type(value).__name__}, which has no memory of its own{whole}"
        )
    spelled = str(value.dtype).removeprefix("torch.")
    code = _OF_TORCH.get(spelled)
    if code is None:
        raise _no_dtype(name, f"SafeTensors has no dtype for torch.{spelled}; convert it first")
    if not value.is_contiguous():
        raise _not_contiguous(name, value.shape, value.stride(), ".contiguous()")
    shape = list(value.shape)
    if code == "F4":
        if not shape:
            raise _refused(
                name, f"a scalar of torch.{spelled} is two elements; give it a dimension"
            )
        shape[-1] *= 2
    nbytes = value.numel() * value.element_size()
    start = _address(name, value, nbytes) if nbytes else 0
    span = (str(value.device), start, start + nbytes)

    def take() -> Taken:
        # Conjugates and negatives may be no more than a flag on the same bytes.
        kept = value.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        if not nbytes:
            return b"", kept
        return at_address(_address(name, kept, nbytes), nbytes), kept

    return Entry(name, code, shape, span, take)


def _address(name: str, value: Any, nbytes: int) -> int:
    """Where the bytes of a contiguous tensor of torch lie, all of which must be there."""
    try:
        there = value.untyped_storage().nbytes() - value.storage_offset() * value.element_size()
        address = int(value.data_ptr())
    except (RuntimeError, NotImplementedError) as error:
        raise _refused(name, f"torch does not give its memory: {error}") from None
    if there < nbytes or not address:
        raise _refused(
            name,
            f"it has {nbytes} bytes, of which its storage has {max(there, 0) if address else 0}; "
            "its data was freed or is elsewhere (as FSDP does): gather it first",
        )
    return address


def at_address(address: int, nbytes: int) -> memoryview:
    """Bytes of somebody else, who has to keep them."""
    # A view, because arrays of ctypes do not tell their strides.
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address))


def _is_wrapper(value: Any) -> bool:
    if not hasattr(value, "__tensor_flatten__"):
        return False
    dispatch = importlib.import_module("torch.utils._python_dispatch")
    return bool(dispatch.is_traceable_wrapper_subclass(value))


def _numpy(name: str, value: Any, numpy: Any) -> Entry:
    if isinstance(value, numpy.ma.MaskedArray):
        raise _refused(name, "it is a masked array, and the mask would be lost; call .filled()")
    array = numpy.asarray(value)
    dtype = array.dtype
    # Those of ml_dtypes by their names; whatever else others have added may be packed in its own way.
    code = _OF_ML.get(dtype.name)
    if code is None and dtype.type.__module__ == "numpy":
        code = _OF_KIND.get((dtype.kind, dtype.itemsize))
    if code is None:
        raise _no_dtype(name, f"SafeTensors has no dtype for numpy's {dtype}; convert it first")
    if not array.flags.c_contiguous:
        raise _not_contiguous(name, array.shape, array.strides, "numpy.ascontiguousarray()")
    start = array.__array_interface__["data"][0]

    def take() -> Taken:
        kept = array if _is_little(dtype) else array.byteswap()
        return kept.reshape(-1).view(numpy.uint8), kept

    return Entry(name, code, list(array.shape), ("cpu", start, start + array.nbytes), take)


def _is_little(dtype: Any) -> bool:
    order = dtype.byteorder
    return order in "<|" or (order == "=" and sys.byteorder == "little")


def _dlpack(name: str, value: Any) -> Entry:
    torch = sys.modules.get("torch")
    if torch is not None:
        # It knows more dtypes than numpy, and other devices.
        return _torch(name, torch.from_dlpack(value), torch)
    numpy = importlib.import_module("numpy")
    try:
        array = numpy.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise _no_dtype(name, f"numpy cannot take it through DLPack ({error})") from error
    return _numpy(name, array, numpy)


def _buffer(name: str, view: memoryview) -> Entry:
    kind = _KIND_OF_FORMAT.get(view.format.lstrip("@=<"))
    code = None if kind is None else _OF_KIND.get((kind, view.itemsize))
    if code is None:
        raise _no_dtype(name, f"SafeTensors has no dtype for buffers of format {view.format!r}")
    if not view.c_contiguous:
        raise _not_contiguous(name, view.shape or (), view.strides, "bytes()")
    return Entry(name, code, list(view.shape or ()), None, lambda: (view, view))


def _refused(name: str, why: str) -> InvalidArgumentError:
    error = InvalidArgumentError(f"tensor {name!r} cannot be saved: {why}")
    error.tensor = name
    return error


def _not_contiguous(name: str, shape: Any, strides: Any, remedy: str) -> InvalidArgumentError:
    return _refused(
        name,
        f"it is not contiguous (shape {tuple(shape)}, strides {tuple(strides)}); save "
        f"{remedy} of it, or the whole tensor that it is a part of",
    )


def _no_dtype(name: str, why: str) -> DtypeError:
    error = DtypeError(f"tensor {name!r} cannot be saved: {why}")
    error.tensor = name
    return error
