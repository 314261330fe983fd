"""Arrays of numpy, torch and DLPack: dtypes, memory, and what a framework cannot hold."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensora_py
from helpers import BITS, NUMPY, Stored, run, stored, write_safetensors
from tensora_py._frameworks import ML_DTYPES, TORCH_DTYPES

PACKED = ("F4", "F6_E2M3", "F6_E3M2")
SIX = ("F6_E2M3", "F6_E3M2")
Every = tuple[Path, dict[str, Stored]]


def without(names: tuple[str, ...]) -> list[str]:
    return [dtype for dtype in BITS if dtype not in names]


@pytest.mark.parametrize("dtype", without(PACKED))
def test_numpy_has_the_same_elements(every_dtype: Every, dtype: str, backend: str) -> None:
    folder, tensors = every_dtype
    array = tensora_py.load(folder, framework="numpy", backend=backend, names=[dtype])[dtype]
    expected = np.dtype(NUMPY[dtype] if dtype in NUMPY else getattr(ml_dtypes, ML_DTYPES[dtype]))
    assert array.dtype == expected
    assert array.shape == (4, 8)
    assert array.tobytes() == tensors[dtype].data
    assert array.flags.writeable
    assert array.flags.aligned
    assert array.ctypes.data % max(1, BITS[dtype] // 8) == 0
    array[...] = array[::-1].copy()
    assert array[0].tobytes() == tensors[dtype].data[-len(tensors[dtype].data) // 4 :]


def test_numpy_leaves_out_what_it_cannot_hold(every_dtype: Every) -> None:
    folder, _ = every_dtype
    with pytest.warns(UserWarning, match="left out") as told:
        tensors = tensora_py.load(folder, framework="numpy")
    assert set(tensors) == set(without(PACKED))
    assert len(told) == len(PACKED)
    for dtype in PACKED:
        with pytest.raises(tensora_py.DtypeError, match=f"{dtype}.*dlpack") as caught:
            tensors[dtype]
        assert isinstance(caught.value, TypeError)
        assert (caught.value.tensor, caught.value.kind) == (dtype, "Unsupported")
        assert dtype not in tensors
    with pytest.raises(KeyError):
        tensors["nothing"]
    with pytest.raises(tensora_py.DtypeError, match=r"'F4'.*F4"):
        tensora_py.open(folder).get("F4", framework="numpy")


# Shapes that a header can have, and that make no array: too many dimensions, or too large ones.
SHAPES = [
    (2**62, 0),
    (0,) * 100,
    (1,) * 65,
    (1,) * 2000,
    (2**63 - 1, 0),
    (2**63, 0),
    (2**64 - 1, 0),
]


def odd_shapes(folder: Path) -> Path:
    tensors = {
        f"odd.{number}": Stored("F32", shape, b"\0" * 4 if 1 in shape else b"")
        for number, shape in enumerate(SHAPES)
    }
    return write_safetensors(folder / "odd.safetensors", {**tensors, "w": stored("F32", (2, 3))})


def test_shapes_that_numpy_has_no_arrays_of(tmp_path: Path, backend: str) -> None:
    path = odd_shapes(tmp_path)
    options: dict[str, Any] = {"framework": "numpy", "backend": backend}
    with pytest.warns(UserWarning, match="left out: tensor 'odd"):
        tensors = tensora_py.load(path, **options)
    assert list(tensors) == ["w"]
    arriving = tensora_py.iter_tensors(path, **options)
    found = []
    for number, shape in enumerate(SHAPES):
        name = f"odd.{number}"
        for use in (
            lambda name=name: tensors[name],
            lambda name=name: tensora_py.open(path).get(name, "numpy"),
        ):
            with pytest.raises(tensora_py.DtypeError) as caught:
                use()
            text = str(caught.value)
            assert (caught.value.tensor, caught.value.kind) == (name, "Unsupported")
            assert repr(name) in text and f"{len(shape)} dimensions" in text
            assert "numpy" in text and str(shape[0]) in text
            assert "names=" in text and "dlpack" in text and len(text) < 500
    while len(found) < len(SHAPES) + 1:
        try:
            found.append(next(arriving)[0])
        except tensora_py.DtypeError as error:
            found.append(error.tensor)
    assert sorted(found) == sorted([f"odd.{number}" for number in range(len(SHAPES))] + ["w"])
    with pytest.raises(StopIteration):
        next(arriving)
    plain = tensora_py.load(path, framework="dlpack")
    assert plain["odd.0"].shape == SHAPES[0]
    plain["odd.4"].__dlpack__()
    with pytest.raises(BufferError, match="odd.5"):
        plain["odd.5"].__dlpack__()


@pytest.mark.torch
def test_shapes_that_torch_has_no_tensors_of(tmp_path: Path) -> None:
    path = odd_shapes(tmp_path)
    with pytest.warns(UserWarning, match="left out: tensor 'odd"):
        tensors = tensora_py.load(path)
    # It has them of any number of dimensions, as long as 63 bits hold them.
    assert set(tensors) == {"odd.0", "odd.1", "odd.2", "odd.3", "odd.4", "w"}
    with pytest.raises(tensora_py.DtypeError, match="odd.5.*torch.*2 dimensions.*dlpack") as caught:
        tensors["odd.5"]
    assert "\n" not in str(caught.value)


def test_warnings_point_to_the_line_that_called(every_dtype: Every, tmp_path: Path) -> None:
    folder, _ = every_dtype

    async def awaited() -> None:
        await tensora_py.aload(folder, framework="numpy", names=["F4"])

    for use in (
        lambda: tensora_py.load(folder, framework="numpy", names=["F4"]),
        lambda: tensora_py.load(folder, framework="numpy", names=["F4"], progress=True),
        lambda: tensora_py.load_safetensors(folder, framework="numpy"),
        lambda: asyncio.run(awaited()),
    ):
        with pytest.warns(UserWarning, match="left out: tensor 'F") as told:
            use()
        assert {warning.filename for warning in told} == {__file__}
        code = awaited.__code__ if use.__code__.co_names[0] == "asyncio" else use.__code__
        lines = {line for *_, line in code.co_lines()}
        assert {warning.lineno for warning in told} <= lines


def test_nothing_is_told_where_all_is_held(shards: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensora_py.load(shards, framework="numpy")


def test_every_dtype_is_there_as_bytes(every_dtype: Every, backend: str) -> None:
    folder, tensors = every_dtype
    loaded = tensora_py.load(folder, framework="dlpack", backend=backend)
    assert {name: bytes(tensor) for name, tensor in loaded.items()} == {
        name: tensor.data for name, tensor in tensors.items()
    }
    view = memoryview(loaded["F6_E2M3"])
    assert (view.nbytes, view.format, view.ndim, view.readonly) == (24, "B", 1, False)


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMPY])
def test_dlpack_reaches_numpy(every_dtype: Every, dtype: str) -> None:
    folder, tensors = every_dtype
    tensor = tensora_py.load(folder, framework="dlpack", names=[dtype])[dtype]
    assert tensor.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(tensor)
    assert array.dtype == np.dtype(NUMPY[dtype])
    assert array.shape == (4, 8)
    assert array.tobytes() == tensors[dtype].data
    assert array.ctypes.data == tensor.data_ptr


def test_dlpack_refuses_what_it_cannot_do(every_dtype: Every) -> None:
    folder, _ = every_dtype
    tensors = tensora_py.load(folder, framework="dlpack")
    for dtype in SIX:
        with pytest.raises(BufferError, match=dtype):
            tensors[dtype].__dlpack__()
    for options in ({"stream": 1}, {"dl_device": (2, 0)}, {"copy": True}):
        with pytest.raises(BufferError, match="F32"):
            tensors["F32"].__dlpack__(**options)
    for options in ({}, {"max_version": (1, 0)}, {"max_version": (0, 8)}, {"copy": False}):
        capsule = tensors["F32"].__dlpack__(**options)
        versioned = options.get("max_version", (0,))[0] >= 1
        assert ('"dltensor_versioned"' in repr(capsule)) == versioned
        # Nobody takes it: it is freed by itself.
        del capsule


def test_ml_dtypes_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "m.safetensors", {"b": stored("BF16", (2,)), "f": stored("F32", (2,))}
    )
    out = run(
        """
        import sys, warnings
        sys.modules["ml_dtypes"] = None
        import tensora_py
        warnings.simplefilter("ignore")
        tensors = tensora_py.load(sys.argv[1], framework="numpy")
        print(list(tensors))
        try:
            tensors["b"]
        except tensora_py.DtypeError as error:
            print(error)
        """,
        path,
    )
    assert out.startswith("['f']\n")
    assert "BF16" in out and "install ml_dtypes" in out


@pytest.mark.parametrize("alias", ["np", "numpy"])
def test_frameworks_have_other_names(tiny: Path, alias: str) -> None:
    assert isinstance(tensora_py.load(tiny, framework=alias)["w"], np.ndarray)


def test_an_unknown_framework_is_an_error(tiny: Path) -> None:
    for use in (
        lambda: tensora_py.load(tiny, framework="jax"),
        lambda: tensora_py.iter_tensors(tiny, framework="jax"),
        lambda: tensora_py.open(tiny).get("w", framework="jax"),
        lambda: tensora_py.open(tiny).get_slice("w", framework="jax"),
    ):
        with pytest.raises(tensora_py.InvalidArgumentError, match="jax.*torch.*numpy.*dlpack"):
            use()


def test_only_torch_has_devices(tiny: Path) -> None:
    for framework in ("numpy", "dlpack"):
        with pytest.raises(tensora_py.InvalidArgumentError, match="cuda"):
            tensora_py.load(tiny, framework=framework, device="cuda:0")


def test_unaligned_files_give_aligned_arrays(tmp_path: Path, backend: str) -> None:
    # A header of 3 mod 8 bytes, and a byte before the others: nothing lies where it should.
    for pad in range(8):
        tensors = {"one": stored("U8", (1,)), "w": stored("F64", (9,)), "x": stored("I16", (3,))}
        path = write_safetensors(tmp_path / f"{pad}.safetensors", tensors, {"pad": "x" * pad})
        loaded = tensora_py.load(path, framework="numpy", backend=backend)
        taken = tensora_py.open(path, backend=backend)
        for name, tensor in tensors.items():
            for array in (loaded[name], taken.get(name, framework="numpy")):
                assert array.flags.aligned
                assert array.tobytes() == tensor.data


def test_every_tensor_has_memory_of_its_own(shards: Path, backend: str) -> None:
    tensors = tensora_py.load(shards, framework="numpy", backend=backend)
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in tensors.values())
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))


# PyTorch.


@pytest.mark.torch
@pytest.mark.parametrize("dtype", without(SIX))
def test_torch_has_the_same_elements(every_dtype: Every, dtype: str, backend: str) -> None:
    import torch

    folder, tensors = every_dtype
    for made in (
        tensora_py.load(folder, backend=backend, names=[dtype])[dtype],
        dict(tensora_py.iter_tensors(folder, backend=backend, names=[dtype]))[dtype],
        tensora_py.open(folder, backend=backend)[dtype],
    ):
        assert made.dtype == getattr(torch, TORCH_DTYPES[dtype])
        # Two in a byte: torch counts pairs.
        assert tuple(made.shape) == ((4, 4) if dtype == "F4" else (4, 8))
        assert bytes(made.view(torch.uint8).flatten().tolist()) == tensors[dtype].data
        assert made.is_contiguous()
        assert made.untyped_storage().nbytes() == len(tensors[dtype].data)
        assert made.storage_offset() == 0
        assert made.data_ptr() % max(1, BITS[dtype] // 8) == 0


@pytest.mark.torch
def test_torch_leaves_out_what_it_cannot_hold(every_dtype: Every) -> None:
    folder, _ = every_dtype
    with pytest.warns(UserWarning, match="F6"):
        tensors = tensora_py.load(folder, framework="pt")
    assert set(tensors) == set(without(SIX))
    for dtype in SIX:
        with pytest.raises(tensora_py.DtypeError, match=rf"'{dtype}'.*torch.*{dtype}"):
            tensors[dtype]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", without(SIX))
def test_dlpack_reaches_torch(every_dtype: Every, dtype: str) -> None:
    import torch

    folder, tensors = every_dtype
    tensor = tensora_py.load(folder, framework="dlpack", names=[dtype])[dtype]
    try:
        made = torch.from_dlpack(tensor)
    except (RuntimeError, BufferError) as error:
        # Torch cannot take 4-bit floats from anybody.
        assert dtype == "F4", error
        return
    assert made.data_ptr() == tensor.data_ptr
    assert bytes(made.view(torch.uint8).flatten().tolist()) == tensors[dtype].data


@pytest.mark.torch
def test_torch_writes_into_its_own_memory(shards: Path, model: dict[str, Stored]) -> None:
    tensors = tensora_py.load(shards)
    tensors["embed.weight"].zero_()
    assert float(tensors["embed.weight"].abs().sum()) == 0
    again = tensora_py.load(shards, framework="dlpack")
    assert {n: bytes(t) for n, t in again.items()} == {n: t.data for n, t in model.items()}


@pytest.mark.torch
def test_scalars_and_empty_tensors_of_torch(tmp_path: Path) -> None:
    tensors = {"s": stored("F32", ()), "e": stored("BF16", (0, 3)), "one": stored("I64", (1, 1, 1))}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    loaded = tensora_py.load(path)
    assert {name: tuple(made.shape) for name, made in loaded.items()} == {
        name: tensor.shape for name, tensor in tensors.items()
    }


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_torch_puts_tensors_on_devices(shards: Path, device: str) -> None:
    import torch

    for chosen in (device, torch.device(device)):
        made: Any = tensora_py.load(shards, device=chosen)["embed.weight"]
        assert made.device.type == device
    streamed = dict(tensora_py.iter_tensors(shards, device=device))
    assert {made.device.type for made in streamed.values()} == {device}
    assert tensora_py.open(shards).get("scalar", device=device).device.type == device


@pytest.mark.torch
def test_a_device_that_is_not_there_is_an_error(tiny: Path) -> None:
    with pytest.raises(tensora_py.InvalidArgumentError, match="device is 'nowhere'"):
        tensora_py.load(tiny, device="nowhere")


@pytest.mark.torch
def test_the_default_device_of_torch_is_not_that_of_what_is_loaded(tmp_path: Path) -> None:
    import torch

    tensors = {"empty": stored("F32", (0, 3)), "w": stored("F32", (2, 3))}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    with torch.device("meta"):
        loaded = tensora_py.load(path)
    assert {tensor.device.type for tensor in loaded.values()} == {"cpu"}
