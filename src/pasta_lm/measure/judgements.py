"""Read AlpacaEval's data: instructions, stored judgements, difficulties."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.errors import InputError, MissingExtraError, cause
from pasta_lm.journal import Row, read_lines, read_objects

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
    for number, row in read_objects(path):
        try:
            verdict = judgement(row)
        except InputError as exc:
            raise InputError(f"{path}:{number}: {exc.message}") from exc
        if (verdict.model, verdict.row) in seen:
            raise InputError(f"{path}:{number}: {verdict.model} has row {verdict.row} twice")
        seen.add((verdict.model, verdict.row))
        models.setdefault(verdict.model, []).append(verdict)
    if not models:
        raise InputError(f"{path} has no judgements")
    return models


def judgement(row: Row) -> Judgement:
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
    judges = dict.fromkeys(verdict.judge for verdict in rows if verdict.judge)
    baselines = dict.fromkeys(verdict.baseline for verdict in rows if verdict.baseline)
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


SOURCES = ("dataset", "domain", "source")
"""Keys that name a row's data set; the first one counts."""
HUB_FILE = "alpaca_eval.json"
"""The file of a hub data set that is read if none is named."""
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.json)(?<!\.jsonl)(?<!\.gz)(:.+)?")


class Instruction(NamedTuple):
    """One instruction."""

    id: str
    """The file's, or the row."""
    row: int
    """Its place in the whole file, from 0, as in the table of difficulty."""
    dataset: str
    """For example ``koala``; empty: not known."""
    text: str


class Reference(NamedTuple):
    """Answers from a file that others are compared with."""

    name: str
    outputs: dict[str, str]
    """By the text of the instruction; files do not agree in their ids."""


def read_instructions(source: str, limit: int | None = None) -> list[Instruction]:
    """Read instructions.

    Args:
        source: A file of JSON lines (gzipped if named ``.gz``) or of one JSON array, its rows with
            ``instruction`` or with ``messages`` of one user turn, and optionally ``id`` and
            ``dataset``; or a data set of the hub, ``owner/name`` or ``owner/name:file.json``.
        limit: The first so many; None: all.

    Raises:
        InputError: nothing can be read there, a row has no instruction, or one occurs twice.
    """
    instructions: list[Instruction] = []
    for row, (place, fields) in enumerate(_rows(source)):
        text = fields.get("instruction") or _only_turn(fields.get("messages"))
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{place}: no 'instruction'")
        name = fields.get("id")
        dataset = str(next((fields[key] for key in SOURCES if fields.get(key)), ""))
        instructions.append(Instruction(str(row if name is None else name), row, dataset, text))
    if not instructions:
        raise InputError(f"{source} has no instructions")
    seen: set[str] = set()
    for item in instructions:
        if item.id in seen:
            raise InputError(f"{source}: id {item.id} occurs twice")
        seen.add(item.id)
    return instructions[:limit]


def read_reference(source: str) -> Reference:
    """Read reference answers in AlpacaEval's form.

    Their name is the rows' ``generator``, or else the file's name.

    Raises:
        InputError: nothing can be read there, or a row lacks ``instruction`` or ``output``.
    """
    outputs: dict[str, str] = {}
    names: dict[str, None] = {}
    for place, fields in _rows(source):
        texts = [fields.get(key) for key in ("instruction", "output")]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{place}: no 'instruction' with an 'output'")
        outputs[str(texts[0])] = str(texts[1])
        names[str(fields.get("generator") or _stem(source))] = None
    if len(names) != 1:
        raise InputError(f"{source} has answers of {len(names)} generators; one is needed")
    return Reference(next(iter(names)), outputs)


def alpaca_eval_rows(
    instructions: Sequence[Instruction], outputs: Sequence[str], generator: str
) -> list[dict[str, str]]:
    """Return answers in the form that AlpacaEval reads."""
    return [
        {
            "dataset": item.dataset,
            "instruction": item.text,
            "output": text,
            "generator": generator,
        }
        for item, text in zip(instructions, outputs, strict=True)
    ]


def _only_turn(messages: Any) -> Any:
    if not isinstance(messages, list) or len(messages) != 1 or not isinstance(messages[0], dict):
        return None
    return messages[0].get("content") if messages[0].get("role") == "user" else None


def _stem(source: str) -> str:
    name = Path(source).name
    for end in (".gz", ".jsonl", ".json"):
        name = name.removesuffix(end)
    return name.removeprefix("outputs_")


def _rows(source: str) -> list[tuple[str, Row]]:
    """Return the rows of a file, each with its place for error messages."""
    path = Path(source)
    if not path.exists() and _HUB_NAME.fullmatch(source):
        path = _from_hub(source)
    if path.suffix == ".json":
        return [(f"{source}[{n}]", row) for n, row in enumerate(_array(path))]
    return [(f"{source}:{number}", row) for number, row in read_objects(path)]


def _array(path: Path) -> list[Row]:
    try:
        rows = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as exc:
        raise InputError(f"no such file: {path}") from exc
    except (OSError, ValueError) as exc:
        raise InputError(f"{path} cannot be read: {cause(exc)}") from exc
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is no array of objects")
    return rows


def _from_hub(source: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ModuleNotFoundError as exc:
        raise MissingExtraError(f"reading {source} from the hub", "evaluate") from exc
    name, _, file = source.partition(":")
    try:
        return Path(hf_hub_download(name, file or HUB_FILE, repo_type="dataset"))
    except Exception as exc:  # the hub has many ways to say no
        reason = str(exc).strip().partition("\n")[0]
        raise InputError(
            f"{source}: no such file, and the hub gives no {file or HUB_FILE} of it: {reason}",
            hint="name a file, or owner/name:file.json",
        ) from exc
