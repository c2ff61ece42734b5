"""Pairs of answers of which it is known which one is better: planted damage, stored judgements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from pasta_lab.evaluate.agreement import marks
from pasta_lab.judge.damage import Answer, long_enough, parts_of, plant, with_marker
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.judge.judge import Comparison, both_orders
from pasta_lm.measure.judgements import (
    Judgement,
    Reference,
    json_lines,
    named,
    read_judgements,
    read_reference,
)
from pasta_lm.models.annotated import Record, read_records
from pasta_lm.recipe import check_positive

TIE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageConfig:
    """The answers that are damaged; ``[damage]`` of a recipe."""

    answers: tuple[str, ...]
    """Files of annotated data, or of answers in AlpacaEval's form."""
    num_answers: int = 100
    """Drawn from all files; each gives a pair for every kind of damage."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.answers:
            raise UsageError("damage.answers names no file")
        check_positive("damage", self, "num_answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencesConfig:
    """Stored judgements that the judge is held against; ``[preferences]`` of a recipe."""

    judgements: str
    """AlpacaEval's, as ``pasta evaluate lc-winrate`` reads them."""
    reference: str
    """The answers of the reference, in the order in which the judgements count their rows."""
    outputs: tuple[str, ...]
    """The models' answers; a model is called as its file is, without ``outputs_``."""
    num_pairs: int = 200
    balanced: bool = False
    """Draw as many pairs that the model won as pairs that the reference won."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.outputs:
            raise UsageError("preferences.outputs names no file")
        check_positive("preferences", self, "num_pairs")


class Pair(NamedTuple):
    """Two answers to one prompt, and which of them is better."""

    id: str
    """Pairs of the same id are drawn together for intervals."""
    kind: str
    """The kind of damage, or the model."""
    prompt: str
    ours: str
    theirs: str
    ours_wins: float
    """From 0 to 1, which is certain; 0.5 is a tie."""

    @property
    def orders(self) -> list[Comparison]:
        """Return the two comparisons: ours first, then theirs first."""
        return both_orders(self.id, self.prompt, self.ours, self.theirs)


class DamagedPairs(NamedTuple):
    """Answers with their damaged copies; the undamaged one is ours."""

    pairs: list[Pair]
    num_answers: int
    num_left_out: int
    """Answers of the files with fewer than two parts that can be damaged."""


class StoredPairs(NamedTuple):
    """Pairs with stored judgements; the model's answer is ours."""

    pairs: list[Pair]
    num_left_out: int
    """Judgements without a verdict, or on answers of other lengths than those in the files."""
    judge: str | None
    """Who judged, as far as the rows say."""


def damaged_pairs(config: DamageConfig) -> DamagedPairs:
    """Return answers with their damaged copies, the same for the same files and seed.

    Raises:
        InputError: a file cannot be read, or no answer has two parts.
    """
    found = [one for file in config.answers for one in _answers(Path(file))]
    usable = [one for one in found if len(one.parts) > 1]
    if not usable:
        raise InputError(
            f"{', '.join(config.answers)}: no answer can be damaged",
            hint="an answer needs two blocks, list items or paragraphs of five words or more",
        )
    Random(config.seed).shuffle(usable)
    drawn = usable[: config.num_answers]
    pairs = [
        Pair(answer.id, str(kind), answer.prompt, answer.text, text, 1.0)
        for answer, kind, text in plant(drawn, config.seed)
    ]
    return DamagedPairs(pairs, len(drawn), len(found) - len(usable))


def _answers(path: Path) -> Iterator[Answer]:
    """Yield the answers of a file; as files may share ids, the file's name comes before each."""
    if _is_annotated(path):
        for record in read_records(path):
            text, parts = record.document.plain_text, _parts(record)
            yield Answer(f"{path.name}/{record.id}", record.prompt, text, parts)
        return
    for number, (prompt, text) in enumerate(read_reference(str(path)).outputs.items()):
        yield Answer(f"{path.name}/{number}", prompt, text, parts_of(text))


def _is_annotated(path: Path) -> bool:
    if path.suffix == ".json":
        return False
    _, row = next(json_lines(path), (0, {}))
    return "response" in row or "annotated" in row


def _parts(record: Record) -> tuple[tuple[int, int], ...]:
    """Return the blocks of an annotated answer, or what stands for them in one without two."""
    text = record.document.plain_text
    blocks = long_enough(text, [with_marker(text, one) for one in marks(record.document).blocks])
    return blocks if len(blocks) > 1 else parts_of(text)


def stored_pairs(config: PreferencesConfig) -> StoredPairs:
    """Return pairs of answers with a stored judgement, the same for the same files and seed.

    Raises:
        InputError: a file cannot be read, a model has no judgements, or none fits its answers.
    """
    models = read_judgements(Path(config.judgements))
    reference = read_reference(config.reference)
    pairs, rows = list[Pair](), list[Judgement]()
    for file in config.outputs:
        outputs = read_reference(file)
        if outputs.name not in models:
            raise InputError(
                f"{config.judgements} has no judgements on {outputs.name!r}",
                hint=f"it has some on {', '.join(models)}",
            )
        rows += models[outputs.name]
        pairs += _judged(models[outputs.name], reference, outputs)
    if not pairs:
        raise InputError(f"no judgement of {config.judgements} is on the answers of these files")
    drawn = _draw(pairs, config)
    return StoredPairs(drawn, len(rows) - len(pairs), named(rows)[0])


def _judged(rows: Iterable[Judgement], reference: Reference, outputs: Reference) -> Iterator[Pair]:
    """Yield the pairs whose answers have the lengths that were judged."""
    prompts = list(reference.outputs)
    for row in rows:
        prompt = prompts[row.row] if row.row < len(prompts) else ""
        theirs, ours = reference.outputs.get(prompt, ""), outputs.outputs.get(prompt, "")
        if row.preference is not None and (len(theirs), len(ours)) == (row.len_1, row.len_2):
            yield Pair(str(row.row), row.model, prompt, ours, theirs, row.preference)


def _draw(pairs: Sequence[Pair], config: PreferencesConfig) -> list[Pair]:
    drawn = list(pairs)
    Random(config.seed).shuffle(drawn)
    if not config.balanced:
        return drawn[: config.num_pairs]
    won = [one for one in drawn if one.ours_wins > TIE]
    lost = [one for one in drawn if one.ours_wins < TIE]
    num_each = min(config.num_pairs // 2, len(won), len(lost))
    if not num_each:
        raise InputError(
            f"{config.judgements}: {len(won)} pairs won and {len(lost)} lost cannot be balanced",
            hint="leave out preferences.balanced",
        )
    return won[:num_each] + lost[:num_each]
