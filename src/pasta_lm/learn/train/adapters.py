"""Low-rank adapters: train them with peft, and save them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pasta_lm.errors import MissingExtraError, UsageError
from pasta_lm.learn.train.config import LoraConfig, TrainConfig
from pasta_lm.learn.train.learner import MODEL_FOLDER, Learner, check_finite, pasta_config
from pasta_lm.models.adapter import (
    Adapter,
    BaseReference,
    check_base,
    is_adapter,
    merge_adapter,
    place_of,
    read_adapter,
    read_base,
    reference_to,
    save_adapter,
)
from pasta_lm.models.checkpoint import first_line
from pasta_lm.models.pieces import token_matrices
from pasta_lm.run_folder import written_whole

if TYPE_CHECKING:
    from peft import PeftModel

EVERY_LAYER = "all-linear"  # peft's name for all linear layers but the output matrix


def adapted(learner: Learner, lora: LoraConfig) -> PeftModel:
    """Freeze a learner's weights, add adapters in place, and return the model to train.

    Its checkpoints hold only the adapters and the trained rows.
    """
    try:
        import peft
    except ImportError as exc:
        raise MissingExtraError("[lora] (peft)", "train") from exc
    tag_ids = sorted(learner.vocabulary.piece_ids.values())
    rows = dict.fromkeys(token_matrices(learner.model), tag_ids)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float is fine
        lora_dropout=lora.dropout,
        target_modules=[*lora.targets] or EVERY_LAYER,
        trainable_token_indices=rows if lora.trained_tokens == "tags" else None,
    )
    start = None
    if lora.start is not None:
        start = read_adapter(Path(lora.start))
        check_base(read_base(Path(lora.start)), learner.model, learner.tokenizer)
        merge_adapter(learner.model, replace(start, low_rank={}))  # the rows of the tag pieces
    try:
        model = peft.get_peft_model(learner.model, config)
    except ValueError as exc:
        raise UsageError(
            f"[lora] does not fit the model: {first_line(exc)}",
            hint="targets are names of linear layers, such as q_proj; without any, all learn",
        ) from exc
    assert isinstance(model, peft.PeftModel)
    # Otherwise a checkpoint asks the hub for the base, and keeps embeddings that have grown.
    model.peft_config["default"].base_model_name_or_path = None
    if start is not None:
        _begin_with(start, model, lora)
    return model


@torch.no_grad()
def _begin_with(start: Adapter, model: PeftModel, lora: LoraConfig) -> None:
    pairs = _low_rank(model)
    if pairs.keys() != start.low_rank.keys():
        other = min(pairs.keys() ^ start.low_rank.keys())
        raise UsageError(
            f"lora.start and lora.targets have other layers: {other} has one adapter of the two",
            hint="give the targets that the adapter was made with",
        )
    for name, (a, b) in pairs.items():
        start_a, start_b = start.low_rank[name]
        if (start_a.shape, start_b.shape) != (a.shape, b.shape):
            rank = len(start_a)
            reason = f"lora.rank is {len(a)}, and the adapter {lora.start} has rank {rank}"
            raise UsageError(reason, hint=f"lora.rank = {rank}")
        a.copy_(start_a)
        b.copy_(start_b * lora.rank / lora.alpha)


def _low_rank(model: PeftModel) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A [r, in] and B [out, r] of each layer that has an adapter, by its name."""
    modules: list[tuple[str, Any]] = [*model.get_base_model().named_modules()]
    return {
        name: (module.lora_A["default"].weight, module.lora_B["default"].weight)
        for name, module in modules
        if hasattr(module, "lora_A")
    }


def merged(learner: Learner, model: PeftModel) -> Learner:
    """Merge the adapters into the weights, in the frozen weights' dtype; the adapters are gone."""
    return replace(learner, model=model.merge_and_unload())


def base_of(learner: Learner, lora: LoraConfig) -> BaseReference:
    """Return the reference to a learner without adapters, or to the base of ``lora.start``."""
    source = learner.source or ""
    if is_adapter(Path(source)):
        raise UsageError(
            f"model.base is an adapter, and an adapter has no adapter of its own: {source}",
            hint='model.base = its base and lora.start = this folder, or train.save = "merged"',
        )
    if lora.start is not None:
        return read_base(Path(lora.start))
    return reference_to(learner.model, learner.tokenizer, **place_of(source))


def save_trained(
    learner: Learner, model: PeftModel, base: BaseReference, lora: LoraConfig, train: TrainConfig
) -> Path:
    """Write trained adapters as an adapter folder, complete or not at all; return the folder."""
    check_finite(learner.model)
    scale = lora.alpha / lora.rank
    pairs = {name: (a.clone(), scale * b) for name, (a, b) in _low_rank(model).items()}
    config, dtype = pasta_config(learner, train), getattr(torch, train.dtype)
    # The merged weights give the rows of the tag pieces.
    adapter = with_tag_rows(pairs, merged(learner, model).model, config.piece_ids)
    with written_whole(Path(train.out) / MODEL_FOLDER) as folder:
        save_adapter(folder, adapter, base=base, config=config, dtype=dtype)
    return Path(train.out) / MODEL_FOLDER


def with_tag_rows(
    low_rank: Mapping[str, tuple[Tensor, Tensor]],
    model: PreTrainedModel,
    piece_ids: Mapping[str, int],
) -> Adapter:
    """Return an adapter of these matrices, with the rows of the tag pieces of a trained model."""
    ids = list(piece_ids.values())
    rows = {name: weight.detach()[ids] for name, weight in token_matrices(model).items()}
    return Adapter(low_rank=low_rank, rows=rows, token_ids=dict.fromkeys(rows, ids))
