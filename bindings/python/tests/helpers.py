"""What the tests know of the formats without asking tensora_py: readers and writers of their own."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import tensora_py

BACKENDS = ("default", "sync", "async", "io-uring", "mmap")
LAYOUTS = ("safetensors", "serverlessllm")

# The repository, whose cases of odd and damaged checkpoints are shared with the tests in Rust.
CASES = Path(__file__).resolve().parents[3] / "tests" / "cases"

DTYPES = (
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ "
    "I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
).split()

# The first number in a name.
BITS = {dtype: int(re.findall(r"\d+", dtype + " 8")[0]) for dtype in DTYPES}

# For the dtypes that numpy has: those that are a letter and their bits have its letter and their bytes.
NUMPY = {"BOOL": "?"} | {
    dtype: f"<{dtype[0].lower()}{bits // 8}"
    for dtype, bits in BITS.items()
    if dtype[1:] == str(bits) and bits % 8 == 0
}

# How PyTorch writes them, which is how ServerlessLLM does.
SERVERLESS = {
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "U8": "torch.uint8",
    "I16": "torch.int16",
    "I64": "torch.int64",
}


class Stored(NamedTuple):
    """A tensor as it lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def stored(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Stored:
    """A tensor of random bytes, the same for the same arguments."""
    nbytes = elements(shape) * BITS[dtype] // 8
    data = random.Random(f"{dtype} {shape} {seed}").randbytes(nbytes)
    if dtype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return Stored(dtype, shape, data)


def safetensors_bytes(tensors: dict[str, Stored], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    body = bytearray()
    for name, tensor in tensors.items():
        span = [len(body), len(body) + len(tensor.data)]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": span}
        body += tensor.data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def write_safetensors(
    path: Path, tensors: dict[str, Stored], metadata: dict[str, str] | None = None
) -> Path:
    path.write_bytes(safetensors_bytes(tensors, metadata))
    return path


def read_safetensors(path: Path) -> dict[str, Stored]:
    raw = path.read_bytes()
    [length] = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    body = raw[8 + length :]
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        found[name] = Stored(entry["dtype"], tuple(entry["shape"]), body[begin:end])
    return found


def write_shards(folder: Path, tensors: dict[str, Stored], shards: int) -> Path:
    """A folder of shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    names = list(tensors)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(folder / file, mine, {"format": "pt"})
        weight_map.update(dict.fromkeys(mine, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_serverlessllm(folder: Path, tensors: dict[str, Stored], partitions: int = 2) -> Path:
    """A folder of partitions with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [bytearray() for _ in range(partitions)]
    index = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        file = files[number % partitions]
        file.extend(bytes(-len(file) % 8))
        strides = [elements(tensor.shape[dim + 1 :]) for dim in range(len(tensor.shape))]
        index[name] = [
            len(file),
            len(tensor.data),
            list(tensor.shape),
            strides,
            SERVERLESS[tensor.dtype],
            number % partitions,
        ]
        file.extend(tensor.data)
    for number, file in enumerate(files):
        (folder / f"tensor.data_{number}").write_bytes(file)
    (folder / "tensor_index.json").write_text(json.dumps(index))
    return folder


def write_layout(folder: Path, layout: str, tensors: dict[str, Stored]) -> Path:
    write = write_shards if layout == "safetensors" else write_serverlessllm
    return write(folder, tensors, 2)


def sparse(path: Path, dtype: str, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A file of zeros that takes no room on the disk."""
    header = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + elements(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


def usable_backends() -> list[str]:
    """All of them, without io_uring where the machine has none."""
    there = tensora_py.capabilities()["io_uring"]["status"] == "available"
    return [name for name in BACKENDS if there or name != "io-uring"]


def roomy(most: int) -> int:
    """So many bytes, or half of what is free: enough to take its time, and sure to fit."""
    memory = tensora_py.capabilities()["memory"]
    return min(most, int(memory["available_bytes"]) // 2)


def child(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A program in another process, with pipes to it."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def run(code: str, *arguments: object, **environment: str) -> str:
    """What a program prints that runs in another process to its end."""
    process = child(code, *arguments, **environment)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out


NO_SAFETENSORS = """
import sys
import importlib.util

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "safetensors":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "safetensors" else real(name, *a)
"""
"""The beginning of a program for which safetensors is not installed."""
