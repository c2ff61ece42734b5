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
from typing import Any, Protocol

from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data.preferences import (
    PreferencePair,
    ScoreConfig,
    comparisons_of,
    select_pairs,
    write_pairs,
)
from pasta_lm.learn.data.rollouts import (
    AnsweringModels,
    PromptWithReference,
    Rollout,
    Sampling,
    roll_out,
)
from pasta_lm.learn.judge.judge import Judge
from pasta_lm.learn.judge.llm_judge import LLMJudge, describe_missing, missing_to_json
from pasta_lm.learn.train.learner import LOG, append_row
from pasta_lm.learn.train.preference_config import RecordsConfig, RolloutsConfig
from pasta_lm.models.annotated import read_records
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import Pasta

ROLLOUTS, PAIRS = "rollouts.jsonl", "pairs.jsonl"


class Show(Protocol):
    """A progress bar."""

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show the progress of one activity."""


@dataclass(frozen=True, slots=True)
class Round:
    """The number of a round, counted from 1, its folder, and the model that it begins with."""

    number: int
    folder: Path
    newest: str
    """Folder or hub id of the model that is sampled and then trained further."""
    show: Show | None = None
    """Shows progress; None: lines on standard error."""

    def say(self, line: str) -> None:
        """Print a line about the round on standard error."""
        print(f"pasta: round {self.number}: {line}", file=sys.stderr, flush=True)  # noqa: T201

    def show_sampling(self, num_done: int, num_all: int, left_s: float | None) -> None:
        """Show the progress of sampling: a bar, or a line for each batch."""
        if self.show is not None:
            self.show(f"round {self.number}: prompts sampled", num_done, num_all)
            return
        left = "" if left_s is None else f"  {left_s / 60:.1f} min left"
        self.say(f"{num_done}/{num_all} prompts sampled{left}")

    def show_judging(self, num_done: int, num_all: int, spent: Spending) -> None:
        """Show the progress of judging: a bar, or up to 20 lines."""
        if self.show is not None:
            self.show(f"round {self.number}: comparisons judged", num_done, num_all, str(spent))
        elif num_done == num_all or not num_done % max(num_all // 20, 1):
            self.say(f"{num_done}/{num_all} comparisons judged, {spent}")


def read_prompts(config: RecordsConfig, num_rounds: int) -> list[list[PromptWithReference]]:
    """Return the prompts of each round: its share of a file's records, in shuffled order."""
    records = read_records(Path(config.file))
    Random(f"records/{config.seed}").shuffle(records)
    count = config.num_prompts or len(records) // num_rounds
    if not count or count * num_rounds > len(records):
        raise InputError(
            f"{config.file} has {len(records)} records, too few for {num_rounds} rounds of "
            f"{count or 1}",
            hint="lower data.records.num_prompts",
        )
    prompts = [
        PromptWithReference(record.id, record.prompt, record.document.plain_text)
        for record in records
    ]
    return [prompts[number * count : (number + 1) * count] for number in range(num_rounds)]


def sample_round(
    round: Round,
    prompts: Sequence[PromptWithReference],
    sampling: Sampling,
    rollouts: RolloutsConfig,
) -> list[Rollout]:
    """Return a round's rollouts; a UsageError if the model was not trained for the strategy."""
    load = partial(load_models, round, sampling.baseline, rollouts)
    return roll_out(round.folder / ROLLOUTS, prompts, sampling, load, round.show_sampling)


def load_models(round: Round, baseline: str, rollouts: RolloutsConfig) -> AnsweringModels:
    """Load the model that is sampled, and the baseline."""
    load = partial(Pasta.from_pretrained, dtype=rollouts.dtype, pool_tokens=rollouts.pool_tokens)
    if rollouts.servers is None:
        model = load(round.newest)
    else:
        model = rollouts.servers.holding(round.newest)
        check_newest(round, model.engine.served_names)
    if not model.has_tag_pieces and rollouts.strategy == pasta.NAME:
        raise UsageError(
            f"model.base {round.newest} was not taught PASTA-LANG: it has no tag pieces",
            hint="train it with `pasta train sft` first",
        )
    if not model.supports(rollouts.strategy):
        raise UsageError(
            f"model.base {round.newest} was not taught {rollouts.strategy!r}, but "
            f"{model.engine.loaded.trained_strategy!r}",
            hint="rollouts.strategy must be what its data taught it",
        )
    return AnsweringModels(model, model if baseline == round.newest else load(baseline))


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
    prompts: Sequence[PromptWithReference],
    rollouts: Sequence[Rollout],
    judge: Judge,
    score: ScoreConfig,
) -> list[PreferencePair]:
    """Judge and score the samples, and write and return the pairs of a round."""
    originals = {prompt.id: prompt.reference for prompt in prompts}
    llm = judge if isinstance(judge, LLMJudge) else None
    if llm is not None:
        estimate = llm.estimate(comparisons_of(rollouts, originals))
        round.say(f"{llm.name} is to judge: {estimate}")
    selection = select_pairs(rollouts, originals, judge, score)
    if llm is not None and llm.missing:
        reasons = f"{llm.name} gave no verdict: {describe_missing(llm.missing)}"
        round.say(f"{reasons}; {selection.num_unjudged} samples left out")
    figures = selection.figures()
    round.say(", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if not selection.pairs:
        raise InputError("nothing to learn: no prompt has two samples of different score")
    judged_by: dict[str, Any] = {"judge": type(judge).__name__}
    if llm is not None:
        judged_by = {
            "judge": llm.name,
            "is_scripted": llm.is_scripted,
            "no_verdict": missing_to_json(llm.missing, "prompts"),
            "spent": str(llm.spending()),
        }
    append_row(round.folder / LOG, {"round": round.number, **figures, **judged_by})
    write_pairs(round.folder / PAIRS, selection.pairs)
    return selection.pairs
