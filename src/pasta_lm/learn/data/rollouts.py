"""Rollouts: N sampled answers to each prompt, and the baseline's sequential answer.

A journal holds one row per prompt. Seeds come from the recipe's seed, the round and the prompt's
id, and the batches are the same after a restart, so a run that was killed ends with the same
journal as one that was not.

Source: PASTA, section 4 (N = 10 answers per prompt at temperature 1).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.journal import Journal, Row
from pasta_lm.strategies import sequential

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

BATCH_SIZE = 32
"""Prompts that the engine decodes together, and that are written to the journal together."""


class PromptWithReference(NamedTuple):
    """One prompt of a round, and the answer in plain text that came with it."""

    id: str
    prompt: str
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How answers are sampled; every row of a journal holds it."""

    model: str  # Folder or hub id of the model that is sampled, or the round that trained it.
    baseline: str  # Folder or hub id of the baseline.
    strategy: str = "pasta"
    round: int = 1
    seed: int = 0
    samples: int = 10
    temperature: float = 1.0
    max_tokens: int = 1024

    def params(self, prompt_id: str) -> SamplingParams:
        seed = seed_of(self.seed, self.round, prompt_id)
        return SamplingParams(
            n=self.samples, temperature=self.temperature, max_tokens=self.max_tokens, seed=seed
        )


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt with the baseline's answer and the samples."""

    id: str
    prompt: str
    baseline: AnswerRecord
    samples: tuple[AnswerRecord, ...]


Progress = Callable[[int, int, float | None], None]
"""Receives the number of finished prompts, of all prompts, and the seconds left, if known."""


def seed_of(seed: int, round: int, prompt_id: str) -> int:
    """Return the seed of one prompt's samples, below 2**56."""
    key = f"{seed}/{round}/{prompt_id}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big")


def roll_out(
    path: Path,
    prompts: Sequence[PromptWithReference],
    sampling: Sampling,
    load: Callable[[], tuple[Pasta, Pasta]],
    progress: Progress,
) -> list[Rollout]:
    """Return the rollouts of some prompts; those that the journal lacks are sampled first.

    ``load`` gives the model that is sampled and the baseline; it is not called if the journal is
    complete, else ``progress`` before the first batch and after each.
    """
    journal = Journal(path)
    _check_rows(journal, prompts, sampling)
    if any(prompt.id not in journal.rows for prompt in prompts):
        models, start, num_before = load(), time.monotonic(), len(journal.rows)
        progress(num_before, len(prompts), None)
        # After a restart a batch is decoded in whole even if only some of its rows are missing:
        # rounding depends on which prompts share a forward pass.
        for first in range(0, len(prompts), BATCH_SIZE):
            batch = prompts[first : first + BATCH_SIZE]
            if any(prompt.id not in journal.rows for prompt in batch):
                rows = _answer(batch, sampling, *models)
                journal.append([row for row in rows if row["id"] not in journal.rows])
                num_done = len(journal.rows)
                pace = (time.monotonic() - start) / (num_done - num_before)
                progress(num_done, len(prompts), pace * (len(prompts) - num_done))
    return [_rollout(path, journal.rows[prompt.id]) for prompt in prompts]


def _answer(
    batch: Sequence[PromptWithReference], sampling: Sampling, model: Pasta, baseline: Pasta
) -> list[Row]:
    strategy, greedy = sampling.strategy, SamplingParams(max_tokens=sampling.max_tokens)
    samples = model.engine.generate(
        [model.request(each.prompt, sampling.params(each.id), strategy=strategy) for each in batch]
    )
    plain = baseline.engine.generate(
        [baseline.request(each.prompt, greedy, strategy=sequential.NAME) for each in batch]
    )
    return [
        {
            "id": prompt.id,
            "prompt": prompt.prompt,
            "sampled": asdict(sampling),
            "baseline": AnswerRecord.of(answer).to_row(),
            "samples": [AnswerRecord.of(each).to_row() for each in answers],
        }
        for prompt, answers, (answer,) in zip(batch, samples, plain, strict=True)
    ]


def _check_rows(
    journal: Journal, prompts: Sequence[PromptWithReference], sampling: Sampling
) -> None:
    texts, wanted = {prompt.id: prompt.prompt for prompt in prompts}, asdict(sampling)
    hint = "the recipe or its prompts have changed: name another folder under train.out"
    for row in journal.rows.values():
        if texts.get(row["id"]) != row.get("prompt"):
            strange = f"{journal.path} has prompt {row['id']}, which this recipe does not draw"
            raise InputError(strange, hint=hint)
        sampled = row.get("sampled")
        known = sampled.items() if isinstance(sampled, Mapping) else ()
        other = [key for key, value in wanted.items() if (key, value) not in known]
        if other:
            raise InputError(
                f"{journal.path} was sampled with another {', '.join(other)}", hint=hint
            )


def _rollout(path: Path, row: Row) -> Rollout:
    try:
        samples = tuple(AnswerRecord.from_row(sample) for sample in row["samples"])
        return Rollout(row["id"], row["prompt"], AnswerRecord.from_row(row["baseline"]), samples)
    except (KeyError, TypeError, AttributeError, InputError) as exc:
        raise InputError(f"{path}: row {row['id']} is no rollout: {exc}") from exc
