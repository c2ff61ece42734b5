"""Stage one: supervised finetuning on annotated answers.

Pasta-SFT is trained on answers with tags, Baseline-SFT by the same recipe on the same answers
without them.

Source: PASTA, section 4.2 and appendix on training (Gemma 7B: batch 8, LR 1e-5, linear, 4 epochs).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pasta_lm.errors import ModelError
from pasta_lm.language.document import Document
from pasta_lm.language.events import Text
from pasta_lm.learn.data.annotated import Record, read_ids, read_records
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.config import DataConfig, LoraConfig, SftConfig, TrainConfig
from pasta_lm.learn.train.learner import LOG, MAY_CHANGE, Learner, append_row, open_output
from pasta_lm.learn.train.losses import Batch, collate, token_nats, weighted_mean
from pasta_lm.learn.train.packs import Encode, Pack, packs_of
from pasta_lm.learn.train.trainer import PackTrainer, load_to_train
from pasta_lm.models.load import hashes_of, num_parameters
from pasta_lm.run_folder import hash_files


def train_sft(recipe: SftConfig, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Carry out a recipe; return the folder of the trained model."""
    data, train, lora = recipe.data, recipe.train, recipe.lora
    with open_output(train.out, resume=resume, overwrite=overwrite) as run:
        learner = load_to_train(recipe.model.base, train, lora, data.trained_strategy)
        encode, last = learner.encoder(train), learner.last_position
        packs = packs_of(data, encode, train.seed, last_position=last)
        inputs = hashes_of("model", recipe.model.base)
        inputs |= {"data.file": hash_files(*data.paths)}
        inputs |= {"data.exclude": hash_files(*data.exclude_paths)}
        run.begin(asdict(recipe), may_change=MAY_CHANGE, inputs=inputs)
        return finetune(learner, packs, train, lora, own_examples(data, encode), resume=resume)


def finetune(
    learner: Learner, packs: Sequence[Pack], train: TrainConfig, lora: LoraConfig | None = None,
    own_text: Sequence[EncodedExample] = (), *, resume: bool = False,
) -> Path:  # fmt: skip
    """Train a model on packs, each a forward pass; ``own_text`` is measured by ``OwnText``."""
    print(summary(learner, packs, train, lora), file=sys.stderr)  # noqa: T201
    objective = NextTokens(train.decision_weight, train.first_promise_weight)
    trainer = PackTrainer(learner, train, lora, packs, objective)
    if own_text:
        trainer.add_callback(OwnText(learner, own_text, train))
    return trainer.learn(resume=resume)


def seconds_of_a_pass(recipe: SftConfig) -> float:
    """Measure one forward and backward pass of a full pack, with the recipe's model and settings.

    The data of the recipe are not read. Its output folder is written to.
    """
    train = replace(recipe.train, steps=2, accumulate=1, log_steps=1, warmup=0.0)
    learner = load_to_train(recipe.model.base, train, recipe.lora)
    encode = learner.encoder(train)
    text = "The bath is large, and a shower of five minutes takes a third of its water. "
    example = encode(Record("pass", "Name a way to save water.", Document((Text(text),))))
    pack = [example] * (recipe.data.max_tokens // len(example))
    finetune(learner, [pack], train, recipe.lora)
    first, second, *_ = (Path(train.out) / LOG).read_text("utf-8").splitlines()
    return float(json.loads(second)["time"] - json.loads(first)["time"])


def summary(
    learner: Learner, packs: Sequence[Pack], train: TrainConfig, lora: LoraConfig | None
) -> str:
    examples, first = packs[0], packs[0][0]
    num_predicted = sum(label != NO_LABEL for label in first.labels)
    adapters = f", frozen, adapters of rank {lora.rank}" if lora else ""
    return (
        f"{num_parameters(learner.model):,} weights{adapters}; {train.num_steps(len(packs))} "
        f"steps of {train.accumulate} packs; positions {train.positions}, join {train.join}\n"
        f"{len(examples)} examples of {sum(map(len, examples))} tokens in the first pack. One of "
        f"them:\n{first.id}: {len(first)} tokens, {first.num_prompt} of them the prompt's, "
        f"{num_predicted} are predicted"
    )


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The mean next-token loss of a pack, in which main's decisions may weigh more."""

    decision_weight: float = 1.0
    first_promise_weight: float | None = None

    def collate(self, packs: Sequence[Pack]) -> Batch:
        return collate(packs, self.decision_weight, self.first_promise_weight)

    def loss(self, nats_M: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(nats_M, batch.get("loss_weights"))

    def weight(self, batch: Batch) -> float:
        return float(batch.get("loss_weights", batch["shift_labels"] != NO_LABEL).sum())

    def figures(self) -> dict[str, float]:
        return {}


NATS = "own_text_nats"  # Key of a row of the log: mean nats a token of the base's own answers.


def own_examples(data: DataConfig, encode: Encode) -> list[EncodedExample]:
    if data.own_text is None:
        return []
    records, ids = list[Record](), set(read_ids(Path(data.own_text)))
    for path in data.paths:  # an id of a later file is another's answer to the same instruction
        records += [row for row in read_records(path) if row.id in ids]
        ids -= {row.id for row in records}
    return [encode(record.without_tags()) for record in records]


class OwnText(TrainerCallback):
    """Measures the base's own answers before the first step and at each checkpoint.

    A ModelError stops the training, also one that goes on from such a checkpoint, once they have
    become less likely than ``train.max_own_text_rise`` allows. Tags are left out of the softmax, so
    that the wish to fork does not count.
    """

    def __init__(
        self, learner: Learner, examples: Sequence[EncodedExample], train: TrainConfig
    ) -> None:
        self._learner, self._examples, self._bound = learner, examples, train.max_own_text_rise
        self._log = Path(train.out) / LOG

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.global_step == 0:
            append_row(self._log, {"step": 0, NATS: self._nats(args)})
        self._check(state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, *_: object, **__: object
    ) -> None:
        append_row(self._log, {"step": state.global_step, NATS: self._nats(args)})
        self._check(state.global_step)

    def _check(self, step: int) -> None:
        log = map(json.loads, self._log.read_text("utf-8").splitlines())
        rows = [(row["step"], row[NATS]) for row in log if NATS in row and row["step"] <= step]
        measured, nats = rows[-1]
        rise = nats - [row[1] for row in rows if row[0] == 0][-1]
        line = f"step {measured}  own text {nats:.4f} nats a token, {rise:+.4f} against the base"
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        if rise > self._bound:
            cost = f"the base's own answers cost {rise:.3f} nats a token more than before"
            hint = "lower learning_rate, or train on more of them; see the earlier checkpoint"
            raise ModelError(f"{cost}, and train.max_own_text_rise is {self._bound}", hint=hint)

    def _nats(self, args: TrainingArguments) -> float:
        model = self._learner.model
        was_training = model.training
        model.eval()
        try:
            with torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16):
                rows = token_nats(model, self._learner.vocabulary, self._examples)
        finally:
            model.train(was_training)
        pairs = zip(rows, self._examples, strict=True)
        return fmean(
            nats
            for row, example in pairs
            for nats, label in zip(row.given_text, example.labels, strict=True)
            if label != NO_LABEL and math.isfinite(nats)
        )
