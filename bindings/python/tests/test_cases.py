"""The corpus of odd and damaged checkpoints that the library is tested with: the same outcomes here."""

from __future__ import annotations

import csv
import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tensora_py
from helpers import CASES, child, run, usable_backends

# The library alone: once is enough.
pytestmark = pytest.mark.heavy


class Case(NamedTuple):
    name: str
    format: str
    path: Path
    accepted: bool
    kinds: tuple[str, ...]
    must_name: str


def case(row: dict[str, str | None]) -> Case:
    path = CASES / (row["load_path"] or "")
    kinds = (row["error_class"] or "", row["also_allowed"] or "")
    return Case(
        row["name"] or "",
        row["format"] or "",
        path,
        row["kind"] == "ok",
        tuple(kind for kind in kinds if kind),
        row["must_name"] or "",
    )


def table() -> list[Case]:
    with (CASES / "EXPECT.tsv").open(encoding="utf-8", newline="") as file:
        return [case(row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


ALL = table()
ACCEPTED = [pytest.param(case, id=case.name) for case in ALL if case.accepted]
REFUSED = [pytest.param(case, id=case.name) for case in ALL if not case.accepted]

# The class of each kind that the corpus has.
CLASSES = {
    "MissingShard": tensora_py.CheckpointNotFoundError,
    "PartitionMissing": tensora_py.CheckpointNotFoundError,
    "NoWeights": tensora_py.CheckpointNotFoundError,
}


def says(text: str, must_name: str) -> bool:
    """Whether it has all of ``a|b``, and one of each ``x~y``."""
    text = text.casefold()
    return all(
        any(fact.casefold() in text for fact in facts.split("~")) for facts in must_name.split("|")
    )


def test_there_are_as_many_as_there_should_be() -> None:
    assert (len(ACCEPTED), len(REFUSED)) == (21, 30)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_damaged_is_refused(case: Case) -> None:
    for use in (
        lambda: tensora_py.open(case.path),
        lambda: tensora_py.load(case.path, framework="dlpack"),
        lambda: tensora_py.iter_tensors(case.path, framework="dlpack"),
        lambda: tensora_py.hash(case.path),
    ):
        with pytest.raises(tensora_py.TensoraError) as caught:
            use()
        error = caught.value
        assert error.kind in case.kinds
        assert isinstance(error, CLASSES.get(error.kind, tensora_py.InvalidCheckpointError))
        assert says(str(error), case.must_name), str(error)
        assert error.path is not None
        assert len(str(error)) < 1500
    report = tensora_py.verify(case.path)
    assert not report["ok"]
    assert report["problems"]


def check(place: str, found: tensora_py.Tensor, facts: dict[str, Any]) -> None:
    assert found.dtype == facts["dtype"], place
    assert found.shape == tuple(facts["shape"]), place
    if rows := facts.get("logical_f32"):
        numbers = [number for row in rows for number in row]
        assert bytes(found) == struct.pack(f"<{len(numbers)}f", *numbers), place
        return
    assert found.nbytes == facts["nbytes"], place
    assert hashlib.sha256(bytes(found)).hexdigest() == facts["sha256"], place
    if (expected := facts.get("hex")) is not None:
        assert bytes(found).hex() == expected, place


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_odd_and_right_is_loaded(
    case: Case, backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"backend": backend}
    name: str | Path = case.path
    if case.format == "hf":
        monkeypatch.setenv("HF_HUB_CACHE", str(case.path))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.chdir(tmp_path)
        name, options["revision"] = "org/name", "main"
    expected = json.loads((CASES / "_expect" / f"{case.name}.json").read_text(encoding="utf-8"))
    tensors = expected.get("tensors") or expected.get("sample") or {}
    count = expected.get("count", len(tensors))
    loaded = tensora_py.load(name, framework="dlpack", **options)
    streamed = dict(tensora_py.iter_tensors(name, framework="dlpack", **options))
    checkpoint = tensora_py.open(name, **options)
    optional = set(expected.get("optional", ())) & set(loaded)
    assert len(loaded) - len(optional) == len(streamed) - len(optional) == count
    assert len(checkpoint) == len(loaded)
    assert not set(expected.get("forbidden", ())) & set(loaded)
    for tensor, facts in tensors.items():
        check(f"{tensor}, loaded", loaded[tensor], facts)
        check(f"{tensor}, streamed", streamed[tensor], facts)
        check(f"{tensor}, taken", checkpoint.get(tensor, framework="dlpack"), facts)
    for key, value in (expected.get("metadata") or {}).items():
        assert checkpoint.metadata[key] == value


LIMITED = """
import resource, sys, time, tensora_py
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
backends = sys.argv[1].split(",")
for line in sys.stdin.read().splitlines():
    kind, path = line.split("\\t")
    begun = time.monotonic()
    for backend in backends:
        try:
            tensora_py.load(path, framework="dlpack", backend=backend)
            outcome = "ok"
        except tensora_py.OutOfMemoryError as error:
            outcome = f"memory: {error}"
        except tensora_py.TensoraError as error:
            outcome = "error"
        assert outcome == kind, (path, backend, outcome)
    assert time.monotonic() - begun < 20, path
print("all")
"""


def test_limits_hold_for_every_case() -> None:
    """2 GiB of address space, 64 descriptors, 20 seconds."""
    process = child(LIMITED, ",".join(usable_backends()))
    lines = [
        f"{'ok' if case.accepted else 'error'}\t{case.path}" for case in ALL if case.format != "hf"
    ]
    out, errors = process.communicate("\n".join(lines), timeout=120)
    assert (process.returncode, out) == (0, "all\n"), errors


def test_a_hostile_length_costs_neither_time_nor_memory() -> None:
    [path] = [case.path for case in ALL if case.name == "st_header_claims_2e63"]
    out = run(
        """
        import resource, sys, tensora_py
        resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
        try:
            tensora_py.open(sys.argv[1])
        except tensora_py.InvalidCheckpointError as error:
            print(error.kind)
        """,
        path,
    )
    assert out == "HeaderTooLarge\n"
