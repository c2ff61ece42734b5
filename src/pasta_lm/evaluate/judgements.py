"""Read stored judgements of AlpacaEval: preferences between two answers, and their lengths.

A row is one instruction, answered by a reference and by a model.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.engines.annotated import read_lines
from pasta_lm.errors import InputError

_KEYS = {"model": str, "row": int, "len_1": int, "len_2": int}


class Judgement(NamedTuple):
    """One verdict on a model's answer, compared with the reference's."""

    model: str
    row: int
    """Of the instruction, in the table of difficulty."""
    preference: float | None
    """From 0, the reference wins, to 1, the model wins; a draw is 0.5. None: no verdict."""
    len_1: int
    """Characters of the reference's answer."""
    len_2: int
    """Characters of the model's answer."""
    judge: str | None = None
    baseline: str | None = None
    """The name of the reference; None: not recorded."""


class GamedRow(NamedTuple):
    """A verdict on the reference told to be brief or verbose, which steadies the fit."""

    preference: float
    """From 0 to 1, as above."""
    length: float
    """The difference of lengths in its standard deviations, reference minus model."""
    difficulty: float


def read_judgements(path: Path) -> dict[str, list[Judgement]]:
    """Read judgements by model, one JSON object a line, gzipped if named ``.gz``.

    A row has ``model, row, preference, len_1, len_2`` and may have ``judge`` and ``baseline``.
    ``preference`` is from 1, the reference wins, to 2, the model wins; 0 and 1.5 are draws, null is
    a missing verdict.

    Raises:
        InputError: the file cannot be read, or a row is no judgement; the first is named.
    """
    models: dict[str, list[Judgement]] = {}
    seen: set[tuple[str, int]] = set()
    for number, row in json_lines(path):
        try:
            one = judgement(row)
        except InputError as exc:
            raise InputError(f"{path}:{number}: {exc.message}") from exc
        if (one.model, one.row) in seen:
            raise InputError(f"{path}:{number}: {one.model} has row {one.row} twice")
        seen.add((one.model, one.row))
        models.setdefault(one.model, []).append(one)
    if not models:
        raise InputError(f"{path} has no judgements")
    return models


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, gzipped if named ``.gz``, with line numbers.

    Raises:
        InputError: the file cannot be read, or a line is no JSON object.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise InputError(f"{path}:{number}: not JSON: {exc}") from exc
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: not a JSON object")
        yield number, row


def judgement(row: dict[str, Any]) -> Judgement:
    """Return a judgement from its JSON object.

    Raises:
        InputError: a key is missing or has a wrong value.
    """
    for key, kind in _KEYS.items():
        value = row.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{key!r} is {value!r}, not of type {kind.__name__}")
        if isinstance(value, int) and value < 0:
            raise InputError(f"{key!r} is {value}, below 0")
    if "preference" not in row:
        raise InputError("no 'preference'; a missing verdict is null")
    known = {key: row[key] for key in Judgement._fields if key in row}
    return Judgement(**known | {"preference": _preference(row["preference"])})


def named(judgements: Iterable[Judgement]) -> tuple[str | None, str | None]:
    """Return the judge and the reference, as far as the rows name them; several are all named."""
    rows = list(judgements)
    judges = dict.fromkeys(one.judge for one in rows if one.judge)
    baselines = dict.fromkeys(one.baseline for one in rows if one.baseline)
    return " and ".join(judges) or None, " and ".join(baselines) or None


def _preference(value: Any) -> float | None:
    if value is None or value != value:  # tables of numbers write a missing value as NaN
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"'preference' is {value!r}, not a number")
    if value and not 1 <= value <= 2:
        raise InputError(f"'preference' is {value}, but must be 0 or from 1 to 2")
    return float(value) - 1 if value else 0.5


def read_difficulty(path: Path) -> list[float]:
    """Read the difficulty of each instruction: columns ``index``, ``instruction_difficulty``.

    Raises:
        InputError: the file cannot be read, or its rows are not 0, 1, 2 and so on.
    """
    rows = list(_table(path, "index", "instruction_difficulty"))
    if [index for index, _ in rows] != list(range(len(rows))):
        raise InputError(f"{path}: 'index' must count its rows from 0")
    return [difficulty for _, difficulty in rows]


def read_gamed(path: Path) -> list[GamedRow]:
    """Read gamed rows: ``preference`` (0 to 1), ``std_delta_len``, ``instruction_difficulty``.

    Raises:
        InputError: the file cannot be read, or a cell is no number.
    """
    cells = _table(path, "preference", "std_delta_len", "instruction_difficulty")
    rows = [GamedRow(*row) for row in cells]
    if not all(0 <= row.preference <= 1 for row in rows):
        raise InputError(f"{path}: a 'preference' is not from 0 to 1")
    return rows


def _table(path: Path, *columns: str) -> Iterator[tuple[float, ...]]:
    """Yield the named columns of a CSV file as numbers."""
    reader = csv.DictReader(read_lines(path))
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{path} has no column {' and no '.join(missing)}")
    for row in reader:
        try:
            yield tuple(float(row[name]) for name in columns)
        except (TypeError, ValueError) as exc:
            raise InputError(f"{path}:{reader.line_num}: a cell is no number") from exc
