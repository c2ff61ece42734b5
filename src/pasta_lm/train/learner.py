"""Load, extend and save the trained model: tag pieces, low-rank adapters."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.data.encode import encode_example, encode_points
from pasta_lm.engines.torch.attention import NAME, register
from pasta_lm.engines.torch.loading import last_position, tag_pieces
from pasta_lm.engines.torch.model_folder import add_pieces, read_pasta_config, save_model_folder
from pasta_lm.engines.torch.pretrained import read_pretrained
from pasta_lm.engines.torch.random_model import read_architecture
from pasta_lm.engines.torch.self_test import check_exact
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import MissingExtraError, ModelError, ModelNotFoundError, UsageError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.parser import Form
from pasta_lm.strategies import apar, pasta
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.train.config import LoraConfig, ModelConfig, RandomConfig, TrainConfig
from pasta_lm.train.sources import Encode

if TYPE_CHECKING:
    from peft import PeftModel


MODEL_FOLDER = "model"


@dataclass(frozen=True, slots=True)
class Learner:
    """A model in training, with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    eos_id: int
    trained_strategy: str = pasta.NAME
    """The strategy that it was trained for, or is about to be."""

    @property
    def last_position(self) -> int | None:
        """Return the last position that the model can have, or None."""
        return last_position(self.model)

    def encoder(self, positions: PositionStrategy) -> Encode:
        """Return the function that encodes records for this model and its strategy."""
        vocabulary, eos_id = self.vocabulary, self.eos_id
        if self.trained_strategy == sot.NAME:
            return partial(encode_points, vocabulary=vocabulary, eos_id=eos_id, strategy=positions)
        form = Form.FORKED if self.trained_strategy == apar.NAME else Form.MAIN
        return partial(
            encode_example, vocabulary=vocabulary, eos_id=eos_id, strategy=positions, form=form
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
        model, tokenizer = read_pretrained(config.base, dtype)
    else:
        assert config.random is not None
        model, tokenizer = _random(config.random)
    eos_id = tokenizer.eos_token_id
    if not isinstance(eos_id, int) or not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"[model] {config.base or config.random}: its tokenizer has no end-of-text, or no "
            "tokenizer.json",
        )
    check_exact(model)
    add_pieces(model, tokenizer)
    register()
    model.set_attn_implementation(NAME)
    vocabulary = Vocabulary(tokenizer, tag_pieces(tokenizer))
    known = None if config.base is None else read_pasta_config(Path(config.base))
    strategy = known.trained_strategy if known else pasta.NAME
    return Learner(model, tokenizer, vocabulary, eos_id, strategy)


def _random(random: RandomConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(random.tokenizer)
    except (OSError, ValueError) as exc:
        raise ModelNotFoundError(
            f"[model.random] no tokenizer at {random.tokenizer}",
            hint="name a folder with a tokenizer.json, such as src/pasta_lm/models/builtin",
        ) from exc
    config = read_architecture(Path(random.architecture))
    config.vocab_size = max(config.vocab_size, len(tokenizer))
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model, tokenizer


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
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    save_model_folder(
        model,
        learner.tokenizer,
        part,
        positions=PositionStrategy(train.positions),
        limits=Limits(),
        trained_strategy=learner.trained_strategy,
    )
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)
    return folder


EVERY_LAYER = "all-linear"
"""peft's name for all linear layers but the output matrix."""


def frozen_dtype(lora: LoraConfig | None, train: TrainConfig) -> torch.dtype:
    """Return the dtype of the weights during training.

    Trained weights are float32; frozen ones have the dtype in which they are saved, so that a
    large model fits into memory. Adapters are float32 in any case.
    """
    saved: torch.dtype = getattr(torch, train.dtype)
    return torch.float32 if lora is None else saved


def adapted(learner: Learner, lora: LoraConfig) -> PeftModel:
    """Freeze a learner's weights, add adapters in place, and return the model to train.

    Its checkpoints hold only the adapters and the trained rows.

    Raises:
        MissingExtraError: peft is not installed.
        UsageError: the model has no matrices of these names.
    """
    try:
        import peft
    except ImportError as exc:
        raise MissingExtraError("[lora] (peft)", "train") from exc
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float is fine
        lora_dropout=lora.dropout,
        target_modules=[*lora.targets] or EVERY_LAYER,
        trainable_token_indices=_trained_rows(learner) if lora.trained_tokens == "tags" else None,
    )
    try:
        model = peft.get_peft_model(learner.model, config)
    except ValueError as exc:
        raise UsageError(
            f"[lora] does not fit the model: {str(exc).splitlines()[0]}",
            hint="targets are names of linear layers, such as q_proj; without any, all learn",
        ) from exc
    assert isinstance(model, peft.PeftModel)
    # Otherwise a checkpoint asks the hub for the base, and keeps embeddings that have grown.
    model.peft_config["default"].base_model_name_or_path = None
    return model


def merged(learner: Learner, model: PeftModel) -> Learner:
    """Merge the adapters into the weights, in the frozen weights' dtype; the adapters are gone."""
    return replace(learner, model=model.merge_and_unload())


def snapshot(learner: Learner, model: PeftModel) -> Learner:
    """Return a merged copy on the CPU; the adapters stay in training."""
    held = [*model.parameters(), *model.buffers()]
    copies = {id(one): _on_cpu(one) for one in held}  # deepcopy takes them from here
    return merged(learner, deepcopy(model, copies))


def _on_cpu(held: Tensor) -> Tensor:
    copy = held.detach().to("cpu", copy=True)
    return nn.Parameter(copy, held.requires_grad) if isinstance(held, nn.Parameter) else copy


def _trained_rows(learner: Learner) -> dict[str, list[int]]:
    """Return the tag pieces' ids for each matrix that has rows of tokens, by its name."""
    ids = sorted(learner.vocabulary.piece_ids.values())
    names = {id(module): name for name, module in learner.model.named_modules()}
    return {names[id(matrix)]: ids for matrix in token_matrices(learner.model)}


def token_matrices(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules with a row a token: the input matrix, and the output's if it is apart."""
    matrices = [model.get_input_embeddings()]
    if not model.config.get_text_config().tie_word_embeddings:
        matrices.append(model.get_output_embeddings())
    return matrices
