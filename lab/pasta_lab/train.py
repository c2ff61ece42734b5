"""Supervised finetuning on tasks that are generated while training."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from torch.utils.data import Dataset

from pasta_lab import tasks
from pasta_lab.tasks.gold import gold
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.config import LoraConfig, ModelConfig, TrainConfig, check_stage_one
from pasta_lm.learn.train.learner import MAY_CHANGE, open_output
from pasta_lm.learn.train.packs import Encode, Pack, check_context
from pasta_lm.learn.train.sft import finetune
from pasta_lm.learn.train.trainer import load_to_train
from pasta_lm.recipe import check_positive
from pasta_lm.strategies import PASTA

SplitName = Literal["train", "dev", "test", "hard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Tasks of stage one; ``[data.tasks]``."""

    split: SplitName = "train"
    seed: int = 0
    clause_packs: int = 0
    """Every so many packs, one has minimal pairs up to their deciding tokens; 0: none has."""

    def __post_init__(self) -> None:
        if self.clause_packs < 0:
            raise UsageError("data.tasks.clause_packs must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDataConfig:
    """The training data; ``[data]``."""

    tasks: TasksConfig = TasksConfig()
    plain: bool = False
    """Strip the tags, as Baseline-SFT needs it."""
    max_tokens: int = 4096
    """Maximum number of tokens in a forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSftConfig:
    """A recipe of supervised finetuning on tasks."""

    model: ModelConfig
    train: TrainConfig
    data: TaskDataConfig = TaskDataConfig()
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        check_positive("data", self.data, "max_tokens")
        if self.train.steps is None:
            raise UsageError("generated tasks never end: give [train] steps, not epochs")
        check_stage_one(self.train, self.lora, PASTA)


def train_sft_on_tasks(
    recipe: TaskSftConfig, *, resume: bool = False, overwrite: bool = False
) -> Path:
    """Carry out a recipe, as ``train_sft`` does; return the folder of the trained model."""
    train = recipe.train
    assert train.steps is not None
    num_packs = train.steps * train.accumulate
    with open_output(train.out, resume=resume, overwrite=overwrite) as run:
        learner = load_to_train(recipe.model.base, train, recipe.lora, PASTA)
        encode, last = learner.encoder(train), learner.last_position
        packs = TaskPacks(recipe.data, encode, num_packs=num_packs, last_position=last)
        run.begin(asdict(recipe), may_change=MAY_CHANGE)
        return finetune(learner, packs, train, recipe.lora, resume=resume)


@dataclass(frozen=True, eq=False)
class TaskPacks(Dataset[Pack]):
    """Packs of tasks, generated when a pack is requested; the same index gives the same pack."""

    config: TaskDataConfig
    encode: Encode
    _: KW_ONLY
    num_packs: int
    last_position: int | None = None

    def __len__(self) -> int:
        return self.num_packs

    def __getitem__(self, index: int) -> Pack:
        """Generate tasks of all families in turn until the next one, or pair, would not fit.

        Raises:
            InputError: the first task does not fit, or a task exceeds the model's context.
        """
        tasks_config, room = self.config.tasks, self.config.max_tokens
        pack = Pack()
        drawn = tasks.mixture(tasks_config.split, tasks_config.seed * 1_000_000 + index)
        has_clauses = tasks_config.clause_packs and index % tasks_config.clause_packs == 0
        alone = ([self._encoded(task)] for task in drawn)
        for group in self._sides(drawn) if has_clauses else alone:
            room -= sum(map(len, group))
            if room < 0:
                break
            pack += group
        if not pack:
            max_tokens = self.config.max_tokens
            raise InputError(f"nothing to learn: a task is longer than {max_tokens} tokens")
        check_context(pack, self.last_position)
        return pack

    def _sides(self, drawn: Iterable[tasks.Task]) -> Iterator[Pack]:
        """Yield both sides of minimal pairs, each cut behind the token in which they differ.

        Pairs whose answers have the same preface are left out: they differ behind a block.
        """
        for task in drawn:
            partner = tasks.partner_of(task)
            if partner is not None and partner.preface != task.preface:
                both = self._encoded(task), self._encoded(partner)
                yield [beginning(*both), beginning(*both[::-1])]

    def _encoded(self, task: tasks.Task) -> EncodedExample:
        document = gold(task)
        if self.config.plain:
            document = document.without_tags()
        return self.encode(Record(task.id, task.prompt, document, "tasks"))


def beginning(example: EncodedExample, partner: EncodedExample) -> EncodedExample:
    """Return an example up to its deciding token, the first that differs from the partner's.

    That token alone has a label. No block may come before it.
    """
    first = example.num_prompt - 1
    pairs = zip(example.labels[first:], partner.labels[partner.num_prompt - 1 :], strict=False)
    slot = next(slot for slot, (ours, other) in enumerate(pairs, start=first) if ours != other)
    return replace(
        example,
        token_ids=example.token_ids[: slot + 1],
        labels=array("i", [*[NO_LABEL] * slot, example.labels[slot]]),
        positions=example.positions[: slot + 1],
        owners=array("i"),
        row_of=array("i"),
        rows=None,
        decisions=array("i"),
    )
