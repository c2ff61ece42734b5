"""Preference data on disk: one line of JSON per prompt with two answers and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pasta_lm.errors import InputError, PastaError
from pasta_lm.journal import Row, read_rows, write_rows
from pasta_lm.language.document import Document, parse_program

_TEXTS = ("prompt", "chosen", "rejected")
_SCORES = ("score_chosen", "score_rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two answers to one prompt.

    Attributes:
        id: The prompt's.
        prompt: The user message.
        chosen: The better answer, with its promised lengths.
        rejected: The worse answer.
        score_chosen: The better answer's score.
        score_rejected: The worse answer's score.
        parts: The terms of the scores, by their keys in the file.
    """

    id: str
    prompt: str
    chosen: Document
    rejected: Document
    score_chosen: float
    score_rejected: float
    parts: Mapping[str, float] = field(default_factory=dict)


def write_pairs(path: Path, pairs: Sequence[PreferencePair]) -> None:
    """Write preference data; the file is complete or absent."""
    write_rows(path, [_row(pair) for pair in pairs])


def read_pairs(path: Path) -> list[PreferencePair]:
    """Read preference data; answers are in written form, or in annotator form without lengths.

    Raises:
        InputError: the file cannot be read, or a row is not a pair; it is named.
    """
    return [_pair(path, row) for row in read_rows(path)]


def _row(pair: PreferencePair) -> Row:
    return {
        "id": pair.id,
        "prompt": pair.prompt,
        "chosen": pair.chosen.program,
        "rejected": pair.rejected.program,
        "score_chosen": pair.score_chosen,
        "score_rejected": pair.score_rejected,
        **pair.parts,
    }


def _pair(path: Path, row: Row) -> PreferencePair:
    numbers = {key: float(value) for key, value in row.items() if type(value) in (int, float)}
    missing = [key for key in _TEXTS if not isinstance(row.get(key), str) or not row[key]]
    missing += [key for key in _SCORES if key not in numbers]
    if missing:
        raise InputError(f"{path}: row {row['id']} has no {' and no '.join(missing)}")
    try:
        chosen, rejected = parse_program(row["chosen"]), parse_program(row["rejected"])
    except PastaError as exc:
        raise InputError(f"{path}: row {row['id']}: {exc.message}", hint=exc.hint) from exc
    return PreferencePair(
        id=row["id"],
        prompt=row["prompt"],
        chosen=chosen,
        rejected=rejected,
        score_chosen=numbers.pop("score_chosen"),
        score_rejected=numbers.pop("score_rejected"),
        parts=numbers,
    )
