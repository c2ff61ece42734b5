"""Stage one: supervised finetuning on annotated answers, on the Trainer of transformers.

Pasta-SFT learns the tags; Baseline-SFT is the same with the tags stripped; the base model is the
same with random weights at the beginning. Learning rate, batch and schedule are the recipe's.

Source: PASTA, section 4.2 and appendix on training (Gemma 7B: batch 8, LR 1e-5, linear, 4 epochs).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from pasta_lm.data.encode import NO_LABEL, encode_example
from pasta_lm.engines.torch.attention import NAME, register
from pasta_lm.engines.torch.loading import tag_pieces
from pasta_lm.engines.torch.model_folder import save_model_folder
from pasta_lm.engines.torch.pieces import add_pieces
from pasta_lm.engines.torch.self_test import check_exact
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import ModelError, UsageError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.train import muon
from pasta_lm.train.collate import collate
from pasta_lm.train.config import WSD, ModelConfig, SftConfig, TrainConfig
from pasta_lm.train.losses import next_token_loss
from pasta_lm.train.progress import Progress
from pasta_lm.train.sources import Encode, Pack, packs_of

MODEL_FOLDER = "model"


@dataclass(frozen=True, slots=True)
class Learner:
    """A model that is to learn, with what encodes its data."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    eos_id: int

    def encoder(self, positions: PositionStrategy) -> Encode:
        """Return what encodes records for this model."""
        return partial(
            encode_example, vocabulary=self.vocabulary, eos_id=self.eos_id, strategy=positions
        )


def train_sft(config: SftConfig, *, resume: bool = False) -> Path:
    """Carry out a recipe; return the folder of the model that came out.

    Args:
        config: The recipe.
        resume: Go on from the newest checkpoint in ``train.out``, if there is one.

    Raises:
        ModelError: the loss became NaN or infinite; the records of that batch are named.
        UnsupportedModelError: the engine would not be exact for this model.
    """
    train = config.train
    set_seed(train.seed)
    learner = load_learner(config.model)
    packs = make_packs(config, learner)
    trainer = SftTrainer(
        train,
        model=learner.model,
        args=_arguments(train),
        train_dataset=packs,
        data_collator=collate,
        callbacks=[Progress(Path(train.out) / "log.jsonl")],
    )
    trainer.train(resume_from_checkpoint=_checkpoint(train) if resume else None)
    return save(learner, train)


def make_packs(config: SftConfig, learner: Learner) -> Dataset[Pack]:
    """Return what the recipe learns from, encoded for a model."""
    train = config.train
    num_packs = None if train.steps is None else train.steps * train.accumulate
    encode = learner.encoder(PositionStrategy(train.positions))
    return packs_of(config.data, encode, num_packs, train.seed)


def load_learner(config: ModelConfig) -> Learner:
    """Load or initialise a model in float32, with the tag pieces and our attention.

    Raises:
        UsageError: a folder or file of the recipe cannot be read.
        UnsupportedModelError: the engine would not be exact for this model.
    """
    source = config.base or config.tokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        if config.base:
            model = AutoModelForCausalLM.from_pretrained(
                config.base, dtype=torch.float32, attn_implementation="eager"
            )
        else:
            model = _initialise(Path(config.architecture or ""), tokenizer)
    except (OSError, ValueError) as exc:
        first_line = str(exc).partition("\n")[0]
        raise UsageError(f"[model] {source}: {first_line}") from exc
    eos_id = tokenizer.eos_token_id
    if not isinstance(eos_id, int):
        raise UsageError(f"[model] the tokenizer of {source} has no end-of-text")
    check_exact(model)
    add_pieces(model, tokenizer)
    register()
    model.set_attn_implementation(NAME)
    return Learner(model, tokenizer, Vocabulary(tokenizer, tag_pieces(tokenizer)), eos_id)


def _initialise(file: Path, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    data = json.loads(file.read_text(encoding="utf-8"))
    config = AutoConfig.for_model(**data)
    config.vocab_size = max(config.vocab_size, len(tokenizer))
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model


def save(learner: Learner, train: TrainConfig) -> Path:
    """Write the model folder, in the recipe's dtype."""
    folder = Path(train.out) / MODEL_FOLDER
    model = learner.model.to(getattr(torch, train.dtype))
    model.generation_config.eos_token_id = learner.eos_id
    save_model_folder(
        model,
        learner.tokenizer,
        folder,
        positions=PositionStrategy(train.positions),
        limits=Limits(),
    )
    return folder


class SftTrainer(Trainer):
    """The Trainer with our loss, our order of packs and a stop where the loss is no number."""

    def __init__(self, train: TrainConfig, **kwargs: Any) -> None:
        """Keep the recipe's numbers; the rest goes to the Trainer."""
        self._train = train
        super().__init__(**kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        """Return the mean loss of a pack.

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
        loss = next_token_loss(out.logits, labels[:, learned])
        if not torch.isfinite(loss):
            shown = ", ".join(record_ids[:8])
            raise ModelError(
                f"the loss is {loss.item()} after step {self.state.global_step}, in a batch of "
                f"{len(record_ids)} records: {shown}",
                hint="lower learning_rate, or look at these records; --resume goes on from the "
                "last checkpoint",
            )
        return loss

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        """Return the optimiser that the recipe names."""
        if self._train.optimizer == "adamw":
            return super().create_optimizer(*args)
        if self.optimizer is None:
            rate = self._train.learning_rate
            other_rate = self._train.other_learning_rate or rate
            groups = muon.groups(self.model, rate, other_rate)
            self.optimizer = muon.Muon(groups, rate, weight_decay=self._train.weight_decay)
        return self.optimizer


def _arguments(train: TrainConfig) -> TrainingArguments:
    return TrainingArguments(
        output_dir=train.out,
        max_steps=-1 if train.steps is None else train.steps,
        num_train_epochs=train.epochs or 1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=train.accumulate,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        adam_beta2=0.98,
        lr_scheduler_type=train.schedule,
        lr_scheduler_kwargs=_decay(train),
        warmup_steps=train.warmup,
        max_grad_norm=train.clip,
        bf16=train.dtype == "bfloat16" and torch.cuda.is_available(),
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
    )


def _decay(train: TrainConfig) -> dict[str, Any]:
    if train.schedule != WSD:
        return {}
    return {"num_decay_steps": round(train.decay * (train.steps or 0)), "decay_type": "1-sqrt"}


def _checkpoint(train: TrainConfig) -> str | None:
    from transformers.trainer_utils import get_last_checkpoint

    found = get_last_checkpoint(train.out) if Path(train.out).is_dir() else None
    if found is None:
        print(f"pasta: no checkpoint in {train.out}: starting anew", file=sys.stderr)  # noqa: T201
    return found
