"""Do no harm: what the base would have written must stay as likely as before the training."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pasta_lm.errors import InputError, ModelError
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.config import DataConfig, TrainConfig
from pasta_lm.learn.train.learner import LOG, Learner, append_row
from pasta_lm.learn.train.losses import token_nats
from pasta_lm.learn.train.packs import Encode
from pasta_lm.models.annotated import read_ids, read_records

NATS = "own_text_nats"
"""Key of a row of the log: mean nats a token of the base's own answers."""


def own_examples(data: DataConfig, encode: Encode) -> list[EncodedExample]:
    """Encode the records that ``data.own_text`` names, without their tags; none without a file."""
    if data.own_text is None:
        return []
    ids = set(read_ids(Path(data.own_text)))
    records = [own for path in data.paths for own in read_records(path) if own.id in ids]
    if not records:
        raise InputError(f"data.own_text {data.own_text} names no record of data.file")
    return [encode(replace(own, document=own.document.without_tags())) for own in records]


class OwnText(TrainerCallback):
    """Measures the base's own answers before the first step and at each checkpoint.

    A ModelError stops the training once they have become less likely than
    ``train.max_own_text_rise`` allows. Tags are left out of the softmax, so that the wish to fork
    does not count.
    """

    def __init__(
        self, learner: Learner, examples: Sequence[EncodedExample], train: TrainConfig
    ) -> None:
        self._learner, self._examples, self._bound = learner, examples, train.max_own_text_rise
        self._log = Path(train.out) / LOG

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Measure the untrained model; a continued run reads its figure from the log."""
        if state.global_step == 0:
            append_row(self._log, {"step": 0, NATS: self._nats(args)})

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Measure the model of a checkpoint."""
        nats, step = self._nats(args), state.global_step
        log = map(json.loads, self._log.read_text("utf-8").splitlines())
        untrained = [row[NATS] for row in log if NATS in row and row["step"] == 0][-1]
        append_row(self._log, {"step": step, NATS: nats})
        rise = nats - untrained
        line = f"step {step}  own text {nats:.4f} nats a token, {rise:+.4f} against the base"
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        if rise > self._bound:
            raise ModelError(
                f"the base's own answers cost {rise:.3f} nats a token more than before the "
                f"training, and train.max_own_text_rise is {self._bound}",
                hint="lower learning_rate, or train on more of the base's own answers; an earlier "
                "checkpoint is in the same folder",
            )

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
