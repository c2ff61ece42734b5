"""Figures with intervals, and the report that makes of them JSON, tables and Markdown.

Every interval is a 95 % percentile bootstrap over prompts with a fixed seed: the same answers give
the same interval. Values that are paired by prompt are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pasta_lm.journal import Row, write_json, write_whole

Array = NDArray[np.float64]
Figures = Row  # by key, as JSON has them; a figure may be an ``Interval``
NUM_DRAWS, CONFIDENCE, SEED = 1000, 0.95, 0
BATCH = 50  # draws that are in memory at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its interval."""

    mean: float
    low: float
    high: float


def mean(values: Sequence[float]) -> Interval | None:
    """Return the mean of values, one for each prompt; None where there are none."""
    return _bounds((values,), lambda v, axis: v.mean(axis=axis))


def geometric_mean(values: Sequence[float]) -> Interval | None:
    """Return the geometric mean of positive values; None where there are none."""
    figures = mean([log(value) for value in values])
    return figures and Interval(exp(figures.mean), exp(figures.low), exp(figures.high))


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """Return the sum of the parts over the sum of the wholes, paired by prompt.

    None where the wholes sum to nothing: precision without a single fork has no value.
    """
    kept = [(part, whole) for part, whole in zip(parts, wholes, strict=True) if whole]
    with np.errstate(invalid="ignore"):
        statistic = lambda p, w, axis: p.sum(axis=axis) / w.sum(axis=axis)  # noqa: E731
        return _bounds(tuple(zip(*kept, strict=True)), statistic) if kept else None


def _bounds(samples: Sequence[Sequence[float]], statistic: Callable[..., Array]) -> Interval | None:
    if not len(samples[0]):
        return None
    arrays = [np.asarray(sample, float) for sample in samples]
    value = float(statistic(*arrays, axis=0))
    if len(samples[0]) == 1:  # nothing can be drawn from one prompt
        return Interval(value, value, value)
    result = stats.bootstrap(
        arrays, statistic, n_resamples=NUM_DRAWS, batch=BATCH, paired=len(samples) > 1,
        vectorized=True, confidence_level=CONFIDENCE, method="percentile", rng=SEED,
    )  # fmt: skip
    return Interval(value, *map(float, result.confidence_interval))


Cell = str | float | None
KeyPath = tuple[str, ...]
MISSING = "-"  # stands where there is no figure
HEADER = ("figure", "value", "low", "high", "n")
GROUPS = {"systems", "sets", "parts"}  # keys that no title names: their members are named


class Metric(NamedTuple):
    """One figure of a report."""

    path: KeyPath  # keys of the objects around it in JSON; a path has a table
    key: str
    value: object  # JSON, in which a figure may be an ``Interval``
    title: str  # in tables; without one it stands in JSON alone
    num: int | None  # the number of prompts or answers

    def rows(self) -> Iterator[Sequence[Cell]]:
        parts = self.value.items() if isinstance(self.value, Mapping) else [("", self.value)]
        for name, value in parts if self.title else ():
            title = f"{self.title}, {name}" if name else self.title
            if isinstance(value, Interval):
                yield title, value.mean, value.low, value.high, self.num
            elif isinstance(value, int | float) and not name:
                yield title, value, None, None, self.num


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, one value a cell; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""  # stands below the table
    digits: int = 3  # decimals of its numbers

    def texts(self) -> list[list[str]]:
        return [[_text(value, self.digits) for value in row] for row in self.rows]


@dataclass(slots=True)
class Report:
    """The figures of a run, and the words around them."""

    title: str
    remarks: list[str] = field(default_factory=list)
    rows: list[Metric] = field(default_factory=list)
    notes: dict[KeyPath, list[str]] = field(default_factory=dict)  # below the tables

    def add(
        self, path: KeyPath, figures: Mapping[str, object], titles: Mapping[str, str] = {},
        num: int | None = None, nums: Mapping[str, int] = {},
    ) -> None:  # fmt: skip
        """Add figures by key, each over ``num`` prompts or answers, or as ``nums`` says by key."""
        for key, value in figures.items():
            self.rows.append(Metric(path, key, value, titles.get(key, ""), nums.get(key, num)))

    def note(self, path: KeyPath, *paragraphs: str) -> None:
        self.notes.setdefault(path, []).extend(filter(None, paragraphs))

    @property
    def facts(self) -> list[str]:
        rows = [row for row in self.rows if not row.path and not row.title]
        facts = [f"{row.key.replace('_', ' ')}: {_inline(row.value)}" for row in rows]
        return facts + self.remarks

    def to_dict(self, *, has_bounds: bool = True) -> Figures:
        """Return the object that a verb prints with ``--json``; intervals may be their means."""
        result: Figures = {}
        for row in self.rows:
            at = result
            for key in row.path:
                at = at.setdefault(key, {})
            value = row.value
            if isinstance(value, Interval) and not has_bounds:
                value = value.mean
            at[row.key] = to_json(value)
        return result

    def tables(self) -> list[Table]:
        paths: dict[KeyPath, list[Sequence[Cell]]] = {}
        for row in self.rows:
            paths.setdefault(row.path, []).extend(row.rows())
        tables = []
        for path, rows in paths.items():
            if rows:
                title = ", ".join(key for key in path if key not in GROUPS)
                tables.append(Table(HEADER, rows, title, "\n\n".join(self.notes.get(path, ()))))
        return tables

    def markdown(self) -> str:
        parts = [f"# {self.title}", "\n".join(f"- {_escaped(fact)}" for fact in self.facts)]
        for table in self.tables():
            ruler = ["---", *["--:"] * (len(table.header) - 1)]
            rows = [table.header, ruler, *table.texts()]
            parts += [f"## {_escaped(table.title)}"] if table.title else []
            parts.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows))
            parts.append(_escaped(table.note))
        return "\n\n".join(filter(None, parts)) + "\n"

    def write(self, folder: Path) -> Path:
        page = folder / "report.md"
        write_json(folder / "report.json", self.to_dict())
        write_whole(page, self.markdown().encode())
        return page


def _text(value: object, digits: int) -> str:
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_inline(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_inline, value))
    return _text(value.mean if isinstance(value, Interval) else value, 3)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def to_json(value: object) -> object:
    """Return figures as JSON has them; intervals are rounded to five digits."""
    if isinstance(value, Interval):
        return {name: round(bound, 5) for name, bound in asdict(value).items()}
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in value.items()}
    return value
