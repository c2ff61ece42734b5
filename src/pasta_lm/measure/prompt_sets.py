"""The sets of prompts on which a taught model and its sequential baseline are compared.

Four sets: AlpacaEval's and IFEval's, which are read from files and never stored, and the held-out
rows of the project's own corpora.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pasta_lm.errors import InputError, cause
from pasta_lm.journal import read_objects
from pasta_lm.learn.judge.answer_text import items_asked
from pasta_lm.measure import ifeval
from pasta_lm.measure.judgements import read_instructions
from pasta_lm.models.annotated import read_ids, read_records

ALPACA, IFEVAL, STARTER, INSTRUCTIONS = SETS = ("alpaca", "ifeval", "starter", "instructions")
OWN = (STARTER, INSTRUCTIONS)
"""Sets whose texts are the project's own, so that they may be shown."""
Parts = Literal["one", "several", "between"]
PARTS: tuple[str, ...] = get_args(Parts)
HELD_OUT = "held_out.txt"


class SetPrompt(NamedTuple):
    """One prompt of a set."""

    id: str
    """SET/ID."""
    group: str
    """The set."""
    text: str
    parts: str | None = None
    """One thing is asked for, several independent parts, or neither clearly; None: not labelled."""
    checked: Mapping[str, Any] | None = None
    """The row of IFEval, whose checkers need it."""

    @property
    def items(self) -> int | None:
        """Return how many items it asks for, if it says so."""
        return items_asked(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFiles:
    """Where the sets are; a set without a file is left out. ``[sets]`` of a recipe."""

    alpaca: str | None = None
    """AlpacaEval's instructions: JSON lines with 'id' and 'instruction'."""
    alpaca_parts: str | None = None
    """Labels of AlpacaEval's prompts by id, written before any model answered; None: none."""
    ifeval: str | None = None
    """IFEval's prompts: JSON lines with 'key', 'prompt', 'instruction_id_list', 'kwargs'."""
    starter: str | None = None
    """The folder of the starter, such as corpora/starter; its held-out rows."""
    instructions: str | None = None
    """The folder of our own instructions, such as corpora/instructions; the held-out rows."""


def read_sets(files: SetFiles, limit: int | None = None) -> list[SetPrompt]:
    """Read all sets, each in an order drawn by the hash of its ids.

    So the first prompts of a set are a sample of it.

    Args:
        files: Where they are.
        limit: The first so many of each set; None: all.

    Raises:
        InputError: a file cannot be read, or labels belong to no prompt.
    """
    result: list[SetPrompt] = []
    if files.alpaca is not None:
        result += _drawn(_alpaca(files.alpaca, files.alpaca_parts))[:limit]
    if files.ifeval is not None:
        rows = ifeval.read_prompts(Path(files.ifeval))
        each = [
            SetPrompt(f"{IFEVAL}/{k}", IFEVAL, row["prompt"], None, row) for k, row in rows.items()
        ]
        result += _drawn(each)[:limit]
    if files.starter is not None:
        result += _drawn(_starter(Path(files.starter)))[:limit]
    if files.instructions is not None:
        result += _drawn(_instructions(Path(files.instructions)))[:limit]
    if not result:
        raise InputError(
            "no set of prompts is named",
            hint="a recipe names them: runs/recipes/instructions.toml is one",
        )
    return result


def _drawn(prompts: Sequence[SetPrompt]) -> list[SetPrompt]:
    return sorted(prompts, key=lambda item: hashlib.sha256(item.id.encode()).digest())


def _alpaca(source: str, labels: str | None) -> list[SetPrompt]:
    parts = read_labels(Path(labels)) if labels is not None else {}
    result = [
        SetPrompt(f"{ALPACA}/{item.id}", ALPACA, item.text, parts.get(item.id))
        for item in read_instructions(source)
    ]
    lacking = [item.id.partition("/")[2] for item in result if parts and item.parts is None]
    if lacking:
        raise InputError(f"{labels} has no label for {len(lacking)} prompts, such as {lacking[0]}")
    return result


def read_labels(path: Path) -> dict[str, str]:
    """Read which parts prompts ask for, by id.

    Raises:
        InputError: it cannot be read, or a label is none of one, several and between.
    """
    try:
        labels = json.loads(path.read_text("utf-8-sig"))["parts"]
        wrong = [name for name, label in labels.items() if label not in PARTS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InputError(f"{path} has no labels: {cause(exc)}") from exc
    if wrong:
        raise InputError(f"{path}: {wrong[0]} is {labels[wrong[0]]!r}, none of {', '.join(PARTS)}")
    return dict(labels)


def _starter(folder: Path) -> list[SetPrompt]:
    """Return the held-out rows; their annotations say which parts they ask for."""
    first, second = (
        {record.id: record for record in read_records(folder / name)}
        for name in ("starter.jsonl", "second_pass.jsonl")
    )
    result = []
    for name in read_ids(folder / HELD_OUT):
        forks = {bool(side[name].document.blocks) for side in (first, second)}
        parts = "between" if len(forks) > 1 else "several" if forks == {True} else "one"
        result.append(SetPrompt(f"{STARTER}/{name}", STARTER, first[name].prompt, parts))
    return result


def _instructions(folder: Path) -> list[SetPrompt]:
    rows = {row["id"]: row for _, row in read_objects(folder / "instructions.jsonl")}
    return [
        SetPrompt(f"{INSTRUCTIONS}/{name}", INSTRUCTIONS, row["instruction"], row.get("parts"))
        for name in read_ids(folder / HELD_OUT)
        if (row := rows[name])
    ]
