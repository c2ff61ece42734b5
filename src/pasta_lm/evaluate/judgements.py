"""Stored judgements of AlpacaEval: which of two answers a judge preferred, and how long they are.

A row is one instruction, answered by a reference and by a model; nothing is asked of anybody.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.errors import InputError

_KEYS = {"model": str, "row": int, "len_1": int, "len_2": int}


class Judgement(NamedTuple):
    """One verdict on a model's answer, held against the reference's."""

    model: str
    row: int
    """Of the instruction: where its difficulty is looked up."""
    preference: float | None
    """From 0, the reference wins, to 1, the model wins; a draw is 0.5. None: no verdict."""
    len_1: int
    """Characters of the reference's answer."""
    len_2: int
    """Characters of the model's answer."""
    judge: str | None = None
    """Its name, where the row says it."""
    baseline: str | None = None
    """Whose answers were the reference, where the row says it."""


class GamedRow(NamedTuple):
    """One verdict on the reference told to be brief, or verbose: it holds the fit to the truth."""

    preference: float
    """From 0 to 1, as above."""
    length: float
    """The difference of lengths in its standard deviations, reference less model."""
    difficulty: float


def read_judgements(path: Path) -> dict[str, list[Judgement]]:
    """Read judgements of one or more models, a JSON object a line, gzipped if named ``.gz``.

    A row has ``model, row, preference, len_1, len_2``, and may name ``judge`` and ``baseline``;
    ``preference`` is from 1, the reference wins, to 2, the model wins; 0 and 1.5 are draws, null is
    a verdict that is missing.

    Returns:
        By model, in the order of the file.

    Raises:
        InputError: the file cannot be read, or a row is no judgement: the first is named.
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
    """Yield the objects of a file of JSON lines, gzipped if named ``.gz``, each with its line.

    Raises:
        InputError: the file cannot be read, or a line is no JSON object.
    """
    for number, line in enumerate(_lines(path), start=1):
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
        InputError: a key is missing, or has a value that means nothing.
    """
    for key, kind in _KEYS.items():
        value = row.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{key!r} is {value!r}, not of type {kind.__name__}")
        if isinstance(value, int) and value < 0:
            raise InputError(f"{key!r} is {value}, below 0")
    if "preference" not in row:
        raise InputError("no 'preference'; a missing verdict is null")
    return Judgement(
        row["model"],
        row["row"],
        _preference(row["preference"]),
        row["len_1"],
        row["len_2"],
        row.get("judge"),
        row.get("baseline"),
    )


def named(judgements: Iterable[Judgement]) -> tuple[str | None, str | None]:
    """Return who judged and whose answers were the reference, as far as the rows say.

    Several are named together: such rows are of no one judge.
    """
    rows = list(judgements)
    judges = dict.fromkeys(one.judge for one in rows if one.judge)
    baselines = dict.fromkeys(one.baseline for one in rows if one.baseline)
    return " and ".join(judges) or None, " and ".join(baselines) or None


def _preference(value: Any) -> float | None:
    if value is None or value != value:  # as a table of numbers has it, missing is not-a-number
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"'preference' is {value!r}, not a number")
    if value == 0:
        return 0.5
    if not 1 <= value <= 2:
        raise InputError(f"'preference' is {value}, but must be 0 or from 1 to 2")
    return float(value) - 1


def read_difficulty(path: Path) -> list[float]:
    """Read the difficulty of each instruction: columns ``index``, ``instruction_difficulty``.

    Raises:
        InputError: the file cannot be read, or its rows are not 0, 1, 2 and so on.
    """
    rows = list(_table(path, ("index", "instruction_difficulty")))
    if [index for index, _ in rows] != list(range(len(rows))):
        raise InputError(f"{path}: 'index' must count its rows from 0")
    return [difficulty for _, difficulty in rows]


def read_gamed(path: Path) -> list[GamedRow]:
    """Read verdicts on the reference told to be brief or verbose.

    Columns ``preference`` (0 to 1), ``std_delta_len`` and ``instruction_difficulty``.

    Raises:
        InputError: the file cannot be read, or a cell is no number.
    """
    columns = ("preference", "std_delta_len", "instruction_difficulty")
    rows = [GamedRow(*cells) for cells in _table(path, columns)]
    if not all(0 <= row.preference <= 1 for row in rows):
        raise InputError(f"{path}: a 'preference' is not from 0 to 1")
    return rows


def _lines(path: Path) -> Iterator[str]:
    opening = gzip.open if path.name.endswith(".gz") else open
    try:
        with opening(path, "rt", encoding="utf-8") as file:
            yield from file
    except FileNotFoundError as exc:
        raise InputError(f"no such file: {path}") from exc
    except (OSError, EOFError, UnicodeDecodeError) as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc


def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[float, ...]]:
    """Yield the named columns of a CSV file as numbers, a row each."""
    reader = csv.DictReader(_lines(path))
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{path} has no column {' and no '.join(missing)}")
    for row in reader:
        try:
            yield tuple(float(row[name]) for name in columns)
        except (TypeError, ValueError) as exc:
            raise InputError(f"{path}:{reader.line_num}: a cell is no number") from exc
