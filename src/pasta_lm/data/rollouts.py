"""Rollouts: N answers to each prompt, drawn by chance from one model, and the baseline's answer.

A journal holds them, a row for each prompt. Seeds come from the recipe's seed, the round and the
prompt's id, and prompts go to the engine in the same company after a stop, so that a run that was
killed ends with the same journal as one that was not.

Source: PASTA, section 4 (N = 10 answers per prompt at temperature 1).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.journal import Journal, Row, read_rows
from pasta_lm.strategies import sequential

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

SHARED = ("strategy", "round", "samples", "temperature", "max_tokens")
"""What recipes that share their rollouts must agree on."""

BATCH = 32
"""Prompts that are handed to the engine together, and written down together."""


class Question(NamedTuple):
    """One prompt to be answered."""

    id: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How answers are drawn; every row of a journal says it."""

    model: str
    """Folder or hub id of who answers, or the round that it came out of."""
    baseline: str
    """Folder or hub id of whose sequential answer stands beside them."""
    strategy: str = "pasta"
    round: int = 1
    seed: int = 0
    samples: int = 10
    temperature: float = 1.0
    max_tokens: int = 1024

    def params(self, prompt_id: str) -> SamplingParams:
        """Return how the answers to one prompt are drawn."""
        return SamplingParams(
            n=self.samples,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=seed_of(self.seed, self.round, prompt_id),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer, and what scores are made of.

    Attributes:
        program: The written form; the annotator form where blocks promise no length (APAR).
        text: What a reader gets.
        finish_reason: ``stop``, or the limit that cut it.
        critical_path: Tokens decoded one after another, tags counted.
        num_content_tokens: Tokens of all threads, tags and topics excluded.
        num_illegal: Tags where the grammar has none.
        trace: What happened when, packed (``Trace.from_packed`` reads it); its clocks ran among
            others. None: nobody kept it.
    """

    program: str
    text: str
    finish_reason: str
    critical_path: int
    num_content_tokens: int
    num_illegal: int
    trace: str | None = None

    @classmethod
    def of(cls, answer: Answer) -> Sample:
        """Return what a rollout keeps of an answer."""
        trace = answer.trace
        return cls(
            program=answer.program,
            text=answer.text,
            finish_reason=answer.finish_reason,
            critical_path=trace.critical_path,
            num_content_tokens=trace.num_content_tokens,
            num_illegal=trace.num_illegal,
            trace=trace.packed(),
        )


@dataclass(frozen=True, slots=True)
class Rollout:
    """One prompt with the baseline's answer and the samples."""

    id: str
    prompt: str
    baseline: Sample
    samples: tuple[Sample, ...]


class Answering(NamedTuple):
    """The two models that answer."""

    model: Pasta
    baseline: Pasta


Progress = Callable[[int, int, float | None], None]
"""Told how many prompts are done, of how many, and in how many seconds the rest, where known."""


def seed_of(seed: int, round: int, prompt_id: str) -> int:
    """Return the seed of one prompt's samples, below 2**56; it depends on nothing else."""
    key = f"{seed}/{round}/{prompt_id}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big")


def roll_out(
    path: Path,
    questions: Sequence[Question],
    sampling: Sampling,
    load: Callable[[], Answering],
    progress: Progress,
) -> list[Rollout]:
    """Return the rollouts of some prompts: those of a journal, and what it lacks.

    Args:
        path: The journal.
        questions: The prompts; ids must differ.
        sampling: How answers are drawn.
        load: Loads the models; it is not called where the journal is complete.
        progress: Told before the first batch and after each; not where the journal is complete.

    Raises:
        InputError: the journal is of other prompts, or its answers were drawn otherwise.
    """
    journal = Journal(path)
    _check_same(journal, questions, sampling)
    if any(question.id not in journal.rows for question in questions):
        answering, start, num_before = load(), time.monotonic(), len(journal.rows)
        progress(num_before, len(questions), None)
        for some in _batches(questions):
            if any(question.id not in journal.rows for question in some):
                rows = _answer(some, sampling, answering)
                journal.append([row for row in rows if row["id"] not in journal.rows])
                num_done = len(journal.rows)
                pace = (time.monotonic() - start) / (num_done - num_before)
                progress(num_done, len(questions), pace * (len(questions) - num_done))
    return [_rollout(path, journal.rows[question.id]) for question in questions]


def read_rollouts(path: Path, sampling: Sampling | None = None) -> list[Rollout]:
    """Read a journal of another run; its last line must be whole.

    Args:
        path: The journal.
        sampling: How its answers must have been drawn; by whom and from which seed is not held
            against them. None: in any way.

    Raises:
        InputError: it cannot be read, a row is no rollout, or it was sampled otherwise.
    """
    rows = read_rows(path)
    if sampling is not None:
        for row in rows:
            _check_sampled(path, row, {key: getattr(sampling, key) for key in SHARED})
    return [_rollout(path, row) for row in rows]


def _batches(questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
    """Yield prompts in batches whose borders depend on the list alone.

    After a stop a batch is answered in whole even if only some rows of it are missing: rounding
    depends on who is in the same forward pass.
    """
    for first in range(0, len(questions), BATCH):
        yield questions[first : first + BATCH]


def _answer(some: Sequence[Question], sampling: Sampling, answering: Answering) -> list[Row]:
    samples = answering.model.engine.generate(_requests(some, sampling, answering.model))
    greedy = SamplingParams(max_tokens=sampling.max_tokens)
    asked = [
        answering.baseline.request(question.prompt, greedy, strategy=sequential.NAME)
        for question in some
    ]
    plain = answering.baseline.engine.generate(asked)
    return [
        {
            "id": question.id,
            "prompt": question.prompt,
            "sampled": asdict(sampling),
            "baseline": asdict(Sample.of(baseline)),
            "samples": [asdict(Sample.of(answer)) for answer in answers],
        }
        for question, answers, (baseline,) in zip(some, samples, plain, strict=True)
    ]


def _requests(some: Sequence[Question], sampling: Sampling, model: Pasta) -> list[Request]:
    return [
        model.request(question.prompt, sampling.params(question.id), strategy=sampling.strategy)
        for question in some
    ]


def _check_same(journal: Journal, questions: Sequence[Question], sampling: Sampling) -> None:
    """Refuse to go on with what was begun otherwise."""
    prompts = dict(questions)
    wanted = asdict(sampling)
    for row in journal.rows.values():
        if prompts.get(row["id"]) != row.get("prompt"):
            raise InputError(
                f"{journal.path} has prompt {row['id']}, which is not among those to be sampled",
                hint="the recipe or the tasks have changed: name another folder under train.out",
            )
        _check_sampled(journal.path, row, wanted)


def _check_sampled(path: Path, row: Row, wanted: Mapping[str, Any]) -> None:
    """Refuse a row whose answers were drawn otherwise."""
    found = row.get("sampled")
    drawn = found if isinstance(found, Mapping) else {}
    other = [key for key in wanted if key not in drawn or drawn[key] != wanted[key]]
    if other:
        raise InputError(
            f"{path} was sampled with another {', '.join(other)}",
            hint="the recipe has changed: name another folder under train.out",
        )


def _rollout(path: Path, row: Row) -> Rollout:
    try:
        samples = tuple(Sample(**sample) for sample in row["samples"])
        return Rollout(row["id"], row["prompt"], Sample(**row["baseline"]), samples)
    except (KeyError, TypeError) as exc:
        raise InputError(f"{path}: row {row['id']} is no rollout: {exc}") from exc
