"""A judge that is a file: a person or any model reads what is written, and writes verdicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NoReturn

from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Row, read_objects, write_rows
from pasta_lm.learn.judge import Comparison, NoVerdict, Reading, same_winner, verdict_of
from pasta_lm.recipe import check_not_ignored

ROW = ("id", "prompt", "first", "second")  # A verdict may be added to it.
KEYS = {"winner", "confidence", *ROW}
FORM = 'a row is {"id": "...", "winner": 1} (or 2, or 0: a tie), perhaps "confidence": 0.5 to 1'
NEXT_STEP = "--write-pairs FILE (a training needs --resume too) writes what has no verdict"


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """A ``Judge`` whose verdicts on one round, or one run, a reader wrote to a file."""

    path: Path
    first_wins: Mapping[str, float]  # The probability, by the id of the comparison.
    to_read: Path | None = None  # Where comparisons without a verdict are written.

    def refuse_sampling(self) -> NoReturn:
        raise UsageError(f"{self.path} judges answers that are not sampled yet", hint=NEXT_STEP)

    def compare(self, comparisons: Sequence[Comparison]) -> list[float]:
        if missing := self.missing(comparisons):
            raise InputError(missing, hint=NEXT_STEP)
        return [0.0 if wins is None else verdict_of(wins) for wins, _ in self.ask(comparisons)]

    def ask(self, comparisons: Sequence[Comparison]) -> list[Reading]:
        wins = (self.first_wins.get(comparison_id(pair)) for pair in comparisons)
        return [Reading(p, NoVerdict.UNREAD if p is None else None) for p in wins]

    def missing(self, comparisons: Sequence[Comparison]) -> str:
        """Return a sentence that names what has no verdict, if anything; refuse unknown ids."""
        ids = _to_read(comparisons).keys()
        strange, missing = self.first_wins.keys() - ids, ids - self.first_wins.keys()
        if unknown := _named(self.path, sorted(strange), "verdicts are on no comparison here"):
            raise InputError(unknown, hint="correct the ids, or name another judge.file")
        return _named(self.path, sorted(missing), f"of {len(ids)} comparisons have no verdict")

    def facts(self, comparisons: Sequence[Comparison]) -> Row:
        """Return a report's figures of this judge, on comparisons of ``both_orders``."""
        ids = [*map(comparison_id, comparisons)]
        wins = {**dict.fromkeys(ids, 0.5), **self.first_wins}
        pairs = sorted({*zip(ids[::2], ids[1::2], strict=True)})
        names = [f"{a} and {b}" for a, b in pairs if not same_winner(wins[a], wins[b])]
        problem = "pairs have another winner in each order, and count by the mean"
        facts: Row = {"name": f"the file {self.path.name}", "num_verdicts": len(self.first_wins)}
        facts |= {"is_scripted": False, "missing": self.missing(comparisons) or "none"}
        return facts | {"contradictory": _named(self.path, names, problem) or "none"}

    def write_unread(self, comparisons: Sequence[Comparison], seed: str) -> Path | None:
        rows = [row for key, row in _to_read(comparisons).items() if key not in self.first_wins]
        if self.to_read is None or not rows:
            return None
        Random(seed).shuffle(rows)
        write_rows(self.to_read, rows)
        return self.to_read


def reader_of(file: str | None, to_read: Path | None, *, is_new: bool) -> VerdictFile | None:
    """Return the judge that is a file, if a recipe names one; its verdicts are checked."""
    if file is None:
        check_not_ignored("--write-pairs", to_read, "the recipe has no judge.file")
        return None
    path = Path(file)
    if to_read is None and is_new:
        VerdictFile(path, {}).refuse_sampling()
    if to_read is None and not path.exists():
        raise InputError(f"no such file: {path}", hint=NEXT_STEP)
    if to_read is not None and to_read.exists():
        raise UsageError(f"{to_read} exists, and may hold verdicts", hint="name another file")
    return VerdictFile(path, stored_verdicts(path), to_read)


def stored_verdicts(path: Path) -> dict[str, float]:
    return read_verdicts(path) if path.exists() else {}


def read_verdicts(path: Path) -> dict[str, float]:
    verdicts, wrong = dict[str, float](), list[str]()
    for number, row in read_objects(path):
        verdict = _first_wins(row)
        if verdict is None or verdicts.setdefault(row["id"], verdict) != verdict:
            shown = {key: value for key, value in row.items() if key not in ROW[1:]}
            wrong.append(f"line {number}: {json.dumps(shown)}")
    if wrong:
        problem = "rows are no verdicts, or contradict an earlier one"
        raise InputError(_named(path, wrong, problem), hint=FORM)
    return verdicts


def _first_wins(row: Row) -> float | None:
    winner, p = row.get("winner", -1), row.get("confidence", 1)
    is_winner = type(winner) is int and winner in (0, 1, 2)
    is_share = type(p) in (int, float) and 0.5 <= p <= 1
    is_whole = row.keys() <= KEYS and isinstance(row.get("id"), str) and is_winner and is_share
    return (0.5, p, 1 - p)[winner] if is_whole else None


def comparison_id(comparison: Comparison) -> str:
    """Return a hash of the texts in their order, so that a verdict holds in any other run."""
    return hashlib.sha256(json.dumps(comparison[1:]).encode()).hexdigest()[:16]


def _to_read(comparisons: Sequence[Comparison]) -> dict[str, Row]:
    pairs = {comparison_id(pair): pair for pair in comparisons if pair.first != pair.second}
    return {key: dict(zip(ROW, (key, *pair[1:]), strict=True)) for key, pair in pairs.items()}


def _named(path: Path, names: Sequence[str], problem: str) -> str:
    """Return a sentence with the number of some rows and the first three, if there are any."""
    shown = ", ".join(names[:3]) + ", …" * (len(names) > 3)
    return f"{path}: {len(names)} {problem} ({shown})" if names else ""
