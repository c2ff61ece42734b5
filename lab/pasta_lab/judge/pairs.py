"""Pairs of answers with a known winner: answers and their damaged copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from pasta_lab.evaluate.agreement import marks
from pasta_lab.judge.damage import Answer, long_enough, parts_of, plant, with_marker
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import read_objects
from pasta_lm.learn.data.annotated import Record, read_records
from pasta_lm.learn.judge import Comparison, both_orders
from pasta_lm.measure.prompt_sets import read_reference
from pasta_lm.recipe import check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageConfig:
    """The answers to damage; ``[damage]`` of a recipe."""

    answers: tuple[str, ...]
    """Files of annotated data, or of answers in AlpacaEval's form."""
    num_answers: int = 100
    """Drawn from all files; each gives a pair for every kind of damage."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.answers:
            raise UsageError("damage.answers names no file")
        check_positive("damage", self, "num_answers")


class Pair(NamedTuple):
    """An answer to a prompt, ours, and a damaged copy, theirs."""

    id: str
    kind: str
    prompt: str
    ours: str
    theirs: str

    @property
    def orders(self) -> list[Comparison]:
        """Return the two comparisons: ours first, then theirs first."""
        return both_orders(self.id, self.prompt, self.ours, self.theirs)


class Pairs(NamedTuple):
    """Pairs, and the number of answers with fewer than two parts."""

    pairs: list[Pair]
    num_left_out: int


def damaged_pairs(config: DamageConfig) -> Pairs:
    """Return answers, ours, with their damaged copies; the same for the same files and seed.

    Raises:
        InputError: a file cannot be read, or no answer has two parts.
    """
    answers = [answer for file in config.answers for answer in _answers(Path(file))]
    usable = [answer for answer in answers if len(answer.parts) > 1]
    if not usable:
        raise InputError(
            f"{', '.join(config.answers)}: no answer can be damaged",
            hint="an answer needs two blocks, list items or paragraphs of five words or more",
        )
    Random(config.seed).shuffle(usable)
    pairs = [
        Pair(answer.id, str(kind), answer.prompt, answer.text, text)
        for answer, kind, text in plant(usable[: config.num_answers], config.seed)
    ]
    return Pairs(pairs, len(answers) - len(usable))


def _answers(path: Path) -> Iterator[Answer]:
    """Yield the answers of a file; as files may share ids, the file's name comes before each."""
    if _is_annotated(path):
        for record in read_records(path):
            text, parts = record.document.plain_text, _parts(record)
            yield Answer(f"{path.name}/{record.id}", record.prompt, text, parts)
        return
    for number, (prompt, text) in enumerate(read_reference(str(path))[1].items()):
        yield Answer(f"{path.name}/{number}", prompt, text, parts_of(text))


def _is_annotated(path: Path) -> bool:
    if path.suffix == ".json":
        return False
    _, row = next(read_objects(path), (0, {}))
    return "response" in row or "annotated" in row


def _parts(record: Record) -> tuple[tuple[int, int], ...]:
    """Return the blocks of an annotated answer; of fewer than two, the parts of its layout."""
    text = record.document.plain_text
    blocks = long_enough(text, [with_marker(text, span) for span in marks(record.document).blocks])
    return blocks if len(blocks) > 1 else parts_of(text)
