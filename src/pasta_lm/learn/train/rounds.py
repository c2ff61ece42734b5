"""One round of stage two: samples of the newest model, their scores, and pairs.

A round resumes after any interruption, because everything is written to its folder before it is
used: ``rollouts.jsonl`` grows by batches, and ``pairs.jsonl`` is complete or absent.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.learn.data.preferences import (
    PreferencePair,
    PromptWithReference,
    Rollout,
    Sampling,
    ScoreConfig,
    comparisons_of,
    read_pairs,
    roll_out,
    select_pairs,
    write_pairs,
)
from pasta_lm.learn.judge import Judge, LLMJudge, describe_missing, missing_to_json
from pasta_lm.learn.train.learner import LOG, append_row
from pasta_lm.learn.train.preference_config import PreferenceConfig, RolloutsConfig, judge_of
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import Pasta

ROLLOUTS, PAIRS = "rollouts.jsonl", "pairs.jsonl"
NUM_LINES = 20
"""Lines of progress of one activity."""

Prompts = Sequence[PromptWithReference]


class Show(Protocol):
    """Shows the progress of one activity."""

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show how much of it is done."""


def show_lines(name: str, done: int, total: int, note: str = "") -> None:
    """Print a line on standard error, at most about 20 of one activity."""
    if done == total or not done % max(total // NUM_LINES, 1):
        print(f"pasta: {done}/{total} {name}  {note}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201


@dataclass(frozen=True, slots=True)
class Round:
    """The number of a round, counted from 1, its folder, and the model that it begins with."""

    number: int
    folder: Path
    newest: str
    """Folder or hub id of the model that is sampled and then trained further."""
    show: Show = show_lines

    def say(self, line: str) -> None:
        """Print a line about the round on standard error."""
        print(f"pasta: round {self.number}: {line}", file=sys.stderr, flush=True)  # noqa: T201

    def show_sampling(self, num_done: int, num_all: int, left_s: float | None) -> None:
        left = "" if left_s is None else f"{left_s / 60:.1f} min left"
        self.show(f"prompts of round {self.number} sampled", num_done, num_all, left)

    def show_judging(self, num_done: int, num_all: int, spent: Spending) -> None:
        self.show(f"comparisons of round {self.number} judged", num_done, num_all, str(spent))


def prompts_of(recipe: PreferenceConfig) -> Sequence[Prompts]:
    """Return the prompts of each round: its share of a file's records, in shuffled order.

    There are none if the data are pairs.
    """
    config, num_rounds = recipe.data.records, recipe.train.rounds
    if config is None:
        return [[]] * num_rounds
    records = read_records(Path(config.file))
    Random(f"records/{config.seed}").shuffle(records)
    count = config.num_prompts or len(records) // num_rounds
    if not count or count * num_rounds > len(records):
        raise InputError(
            f"{config.file} has {len(records)} records, too few for {num_rounds} rounds of "
            f"{count or 1}",
            hint="lower data.records.num_prompts",
        )
    prompts = [PromptWithReference(own.id, own.prompt, own.document.plain_text) for own in records]
    return [prompts[number * count : (number + 1) * count] for number in range(num_rounds)]


def pairs_of(
    recipe: PreferenceConfig, round: Round, prompts: Prompts, judge: Judge | None
) -> list[PreferencePair]:
    """Return a round's pairs: those of the recipe's file, or those made from its rollouts."""
    path = round.folder / PAIRS
    if recipe.data.file is not None or path.exists():
        return read_pairs(path if recipe.data.file is None else Path(recipe.data.file))
    if judge is None:
        assert recipe.judge is not None
        judge = judge_of(recipe.judge, Path(recipe.train.out), round.show_judging)
    assert recipe.score is not None
    rollouts = sample_round(recipe, round, prompts)
    return pair_round(round, prompts, rollouts, judge, recipe.score)


def sample_round(recipe: PreferenceConfig, round: Round, prompts: Prompts) -> list[Rollout]:
    """Return a round's rollouts; a UsageError if the model was not taught the tags."""
    sampling = sampling_of(recipe, round)
    load = partial(load_models, round, sampling.baseline, recipe.rollouts)
    return roll_out(round.folder / ROLLOUTS, prompts, sampling, load, round.show_sampling)


def sampling_of(recipe: PreferenceConfig, round: Round) -> Sampling:
    rollouts, is_first = recipe.rollouts, round.newest == recipe.model.base
    return Sampling(
        # Not the whole path, because a run may be moved.
        model=round.newest if is_first else "/".join(Path(round.newest).parts[-2:]),
        baseline=recipe.model.baseline or "",
        round=round.number,
        seed=recipe.train.seed,
        strategy=pasta.NAME,
        samples=rollouts.samples,
        temperature=rollouts.temperature,
        max_tokens=rollouts.max_tokens,
    )


def load_models(round: Round, baseline: str, rollouts: RolloutsConfig) -> tuple[Pasta, Pasta]:
    load = partial(Pasta.from_pretrained, dtype=rollouts.dtype, pool_tokens=rollouts.pool_tokens)
    if rollouts.servers is None:
        model = load(round.newest)
    else:
        model = rollouts.servers.holding(round.newest)
        check_newest(round, model.engine.served_names)
    if not model.supports(pasta.NAME):
        raise UsageError(
            f"model.base {round.newest} was not taught PASTA-LANG",
            hint="train it with `pasta train sft` first",
        )
    return model, model if baseline == round.newest else load(baseline)


def check_newest(round: Round, served: Mapping[str, Sequence[str]]) -> None:
    """Refuse servers, with their names of the model, that hold the one of an earlier round.

    Their weights cannot be compared, so from the second round on they must name the folder.
    """
    newest = Path(round.newest).parts[-2:]
    for url, names in served.items():
        if round.number > 1 and all(Path(name).parts[-2:] != newest for name in names):
            raise UsageError(
                f"round {round.number} samples {round.newest}, and {url} serves {names[0]}",
                hint="let it serve that folder under its own name, then --resume",
            )


def pair_round(
    round: Round,
    prompts: Prompts,
    rollouts: Sequence[Rollout],
    judge: Judge,
    score: ScoreConfig,
) -> list[PreferencePair]:
    """Judge and score the samples, and write and return the pairs of a round."""
    originals = {prompt.id: prompt.reference for prompt in prompts}
    if isinstance(judge, LLMJudge):
        estimate = judge.estimate(comparisons_of(rollouts, originals))
        round.say(f"{judge.name} is to judge: {estimate}")
    selection = select_pairs(rollouts, originals, judge, score)
    row: dict[str, object] = {"round": round.number, **selection.figures()}
    if isinstance(judge, LLMJudge):
        if judge.missing:
            reasons = f"{judge.name} gave no verdict: {describe_missing(judge.missing)}"
            round.say(f"{reasons}; {selection.num_unjudged} samples left out")
        row |= {"judge": judge.name, "is_scripted": judge.is_scripted}
        row |= {"no_verdict": missing_to_json(judge.missing, "prompts")}
        row |= {"spent": str(judge.spending())}
    round.say(", ".join(f"{key} {value:.4g}" for key, value in selection.figures().items()))
    if not selection.pairs:
        raise InputError("nothing to learn: no prompt has two samples of different score")
    append_row(round.folder / LOG, row)
    write_pairs(round.folder / PAIRS, selection.pairs)
    return selection.pairs
