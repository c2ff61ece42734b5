"""The Trainer of stage two: a loss over pairs, and what became of their margins in the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pasta_lm.train.config import TrainConfig
from pasta_lm.train.losses import PairLogProbs, bonbon_beta, bonbon_loss, dpo_loss, ipo_loss
from pasta_lm.train.pair_packs import pair_log_probs
from pasta_lm.train.preference_config import LossConfig
from pasta_lm.train.trainer import PackTrainer

Loss = Callable[[PairLogProbs], Tensor]

EARLY = 0.1
"""After this share of a round a model is kept: in the paper most of the speed is bought by then."""


def loss_of(config: LossConfig, num_samples: int) -> Loss:
    """Return the loss that a recipe names.

    Args:
        config: Which, and its numbers.
        num_samples: Of so many a pair is the best and the worst.
    """
    beta = beta_of(config, num_samples)
    losses: dict[str, Loss] = {
        "bonbon": partial(bonbon_loss, alpha=config.alpha, beta=beta),
        "ipo": partial(ipo_loss, beta=beta),
        "dpo": partial(dpo_loss, beta=beta),
    }
    return losses[config.kind]


def beta_of(config: LossConfig, num_samples: int) -> float:
    """Return beta: the recipe's, or that of BoNBoN's rule for so many samples."""
    return config.beta if isinstance(config.beta, float) else bonbon_beta(num_samples)


class PreferenceTrainer(PackTrainer):
    """The Trainer with a loss over pairs; its log has margins beside the loss."""

    def __init__(self, train: TrainConfig, loss: Loss, **kwargs: Any) -> None:
        """Keep the recipe's numbers and the loss; the rest goes to the Trainer."""
        self._loss = loss
        self._met: list[PairLogProbs] = []
        super().__init__(train, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        """Return the mean loss of the pairs of a pack.

        Raises:
            ModelError: it is NaN or infinite.
        """
        chosen, rejected = pair_log_probs(model, inputs).unbind(dim=1)
        pairs = PairLogProbs(chosen, rejected, *inputs["references"].unbind(dim=1))
        loss = self._loss(pairs)
        self.check_loss(loss, inputs["pair_ids"])
        self._met.append(PairLogProbs(chosen.detach(), rejected.detach(), *inputs["references"].T))
        return loss

    def log(self, logs: dict[str, float], *args: Any) -> None:
        """Log figures; beside a loss, the means over the pairs since the last one."""
        if "loss" in logs and self._met:
            logs |= _figures(self._met)
            self._met.clear()
        super().log(logs, *args)


def _figures(met: list[PairLogProbs]) -> dict[str, float]:
    margins = torch.cat([pairs.margin for pairs in met])
    return {
        "margin": margins.mean().item(),
        "share_right": (margins > 0).float().mean().item(),
        "log_prob_chosen": torch.cat([pairs.chosen for pairs in met]).mean().item(),
        "log_prob_rejected": torch.cat([pairs.rejected for pairs in met]).mean().item(),
    }


class EarlyModel(TrainerCallback):
    """Keeps the model as it is after the first tenth of a round."""

    def __init__(self, keep: Callable[[], object]) -> None:
        """Remember what keeps it."""
        self._keep = keep

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Keep the model if this step is the one; a checkpoint of this step comes later."""
        if state.global_step == max(1, round(EARLY * state.max_steps)):
            self._keep()
