"""What both stages ask of the Trainer: the recipe's optimiser, and a stop where a loss is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerState, TrainingArguments

from pasta_lm.errors import ModelError
from pasta_lm.train import muon
from pasta_lm.train.checkpoints import LAST_FILE
from pasta_lm.train.config import WSD, TrainConfig
from pasta_lm.train.learner import check_finite
from pasta_lm.train.processes import num_processes, packs_each


class PackTrainer(Trainer):
    """The Trainer with the optimiser of a recipe; a subclass brings the loss of a pack."""

    def __init__(self, train: TrainConfig, **kwargs: Any) -> None:
        """Keep the recipe's numbers; the rest goes to the Trainer."""
        self._train = train
        super().__init__(**kwargs)

    def learn(self, checkpoint: Path | None) -> None:
        """Take the steps of the recipe, from a checkpoint on if there is one.

        From a checkpoint of the last step the Trainer would take one more; what is there is kept.

        Args:
            checkpoint: A whole one of this run.
        """
        # A sharp softmax is full of numbers too small for float32's usual form: slow, and nothing.
        torch.set_flush_denormal(True)
        try:
            self._learn(checkpoint)
        finally:
            torch.set_flush_denormal(False)

    def _learn(self, checkpoint: Path | None) -> None:
        if checkpoint is None:
            self.train()
            return
        step = TrainerState.load_from_json(str(checkpoint / LAST_FILE)).global_step
        if 0 < self.args.max_steps <= step and num_processes() == 1:
            self._load_from_checkpoint(str(checkpoint))
        else:
            self.train(resume_from_checkpoint=str(checkpoint))

    def check_loss(self, loss: Tensor, ids: Sequence[str]) -> None:
        """Refuse a loss that is no number, before it reaches the weights.

        Args:
            loss: Of a pack.
            ids: Of the records that it holds.

        Raises:
            ModelError: it is NaN or infinite; the records are named.
        """
        if not torch.isfinite(loss):
            shown = ", ".join(ids[:8])
            raise ModelError(
                f"the loss is {loss.item()} after step {self.state.global_step}, in a batch of "
                f"{len(ids)} records: {shown}",
                hint="lower learning_rate, or look at these records; --resume goes on from the "
                "last checkpoint",
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights of a checkpoint.

        Raises:
            ModelError: a weight is NaN or infinite: no loss has met it yet.
        """
        assert isinstance(self.model, nn.Module)
        check_finite(self.model)
        super().save_model(output_dir, _internal_call)

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        """Return the optimiser that the recipe names."""
        if self._train.optimizer == "adamw":
            return super().create_optimizer(*args)
        if self.optimizer is None:
            rate = self._train.learning_rate
            other_rate = self._train.other_learning_rate or rate
            assert isinstance(self.model, nn.Module)
            groups = muon.groups(self.model, rate, other_rate)
            self.optimizer = muon.Muon(groups, rate, weight_decay=self._train.weight_decay)
        return self.optimizer


def is_mixed(train: TrainConfig) -> bool:
    """Return whether matrix products are computed in bfloat16 on this machine.

    A CPU without matrix units (AMX) is slower at them than in float32, which it then keeps to.
    """
    if torch.cuda.is_available():
        return train.dtype == "bfloat16"
    # Older versions of torch cannot say what a CPU has.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return train.mixed_precision and bool(capabilities.get("amx_bf16"))


def training_arguments(train: TrainConfig) -> TrainingArguments:
    """Return what a recipe says, in the Trainer's words."""
    return TrainingArguments(
        output_dir=train.out,
        max_steps=-1 if train.steps is None else train.steps,
        num_train_epochs=train.epochs or 1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=packs_each(train.accumulate),
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        adam_beta2=0.98,
        lr_scheduler_type=train.schedule,
        lr_scheduler_kwargs=_decay(train),
        warmup_steps=train.warmup,
        max_grad_norm=train.clip,
        bf16=is_mixed(train),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=train.log_steps,
        save_steps=train.save_steps,
        save_total_limit=2,
        seed=train.seed,
        report_to="tensorboard" if train.tensorboard else "none",
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        dataloader_pin_memory=False,
        dataloader_num_workers=train.workers,
        **_checkpointing(train),
    )


def _checkpointing(train: TrainConfig) -> dict[str, Any]:
    if not train.checkpointing:
        return {}
    # Not reentrant: what is frozen below an adapter has no gradient to begin with.
    return {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }


def _decay(train: TrainConfig) -> dict[str, Any]:
    if train.schedule != WSD:
        return {}
    return {"num_decay_steps": round(train.decay * (train.steps or 0)), "decay_type": "1-sqrt"}
