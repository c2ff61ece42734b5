"""The recipe of own answers: a model answers instructions, and what it can be taught on is kept.

The first step of teaching a model on its own text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.errors import InputError
from pasta_lm.journal import Row, read_lines, write_rows
from pasta_lm.learn.annotate.own_answers import IN_FLIGHT, OWN_SAMPLING, own_answers, usable_answers
from pasta_lm.models.annotated import read_ids
from pasta_lm.recipe import check_positive

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

ANSWERS, USABLE, COUNTS = "answers.jsonl", "usable.jsonl", "counts.json"
ROOM = 260
"""Tokens of a prompt for which the engine's memory has room, beside its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """The recipe of ``pasta answer``."""

    model: str
    """A folder, a GGUF file or a hub id."""
    instructions: str
    """JSON lines with ``id`` and ``instruction``, gzipped if named ``.gz``."""
    out: str
    """The folder of the answers."""
    exclude: str | None = None
    """A file with the ids of instructions that are held out."""
    limit: int | None = None
    """Only the first so many; None: all."""
    temperature: float = OWN_SAMPLING.temperature
    max_tokens: int = OWN_SAMPLING.max_tokens
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    in_flight: int = IN_FLIGHT
    """Answers that are decoded at the same time."""

    def __post_init__(self) -> None:
        """Validate values before a model is loaded."""
        check_positive("answer", self, "limit", "max_tokens", "in_flight")

    @property
    def pool_tokens(self) -> int:
        """Return the cache entries that all answers in flight can need."""
        return self.in_flight * (self.max_tokens + ROOM)


class Answered(NamedTuple):
    """What a run gave."""

    num_answers: int
    num_tokens: int
    counts: dict[str, int]
    """How many answers are usable, and how many are not for which reason."""


def read_instructions(path: Path) -> dict[str, Row]:
    """Return the rows of a file of instructions by their ids.

    Raises:
        InputError: it cannot be read, or a row has no id or no instruction.
    """
    found: dict[str, Row] = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
            name, text = row["id"], row["instruction"]
        except (ValueError, KeyError, TypeError) as exc:
            raise InputError(
                f"{path}:{number}: no instruction", hint='a line is {"id": ..., "instruction": ...}'
            ) from exc
        if not isinstance(name, str) or not isinstance(text, str) or name in found:
            raise InputError(f"{path}:{number}: its id is no text or occurs twice")
        found[name] = row
    return found


def asked(config: AnswerConfig) -> dict[str, str]:
    """Return the instructions that are answered, by id, in the order of the file.

    Raises:
        InputError: a file cannot be read, or nothing is left.
    """
    held_out = set(read_ids(Path(config.exclude))) if config.exclude else set()
    rows = read_instructions(Path(config.instructions))
    kept = {name: row["instruction"] for name, row in rows.items() if name not in held_out}
    if not kept:
        raise InputError(f"{config.instructions} has no instruction that is not held out")
    return dict(list(kept.items())[: config.limit])


def answer(
    config: AnswerConfig,
    load: Callable[[], Pasta],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Answered:
    """Answer what is lacking; write all answers, those that are usable, and the counts.

    The model is loaded only if an answer is lacking.

    Raises:
        InputError: a file cannot be read.
        UsageError: the folder was begun at another temperature.
        PastaError: the disk cannot be written.
    """
    out, texts = Path(config.out), asked(config)
    params = replace(
        OWN_SAMPLING, temperature=config.temperature, max_tokens=config.max_tokens, seed=config.seed
    )
    rows = own_answers(load, texts, params, out / ANSWERS, progress, in_flight=config.in_flight)
    usable, reasons = usable_answers(rows, texts)
    write_rows(
        out / USABLE,
        [{"id": one["id"], "prompt": texts[one["id"]], "answer": one["answer"]} for one in usable],
    )
    counts = {str(reason): count for reason, count in reasons.most_common()}
    found = Answered(len(rows), sum(one["num_tokens"] for one in rows), counts)
    write_rows(out / COUNTS, [found._asdict()])
    return found
