"""Checkpoints to measure with, and the state of their files in the page cache."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE = mmap.PAGESIZE
BLOCK = 1 << 20
"""Bytes that are written or read at a time."""


def dense(nbytes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of bf16 tensors of a dense model, of about so many bytes together."""
    hidden = 2048 if nbytes >= 512 << 20 else 512
    yield "model.embed_tokens.weight", (8 * hidden, hidden)
    left = nbytes // 2 - 8 * hidden * hidden
    layer = 0
    while left > 0:
        parts = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // 4, hidden),
            "self_attn.v_proj": (hidden // 4, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (3 * hidden, hidden),
            "mlp.up_proj": (3 * hidden, hidden),
            "mlp.down_proj": (hidden, 3 * hidden),
        }
        for part, shape in parts.items():
            yield f"model.layers.{layer}.{part}.weight", shape
            elements = 1
            for rows in shape:
                elements *= rows
            left -= elements
        layer += 1


def many(nbytes: int, count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of ``count`` equal bf16 tensors, as of a mixture of experts."""
    rows = max(nbytes // 2 // count // 16, 1)
    for index in range(count):
        layer, expert = divmod(index, 128)
        yield f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", (rows, 16)


def write(
    folder: Path, tensors: Sequence[tuple[str, tuple[int, ...]]], shards: int = 1
) -> list[Path]:
    """Writes tensors of random bf16 to SafeTensors files, flushed to the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = os.urandom(BLOCK)
    paths: list[Path] = []
    index: dict[str, str] = {}
    per_shard = -(-len(tensors) // shards)
    for shard in range(shards):
        part = tensors[shard * per_shard : (shard + 1) * per_shard]
        one = shards == 1
        name = "model.safetensors" if one else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header: dict[str, object] = {}
        end = 0
        for tensor, shape in part:
            begin, elements = end, 1
            for rows in shape:
                elements *= rows
            end += 2 * elements
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
            index[tensor] = name
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            while end > 0:
                file.write(noise[: min(end, BLOCK)])
                end -= BLOCK
            file.flush()
            os.fsync(file.fileno())
        paths.append(folder / name)
    if shards > 1:
        text = json.dumps({"metadata": {}, "weight_map": index}).encode()
        (folder / "model.safetensors.index.json").write_bytes(text)
    return paths


def files_of(path: Path, suffix: str = ".safetensors") -> list[Path]:
    """The files with tensors at a path: itself, or those in a folder, in the order of their names."""
    return sorted(path.glob(f"*{suffix}")) if path.is_dir() else [path]


def read(files: Sequence[Path]) -> None:
    """Brings files into the page cache."""
    buffer = bytearray(BLOCK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(files: Sequence[Path]) -> None:
    """Takes files out of the page cache, after what was not written yet has been."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(files: Sequence[Path]) -> float:
    """The part of the files' pages that is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    there = pages = 0
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        with path.open("rb") as file:
            # A private mapping, as only writable memory has an address for ctypes. Nothing touches it.
            with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapped:
                first = ctypes.c_char.from_buffer(mapped)
                flags = ctypes.create_string_buffer(-(-size // PAGE))
                if libc.mincore(ctypes.addressof(first), size, flags):
                    raise OSError(ctypes.get_errno(), "mincore", str(path))
                there += sum(byte & 1 for byte in flags.raw[: -(-size // PAGE)])
                pages += -(-size // PAGE)
                del first
    return there / max(pages, 1)
