#!/usr/bin/env python3
"""Makes the golden files beside this script, from the descriptions of the layouts alone.

Nothing of this project is used: whoever doubts our reader or writer can compare it with these few
lines. Run it in this folder; its output is the same every time.
"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent

# name, SafeTensors dtype, torch dtype, shape, bytes per element
TENSORS = [
    ("model.embed", "BF16", "torch.bfloat16", [5, 7], 2),
    ("model.norm", "F32", "torch.float32", [9], 4),
    ("model.flags", "BOOL", "torch.bool", [3], 1),
    ("model.empty", "F16", "torch.float16", [0, 4], 2),
    ("model.scale", "F64", "torch.float64", [], 8),
    ('weird "name"\u00e9', "I8", "torch.int8", [13], 1),
]


def count(shape):
    product = 1
    for dim in shape:
        product *= dim
    return product


def content(number, size):
    return bytes((number * 37 + i * 11) % 256 for i in range(size))


def strides(shape):
    result, step = [], 1
    for dim in reversed(shape):
        result.insert(0, step)
        step *= dim
    return result


def up(value, to):
    return -(-value // to) * to


DATA = [content(i, count(t[3]) * t[4]) for i, t in enumerate(TENSORS)]


def safetensors(path, order):
    header, data = {"__metadata__": {"format": "pt", "note": "golden"}}, b""
    for i in order:
        name, dtype, _, shape, _ = TENSORS[i]
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(DATA[i])],
        }
        data += DATA[i]
    text = json.dumps(header).encode()
    text += b" " * (up(len(text), 8) - len(text))
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write(folder, index, partitions):
    folder.mkdir(exist_ok=True)
    (folder / "tensor_index.json").write_text(json.dumps(index, indent=1) + "\n")
    for number, data in enumerate(partitions):
        (folder / f"tensor.data_{number}").write_bytes(data)


def six(folder, order, align):
    """One partition, local offsets."""
    index, data = {}, b""
    for i in order:
        name, _, torch, shape, _ = TENSORS[i]
        if DATA[i]:
            data += b"\0" * (up(len(data), align) - len(data))
            offset = len(data)
        else:
            offset = 0
        index[name] = [offset, len(DATA[i]), shape, strides(shape), torch, 0]
        data += DATA[i]
    write(folder, index, [data])


def five(folder, groups, pad_partitions):
    """Global offsets, records padded to 8 bytes; partitions padded to `pad_partitions`."""
    index, partitions, start = {}, [], 0
    for group in groups:
        data = b""
        for i in group:
            name, _, torch, shape, _ = TENSORS[i]
            index[name] = [start + len(data), len(DATA[i]), shape, strides(shape), torch]
            data += DATA[i] + b"\0" * (up(len(DATA[i]), 8) - len(DATA[i]))
        data += b"\0" * (up(len(data), pad_partitions) - len(data))
        partitions.append(data)
        start += len(data)
    write(folder, index, partitions)


ORDER = list(range(len(TENSORS)))
safetensors(HERE / "source.safetensors", ORDER)
six(HERE / "six", ORDER, 64)
six(HERE / "six_packed", ORDER, 1)
five(HERE / "five", [ORDER], 8)
five(HERE / "five_padded", [ORDER[:2], ORDER[2:]], 4096)
