"""Stage one: supervised finetuning on annotated answers.

Pasta-SFT is trained on answers with tags, Baseline-SFT by the same recipe on the same answers
without them.

Source: PASTA, section 4.2 and appendix on training (Gemma 7B: batch 8, LR 1e-5, linear, 4 epochs).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import set_seed

from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.train.adapters import adapted, base_of, merged, save_trained
from pasta_lm.learn.train.collate import collate, example_table, labelled_logits, labelled_weights
from pasta_lm.learn.train.config import SftConfig, TrainConfig
from pasta_lm.learn.train.learner import (
    MODEL_FOLDER,
    Learner,
    frozen_dtype,
    load_learner,
    row_rates,
    save,
)
from pasta_lm.learn.train.losses import next_token_loss
from pasta_lm.learn.train.sources import PackSet, packs_of
from pasta_lm.learn.train.trainer import (
    PackTrainer,
    check_launch,
    is_first,
    newest_checkpoint,
    num_processes,
    whole_model,
)


def train_sft(config: SftConfig, *, resume: bool = False) -> Path:
    """Carry out a recipe; return the folder of the trained model.

    With ``resume`` it continues from the newest checkpoint in ``train.out``, if there is one.

    Raises:
        ModelError: the loss or the weights became NaN or infinite.
        InputError: there are no data, or a record exceeds the model's context.
        UnsupportedModelError: the engine would not be exact for this model.
        MissingExtraError: the recipe has adapters, and peft is not installed.
        UsageError: several processes cannot carry it out.
    """
    train, lora = config.train, config.lora
    check_launch(
        has_adapters=lora is not None,
        has_row_rates=train.tag_learning_rate is not None or train.freeze_old_rows,
    )
    learner, packs = _prepare(config)
    if is_first():
        print(_summary(config, learner, packs), file=sys.stderr)  # noqa: T201
    source = config.model.base if train.save == "adapter" else None
    base = base_of(learner, source, lora) if source and lora else None
    adapters = adapted(learner, lora) if lora else None
    rates = row_rates(learner, train)
    trainer = SftTrainer(
        train,
        rows=rates,
        model=adapters or learner.model,
        train_dataset=packs,
        data_collator=partial(collate, decision_weight=train.decision_weight),
    )
    trainer.learn(newest_checkpoint(Path(train.out)) if resume else None)
    if adapters is not None and lora and base:
        return save_trained(learner, adapters, base, lora, train)
    if adapters is not None:
        learner = merged(learner, adapters)
    return save_whole(learner, trainer, train)


def save_whole(learner: Learner, trainer: PackTrainer, train: TrainConfig) -> Path:
    """Write the model folder, from one process or from the shards of all; return the folder."""
    folder = Path(train.out) / MODEL_FOLDER
    if num_processes() == 1:
        return save(learner, train, folder)
    model = whole_model(trainer, learner.model)
    if model is not None:
        save(replace(learner, model=model), train, folder)
    trainer.accelerator.wait_for_everyone()
    return folder


def preflight(config: SftConfig) -> str:
    """Return a summary of a recipe, with one encoded example; nothing is trained."""
    return _summary(config, *_prepare(config))


def _prepare(config: SftConfig) -> tuple[Learner, PackSet]:
    train = config.train
    set_seed(train.seed)  # before the model is loaded, because its weights may be random
    learner = load_learner(config.model, frozen_dtype(config.lora, train))
    learner = replace(learner, trained_strategy=config.data.trained_strategy)
    num_packs = None if train.steps is None else train.steps * train.accumulate
    encode = learner.encoder(PositionStrategy(train.positions), Join(train.join))
    last = learner.last_position
    return learner, packs_of(config.data, encode, num_packs, train.seed, last_position=last)


def _summary(config: SftConfig, learner: Learner, packs: PackSet) -> str:
    train, examples = config.train, packs[0]
    example = next((e for e in examples if e.rows is not None), examples[0])
    of_rank = f", frozen, adapters of rank {config.lora.rank}" if config.lora else ""
    head = (
        f"{learner.model.num_parameters():,} weights{of_rank}; {train.num_steps(len(packs))} "
        f"steps of {train.accumulate} x {config.data.max_tokens} tokens at most; positions "
        f"{train.positions}, join {train.join}"
    )
    table = example_table(example, learner.vocabulary, learner.eos_id)
    return f"{head}\n{len(examples)} examples in the first pack. One of them:\n{table}"


class SftTrainer(PackTrainer):
    """The Trainer with the mean next-token loss of a pack."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        """Return the mean loss of a pack; a ModelError if it is NaN or infinite."""
        loss = next_token_loss(*labelled_logits(model, inputs), labelled_weights(inputs))
        self.check_loss(loss, inputs["record_ids"])
        return loss
