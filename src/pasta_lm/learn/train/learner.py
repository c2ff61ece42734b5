"""Load, extend and save the trained model; rows of tokens that learn at a rate of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pasta_lm.engines.local.attention import NAME, register
from pasta_lm.engines.local.loading import read_architecture
from pasta_lm.engines.local.self_test import check_exact
from pasta_lm.errors import ModelError, ModelNotFoundError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.parser import Form
from pasta_lm.learn.data.encode import encode_example, encode_points
from pasta_lm.learn.train.config import LoraConfig, ModelConfig, RandomConfig, TrainConfig
from pasta_lm.learn.train.sources import Encode
from pasta_lm.models.folder import read_pasta_config, save_model_folder
from pasta_lm.models.load import last_position, load_pretrained
from pasta_lm.models.pieces import add_pieces, tag_pieces, token_matrices
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies import apar, pasta
from pasta_lm.strategies import skeleton_of_thought as sot

MODEL_FOLDER = "model"
_APART = "trainable_tokens_delta"
"""peft's name for rows that are trained while their matrix is frozen."""


@dataclass(frozen=True, slots=True)
class Learner:
    """A model in training, with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    eos_id: int
    trained_strategy: str = pasta.NAME
    """The strategy that it was trained for, or is about to be."""
    source: str | None = None
    """Folder or hub id that the weights were loaded from; None: they began at random."""

    @property
    def last_position(self) -> int | None:
        """Return the last position that the model can have, or None."""
        return last_position(self.model)

    def encoder(self, train: TrainConfig) -> Encode:
        """Return the function that encodes records for this model and its strategy."""
        vocabulary, eos_id = self.vocabulary, self.eos_id
        positions = PositionStrategy(train.positions)
        if self.trained_strategy == sot.NAME:
            return partial(encode_points, vocabulary=vocabulary, eos_id=eos_id, strategy=positions)
        form = Form.FORKED if self.trained_strategy == apar.NAME else Form.MAIN
        return partial(
            encode_example,
            vocabulary=vocabulary,
            eos_id=eos_id,
            strategy=positions,
            form=form,
            join=Join(train.join),
        )


def load_learner(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Learner:
    """Load or initialise a model with the tag pieces and our attention.

    Weights that are trained should be float32.

    Raises:
        ModelNotFoundError: there is no model or tokenizer where the recipe says.
        ModelError: the tokenizer has no end-of-text, or is not a fast one.
        UnsupportedModelError: the engine would not be exact for this model.
    """
    if config.base is not None:
        pretrained = load_pretrained(config.base, dtype=dtype)
        model, tokenizer = pretrained.model, pretrained.tokenizer
    else:
        assert config.random is not None
        model, tokenizer = _random(config.random)
    eos_id = tokenizer.eos_token_id
    if not isinstance(eos_id, int):
        raise ModelError(
            f"[model] {config.base or config.random}: its tokenizer has no end-of-text"
        )
    check_exact(model)
    make_savable(model.generation_config)
    add_pieces(model, tokenizer)
    register()
    model.set_attn_implementation(NAME)
    vocabulary = Vocabulary(tokenizer, tag_pieces(tokenizer))
    known = None if config.base is None else read_pasta_config(Path(config.base))
    strategy = known.trained_strategy if known else pasta.NAME
    return Learner(model, tokenizer, vocabulary, eos_id, strategy, config.base)


def _random(random: RandomConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            random.tokenizer, trust_remote_code=False
        )
    except (OSError, ValueError) as exc:
        raise ModelNotFoundError(
            f"[model.random] no tokenizer at {random.tokenizer}",
            hint="name a folder with a tokenizer.json, which save_pretrained writes",
        ) from exc
    config = read_architecture(Path(random.architecture))
    config.vocab_size = max(config.vocab_size, len(tokenizer))
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", trust_remote_code=False
    )
    return model, tokenizer


def make_savable(config: GenerationConfig | None) -> None:
    """Change a base's generation settings so that transformers agrees to save them.

    Some models set a temperature without ``do_sample``; they are meant to be sampled.
    """
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True


def check_finite(model: torch.nn.Module) -> None:
    """Raise a ModelError that names the first weight that is NaN or infinite."""
    for name, weight in model.named_parameters():
        # Of a sharded weight each process checks its own part.
        part = weight.to_local() if isinstance(weight, DTensor) else weight
        if not torch.isfinite(part).all():
            raise ModelError(
                f"the weights {name} are NaN or infinite: they are not saved",
                hint="lower learning_rate; --resume goes on from the last checkpoint",
            )


def save(learner: Learner, train: TrainConfig, folder: Path | None = None) -> Path:
    """Write the model folder in the recipe's dtype, complete or not at all; return the folder.

    The learner's own weights do not change. Without a folder it is ``model`` in ``train.out``.

    Raises:
        ModelError: a weight is NaN or infinite.
    """
    check_finite(learner.model)
    folder = folder or Path(train.out) / MODEL_FOLDER
    dtype = getattr(torch, train.dtype)
    is_same = learner.model.dtype is dtype
    model = learner.model if is_same else deepcopy(learner.model).to(dtype)
    model.generation_config.eos_token_id = learner.eos_id
    with written_whole(folder) as part:
        save_model_folder(
            model,
            learner.tokenizer,
            part,
            positions=PositionStrategy(train.positions),
            limits=Limits(),
            trained_strategy=learner.trained_strategy,
            join=Join(train.join),
        )
    return folder


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Give a folder to write to, which replaces the other when it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    yield part
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def frozen_dtype(lora: LoraConfig | None, train: TrainConfig) -> torch.dtype:
    """Return the dtype of the weights during training.

    Trained weights are float32; frozen ones have the dtype in which they are saved, so that a
    large model fits into memory. Adapters are float32 in any case.
    """
    saved: torch.dtype = getattr(torch, train.dtype)
    return torch.float32 if lora is None else saved


@dataclass(frozen=True, slots=True)
class RowRate:
    """Rows of a weight in training, and their learning rate as a multiple of the others'."""

    weight: Tensor
    ids: Tensor | None
    """int64 [number of rows]; None: all rows."""
    ratio: float

    def read(self) -> Tensor:
        """Return a copy of the rows."""
        weight = self.weight.detach()
        return weight.clone() if self.ids is None else weight[self.ids]

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """Replace the rows."""
        self.weight[slice(None) if self.ids is None else self.ids] = rows


def row_rates(learner: Learner, train: TrainConfig) -> list[RowRate]:
    """Return the rows with a learning rate of their own; see ``TrainConfig``.

    Beside adapters the rows of the tag pieces are weights of their own, and the others frozen.
    """
    ratio = (train.tag_learning_rate or train.learning_rate) / train.learning_rate
    named = learner.model.named_parameters()
    if apart := [weight for name, weight in named if _APART in name]:
        return [RowRate(weight, None, ratio) for weight in apart if ratio != 1]
    rows: list[RowRate] = []
    for matrix in token_matrices(learner.model).values():
        is_tag = torch.zeros(len(matrix), dtype=torch.bool)
        is_tag[list(learner.vocabulary.piece_ids.values())] = True
        if ratio != 1:
            rows.append(RowRate(matrix, is_tag.nonzero()[:, 0], ratio))
        if train.freeze_old_rows:
            rows.append(RowRate(matrix, (~is_tag).nonzero()[:, 0], 0.0))
    return rows


def scale_updates(optimizer: torch.optim.Optimizer, rows: Sequence[RowRate]) -> None:
    """Let each step of an optimiser move rows ``ratio`` times as far; with 0 they stay.

    AdamW's step, weight decay included, is linear in the learning rate, and its moments do not
    depend on it: this is exactly a rate of ``ratio`` times the others', which no parameter group
    can give to some rows of a matrix. Nothing is kept between steps, so checkpoints need no more.
    """
    if not rows:
        return
    before: list[Tensor] = []

    def keep(*_: Any) -> None:
        before[:] = [each.read() for each in rows]

    def scale(*_: Any) -> None:
        for each, old in zip(rows, before, strict=True):
            each.write(old + each.ratio * (each.read() - old))

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(scale)
