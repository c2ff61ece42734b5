"""The recipe of a comparison: points, each a model and a strategy, and their record files."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from pasta_lm.errors import UsageError
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies import pasta


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One model that answers by one strategy."""

    name: str
    method: str
    """Points of one method are joined in the plot and share a mark."""
    model: str
    """A folder or a hub id."""
    records: str
    """The file of its answers, as ``pasta evaluate tasks --records`` writes it."""
    strategy: str = pasta.NAME
    """Which answers in the file are the point's."""
    label: str = ""
    """Stands beside the mark, for example the value of lambda."""
    command: str | None = None
    """Makes the file; None: ``pasta evaluate tasks`` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideMeasurement:
    """A measurement that is reported besides the points: a JSON file, and what makes it."""

    name: str
    file: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Points that answered the same prompts, compared with the same baseline."""

    points: tuple[Point, ...]
    ours: str
    """The method that is compared with each other one."""
    baseline: str
    """The folder or hub id of the sequential baseline."""
    title: str = "Quality against speed"
    split: str = "test"
    wordings: str | None = None
    """Another split whose wordings are used instead."""
    num_prompts: int = 8400
    """Of the families that training sees, together."""
    num_timed: int = 10
    """Prompts of each family that are decoded alone, for clocks."""
    step_costs: tuple[SideMeasurement, ...] = ()
    """The cost of a step of several rows, from ``benchmarks/step_cost.py``."""
    replays: tuple[SideMeasurement, ...] = ()
    """The same answers at another model shape, from ``pasta replay --json``."""

    def __post_init__(self) -> None:
        """Validate combinations of keys."""
        if not self.points:
            raise UsageError("a comparison needs points", hint="each is a table: [[points]]")
        names = [point.name for point in self.points]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UsageError(f"two points have the name {min(twice)!r}")
        if self.ours not in {point.method for point in self.points}:
            raise UsageError(f"ours is {self.ours!r}, and no point has that method")

    def command(self, point: Point) -> str:
        """Return the command that makes the file of a point's answers."""
        if point.command is not None:
            return point.command
        words = ["pasta", "evaluate", "tasks", "--model", point.model, "--baseline", self.baseline]
        words += ["--strategies", f"sequential,{point.strategy}", "--split", self.split]
        words += ["--num-prompts", str(self.num_prompts), "--num-timed", str(self.num_timed)]
        words += ["--set", "threads=1"]
        if self.wordings is not None:
            words += ["--set", f"wordings={self.wordings}"]
        return shlex.join([*words, "--records", point.records])


def read_comparison(path: Path) -> Comparison:
    """Read a comparison; paths in it are relative to the working directory.

    Raises:
        UsageError: it cannot be read, or a key is unknown, missing or has a wrong value.
    """
    return read_recipe(path, Comparison)
