"""Read instructions and reference answers, from a file or from the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.errors import InputError, MissingExtraError
from pasta_lm.evaluate.judgements import json_lines

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
    found: list[Instruction] = []
    for row, (place, fields) in enumerate(_rows(source)):
        text = fields.get("instruction") or _only_turn(fields.get("messages"))
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{place}: no 'instruction'")
        name = fields.get("id")
        dataset = str(next((fields[key] for key in SOURCES if fields.get(key)), ""))
        found.append(Instruction(str(row if name is None else name), row, dataset, text))
    if not found:
        raise InputError(f"{source} has no instructions")
    seen: set[str] = set()
    for one in found:
        if one.id in seen:
            raise InputError(f"{source}: id {one.id} occurs twice")
        seen.add(one.id)
    return found[:limit]


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
        {"dataset": one.dataset, "instruction": one.text, "output": text, "generator": generator}
        for one, text in zip(instructions, outputs, strict=True)
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


def _rows(source: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of a file, each with its place for error messages."""
    path = Path(source)
    if not path.exists() and _HUB_NAME.fullmatch(source):
        path = _from_hub(source)
    if path.suffix == ".json":
        return [(f"{source}[{n}]", row) for n, row in enumerate(_array(path))]
    return [(f"{source}:{number}", row) for number, row in json_lines(path)]


def _array(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as exc:
        raise InputError(f"no such file: {path}") from exc
    except (OSError, ValueError) as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc
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
