"""What is compared with what, how well it must do, and how a line says so."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HEADER = "measure\tstate\tours\trival\tratio\tgoal\tverdict"

Figures = Sequence[float]


def spread(figures: Figures) -> str:
    """Median, and lowest to highest."""
    return f"{statistics.median(figures):.3f} ({min(figures):.3f}-{max(figures):.3f})"


@dataclass(frozen=True)
class Goal:
    """What ours divided by the rival's shall be."""

    bound: float
    at_least: bool

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"

    def met(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def verdict(self, ours: Figures, rival: Figures) -> str:
        """By the medians; it is missed only where the ranges separate."""
        if self.met(statistics.median(ours) / statistics.median(rival)):
            return "ok"
        best = max(ours) / min(rival) if self.at_least else min(ours) / max(rival)
        return "not separable" if self.met(best) else "MISSED"


def at_least(bound: float) -> Goal:
    """For rates: not slower than so many times the rival."""
    return Goal(bound, at_least=True)


def at_most(bound: float) -> Goal:
    """For times and bytes: not more than so many times the rival."""
    return Goal(bound, at_least=False)


def line(measure: str, state: str, ours: Figures, rival: Figures, goal: Goal) -> str:
    """A comparison."""
    ratio = statistics.median(ours) / statistics.median(rival)
    parts = (measure, state, spread(ours), spread(rival), f"{ratio:.3f}", str(goal))
    return "\t".join((*parts, goal.verdict(ours, rival)))


def shown(measure: str, state: str, ours: Figures) -> str:
    """A figure without a goal."""
    return f"{measure}\t{state}\t{spread(ours)}\t\t\tshown\t"


def absent(measure: str, why: str) -> str:
    """A loader that was not measured."""
    return f"{measure}\t\t\t\t\t\t{why}"


def best(rates: dict[str, Figures], which: Callable[[str], bool]) -> str | None:
    """The name of the fastest by median, of those that `which` takes."""
    names = [name for name in rates if which(name)]
    return max(names, key=lambda name: statistics.median(rates[name]), default=None)
