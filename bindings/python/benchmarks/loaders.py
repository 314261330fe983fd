"""Ways from files to tensors: ours, those of others, and plain reads of the same bytes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plain
from samples import files_of

Tensors = Any
"""A dict of tensors by name, or whatever holds them."""


@dataclass(frozen=True)
class Loader:
    """One way to load."""

    name: str
    load: Callable[[Path, list[Path]], Tensors]
    """From the folder and its SafeTensors files to tensors."""
    needs: tuple[str, ...] = ("torch", "safetensors")
    """Packages, imported before the clock starts."""
    kind: str = "other"
    """``ours``, ``other``, or ``raw`` for reads that make no tensors."""
    owned: bool = True
    """Whether the bytes are in memory of the process, and not in mappings of files."""
    suffix: str = ".safetensors"
    """What the files that it reads end with; others than these are made by `prepare`."""

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def files(self, path: Path) -> list[Path]:
        """The files that it reads."""
        return files_of(path, self.suffix)


def _load_file(path: Path, files: list[Path], **options: Any) -> Tensors:
    from safetensors.torch import load_file

    return {name: t for file in files for name, t in load_file(file, **options).items()}


def _cloned(path: Path, files: list[Path]) -> Tensors:
    from safetensors.torch import load_file

    return {name: t.clone() for file in files for name, t in load_file(file).items()}


def _safe_open(path: Path, files: list[Path]) -> Tensors:
    from safetensors import safe_open

    tensors = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                tensors[name] = opened.get_tensor(name)
    return tensors


def _runai(path: Path, files: list[Path]) -> Tensors:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(file) for file in files])
        return dict(streamer.get_tensors())


def _fastsafetensors(path: Path, files: list[Path]) -> Tensors:
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(None, "cpu", nogds=True)
    loader.add_filenames({0: [str(file) for file in files]})
    buffer = loader.copy_files_to_device()
    tensors = {name: buffer.get_tensor(name) for name in loader.get_keys()}
    # Its tensors live as long as its buffer.
    _KEPT.append((loader, buffer))
    return tensors


_KEPT: list[Any] = []


def _tensorizer(path: Path, files: list[Path]) -> Tensors:
    from tensorizer import TensorDeserializer

    tensors = {}
    for file in files:
        with TensorDeserializer(str(file), device="cpu") as opened:
            tensors.update(opened)
    return tensors


def _torch_load(path: Path, files: list[Path], **options: Any) -> Tensors:
    import torch

    return {
        name: t
        for file in files
        for name, t in torch.load(file, weights_only=True, **options).items()
    }


def _ours(backend: str) -> Callable[[Path, list[Path]], Tensors]:
    def load(path: Path, files: list[Path]) -> Tensors:
        import tensora_py

        return tensora_py.load(path, backend=backend)

    return load


def _opened(path: Path, files: list[Path]) -> Tensors:
    import tensora_py

    with tensora_py.open(path) as checkpoint:
        return {name: checkpoint[name] for name in checkpoint}


def _iterated(path: Path, files: list[Path]) -> Tensors:
    import tensora_py

    return dict(tensora_py.iter_tensors(path))


_OURS = ("torch", "tensora_py")

LOADERS = [
    *(
        Loader(f"tensora {backend}", _ours(backend), _OURS, "ours", backend != "mmap")
        for backend in ("default", "sync", "async", "io-uring", "mmap")
    ),
    Loader("tensora open", _opened, _OURS, "ours", owned=False),
    Loader("tensora iter_tensors", _iterated, _OURS, "ours"),
    Loader("safetensors load_file", _load_file, owned=False),
    Loader("safetensors pread", lambda path, files: _load_file(path, files, backend="pread")),
    Loader("safetensors load_file, cloned", _cloned),
    Loader("safetensors safe_open", _safe_open, owned=False),
    Loader("runai", _runai, ("torch", "runai_model_streamer")),
    Loader("fastsafetensors", _fastsafetensors, ("torch", "fastsafetensors")),
    Loader("tensorizer", _tensorizer, ("torch", "tensorizer"), suffix=".tensors"),
    Loader("torch.load", _torch_load, ("torch",), suffix=".pt"),
    Loader(
        "torch.load mmap",
        lambda path, files: _torch_load(path, files, mmap=True),
        ("torch",),
        owned=False,
        suffix=".pt",
    ),
    Loader("numpy fromfile", plain.fromfile, ("numpy",), "raw"),
    Loader("numpy memmap", plain.memmap, ("numpy",), "raw", owned=False),
    Loader("readinto, direct, parallel", plain.direct, ("numpy",), "raw"),
    Loader("readinto, parallel", plain.buffered, ("numpy",), "raw"),
]


def chosen() -> list[Loader]:
    """All loaders but those that ``TENSORA_BENCH_SKIP_LOADERS`` names, separated by commas."""
    named = os.environ.get("TENSORA_BENCH_SKIP_LOADERS", "")
    skipped = {name.strip() for name in named.split(",") if name.strip()}
    unknown = skipped - {loader.name for loader in LOADERS}
    if unknown:
        known = ", ".join(repr(loader.name) for loader in LOADERS)
        raise SystemExit(f"TENSORA_BENCH_SKIP_LOADERS: no loader {unknown}; there are {known}")
    return [loader for loader in LOADERS if loader.name not in skipped]


def prepare(loader: Loader, path: Path) -> None:
    """Writes the files of a loader that has a format of its own beside the SafeTensors files."""
    if loader.suffix == ".safetensors" or loader.files(path):
        return
    from safetensors.torch import load_file

    for file in files_of(path):
        made = file.with_suffix(loader.suffix)
        part = made.with_name(made.name + ".part")
        if loader.suffix == ".pt":
            import torch

            torch.save(load_file(file), part)
        else:
            from tensorizer import TensorSerializer

            serializer = TensorSerializer(str(part))
            serializer.write_state_dict(load_file(file))
            serializer.close()
        part.rename(made)


def touch(tensors: Tensors) -> int:
    """Reads one byte of every page of all tensors, and gives the sum of what was read."""
    total = 0
    for tensor in tensors.values():
        if hasattr(tensor, "untyped_storage"):
            import torch

            total += int(tensor.reshape(-1).view(torch.uint8)[::4096].sum())
        else:
            total += int(tensor[::4096].sum())
    return total
