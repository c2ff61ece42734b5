"""Preference data: sampled answers with the baseline's, their scores, and the pairs of a file.

A journal of rollouts holds one row per prompt. Seeds come from the recipe's seed, the round and the
prompt's id, and the batches are the same after a restart, so a run that was killed ends with the
same journal as one that was not.

Source: PASTA, section 4: N = 10 answers per prompt at temperature 1; score = theoretical speedup +
lambda * quality; one pair of a prompt.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import isinf
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.language.document import Document, parse_program
from pasta_lm.learn import data
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.learn.judge import Comparison, Judge, both_orders, smoothed_ratio
from pasta_lm.recipe import check_positive
from pasta_lm.strategies import SEQUENTIAL, Prompt
from pasta_lm.strategies.model import Pasta

BATCH_SIZE = 32
"""Prompts that the engine decodes together, and that are written to the journal together."""


class PromptWithReference(NamedTuple):
    """One prompt of a round, and the answer in plain text that came with it."""

    id: str
    prompt: str
    reference: str = ""
    turns: tuple[data.Turn, ...] = ()  # The messages before it.

    @property
    def content(self) -> Prompt:
        return data.messages_with(self.turns, self.prompt) if self.turns else self.prompt


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

    def params(self, prompt_id: str, penalty: float) -> SamplingParams:
        seed = seed_of(self.seed, self.round, prompt_id)
        return SamplingParams(
            n=self.samples, temperature=self.temperature, max_tokens=self.max_tokens, seed=seed,
            repetition_penalty=penalty,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt with the baseline's answer and the samples."""

    id: str
    prompt: str
    baseline: AnswerRecord
    samples: tuple[AnswerRecord, ...]
    turns: tuple[data.Turn, ...] = ()  # The messages before the prompt.

    @property
    def question(self) -> str:
        return data.joined(data.messages_with(self.turns, self.prompt))


def seed_of(seed: int, round: int, prompt_id: str) -> int:
    key = f"{seed}/{round}/{prompt_id}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big")


def roll_out(
    path: Path, prompts: Sequence[PromptWithReference], sampling: Sampling,
    load: Callable[[], tuple[Pasta, Pasta]], progress: Callable[[int, int, float | None], None],
) -> list[Rollout]:  # fmt: skip
    """Return the rollouts of some prompts; those that the journal lacks are sampled first.

    ``load`` gives the model that is sampled and the baseline; it is not called if the journal is
    complete, else ``progress`` before the first batch and after each, with the number of finished
    prompts, of all prompts, and the seconds left, if known.
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
    """Sample the model and decode the baseline greedily, each with its own repetition penalty."""
    drawn = [sampling.params(prompt.id, model.own_penalty) for prompt in batch]
    pairs, strategy = zip(batch, drawn, strict=True), sampling.strategy
    requests = [model.request(p.content, params, strategy=strategy) for p, params in pairs]
    samples = model.engine.generate(requests)
    greedy = SamplingParams(max_tokens=sampling.max_tokens, repetition_penalty=baseline.own_penalty)
    requests = [baseline.request(p.content, greedy, strategy=SEQUENTIAL) for p in batch]
    plain = baseline.engine.generate(requests)
    return [
        {
            "id": prompt.id,
            "prompt": prompt.prompt,
            **({"turns": prompt.turns} if prompt.turns else {}),
            "sampled": asdict(sampling),
            "baseline": AnswerRecord.of(answer).to_row(),
            "samples": [AnswerRecord.of(sample).to_row() for sample in answers],
        }
        for prompt, answers, (answer,) in zip(batch, samples, plain, strict=True)
    ]


def _check_rows(
    journal: Journal, prompts: Sequence[PromptWithReference], sampling: Sampling
) -> None:
    texts = {prompt.id: (prompt.prompt, prompt.turns) for prompt in prompts}
    settings = asdict(sampling)
    hint = "the recipe or its prompts have changed: name another folder under train.out"
    for row in journal.rows.values():
        if texts.get(row["id"]) != (row.get("prompt"), tuple(row.get("turns", ()))):
            strange = f"{journal.path} has prompt {row['id']}, which this recipe does not draw"
            raise InputError(strange, hint=hint)
        sampled = row.get("sampled")
        known = sampled.items() if isinstance(sampled, Mapping) else ()
        other = [key for key, value in settings.items() if (key, value) not in known]
        if other:
            reason = f"{journal.path} was sampled with another {', '.join(other)}"
            raise InputError(reason, hint=hint)


def _rollout(path: Path, row: Row) -> Rollout:
    try:
        samples = tuple(AnswerRecord.from_row(sample) for sample in row["samples"])
        texts, turns = (row["id"], row["prompt"]), tuple(row.get("turns", ()))
        return Rollout(*texts, AnswerRecord.from_row(row["baseline"]), samples, turns)
    except (KeyError, TypeError, AttributeError, InputError) as exc:
        raise InputError(f"{path}: row {row['id']} is no rollout: {exc}") from exc


TIE = 1e-9  # Scores that differ by less are equal.
_TEXTS = ("chosen", "rejected")
_SCORES = ("score_chosen", "score_rejected")


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt; ``parts`` are the terms of the scores, by their keys in a file."""

    id: str
    prompt: str
    chosen: Document
    rejected: Document
    score_chosen: float
    score_rejected: float
    parts: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[data.Turn, ...] = ()  # The messages before the prompt.


def write_pairs(path: Path, pairs: Sequence[PreferencePair]) -> None:
    rows = []
    for pair in pairs:
        texts = {"chosen": pair.chosen.program, "rejected": pair.rejected.program}
        scores = {key: getattr(pair, key) for key in _SCORES}
        messages = data.messages_with(pair.turns, pair.prompt)
        prompt = {"messages": messages} if pair.turns else {"prompt": pair.prompt}
        rows.append({"id": pair.id, **prompt, **texts, **scores, **pair.parts})
    write_rows(path, rows)


def read_pairs(path: Path) -> list[PreferencePair]:
    """Read pairs; answers are in written form, or in annotator form without lengths."""
    return [_read_pair(path, row) for row in read_rows(path)]


def _read_pair(path: Path, row: Row) -> PreferencePair:
    numbers = {key: float(value) for key, value in row.items() if type(value) in (int, float)}
    missing = [] if data.prompt_key(row) else ["prompt"]
    missing += [key for key in _TEXTS if not isinstance(row.get(key), str) or not row[key]]
    missing += [key for key in _SCORES if key not in numbers]
    if missing:
        raise InputError(f"{path}: row {row['id']} has no {' and no '.join(missing)}")
    try:
        turns = data.messages_of(row)
        data.check_read(row, turns, dict.fromkeys(_TEXTS))
        if turns[-1]["role"] != "user":
            raise InputError("its last message is not the user's")
        chosen, rejected = parse_program(row["chosen"]), parse_program(row["rejected"])
    except PastaError as exc:
        raise InputError(f"{path}: row {row['id']}: {exc.message}", hint=exc.hint) from exc
    best, worst = (numbers.pop(key) for key in _SCORES)
    texts = row["id"], turns[-1]["content"]
    return PreferencePair(*texts, chosen, rejected, best, worst, numbers, tuple(turns[:-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig:
    """How samples are scored; ``[score]`` of a recipe."""

    quality_weight: float  # The paper's lambda; ``inf`` is quality alone.
    smoothing: float = 1.0  # Added to the wins and to the losses of a sample.

    def __post_init__(self) -> None:
        if not self.quality_weight >= 0:  # a NaN neither
            raise UsageError("score.quality_weight must be at least 0")
        check_positive("score", self, "smoothing")

    def score(self, efficiency: float, quality: float) -> float:
        if isinf(self.quality_weight):
            return quality
        return efficiency + self.quality_weight * quality


class Scored(NamedTuple):
    """A sample with its speedup over the baseline's answer, ratio of wins to losses, and score."""

    sample: AnswerRecord
    efficiency: float
    quality: float
    score: float


class Selection(NamedTuple):
    """The pairs of some rollouts, their scored samples by prompt id, and counts of the others."""

    pairs: list[PreferencePair]
    scored: Mapping[str, Sequence[Scored]]
    num_unusable: int
    num_unjudged: int

    def figures(self) -> dict[str, float]:
        groups = [group for group in self.scored.values() if group]
        num_lacking = sum(len(group) < 2 for group in self.scored.values())
        columns = {
            key: [fmean(getattr(sample, key) for sample in group) for group in groups]
            for key in ("efficiency", "quality", "score")
        } | {key: [getattr(pair, key) for pair in self.pairs] for key in _SCORES}
        return {
            "num_prompts": len(self.scored),
            "num_pairs": len(self.pairs),
            "num_equal": len(self.scored) - len(self.pairs) - num_lacking,
            "num_lacking": num_lacking,
            "num_unusable": self.num_unusable,
            "num_unjudged": self.num_unjudged,
            **{key: fmean(values) if values else 0.0 for key, values in columns.items()},
        }


def is_usable(sample: AnswerRecord) -> bool:
    """Return whether an answer can be trained on: it ended by itself, well-formed and not empty.

    If a limit cut an answer, the model did not choose its end, and training would teach that end.
    """
    return sample.is_well_formed and bool(sample.text.strip())


def select_pairs(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, config: ScoreConfig
) -> Selection:
    """Score all samples, and pair the best of each prompt with the worst.

    Of samples with equal scores the first is taken; one that lacks a verdict is left out. The judge
    is called once. ``originals`` are the answers that came with some of the prompts, by id.
    """
    verdicts = iter(judge.compare(comparisons_of(rollouts, originals)))
    pairs: list[PreferencePair] = []
    scored: dict[str, list[Scored]] = {}
    num_unusable = num_unjudged = 0
    for rollout in rollouts:
        group = scored[rollout.id] = []
        num_verdicts = 2 * len(_opponents(rollout, originals))
        usable = [sample for sample in rollout.samples if is_usable(sample)]
        num_unusable += len(rollout.samples) - len(usable)
        for sample in usable:
            drawn = list(islice(verdicts, num_verdicts))
            known = [verdict for verdict in drawn if verdict is not None]
            if len(known) < len(drawn):
                num_unjudged += 1
                continue
            speedup = sample.theoretical_speedup(rollout.baseline)
            quality = smoothed_ratio(known, config.smoothing)
            group.append(Scored(sample, speedup, quality, config.score(speedup, quality)))
        if (pair := _pair_of(rollout, group)) is not None:
            pairs.append(pair)
    return Selection(pairs, scored, num_unusable, num_unjudged)


def comparisons_of(rollouts: Sequence[Rollout], originals: Mapping[str, str]) -> list[Comparison]:
    return [
        comparison
        for rollout in rollouts
        for sample in filter(is_usable, rollout.samples)
        for opponent in _opponents(rollout, originals)
        for comparison in both_orders(rollout.id, rollout.question, sample.text, opponent)
    ]


def _opponents(rollout: Rollout, originals: Mapping[str, str]) -> list[str]:
    original = originals.get(rollout.id)
    return [rollout.baseline.text] + ([] if original is None else [original])


def _pair_of(rollout: Rollout, group: Sequence[Scored]) -> PreferencePair | None:
    distinct: dict[str, Scored] = {}
    for scored in group:
        distinct.setdefault(scored.sample.program, scored)
    if not distinct:
        return None
    best, worst = (
        choose(distinct.values(), key=lambda scored: scored.score) for choose in (max, min)
    )
    if best.score - worst.score < TIE:
        return None
    sides = (("chosen", best), ("rejected", worst))
    parts = {f"efficiency_{side}": sample.efficiency for side, sample in sides}
    parts |= {f"quality_{side}": sample.quality for side, sample in sides}
    chosen, rejected = (parse_program(sample.sample.program) for _, sample in sides)
    texts = rollout.id, rollout.prompt
    scores = best.score, worst.score
    return PreferencePair(*texts, chosen, rejected, *scores, parts, rollout.turns)
