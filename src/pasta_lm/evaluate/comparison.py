"""What is compared: points, each a model that answers in some way, and where its answers lie."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pasta_lm.errors import UsageError
from pasta_lm.strategies import pasta

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One model that answers by one strategy.

    Attributes:
        name: What the tables call it.
        method: Points of one method are joined in the plot and share a mark.
        model: Folder or hub id.
        records: The file of its answers, as ``pasta evaluate tasks --records`` writes it.
        strategy: Whose answers in that file count.
        label: What stands beside its mark, a lambda for instance.
        command: What makes the file; where not given, ``pasta evaluate tasks`` does.
    """

    name: str
    method: str
    model: str
    records: str
    strategy: str = pasta.NAME
    label: str = ""
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Points that answered the same prompts, held against the same baseline.

    Attributes:
        points: In the order of the tables.
        ours: The method that is held against each other one.
        baseline: Folder or hub id of whose sequential answers are the yardstick.
        title: Of the report.
        split: From which prompts are drawn.
        wordings: Another split whose wordings are used instead.
        num_prompts: Of the families that training sees, together.
        num_timed: Of each family, decoded alone for clocks.
    """

    points: tuple[Point, ...]
    ours: str
    baseline: str
    title: str = "Quality against speed"
    split: str = "test"
    wordings: str | None = None
    num_prompts: int = 8400
    num_timed: int = 10

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        names = [point.name for point in self.points]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UsageError(f"two points have the name {min(twice)!r}")
        if self.ours not in {point.method for point in self.points}:
            raise UsageError(f"ours is {self.ours!r}, and no point has that method")

    def command(self, point: Point) -> str:
        """Return what makes the file of a point's answers."""
        if point.command is not None:
            return point.command
        words = ["pasta", "evaluate", "tasks", "--model", point.model, "--baseline", self.baseline]
        words += ["--strategies", f"sequential,{point.strategy}", "--split", self.split]
        if self.wordings is not None:
            words += ["--wordings", self.wordings]
        words += ["--num-prompts", str(self.num_prompts), "--num-timed", str(self.num_timed)]
        return shlex.join([*words, "--threads", "1", "--records", point.records])


def read_comparison(path: Path) -> Comparison:
    """Read a comparison; paths in it are relative to where the command runs.

    Raises:
        UsageError: it cannot be read, or something in it is unknown or wrong.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} is no comparison: {exc}") from exc
    tables = data.pop("points", [])
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{path} has no points", hint="each is a table: [[points]]")
    points = tuple(_build(Point, table, f"points[{i}].") for i, table in enumerate(tables))
    return _build(Comparison, {**data, "points": points}, "")


def _build(kind: type[T], data: object, place: str) -> T:
    if not isinstance(data, Mapping):
        raise UsageError(f"{place.rstrip('.')} must be a table")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key, value in data.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"unknown key {place}{key}", hint=hint)
        wanted = int if known[key].type == "int" else str
        if key != "points" and type(value) is not wanted:
            raise UsageError(f"{place}{key} must be {wanted.__name__}, not {value!r}")
    return _made(kind, data, place)


def _made(kind: type[T], data: Mapping[str, Any], place: str) -> T:
    try:
        return kind(**data)
    except TypeError as exc:  # "missing 1 required keyword-only argument: 'model'"
        raise UsageError(f"{place.rstrip('.') or 'the comparison'}: {exc}") from exc
