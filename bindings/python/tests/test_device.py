"""Tensors that move to a device do so as they arrive."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import tensora_py
from safetensors.numpy import save_file
from tensora_py import _load


@pytest.mark.torch
def test_the_host_never_holds_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    save_file({str(n): numpy.ones((n, 3), "f4") for n in range(5)}, tmp_path / "m.safetensors")
    budgets = []
    stream = _load._Job.stream

    def noted(job: _load._Job) -> object:
        budgets.append(job._asked["memory_budget"])
        return stream(job)

    monkeypatch.setattr(_load._Job, "stream", noted)
    # A device that every machine has.
    tensors = tensora_py.load(tmp_path, device="meta")
    assert budgets == [_load.DEFAULT_BUDGET]
    assert {tensor.device for tensor in tensors.values()} == {torch.device("meta")}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        str(n): (n, 3) for n in range(5)
    }
