"""Load, extend and save the trained model; the output folder of a training."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
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
from pasta_lm.errors import ModelError, ModelNotFoundError, PastaError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.parser import Form
from pasta_lm.learn.data.encode import encode_example, encode_points
from pasta_lm.learn.train.config import LoraConfig, ModelConfig, RandomConfig, TrainConfig
from pasta_lm.learn.train.packs import Encode
from pasta_lm.models.folder import PastaConfig, read_pasta_config, save_model_folder
from pasta_lm.models.load import last_position, load_pretrained
from pasta_lm.models.pieces import add_pieces, tag_pieces
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.run_folder import RunFolder, written_whole
from pasta_lm.strategies import apar, pasta
from pasta_lm.strategies import skeleton_of_thought as sot

MODEL_FOLDER, LOG, RECIPE = "model", "log.jsonl", "recipe.json"
MAY_CHANGE = {
    *("model.base", "model.baseline", "data.file", "data.exclude", "train.out"),  # moved files
    *("train.steps", "train.epochs", "train.rounds"),  # a longer run
    *("train.workers", "train.log_steps", "train.save_steps"),
}
"""Keys of a recipe that may change when a run is continued."""
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)))


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
    """Load or initialise a model with the tag pieces and our attention; float32 to be trained."""
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
    """Change a base's settings so that transformers saves them: a temperature needs sampling."""
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
    """
    check_finite(learner.model)
    folder = folder or Path(train.out) / MODEL_FOLDER
    dtype = getattr(torch, train.dtype)
    is_same = learner.model.dtype is dtype
    model = learner.model if is_same else deepcopy(learner.model).to(dtype)
    model.generation_config.eos_token_id = learner.eos_id
    with written_whole(folder) as part:
        save_model_folder(model, learner.tokenizer, part, pasta_config(learner, train))
    return folder


def pasta_config(learner: Learner, train: TrainConfig) -> PastaConfig:
    """Return the record of a training, which is saved beside the weights."""
    return PastaConfig(
        piece_ids=learner.vocabulary.piece_ids,
        positions=PositionStrategy(train.positions),
        limits=Limits(),
        trained_strategy=learner.trained_strategy,
        join=Join(train.join),
    )


def frozen_dtype(lora: LoraConfig | None, train: TrainConfig) -> torch.dtype:
    """Return the dtype of the weights during training.

    Trained weights are float32; frozen ones have the dtype in which they are saved, so that a
    large model fits into memory. Adapters are float32 in any case.
    """
    saved: torch.dtype = getattr(torch, train.dtype)
    return torch.float32 if lora is None else saved


@contextmanager
def open_output(out: str, *, resume: bool, overwrite: bool) -> Iterator[RunFolder]:
    """Hold the folder of a run; of several processes the first one."""
    run = RunFolder(Path(out), RECIPE)
    if is_first():
        run.require_new(resume=resume, overwrite=overwrite)
    with run.locked() if is_first() else nullcontext(), full_disk_named(run.path):
        yield run


@contextmanager
def full_disk_named(out: Path) -> Iterator[None]:
    """Raise a PastaError if the disk is full, whichever library writes to it."""
    try:
        yield
    except Exception as exc:
        # Each library has an error class of its own; all of them quote the system.
        reason = next((text for text in _FULL if text in str(exc)), None)
        if reason is None or isinstance(exc, PastaError):
            raise
        raise PastaError(
            f"{out} cannot be written: {reason}",
            hint="make room and run the same command again, a training with --resume",
        ) from exc


def append_row(log: Path, row: Mapping[str, Any]) -> None:
    """Append a row with the time to a log of JSON lines; its folder is made."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **row}) + "\n")


def num_processes() -> int:
    """Return the number of processes that train together."""
    return int(_state().num_processes)


def is_first() -> bool:
    """Return whether this process is the one that writes files and messages."""
    return bool(_state().is_main_process)


def _state() -> PartialState:
    # Without a GPU accelerate sees several processes only if it is told to use the CPU.
    return PartialState(cpu=not torch.cuda.is_available())
