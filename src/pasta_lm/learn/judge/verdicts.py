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
from pasta_lm.learn.judge import Comparison, verdict_of

ROW = ("id", "prompt", "first", "second")  # A verdict may be added to it.
KEYS = {"winner", "confidence", *ROW}
FORM = 'a row is {"id": "...", "winner": 1} (or 2, or 0: a tie), perhaps "confidence": 0.5 to 1'
NEXT_STEP = "--write-pairs FILE --resume samples answers, and writes what has no verdict"


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """A ``Judge`` whose verdicts on one round a reader wrote to a file."""

    path: Path
    verdicts: Mapping[str, float]  # By the id of the comparison.
    to_read: Path | None = None  # Where comparisons without a verdict are written.

    def refuse_sampling(self) -> NoReturn:
        raise UsageError(f"{self.path} judges answers that are not sampled yet", hint=NEXT_STEP)

    def compare(self, comparisons: Sequence[Comparison]) -> list[float]:
        ids = _to_read(comparisons).keys()
        strange, missing = self.verdicts.keys() - ids, ids - self.verdicts.keys()
        hint = "correct the ids; a file has the verdicts of one round, and judge.file may change"
        _refuse(self.path, sorted(strange), "verdicts are on no comparison of the round", hint)
        problem = f"of {len(ids)} comparisons have no verdict"
        _refuse(self.path, sorted(missing), problem, NEXT_STEP)
        return [self.verdicts.get(comparison_id(pair), 0.0) for pair in comparisons]

    def write_unread(self, comparisons: Sequence[Comparison], seed: str) -> Path | None:
        rows = [row for key, row in _to_read(comparisons).items() if key not in self.verdicts]
        if self.to_read is None or not rows:
            return None
        Random(seed).shuffle(rows)
        write_rows(self.to_read, rows)
        return self.to_read


def read_verdicts(path: Path) -> dict[str, float]:
    verdicts, wrong = dict[str, float](), list[str]()
    for number, row in read_objects(path):
        verdict = _verdict(row)
        if verdict is None or verdicts.setdefault(row["id"], verdict) != verdict:
            shown = {key: value for key, value in row.items() if key not in ROW[1:]}
            wrong.append(f"line {number}: {json.dumps(shown)}")
    _refuse(path, wrong, "rows are no verdicts, or contradict an earlier one", FORM)
    return verdicts


def _verdict(row: Row) -> float | None:
    winner, p = row.get("winner", -1), row.get("confidence", 1)
    is_winner = type(winner) is int and winner in (0, 1, 2)
    is_share = type(p) in (int, float) and 0.5 <= p <= 1
    is_whole = row.keys() <= KEYS and isinstance(row.get("id"), str) and is_winner and is_share
    return verdict_of((0.5, p, 1 - p)[winner]) if is_whole else None


def comparison_id(comparison: Comparison) -> str:
    """Return a hash of the texts in their order, so that a verdict holds in any other run."""
    return hashlib.sha256(json.dumps(comparison[1:]).encode()).hexdigest()[:16]


def _to_read(comparisons: Sequence[Comparison]) -> dict[str, Row]:
    pairs = {comparison_id(pair): pair for pair in comparisons if pair.first != pair.second}
    return {key: dict(zip(ROW, (key, *pair[1:]), strict=True)) for key, pair in pairs.items()}


def _refuse(path: Path, names: Sequence[str], problem: str, hint: str) -> None:
    """Raise an InputError that says the number of some rows, and names the first three."""
    if names:
        shown = ", ".join(names[:3]) + ", …" * (len(names) > 3)
        raise InputError(f"{path}: {len(names)} {problem} ({shown})", hint=hint)
