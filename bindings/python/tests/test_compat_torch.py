"""The functions of `safetensors.torch` by Tensora: tensors, models, and Transformers on top."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import safetensors
from tensora_py import safetensors_compat as compat
from tensora_py.safetensors_compat import SafetensorError, safe_open
from test_compat import DAMAGES, INDICES, WIDER, damaged, parameters

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    import torch

    return torch


@pytest.fixture
def ours():
    from tensora_py.safetensors_compat import torch

    return torch


@pytest.fixture
def theirs():
    import safetensors.torch

    return safetensors.torch


@pytest.fixture
def tensors(torch):
    return {
        "b": torch.arange(24.0).reshape(2, 3, 4),
        "a": torch.tensor(3, dtype=torch.bfloat16),
        "z": torch.zeros(0, 3),
        "c": torch.arange(10),
    }


@pytest.fixture
def path(tmp_path, theirs, tensors):
    file = tmp_path / "model.safetensors"
    theirs.save_file(tensors, file, {"format": "pt"})
    return file


@pytest.fixture(params=["mmap", "pread"])
def backend(request):
    return request.param


def raw(torch, tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(torch, a, b) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return not a.numel() or torch.equal(raw(torch, a), raw(torch, b))


def test_signatures_are_those_of_safetensors(ours, theirs):
    for name in ours.__all__:
        assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name


def every(torch):
    names = [
        *("bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32"),
        *("float32", "complex64", "float64", "int64", "uint64", "float8_e5m2", "float8_e4m3fn"),
        *("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"),
    ]
    for name in names:
        dtype = getattr(torch, name)
        values = torch.arange(dtype.itemsize * 12, dtype=torch.uint8) % (
            2 if name == "bool" else 99
        )
        yield name, values.view(dtype).reshape(3, 4)


def test_every_dtype_goes_both_ways(torch, ours, theirs, tmp_path, backend):
    for name, tensor in every(torch):
        tensors = {"w": tensor, "none": torch.empty(0, 2, dtype=tensor.dtype)}
        data = ours.save(tensors)
        assert data == theirs.save(tensors), name
        ours.save_file(tensors, tmp_path / name)
        assert (tmp_path / name).read_bytes() == data
        for loaded in (
            ours.load_file(tmp_path / name, backend=backend),
            theirs.load_file(tmp_path / name),
            ours.load(data),
        ):
            assert all(same(torch, loaded[key], tensors[key]) for key in tensors), name


def test_results_are_tensors_like_any_others(torch, ours, tensors, path, backend):
    before = path.read_bytes()
    loaded = ours.load_file(path, backend=backend)
    stored = io.BytesIO()
    torch.save(loaded, stored)
    stored.seek(0)
    for made in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded)), torch.load(stored)):
        assert all(same(torch, made[name], tensors[name]) for name in tensors)
    loaded["b"].zero_()
    assert path.read_bytes() == before
    # Onto the file that they are mapped from.
    ours.save_file(loaded, path)
    assert ours.load_file(path)["b"].sum() == 0
    assert torch.equal(ours.load_file(path)["c"], tensors["c"])


@pytest.mark.parametrize("index", [*INDICES, *WIDER])
def test_slices_are_those_of_the_tensor(torch, tensors, path, backend, index):
    import numpy as np

    expected = eval(f"value{index}", {"value": tensors["b"], "np": np})
    with safe_open(path, "pt", backend=backend) as file:
        names = {"part": file.get_slice("b"), "np": np}
        if backend == "pread" and index in WIDER:
            with pytest.raises(SafetensorError):
                eval(f"part{index}", names)
            return
        assert same(torch, eval(f"part{index}", names), expected)


def test_slices_out_of_bounds_are_index_errors(path, backend):
    with safe_open(path, "pt", backend=backend) as file:
        part = file.get_slice("b")
        for index in (5, -3, (0, 3), (0, 0, 0, 0), (slice(None),) * 4, 0.5):
            with pytest.raises(IndexError):
                part[index]
        with pytest.raises(ValueError, match="step"):
            part[::-1]
        with pytest.raises(IndexError):
            file.get_slice("a")[0]
        assert file.get_slice("a")[...] == 3


def test_devices(torch, ours, tensors, path, backend):
    loaded = ours.load_file(path, device="meta", backend=backend)
    assert {name: t.shape for name, t in loaded.items()} == {n: t.shape for n, t in tensors.items()}
    assert all(tensor.is_meta for tensor in loaded.values())
    with safe_open(path, "pt", device=torch.device("meta"), backend=backend) as file:
        assert file.get_slice("b")[0].is_meta and file.get_tensor("b").is_meta
    assert ours.load_file(path, device=None, backend=backend)["b"].device.type == "cpu"
    for device in ("xx", object()):
        with pytest.raises(SafetensorError):
            safe_open(path, "pt", device=device)


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(ours, path, tmp_path, name):
    file = tmp_path / "damaged"
    file.write_bytes(damaged(path)[name])
    with pytest.raises(safetensors.SafetensorError):
        ours.load_file(file)
    with pytest.raises(safetensors.SafetensorError):
        ours.load(file.read_bytes())


def test_what_is_refused_when_saving(torch, ours, tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    refused = [base.t(), base.to_sparse(), torch.empty(1, device="meta")]
    for value in (*refused, base.numpy(), [1.0]):
        with pytest.raises(ValueError, match="the.bad"):
            ours.save({"the.bad": value})
    with pytest.raises(ValueError):
        ours.save([base])
    with pytest.raises(RuntimeError, match="share memory") as raised:
        ours.save_file({"x": base, "y": base.view(-1)}, tmp_path / "a")
    assert isinstance(raised.value, SafetensorError)
    assert "'x'" in str(raised.value) and "'y'" in str(raised.value)
    assert not list(tmp_path.iterdir())


def tied(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(6, 4)
            self.middle = torch.nn.Linear(4, 4)
            self.norm = torch.nn.BatchNorm1d(4)
            self.head = torch.nn.Linear(4, 6, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("steps", torch.arange(3))
            self.register_buffer("hidden", torch.arange(3), persistent=False)

    return Tied()


def test_models_with_tied_weights_and_buffers(torch, ours, theirs, tmp_path):
    model = tied(torch)
    metadata = {"mine": "1"}
    ours.save_model(model, tmp_path / "ours", metadata)
    assert metadata == {"mine": "1"}
    theirs.save_model(model, str(tmp_path / "theirs"), {"mine": "1"})
    with safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata() == {"mine": "1", "head.weight": "embed.weight"}
        assert "head.weight" not in file.keys() and "steps" in file.keys()
        assert "hidden" not in file.keys()
    for module, name in [(ours, "theirs"), (theirs, "ours"), (ours, "ours")]:
        other = tied(torch)
        assert module.load_model(other, tmp_path / name) == (set(), [])
        expected = model.state_dict()
        assert all(same(torch, t, expected[n]) for n, t in other.state_dict().items())
        assert other.head.weight.data_ptr() == other.embed.weight.data_ptr()


def test_metadata_of_the_user_wins(torch, ours, tmp_path):
    ours.save_model(tied(torch), tmp_path / "a", {"head.weight": "mine"})
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {"head.weight": "mine"}


def test_a_file_with_the_other_name_of_a_tied_weight(torch, ours, theirs, tmp_path):
    tensors = {name: t.clone() for name, t in tied(torch).state_dict().items()}
    del tensors["embed.weight"]
    ours.save_file(tensors, tmp_path / "a")
    for module in (ours, theirs):
        model = tied(torch)
        assert module.load_model(model, tmp_path / "a") == (set(), [])
        assert torch.equal(model.embed.weight, tensors["head.weight"])


def test_partial_models(torch, ours, theirs, tmp_path):
    tensors = {name: t.clone() for name, t in tied(torch).state_dict().items()}
    del tensors["head.weight"], tensors["middle.bias"]
    tensors["extra"] = torch.zeros(2)
    ours.save_file(tensors, tmp_path / "a")
    for module in (ours, theirs):
        found = module.load_model(tied(torch), tmp_path / "a", strict=False)
        assert found == ({"middle.bias"}, ["extra"])
    with pytest.raises(RuntimeError, match="middle.bias") as raised:
        ours.load_model(tied(torch), tmp_path / "a")
    assert "extra" in str(raised.value)
    del tensors["extra"], tensors["steps"]
    tensors["middle.bias"] = torch.zeros(5)
    ours.save_file(tensors, tmp_path / "a")
    with pytest.raises(RuntimeError, match="size mismatch"):
        ours.load_model(tied(torch), tmp_path / "a")


def test_models_whose_tensors_are_parts_of_one(torch, ours, tmp_path):
    class Parts(torch.nn.Module):
        def __init__(self, *, whole: bool, overlap: bool):
            super().__init__()
            base = torch.arange(10.0)
            if whole:
                self.register_buffer("whole", base)
            self.register_buffer("first", base[: 6 if overlap else 5])
            self.register_buffer("last", base[5:])

    ours.save_model(Parts(whole=False, overlap=False), tmp_path / "a")
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.keys() == ["first", "last"]
    ours.save_model(Parts(whole=True, overlap=True), tmp_path / "a")
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.keys() == ["whole"]
        assert file.metadata() == {"first": "whole", "last": "whole"}
    assert ours.load_model(Parts(whole=True, overlap=True), tmp_path / "a") == (set(), [])
    with pytest.raises(RuntimeError, match="first, last"):
        ours.save_model(Parts(whole=False, overlap=True), tmp_path / "a")


def test_names_that_other_packages_import(torch, ours, theirs):
    base = torch.arange(10.0)
    tensors = {
        "whole": base,
        "again": base.view(2, 5),
        "part": base[2:4],
        "other": torch.arange(3),
        "half": torch.arange(4)[:2],
        "meta": torch.empty(3, device="meta"),
        "none": torch.empty(0),
    }
    for tensor in tensors.values():
        assert ours.storage_ptr(tensor) == theirs.storage_ptr(tensor)
        assert ours.storage_size(tensor) == theirs.storage_size(tensor)
        assert ours._is_complete(tensor) == theirs._is_complete(tensor)
    ordered = [sorted(map(sorted, m._find_shared_tensors(tensors))) for m in (ours, theirs)]
    assert ordered[0] == ordered[1] == [["again", "part", "whole"], ["half"], ["other"]]
    del tensors["half"]
    for wanted in ({}, {"preferred_names": ["whole", "x"]}, {"discard_names": ["again"]},
                   {"preferred_names": ["again"], "discard_names": ["again"]},
                   {"preferred_names": ["part"]}, {"discard_names": ["again", "whole"]}):  # fmt: skip
        expected = theirs._remove_duplicate_names(tensors, **wanted)
        assert ours._remove_duplicate_names(tensors, **wanted) == expected
    for code, dtype in theirs._TYPES.items():
        assert ours._TYPES[code] is ours._getdtype(code) is dtype
        assert ours._SIZE[dtype] == theirs._SIZE[dtype]


def test_weights_that_are_not_contiguous(torch, ours, tmp_path):
    model = torch.nn.Linear(3, 2)
    model.weight = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
    with pytest.raises(ValueError, match="weight"):
        ours.save_model(model, tmp_path / "a", force_contiguous=False)
    ours.save_model(model, tmp_path / "a")
    assert torch.equal(ours.load_file(tmp_path / "a")["weight"], model.weight)


def test_transformers_saves_and_loads_with_ours(torch, theirs, tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(12).reshape(2, 6)
    expected = model(tokens).logits
    from transformers import modeling_utils

    original = modeling_utils.safe_open
    model.save_pretrained(tmp_path / "theirs")
    undo = compat.install()
    try:
        assert modeling_utils.safe_open is safe_open
        model.save_pretrained(tmp_path / "ours")
        model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
        for name in ("ours", "theirs", "shards"):
            loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / name).eval()
            assert torch.equal(loaded(tokens).logits, expected), name
            assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    finally:
        undo()
    assert modeling_utils.safe_open is original
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(loaded(tokens).logits, expected)
    single = "model.safetensors"
    assert (tmp_path / "ours" / single).read_bytes() == (tmp_path / "theirs" / single).read_bytes()
