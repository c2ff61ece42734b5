"""Pairs of answers with a known winner: planted damage, and stored judgements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from pasta_lab.evaluate.agreement import marks
from pasta_lab.judge.damage import Answer, long_enough, parts_of, plant, with_marker
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import read_objects
from pasta_lm.learn.judge.judge import Comparison, both_orders
from pasta_lm.measure.judgements import Judgement, Reference, read_judgements, read_reference
from pasta_lm.models.annotated import Record, read_records
from pasta_lm.recipe import check_positive

TIE = 0.5


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencesConfig:
    """Stored judgements to compare the judge with; ``[preferences]`` of a recipe."""

    judgements: str
    """AlpacaEval's, as ``pasta evaluate lc-winrate`` reads them."""
    reference: str
    """The answers of the reference, in the order in which the judgements count their rows."""
    outputs: tuple[str, ...]
    """The models' answers; the name of a model is that of its file, without ``outputs_``."""
    num_pairs: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.outputs:
            raise UsageError("preferences.outputs names no file")
        check_positive("preferences", self, "num_pairs")


class Pair(NamedTuple):
    """Two answers to one prompt, and the probability that ours is better; 0.5 is a tie."""

    id: str
    """Pairs of the same id are drawn together for intervals."""
    kind: str
    """The kind of damage, or the model."""
    prompt: str
    ours: str
    theirs: str
    ours_wins: float

    @property
    def orders(self) -> list[Comparison]:
        """Return the two comparisons: ours first, then theirs first."""
        return both_orders(self.id, self.prompt, self.ours, self.theirs)


class Pairs(NamedTuple):
    """Pairs, and the number of answers or judgements without a usable pair."""

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
        Pair(answer.id, str(kind), answer.prompt, answer.text, text, 1.0)
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
    for number, (prompt, text) in enumerate(read_reference(str(path)).outputs.items()):
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


def stored_pairs(config: PreferencesConfig) -> Pairs:
    """Return pairs with a stored judgement, the model's answer ours; the same for the same seed.

    Judgements without a verdict, or on answers of other lengths than those in the files, are left
    out.

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
    num_left_out = len(rows) - len(pairs)
    Random(config.seed).shuffle(pairs)
    return Pairs(pairs[: config.num_pairs], num_left_out)


def _judged(rows: Iterable[Judgement], reference: Reference, outputs: Reference) -> Iterator[Pair]:
    prompts: Sequence[str] = list(reference.outputs)
    for row in rows:
        prompt = prompts[row.row] if row.row < len(prompts) else ""
        theirs, ours = reference.outputs.get(prompt, ""), outputs.outputs.get(prompt, "")
        if row.preference is not None and (len(theirs), len(ours)) == (row.len_1, row.len_2):
            yield Pair(str(row.row), row.model, prompt, ours, theirs, row.preference)
