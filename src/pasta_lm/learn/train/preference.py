"""Stage two: preference optimisation of quality and speed, in rounds.

In each round the newest model samples several answers to each prompt. The best and the worst are a
pair, and the model is trained to prefer the better one by a margin over the reference model, which
is Pasta-SFT in all rounds. A round that loses on development prompts is not kept, if there are any.

Source: PASTA, section 4 (BoNBoN, alpha 0.005, LR 5e-7, two rounds).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from pasta_lm.engines.local.loading import usable_device
from pasta_lm.errors import InputError, UsageError, cause
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.journal import write_rows
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.adapters import adapted, merged, snapshot
from pasta_lm.learn.train.config import ModelConfig, TrainConfig
from pasta_lm.learn.train.development import Check
from pasta_lm.learn.train.judging import JudgeConfig
from pasta_lm.learn.train.learner import MODEL_FOLDER, Learner, frozen_dtype, load_learner, save
from pasta_lm.learn.train.losses import (
    PairLogProbs,
    bonbon_beta,
    bonbon_loss,
    dpo_loss,
    drift,
    ipo_loss,
)
from pasta_lm.learn.train.pair_packs import (
    LogProbs,
    PairPack,
    Wanted,
    collate_pairs,
    pack_pairs,
    pair_sums,
    reference_log_probs,
    token_log_probs,
)
from pasta_lm.learn.train.preference_config import LossConfig, PreferenceConfig
from pasta_lm.learn.train.rounds import Round, Show, pairs_of
from pasta_lm.learn.train.trainer import PackTrainer, is_mixed, newest_checkpoint, num_processes
from pasta_lm.models.folder import read_pasta_config
from pasta_lm.recipe import check_same_settings
from pasta_lm.strategies.model import SERVER_KEYS

EARLY_FOLDER = "model-tenth"
EARLY = 0.1
"""Share of a round after which a model is saved: the paper gains most of the speed by then."""

RECIPE = "recipe.json"
MAY_CHANGE = {
    *("model.base", "model.baseline", "data.file", "rollouts.files", "train.out"),  # moved files
    *("train.rounds", "train.workers", "train.log_steps", "train.save_steps"),
    *("train.tensorboard", "rollouts.pool_tokens"),
    *("train.tag_learning_rate", "train.freeze_old_rows", "train.decision_weight"),  # stage one
    *("train.save", "lora.start"),
    *("judge.base_url", "judge.api_key_env", "judge.journal", "judge.max_missing"),
    *("judge.timeout_s", "judge.max_in_flight"),
    *("judge.input_price", "judge.output_price", "judge.cost_limit"),
    *(f"rollouts.{key}" for key in SERVER_KEYS),
}
"""Keys that change no figure of finished rounds."""

Loss = Callable[[PairLogProbs], Tensor]


def train_preference(
    config: PreferenceConfig, *, resume: bool = False, show: Show | None = None
) -> Path:
    """Carry out a recipe; return the model folder of the last round that was kept, or the base.

    With ``resume`` it continues an interrupted run, at whatever point it stopped. Progress is shown
    by ``show``, or else as lines on standard error.

    Raises:
        UsageError: there is a run already and it is not to be resumed or has another recipe, or
            the recipe does not fit the model.
        InputError: there is nothing to learn, or a file is of another recipe.
        ModelError: the loss or the weights became NaN or infinite.
    """
    if num_processes() > 1:
        raise UsageError("stage two is for one process: each would sample answers of its own")
    check_positions(config)
    if not resume and has_begun(Path(config.train.out)):
        raise UsageError(
            f"{config.train.out} has a run already",
            hint="--resume goes on with it; or name another folder under train.out",
        )
    check_same_recipe(config)
    newest = config.model.base
    for number in range(1, config.train.rounds + 1):
        round = Round(config, number, newest)
        folder = _carry_out(round, show)
        if config.development is None or Check(round).is_kept(folder, show):
            newest = str(folder)
    return Path(newest)


def check_positions(config: PreferenceConfig) -> None:
    """Raise a UsageError unless the recipe has the base's positions and join."""
    folder = Path(config.model.base)
    known = read_pasta_config(folder) if folder.is_dir() else None
    if known is None:
        return
    for key, taught in (("positions", known.positions), ("join", known.join)):
        if taught != getattr(config.train, key):
            raise UsageError(
                f"train.{key} is {getattr(config.train, key)!r}, and model.base was taught "
                f"{taught.value!r}",
                hint="decoding, the reference and training must agree",
            )


def has_begun(out: Path) -> bool:
    """Return whether a folder holds anything of a round."""
    return any(out.glob("round-*/*"))


def check_same_recipe(config: PreferenceConfig) -> None:
    """Write the recipe of a new run to its folder; compare that of an old run.

    Raises:
        UsageError: the run in ``train.out`` was begun with other settings; they are named.
        InputError: the stored recipe cannot be read.
    """
    path = Path(config.train.out) / RECIPE
    if not path.exists() or not has_begun(path.parent):
        write_rows(path, [asdict(config)])
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InputError(f"{path} cannot be read: {cause(exc)}") from exc
    if not isinstance(before, dict):
        raise InputError(f"{path} is no JSON object")
    before = _with_new_keys(before)
    check_same_settings(config.train.out, before, asdict(config), may_change=MAY_CHANGE)


def _with_new_keys(before: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of an earlier version with what could not be chosen then."""
    found = {"judge": asdict(JudgeConfig()), "development": None, **before}
    added: dict[str, dict[str, Any]] = {
        "train": {"join": Join.SHARED.value},
        "rollouts": {"sampled": "all"},
        "score": {"quality": "ratio", "max_length_change": None},
        "loss": {"on": "answer", "kl_weight": 0.0, "kl_bound": 0.0},
    }
    tables = {name: keys for name, keys in added.items() if isinstance(found.get(name), dict)}
    return found | {name: keys | found[name] for name, keys in tables.items()}


def _carry_out(round: Round, show: Show | None) -> Path:
    """Train a round, if it was not done before; return its model folder."""
    folder = round.folder / MODEL_FOLDER
    if folder.is_dir():
        round.say("done before")
        return folder
    pairs, train = pairs_of(round, show), round.train
    set_seed(train.seed)
    lora = round.config.lora
    learner = load_learner(ModelConfig(base=round.newest), frozen_dtype(lora, train))
    packs = pack_round(round, pairs, learner)
    references = _references(round, packs)
    round.say(_describe(round, len(pairs), len(packs)))
    adapters = adapted(learner, lora) if lora else None

    def save_early() -> None:
        now = learner if adapters is None else snapshot(learner, adapters)
        save(now, train, round.folder / EARLY_FOLDER)

    trainer = PreferenceTrainer(
        train,
        round.config.loss,
        round.config.rollouts.samples,
        model=adapters or learner.model,
        train_dataset=packs,
        data_collator=partial(collate_pairs, references=references),
        callbacks=[EarlyModel(save_early)],
    )
    has_checkpoint = any(round.folder.glob("checkpoint-*"))
    trainer.learn(newest_checkpoint(round.folder) if has_checkpoint else None)
    return save(learner if adapters is None else merged(learner, adapters), train)


def pack_round(round: Round, pairs: Sequence[PreferencePair], learner: Learner) -> list[PairPack]:
    """Encode and pack a round's pairs for the model that is trained."""
    return pack_pairs(
        pairs,
        learner.encoder(PositionStrategy(round.train.positions), Join(round.train.join)),
        round.config.data.max_tokens,
        round.train.seed,
        last_position=learner.last_position,
    )


def _describe(round: Round, num_pairs: int, num_packs: int) -> str:
    config, train = round.config, round.train
    num_steps = train.num_steps(num_packs)
    return (
        f"{num_pairs} pairs in {num_packs} packs, {num_steps} steps of {train.accumulate} x "
        f"{config.data.max_tokens} tokens at most; {config.loss.kind} on {config.loss.on}, beta "
        f"{beta_of(config.loss, config.rollouts.samples):.4g}; AdamW at {train.learning_rate:g}"
    )


def _references(round: Round, packs: Sequence[PairPack]) -> dict[str, LogProbs]:
    def load() -> PreTrainedModel:
        round.say(f"reference log-probabilities of {len(packs)} packs")
        dtype = frozen_dtype(round.config.lora, round.train)
        learner = load_learner(ModelConfig(base=round.config.model.base), dtype)
        learner.model.to(usable_device(None))  # type: ignore[arg-type]
        learner.model.eval()
        return learner.model

    path = round.folder / "reference.jsonl"
    loss = round.config.loss
    wanted = Wanted(decisions_only=loss.on == "decisions", tokens=loss.kl_weight > 0)
    is_bfloat16 = is_mixed(round.train)
    return reference_log_probs(path, packs, load, is_bfloat16=is_bfloat16, wanted=wanted)


def loss_of(config: LossConfig, num_samples: int) -> Loss:
    """Return the loss of a recipe; a pair is the best and the worst of ``num_samples``."""
    beta = beta_of(config, num_samples)
    losses: dict[str, Loss] = {
        "bonbon": partial(bonbon_loss, alpha=config.alpha, beta=beta),
        "ipo": partial(ipo_loss, beta=beta),
        "dpo": partial(dpo_loss, beta=beta),
    }
    return losses[config.kind]


def beta_of(config: LossConfig, num_samples: int) -> float:
    """Return beta: the recipe's number, or BoNBoN's rule for the number of samples."""
    return config.beta if isinstance(config.beta, float) else bonbon_beta(num_samples)


class PreferenceTrainer(PackTrainer):
    """The Trainer with a loss over pairs; its log has margins beside the loss."""

    def __init__(
        self, train: TrainConfig, loss: LossConfig, num_samples: int, **kwargs: Any
    ) -> None:
        self._config, self._loss = loss, loss_of(loss, num_samples)
        self._seen: list[PairLogProbs] = []
        self._drifts: list[Tensor] = []
        super().__init__(train, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        """Return the mean loss of the pairs of a pack; a ModelError if it is NaN or infinite."""
        config, each_M = self._config, token_log_probs(model, inputs)
        sums = pair_sums(each_M, inputs, decisions_only=config.on == "decisions")
        chosen, rejected = sums.unbind(dim=1)
        pairs = PairLogProbs(chosen, rejected, *inputs["references"].unbind(dim=1))
        loss = self._loss(pairs)
        if config.kl_weight:
            moved = drift(each_M, inputs["reference_tokens"])
            loss = loss + config.kl_weight * torch.relu(moved - config.kl_bound)
            self._drifts.append(moved.detach())
        self.check_loss(loss, inputs["pair_ids"])
        self._seen.append(PairLogProbs(chosen.detach(), rejected.detach(), *inputs["references"].T))
        return loss

    def log(self, logs: dict[str, float], *args: Any) -> None:
        """Log a row; with a loss, add means over the pairs since the last one."""
        if "loss" in logs and self._seen:
            columns = zip(
                *((one.margin, one.chosen, one.rejected) for one in self._seen), strict=True
            )
            margins, chosen, rejected = map(torch.cat, columns)
            logs |= {
                "margin": margins.mean().item(),
                "share_right": (margins > 0).float().mean().item(),
                "log_prob_chosen": chosen.mean().item(),
                "log_prob_rejected": rejected.mean().item(),
            }
            if self._drifts:
                logs["drift"] = torch.stack(self._drifts).mean().item()
            self._seen.clear()
            self._drifts.clear()
        super().log(logs, *args)


class EarlyModel(TrainerCallback):
    """Saves the model after the first tenth of a round."""

    def __init__(self, save: Callable[[], object]) -> None:
        self._save = save

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save the model at its step, before a checkpoint of the same step is written."""
        if state.global_step == max(1, round(EARLY * state.max_steps)):
            self._save()
