"""One round of stage two: its prompts, samples of the newest model, scores and pairs.

A round resumes after any interruption, because everything is written to its folder before it is
used: ``rollouts.jsonl`` grows by batches, and ``pairs.jsonl`` is complete or absent.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Protocol

from pasta_lab.tasks import mixture
from pasta_lab.tasks.task import Task
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.chat.budget import Spending
from pasta_lm.learn.data.preferences import (
    PreferencePair,
    Selection,
    comparisons_of,
    read_pairs,
    select_pairs,
    write_pairs,
)
from pasta_lm.learn.data.rollouts import (
    AnsweringModels,
    Progress,
    PromptWithReference,
    Rollout,
    Sampling,
    read_rollouts,
    roll_out,
)
from pasta_lm.learn.judge.judge import Judge
from pasta_lm.learn.judge.likelihood import LikelihoodJudge
from pasta_lm.learn.judge.llm_judge import LLMJudge, describe_missing
from pasta_lm.learn.judge.llm_judge import Progress as JudgeProgress
from pasta_lm.learn.train.judging import judge_of, judged_by
from pasta_lm.learn.train.preference_config import (
    PreferenceConfig,
    PreferenceTrainConfig,
    RecordsConfig,
)
from pasta_lm.learn.train.trainer import LOG, append_row
from pasta_lm.models.annotated import read_records
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import Pasta


class Show(Protocol):
    """A progress bar."""

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show the progress of one activity."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a recipe."""

    config: PreferenceConfig
    number: int
    """Counted from 1."""
    newest: str
    """Folder or hub id of the model that is sampled and then trained further."""

    @property
    def folder(self) -> Path:
        """Return the round's output folder."""
        return Path(self.config.train.out) / f"round-{self.number}"

    def say(self, line: str) -> None:
        """Print a line about the round on standard error."""
        text = f"pasta: round {self.number}: {line}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    @property
    def train(self) -> PreferenceTrainConfig:
        """Return the round's training settings: its own folder and seed."""
        train = self.config.train
        return replace(train, out=str(self.folder), seed=train.seed + self.number - 1)

    @property
    def sampling(self) -> Sampling:
        """Return how this round's answers are sampled."""
        rollouts = self.config.rollouts
        keys = ("strategy", "samples", "temperature", "max_tokens", "sampled")
        is_first = self.newest == self.config.model.base
        return Sampling(
            # Not the whole path, because a run may be moved.
            model=self.newest if is_first else "/".join(Path(self.newest).parts[-2:]),
            baseline=self.config.model.baseline or "",
            round=self.number,
            seed=self.config.train.seed,
            **{key: getattr(rollouts, key) for key in keys},
        )

    def tasks(self) -> list[Task]:
        """Return this round's tasks, which no other round has; none if the data are a file."""
        config = self.config.data.tasks
        if config is None:
            return []
        # Seeds of mixtures are 1,000 rounds apart, more than a run has.
        drawn = mixture(config.split, config.seed * 1_000_000 + 1_000 * (self.number - 1))
        return list(islice(drawn, config.num_prompts))

    def prompts(self) -> list[PromptWithReference]:
        """Return this round's prompts: its tasks, or its share of a file's records.

        Raises:
            InputError: the file cannot be read, or has too few.
        """
        config = self.config.data.records
        if config is None:
            return [PromptWithReference(one.id, one.prompt, one.text) for one in self.tasks()]
        drawn, num_rounds = shuffled(config), self.config.train.rounds
        total = len(drawn) - self.num_held_back
        count = config.num_prompts or total // num_rounds
        if not count or count * num_rounds > total:
            raise InputError(
                f"{config.file} has {len(drawn)} records, too few for {num_rounds} rounds of "
                f"{count or 1}" + (f" and {self.num_held_back}" if self.num_held_back else ""),
                hint="lower data.records.num_prompts",
            )
        return drawn[(self.number - 1) * count : self.number * count]

    @property
    def num_held_back(self) -> int:
        """Return how many of the records at the end of the file no round has."""
        development = self.config.development
        return 0 if development is None or development.file else development.num_prompts


def shuffled(config: RecordsConfig) -> list[PromptWithReference]:
    """Return the prompts of a file of records in the order in which rounds have them.

    Raises:
        InputError: the file cannot be read.
    """
    records = read_records(Path(config.file))
    Random(f"records/{config.seed}").shuffle(records)
    return [PromptWithReference(one.id, one.prompt, one.document.plain_text) for one in records]


def pairs_of(round: Round, show: Show | None = None) -> list[PreferencePair]:
    """Return a round's pairs: those of the recipe's file, or those made from its rollouts.

    Progress is shown by ``show``, or else as lines on standard error.

    Raises:
        InputError: a file is not what it should be, or no prompt gave a pair.
        MissingVerdictsError: too many comparisons have no verdict.
        PastaError: the judge cannot be asked, or may not: see ``LLMJudge.ask``.
    """
    given = round.config.data.file
    if given is not None:
        return read_pairs(Path(given))
    path = round.folder / "pairs.jsonl"
    if not path.exists():
        _make_pairs(round, path, show)
    return read_pairs(path)


def _make_pairs(round: Round, path: Path, show: Show | None) -> None:
    prompts, config = round.prompts(), round.config
    judge = judge_of(config.judge, config.train.out, round.tasks(), show_judging(round, show))
    rollouts = rollouts_of(round, prompts, show)
    if isinstance(judge, LLMJudge):
        compared = originals(prompts) if has_originals(config) else {}
        estimate = judge.estimate(comparisons_of(rollouts, compared))
        round.say(f"{judge.name} is to judge: {estimate}")
    selection = select(round, prompts, rollouts, judge)
    figures = selection.figures()
    if isinstance(judge, LLMJudge) and judge.missing:
        reasons = f"{judge.name} gave no verdict: {describe_missing(judge.missing)}"
        round.say(f"{reasons}; {selection.num_unjudged} samples left out")
    round.say(", ".join(f"{k} {v:.4g}" for k, v in figures.items()))
    if not selection.pairs:
        raise InputError("nothing to learn: no prompt has two samples of different score")
    append_row(round.folder / LOG, {"round": round.number, **figures, **judged_by(judge)})
    write_pairs(path, selection.pairs)


def rollouts_of(
    round: Round, prompts: Sequence[PromptWithReference], show: Show | None = None
) -> list[Rollout]:
    """Return a round's rollouts: those of a file that the recipe names, or its own.

    Raises:
        InputError: the file is of other prompts, lacks some, or was sampled otherwise.
    """
    files = round.config.rollouts.files
    if round.number <= len(files):
        return _shared(Path(files[round.number - 1]), prompts, round.sampling)
    path, shown = round.folder / "rollouts.jsonl", show_sampling(round, show)
    return roll_out(path, prompts, round.sampling, lambda: load_models(round), shown)


def select(
    round: Round, prompts: Sequence[PromptWithReference], rollouts: Sequence[Rollout], judge: Judge
) -> Selection:
    """Return the pairs of some rollouts."""
    assert round.config.score is not None
    if isinstance(judge, LikelihoodJudge):
        judge.own.update({one.id: one.baseline.text for one in rollouts})
    return select_pairs(rollouts, originals(prompts), judge, round.config.score)


def has_originals(config: PreferenceConfig) -> bool:
    """Return whether samples are compared with the answers that came with the prompts."""
    return config.score is None or config.score.has_originals


def originals(prompts: Sequence[PromptWithReference]) -> dict[str, str]:
    """Return the answers that came with the prompts, by prompt id."""
    return {one.id: one.reference for one in prompts}


def load_models(round: Round) -> AnsweringModels:
    """Load the model that is sampled, and the baseline.

    Raises:
        UsageError: the model was not trained for the strategy.
    """
    baseline, rollouts = round.config.model.baseline, round.config.rollouts
    assert baseline is not None
    load = partial(Pasta.from_pretrained, dtype=rollouts.dtype, pool_tokens=rollouts.pool_tokens)
    if rollouts.servers is None:
        model = load(round.newest)
    else:
        model = rollouts.servers.holding(round.newest)
        check_newest(round, model.served_names)
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
    if baseline == round.newest:
        return AnsweringModels(model, model)
    return AnsweringModels(model, load(baseline))


def check_newest(round: Round, served: Mapping[str, Sequence[str]]) -> None:
    """Refuse servers that still hold the model of an earlier round.

    Their weights cannot be compared, so from the second round on they must name the folder.

    Args:
        round: The round that begins.
        served: By the address of each server, the names that it gives its model.

    Raises:
        UsageError: one names another model.
    """
    if round.number == 1:
        return
    newest = Path(round.newest).parts[-2:]
    for url, names in served.items():
        if all(Path(name).parts[-2:] != newest for name in names):
            raise UsageError(
                f"round {round.number} samples {round.newest}, and {url} serves {names[0]}",
                hint="let it serve that folder under its own name, then --resume",
            )


def show_sampling(round: Round, show: Show | None, what: str = "prompts sampled") -> Progress:
    """Return a function that shows the progress of sampling: a bar, or a line for each batch."""

    def tell(num_done: int, num_all: int, left_s: float | None) -> None:
        if show is not None:
            show(f"round {round.number}: {what}", num_done, num_all)
            return
        left = "" if left_s is None else f"  {left_s / 60:.1f} min left"
        round.say(f"{num_done}/{num_all} {what}{left}")

    return tell


def show_judging(round: Round, show: Show | None) -> JudgeProgress:
    """Return a function that shows the progress of judging: a bar, or up to 20 lines."""

    def tell(num_done: int, num_all: int, spent: Spending) -> None:
        if show is not None:
            show(f"round {round.number}: comparisons judged", num_done, num_all, str(spent))
        elif num_done == num_all or not num_done % max(num_all // 20, 1):
            round.say(f"{num_done}/{num_all} comparisons judged, {spent}")

    return tell


def _shared(
    path: Path, prompts: Sequence[PromptWithReference], sampling: Sampling
) -> list[Rollout]:
    texts = {one.id: one.prompt for one in prompts}
    rollouts = read_rollouts(path, sampling)
    for rollout in rollouts:
        if texts.get(rollout.id) != rollout.prompt:
            raise InputError(
                f"{path} has prompt {rollout.id}, which this recipe does not draw",
                hint="prompts under [data] must be those of the recipe that sampled it",
            )
    if len(rollouts) < len(prompts):
        raise InputError(
            f"{path} has {len(rollouts)} of this recipe's {len(prompts)} prompts",
            hint="let the run that samples it come to the end of that round",
        )
    return rollouts
