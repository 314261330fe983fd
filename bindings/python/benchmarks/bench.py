"""Measures loaders against each other and writes lines: see ``scripts/bench_python.sh``."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lines
import samples
from lines import Figures, at_least, at_most
from loaders import LOADERS, Loader, chosen, prepare
from one import STREAM_BUDGET, back_memory

HERE = Path(__file__).parent
GIB = 1 << 30
MANY = 20_000
ALLOWED = 128 << 20
"""What a stream may take besides its budget and the largest tensor, in bytes."""

BY_NAME = {loader.name: loader for loader in LOADERS}

Measure = Callable[[], dict[str, Any]]


def measured(loader: str, path: Path, state: str) -> dict[str, Any]:
    """One load in a process of its own."""
    command = [sys.executable, str(HERE / "one.py"), loader, str(path), state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{loader}, {state}: {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if state == "cold" and found["resident"]:
        raise RuntimeError(f"{found['resident']:.1%} of {path} stayed in the page cache")
    if state == "warm" and found["resident"] < 0.999:
        raise RuntimeError(f"only {found['resident']:.1%} of {path} is in the page cache")
    return found


def rust(profile: Path, path: Path, state: str) -> dict[str, Any]:
    """The same load by the library itself, without Python."""
    files = samples.files_of(path)
    (samples.evict if state == "cold" else samples.read)(files)
    back_memory(sum(file.stat().st_size for file in files))
    command = [str(profile), "safetensors", "default", "--path", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"load": found["ms"] / 1000}


class Run:
    """Repetitions of everything, in random order, and the lines that come of it."""

    def __init__(self, repetitions: int) -> None:
        self.repetitions = repetitions
        self.skipped: dict[str, str] = {}

    def all(self, measures: dict[str, Measure]) -> dict[str, list[dict[str, Any]]]:
        """Every measure as often as asked; in each round all take turns, in another order."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
        for _ in range(self.repetitions):
            for name in random.sample(list(measures), len(measures)):
                if name not in found:
                    continue
                try:
                    found[name].append(measures[name]())
                except (RuntimeError, subprocess.SubprocessError) as error:
                    del found[name]
                    self.skipped[name] = f"failed: {error}"
        sums = {
            name: runs[0]["sum"]
            for name, runs in found.items()
            if name in BY_NAME and BY_NAME[name].kind != "raw"
        }
        expected = sums.get("safetensors load_file", next(iter(sums.values()), 0))
        for name, total in sums.items():
            if total != expected:
                del found[name]
                self.skipped[name] = "failed: its tensors have other bytes"
        return found

    def against_loaders(self, path: Path, label: str, state: str, profile: Path | None) -> None:
        """Bytes in hand, by every loader."""
        nbytes = sum(file.stat().st_size for file in samples.files_of(path))
        measures: dict[str, Measure] = {}
        for loader in self.installed():
            prepare(loader, path)
            measures[loader.name] = partial(measured, loader.name, path, state)
        if profile is not None:
            measures["rust"] = lambda: rust(profile, path, state)
        found = self.all(measures)
        self.say_skipped(label)

        def rates(key: str) -> dict[str, Figures]:
            return {
                name: [nbytes / 1e9 / run[key] for run in runs if key in run]
                for name, runs in found.items()
                if key in runs[0]
            }

        in_hand, loaded = rates("touched"), rates("load")
        for name in sorted(in_hand, key=lambda name: -statistics.median(in_hand[name])):
            print(lines.shown(f"{label}: {name}, GB/s in hand", state, in_hand[name]))
        name = "tensora default"
        if name not in in_hand:
            return
        ours = in_hand[name]
        other = lines.best(in_hand, lambda name: _is(name, "other"))
        owned = lines.best(in_hand, lambda name: _is(name, "other") and BY_NAME[name].owned)
        raw = lines.best(in_hand, lambda name: _is(name, "raw"))
        say = self.compare
        if state == "cold":
            # Faster than everybody else, or as fast as the disk: the slower of the two counts.
            goals = (other, at_least(1.2)), (raw, at_least(0.95))
            rival, goal = min(
                ((str(name), goal) for name, goal in goals if name is not None),
                key=lambda pair: pair[1].bound * statistics.median(in_hand[pair[0]]),
            )
            say(f"{label}: default / {rival}", state, ours, in_hand.get(rival), goal)
        else:
            say(f"{label}: default / {owned}", state, ours, in_hand.get(str(owned)), at_least(2))
            raw = "numpy fromfile"
            say(f"{label}: default / {raw}", state, ours, in_hand.get(raw), at_least(1.3))
            lazy, rival = in_hand.get("tensora open"), in_hand.get("safetensors safe_open")
            if lazy is not None:
                say(f"{label}: open and touch / safe_open", state, lazy, rival, at_least(1))
        say(
            f"{label}: default / the library in Rust, without touching",
            state,
            loaded[name],
            loaded.get("rust"),
            at_least(1 / 1.05),
        )

    def small_tensors(self, path: Path) -> None:
        """Many tensors: what each of them costs."""
        names = (
            "tensora default",
            "tensora open",
            "safetensors load_file",
            "safetensors safe_open",
        )
        here = {loader.name for loader in self.installed()}
        measures: dict[str, Measure] = {
            name: partial(measured, name, path, "warm") for name in names if name in here
        }
        found = self.all(measures)
        seconds = {name: [run["load"] for run in runs] for name, runs in found.items()}
        for ours, rival in (names[0], names[2]), (names[1], names[3]):
            if ours in seconds:
                what = f"{MANY} small tensors: {ours} / {rival}, seconds"
                self.compare(what, "warm", seconds[ours], seconds.get(rival), at_most(1))

    def memory(self, path: Path) -> None:
        """Peaks of resident memory, against what was promised."""
        nbytes = sum(file.stat().st_size for file in samples.files_of(path))
        largest = largest_tensor(path)
        for name, state in ("tensora default", "warm"), ("tensora default", "cold"):
            peaks = [measured(name, path, state)["peak"] / GIB for _ in range(self.repetitions)]
            self.compare("peak GiB, load / bytes", state, peaks, [nbytes / GIB], at_most(1.05))
        peaks = [measured("streamed", path, "cold")["peak"] / GIB for _ in range(self.repetitions)]
        promised = [(STREAM_BUDGET + largest + ALLOWED) / GIB]
        what = "peak GiB, iter_tensors of 256 MiB / budget + largest tensor + 128 MiB"
        self.compare(what, "cold", peaks, promised, at_most(1))

    def installed(self) -> list[Loader]:
        """The loaders that are here; why the others are not is noted."""
        here = []
        for loader in chosen():
            if missing := loader.missing():
                self.skipped[loader.name] = f"not installed: {', '.join(missing)}"
            elif not self.skipped.get(loader.name, "").startswith("failed"):
                here.append(loader)
        return here

    def say_skipped(self, label: str) -> None:
        """A line for everything that was not measured."""
        for name, why in self.skipped.items():
            print(lines.absent(f"{label}: {name}", why))

    def compare(
        self, what: str, state: str, ours: Figures, rival: Figures | None, goal: lines.Goal
    ) -> None:
        """A line, or why there is none."""
        if rival is None:
            print(lines.absent(what, "not measured"))
        else:
            print(lines.line(what, state, ours, rival, goal), flush=True)


def _is(name: str, kind: str) -> bool:
    return name in BY_NAME and BY_NAME[name].kind == kind


def largest_tensor(path: Path) -> int:
    """Bytes of the largest tensor."""
    import tensora_py

    with tensora_py.open(path) as checkpoint:
        return max(checkpoint.info(name).nbytes for name in checkpoint)


def main() -> None:
    """Sections in their order; ``--only`` takes those whose names have the word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 repetitions and not 7")
    parser.add_argument("--size", type=int, default=2048, help="MiB of a checkpoint")
    parser.add_argument("--only", default="", help="sections: 1-cold, 1-warm, 5-cold, many, memory")
    parser.add_argument("--folder", type=Path, required=True, help="where samples are kept")
    parser.add_argument("--profile", type=Path, help="the program of the library")
    chosen = parser.parse_args()
    run = Run(3 if chosen.quick else 7)

    def sample(name: str, nbytes: int, shards: int, count: int = 0) -> Path:
        path: Path = chosen.folder / f"{name}-{nbytes >> 20}"
        if not (path / "complete").exists():
            tensors = samples.many(nbytes, count) if count else samples.dense(nbytes)
            samples.write(path, list(tensors), shards)
            (path / "complete").touch()
        return path

    print(f"# {chosen.size} MiB a checkpoint, {run.repetitions} repetitions in random order")
    print(lines.HEADER)
    nbytes = chosen.size << 20
    for shards in 1, 5:
        for state in "cold", "warm":
            if chosen.only in f"{shards}-{state}":
                label = "1 shard" if shards == 1 else f"{shards} shards"
                path = sample(f"dense-{shards}", nbytes, shards)
                run.against_loaders(path, label, state, chosen.profile)
    if chosen.only in "many":
        run.small_tensors(sample("many", 64 << 20, 1, MANY))
    if chosen.only in "memory":
        run.memory(sample("dense-1", nbytes, 1))


if __name__ == "__main__":
    main()
