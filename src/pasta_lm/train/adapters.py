"""Add low-rank adapters (peft) to a model's frozen weights, and merge them after training.

The rows of the tag pieces are trained as well, in the input and the output matrix, because an
untrained tag's row is a mean of other rows. The result is an ordinary model without adapters.

Source: E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models".
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pasta_lm.errors import MissingExtraError, UsageError
from pasta_lm.train.config import LoraConfig, TrainConfig
from pasta_lm.train.learner import Learner

if TYPE_CHECKING:
    from peft import PeftModel

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
    model = learner.model
    matrices = [model.get_input_embeddings()]
    if not model.config.get_text_config().tie_word_embeddings:
        matrices.append(model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(matrix)]: ids for matrix in matrices}
