"""Stage one: supervised finetuning on annotated answers, on the Trainer of transformers.

Pasta-SFT learns the tags; Baseline-SFT is the same with the tags stripped; the base model is the
same with random weights at the beginning. Learning rate, batch and schedule are the recipe's.

Several processes train one model where ``accelerate launch`` starts them (``processes.py``).

Source: PASTA, section 4.2 and appendix on training (Gemma 7B: batch 8, LR 1e-5, linear, 4 epochs).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PrinterCallback, set_seed

from pasta_lm.data.encode import NO_LABEL
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.train.adapters import adapted, frozen_dtype, merged
from pasta_lm.train.checkpoints import newest_checkpoint
from pasta_lm.train.collate import collate
from pasta_lm.train.config import SftConfig, TrainConfig, taught_by
from pasta_lm.train.learner import MODEL_FOLDER, Learner, load_learner, save
from pasta_lm.train.losses import next_token_loss
from pasta_lm.train.preflight import describe
from pasta_lm.train.processes import check_launch, is_first, num_processes, whole_model
from pasta_lm.train.progress import Progress
from pasta_lm.train.sources import PackSet, packs_of
from pasta_lm.train.trainer import PackTrainer, training_arguments


def train_sft(config: SftConfig, *, resume: bool = False) -> Path:
    """Carry out a recipe; return the folder of the model that came out.

    Args:
        config: The recipe.
        resume: Go on from the newest checkpoint in ``train.out``, if there is one.

    Raises:
        ModelError: the loss became NaN or infinite, and the records of that batch are named; or the
            weights did.
        InputError: the data are none, or reach beyond the model's context.
        UnsupportedModelError: the engine would not be exact for this model.
        MissingExtraError: the recipe has adapters, and peft is not installed.
        UsageError: several processes cannot carry it out.
    """
    train, lora = config.train, config.lora
    check_launch(train.optimizer, has_adapters=lora is not None)
    learner, packs = _prepare(config)
    if is_first():
        print(_summary(config, learner, packs), file=sys.stderr)  # noqa: T201
    adapters = adapted(learner, lora) if lora else None
    trainer = SftTrainer(
        train,
        model=adapters or learner.model,
        args=training_arguments(train),
        train_dataset=packs,
        data_collator=collate,
        callbacks=[Progress(Path(train.out) / "log.jsonl")],
    )
    trainer.remove_callback(PrinterCallback)  # standard output is for the result
    checkpoint = newest_checkpoint(Path(train.out)) if resume else None
    trainer.learn(checkpoint)
    if adapters is not None:
        learner = merged(learner, adapters)
    return save_whole(learner, trainer, train)


def save_whole(learner: Learner, trainer: PackTrainer, train: TrainConfig) -> Path:
    """Write the model folder, from one process or from the parts of all; return where it is."""
    folder = Path(train.out) / MODEL_FOLDER
    if num_processes() == 1:
        return save(learner, train, folder)
    model = whole_model(trainer, learner.model)
    if model is not None:
        save(replace(learner, model=model), train, folder)
    trainer.accelerator.wait_for_everyone()
    return folder


def preflight(config: SftConfig) -> str:
    """Return what a recipe is about to do, with an example as the model meets it."""
    return _summary(config, *_prepare(config))


def _prepare(config: SftConfig) -> tuple[Learner, PackSet]:
    train = config.train
    set_seed(train.seed)  # before the weights: a model that begins at random begins with it
    learner = load_learner(config.model, frozen_dtype(config.lora, train))
    learner = replace(learner, trained_strategy=taught_by(config.data))
    num_packs = None if train.steps is None else train.steps * train.accumulate
    encode = learner.encoder(PositionStrategy(train.positions))
    last = learner.last_position
    return learner, packs_of(config.data, encode, num_packs, train.seed, last_position=last)


def _summary(config: SftConfig, learner: Learner, packs: PackSet) -> str:
    train, examples = config.train, packs[0]
    example = next((e for e in examples if e.rows is not None), examples[0])
    of_an_epoch = ceil(len(packs) / train.accumulate)
    num_steps = train.steps or ceil((train.epochs or 1) * of_an_epoch)
    of_rank = f", frozen, adapters of rank {config.lora.rank}" if config.lora else ""
    head = (
        f"{learner.model.num_parameters():,} weights{of_rank}; {num_steps} steps of "
        f"{train.accumulate} x {config.data.max_tokens} tokens at most; positions "
        f"{train.positions}; {train.optimizer}"
    )
    table = describe(example, learner.vocabulary, learner.eos_id)
    return f"{head}\n{len(examples)} examples in the first pack. One of them:\n{table}"


class SftTrainer(PackTrainer):
    """The Trainer with our loss, our order of packs and a stop where the loss is no number."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        """Return the mean loss of a pack, each label at its weight.

        Raises:
            ModelError: it is NaN or infinite.
        """
        record_ids, labels = inputs["record_ids"], inputs["shift_labels"]
        learned = (labels[0] != NO_LABEL).nonzero()[:, 0]
        out = model(
            input_ids=inputs["input_ids"],
            position_ids=inputs["position_ids"],
            pasta_pass=inputs["pasta_pass"],
            use_cache=False,
            logits_to_keep=learned,
        )
        weights = inputs["label_weights"][:, learned]
        loss = next_token_loss(out.logits, labels[:, learned], weights)
        self.check_loss(loss, record_ids)
        return loss
