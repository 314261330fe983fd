"""Converting, verifying, hashing, comparing, downloading, and what the machine can do."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import tensora_py
from fake_hub import COMMIT, ID, FakeHub
from helpers import (
    Stored,
    elements,
    read_safetensors,
    safetensors_bytes,
    stored,
    write_layout,
    write_safetensors,
    write_shards,
)

OTHER = {"safetensors": "serverlessllm", "serverlessllm": "safetensors"}


def flipped(path: Path, at: int = -1) -> None:
    """Changes a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_conversion_keeps_every_byte(
    folder: Path, layout: str, model: dict[str, Stored], tmp_path: Path, backend: str
) -> None:
    (folder / "config.json").write_text("{}")
    report = tensora_py.convert(folder, tmp_path / "out", backend=backend, verify=True)
    assert report["tensors"] == len(model)
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    with tensora_py.open(tmp_path / "out") as converted:
        assert converted.layout == OTHER[layout]
        for name, tensor in model.items():
            assert converted.info(name)[1:3] == (tensor.dtype, tensor.shape)
            assert bytes(converted.get(name, framework="dlpack")) == tensor.data
    if layout == "serverlessllm":
        oracle = {}
        for file in (tmp_path / "out").glob("*.safetensors"):
            oracle.update(read_safetensors(file))
        assert oracle == model
        return
    index = json.loads((tmp_path / "out" / "tensor_index.json").read_text())
    for name, tensor in model.items():
        offset, size, shape, stride, _, partition = index[name]
        assert (size, tuple(shape)) == (len(tensor.data), tensor.shape)
        assert stride == [elements(tensor.shape[dim + 1 :]) for dim in range(len(shape))]
        data = (tmp_path / "out" / f"tensor.data_{partition}").read_bytes()
        assert data[offset : offset + size] == tensor.data


def test_a_conversion_makes_as_many_files_as_it_is_told(shards: Path, tmp_path: Path) -> None:
    tensora_py.convert(shards, tmp_path / "p", partitions=3)
    assert len(list((tmp_path / "p").glob("tensor.data_*"))) == 3
    tensora_py.convert(shards, tmp_path / "s", to="safetensors", max_shard_size=100_000)
    assert len(list((tmp_path / "s").glob("*.safetensors"))) > 1
    for out in ("p", "s"):
        assert tensora_py.diff(shards, tmp_path / out)["differing"] == []
    tensora_py.convert(shards, tmp_path / "store", dialect="store")
    assert tensora_py.diff(shards, tmp_path / "store")["differing"] == []


def test_a_conversion_replaces_only_what_it_may(shards: Path, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tensora_py.convert(shards, out)
    with pytest.raises(tensora_py.TensoraError) as caught:
        tensora_py.convert(tiny, out)
    assert caught.value.path == str(out)
    assert tensora_py.verify(out)["ok"]
    tensora_py.convert(tiny, out, force=True)
    assert list(tensora_py.open(out)) == ["w"]


@pytest.mark.parametrize(
    "options", [{"to": "gguf"}, {"dialect": "x"}, {"backend": "magic"}, {"partitions": 0}]
)
def test_options_of_a_conversion_that_make_no_sense(
    tiny: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(ValueError):
        tensora_py.convert(tiny, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_hashes_are_those_of_the_bytes(
    folder: Path, model: dict[str, Stored], backend: str
) -> None:
    hashes = tensora_py.hash(folder, backend=backend, memory_budget=1 << 20)
    assert set(hashes) == set(model)
    for name, tensor in model.items():
        entry = hashes[name]
        assert entry["sha256"] == hashlib.sha256(tensor.data).hexdigest()
        assert (entry["dtype"], entry["shape"], entry["nbytes"]) == (
            tensor.dtype,
            list(tensor.shape),
            len(tensor.data),
        )


def test_a_manifest_finds_the_tensor_that_changed(shards: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    hashes = tensora_py.hash(shards, manifest=manifest)
    assert json.loads(manifest.read_text())["tensors"] == hashes
    # It holds in any layout.
    tensora_py.convert(shards, tmp_path / "out")
    report = tensora_py.verify(tmp_path / "out", manifest=manifest)
    assert report["ok"] and report["read"] and report["compared"]
    assert report["problems"] == []
    flipped(tmp_path / "out" / "tensor.data_0", 0)
    report = tensora_py.verify(tmp_path / "out", manifest=manifest)
    assert not report["ok"]
    [problem] = report["problems"]
    assert problem["tensor"] in hashes
    # Without the manifest there is nothing wrong with it.
    assert tensora_py.verify(tmp_path / "out", deep=True)["ok"]


def test_a_damaged_checkpoint_is_a_report(tmp_path: Path, model: dict[str, Stored]) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", model)
    good = tensora_py.verify(path)
    assert good["ok"] and not good["read"]
    assert good["tensors"] == len(model)
    os.truncate(path, path.stat().st_size - 1)
    report = tensora_py.verify(path, deep=True)
    assert not report["ok"]
    assert str(path) in report["problems"][0]["problem"]
    with pytest.raises(FileNotFoundError):
        tensora_py.verify(path, manifest=tmp_path / "nothing.json")


def test_differences_are_found(tmp_path: Path) -> None:
    a = {
        "same": stored("F32", (4,)),
        "dtype": stored("F32", (4,)),
        "shape": stored("F32", (4,)),
        "bytes": stored("U8", (1000,)),
        "mine": stored("U8", (1,)),
    }
    other = bytearray(a["bytes"].data)
    other[333] ^= 1
    b = {
        "same": a["same"],
        "dtype": a["dtype"]._replace(dtype="I32"),
        "shape": a["shape"]._replace(shape=(2, 2)),
        "bytes": a["bytes"]._replace(data=bytes(other)),
        "yours": stored("U8", (1,)),
    }
    first = write_shards(tmp_path / "a", a, 2)
    second = write_safetensors(tmp_path / "b.safetensors", b)
    found = tensora_py.diff(first, second)
    assert found["same"] == 1
    assert (found["only_in_a"], found["only_in_b"]) == (["mine"], ["yours"])
    what = {entry["name"]: entry for entry in found["differing"]}
    assert {name: entry["what"] for name, entry in what.items()} == {
        "bytes": "bytes",
        "dtype": "dtype",
        "shape": "shape",
    }
    assert what["bytes"]["first"] == 333
    assert (what["dtype"]["a"], what["dtype"]["b"]) == ("F32", "I32")
    assert tensora_py.diff(first, first)["differing"] == []


def test_tools_tell_how_far_they_are(shards: Path, model: dict[str, Stored]) -> None:
    total = sum(len(tensor.data) for tensor in model.values())
    told: list[int] = []
    tensora_py._native.hash(str(shards), None, None, None, "default", None, told.append)
    assert sum(told) == total


def test_capabilities_are_those_of_the_machine() -> None:
    facts = tensora_py.capabilities()
    assert facts["cores"] >= 1
    assert facts["memory"]["total_bytes"] >= facts["memory"]["available_bytes"] > 0
    assert "status" in facts["io_uring"]
    json.dumps(facts)


# Models of the Hub.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    # A name that exists in this folder would be a path.
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hf" / "hub"


FILES = {
    "config.json": b'{"model_type": "test"}',
    "tokenizer.json": b'{"tok": 1}',
    "README.md": b"# A model",
}


def test_a_model_is_downloaded_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Stored]
) -> None:
    with FakeHub(FILES | {"model.safetensors": safetensors_bytes(model)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        tensors = tensora_py.load(ID, framework="dlpack")
        assert {n: bytes(t) for n, t in tensors.items()} == {n: t.data for n, t in model.items()}
        snapshot = cache / "models--org--name" / "snapshots" / COMMIT
        assert {file.name for file in snapshot.iterdir()} == {"model.safetensors"}
        assert Path(tensora_py.pull(ID)) == snapshot
        assert {file.name for file in snapshot.iterdir()} >= {"config.json", "tokenizer.json"}
        bodies = [line for line in hub.requests if line.startswith("GET") and "/resolve/" in line]
        assert len([line for line in bodies if "model.safetensors" in line]) <= 2
        before = len(hub.requests)
        # A commit never changes: nobody is asked.
        assert Path(tensora_py.pull(ID, revision=COMMIT)) == snapshot
        assert len(hub.requests) == before
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(tensora_py.open(ID)) == len(model)
    assert len(dict(tensora_py.iter_tensors(ID, framework="dlpack"))) == len(model)
    assert tensora_py.verify(ID, deep=True)["ok"]


def test_weights_alone_are_pulled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = safetensors_bytes({"w": stored("U8", (9,))})
    with FakeHub(FILES | {"model.safetensors": weights}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        snapshot = Path(tensora_py.pull(ID, side_files=False))
    assert [file.name for file in snapshot.iterdir()] == ["model.safetensors"]
    assert snapshot.is_relative_to(cache)


def test_a_model_that_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub({}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for name, revision in (("org/other", None), (ID, "no-branch")):
            with pytest.raises(tensora_py.TensoraError) as caught:
                tensora_py.pull(name, revision=revision)
            assert name in str(caught.value)
    assert not list(cache.glob("**/*.safetensors"))


def test_offline_a_model_that_is_not_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError) as caught:
        tensora_py.load(ID, framework="dlpack")
    assert isinstance(caught.value, tensora_py.CheckpointNotFoundError)
    assert caught.value.kind == "NotCached"


def test_a_server_that_is_something_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub({}, says=b"<html>Welcome to the hotel</html>") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        with pytest.raises(ConnectionError) as caught:
            tensora_py.pull(ID)
    assert isinstance(caught.value, tensora_py.NetworkError)
    assert caught.value.kind == "Network"


def test_a_path_wins_over_a_model(cache: Path, tmp_path: Path, layout: str) -> None:
    tensors = {"w": stored("F32", (2,))}
    write_layout(tmp_path / "org" / "name", layout, tensors)
    assert tensora_py.open(ID).layout == layout
    assert not cache.exists()


def test_a_manifest_takes_the_place_of_nothing_but_manifests(folder: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    notes.write_text("[1]")
    files = [path for path in folder.iterdir() if path.is_file()]
    link = tmp_path / "link"
    link.symlink_to(files[0])
    for path in [*files, notes, link]:
        before = path.read_bytes()
        with pytest.raises(tensora_py.InvalidArgumentError) as caught:
            tensora_py.hash(folder, manifest=path)
        assert caught.value.path is not None
        assert path.read_bytes() == before
    manifest = tmp_path / "manifest.json"
    for _ in range(2):
        tensora_py.hash(folder, manifest=manifest)
    assert tensora_py.verify(folder, manifest=manifest)["ok"]
