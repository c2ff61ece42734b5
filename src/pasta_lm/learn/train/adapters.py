"""Low-rank adapters: train them, save them, or cut them from a model with all weights trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pasta_lm.errors import MissingExtraError, ModelError, UsageError
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.train.config import LoraConfig, TrainConfig
from pasta_lm.learn.train.learner import MODEL_FOLDER, Learner, check_finite, written_whole
from pasta_lm.models.adapter import (
    Adapter,
    BaseReference,
    check_base,
    is_adapter,
    merge_adapter,
    read_adapter,
    read_base,
    reference_to,
    save_adapter,
    tag_rows,
    token_matrices,
)
from pasta_lm.models.folder import PastaConfig
from pasta_lm.models.pretrained import gguf_of_package

if TYPE_CHECKING:
    from peft import PeftModel

EVERY_LAYER = "all-linear"
"""peft's name for all linear layers but the output matrix."""


def adapted(learner: Learner, lora: LoraConfig) -> PeftModel:
    """Freeze a learner's weights, add adapters in place, and return the model to train.

    Its checkpoints hold only the adapters and the trained rows.

    Raises:
        MissingExtraError: peft is not installed.
        UsageError: the model has no matrices of these names, or ``lora.start`` has others.
        ModelError: ``lora.start`` is no adapter, or belongs to another base.
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
    start = None if lora.start is None else _read_start(learner, Path(lora.start))
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
    if start is not None:
        _begin_with(start, model, lora)
    return model


def _read_start(learner: Learner, folder: Path) -> Adapter:
    """Return an adapter to go on with; its rows of tag pieces are written into the learner."""
    adapter = read_adapter(folder)
    check_base(read_base(folder), learner.model, learner.tokenizer)
    rows = replace(adapter, low_rank={})
    merge_adapter(learner.model, rows, learner.vocabulary.piece_ids)
    return adapter


@torch.no_grad()
def _begin_with(start: Adapter, model: PeftModel, lora: LoraConfig) -> None:
    """Copy the matrices of an adapter into a model whose adapters are new."""
    pairs = _low_rank(model)
    if pairs.keys() != start.low_rank.keys():
        other = min(pairs.keys() ^ start.low_rank.keys())
        raise UsageError(
            f"lora.start and lora.targets have other layers: {other} has one adapter of the two",
            hint="give the targets that the adapter was made with",
        )
    for name, (a, b) in pairs.items():
        start_a, start_b = start.low_rank[name]
        if start_a.shape != a.shape or start_b.shape != b.shape:
            raise UsageError(
                f"lora.rank is {len(a)}, and the adapter {lora.start} has rank {len(start_a)}",
                hint=f"lora.rank = {len(start_a)}",
            )
        a.copy_(start_a)
        b.copy_(start_b * start.scale * lora.rank / lora.alpha)


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


def snapshot(learner: Learner, model: PeftModel) -> Learner:
    """Return a merged copy on the CPU; the adapters stay in training."""
    held = [*model.parameters(), *model.buffers()]
    copies = {id(one): _on_cpu(one) for one in held}  # deepcopy takes them from here
    return merged(learner, deepcopy(model, copies))


def _on_cpu(held: Tensor) -> Tensor:
    copy = held.detach().to("cpu", copy=True)
    return nn.Parameter(copy, held.requires_grad) if isinstance(held, nn.Parameter) else copy


# --- saved


def base_of(learner: Learner, lora: LoraConfig) -> BaseReference:
    """Return the reference to the model that adapters are about to be trained for.

    Args:
        learner: It as it was loaded, without adapters.
        lora: With ``start``, the reference is that of the adapter to go on with.

    Raises:
        UsageError: the base is an adapter itself.
    """
    source = learner.source or ""
    if is_adapter(Path(source)):
        raise UsageError(
            f"model.base is an adapter, and an adapter has no adapter of its own: {source}",
            hint='model.base = its base and lora.start = this folder, or train.save = "merged"',
        )
    if lora.start is not None:
        return read_base(Path(lora.start))
    return reference_to(learner.model, learner.tokenizer, **place_of(source))


def place_of(source: str) -> dict[str, str]:
    """Return the place where a base can be had, as ``reference_to`` takes it."""
    if Path(source).exists():
        return {"path": str(Path(source).resolve())}
    return {"package" if gguf_of_package(source) else "hub_id": source}


def save_trained(
    learner: Learner, model: PeftModel, base: BaseReference, lora: LoraConfig, train: TrainConfig
) -> Path:
    """Write trained adapters as an adapter folder, complete or not at all; return the folder.

    They are merged into the learner's weights, which gives the rows of the tag pieces.

    Raises:
        ModelError: a weight is NaN or infinite.
    """
    check_finite(learner.model)
    low_rank = {
        name: (a.detach().cpu().clone(), b.detach().cpu().clone())
        for name, (a, b) in _low_rank(model).items()
    }
    whole, piece_ids = merged(learner, model).model, learner.vocabulary.piece_ids
    with written_whole(Path(train.out) / MODEL_FOLDER) as folder:
        save_adapter(
            folder,
            Adapter(
                low_rank=low_rank,
                rows={name: rows.cpu() for name, rows in tag_rows(whole, piece_ids).items()},
                scale=lora.alpha / lora.rank,
            ),
            base=base,
            config=PastaConfig(
                piece_ids=piece_ids,
                positions=PositionStrategy(train.positions),
                limits=Limits(),
                trained_strategy=learner.trained_strategy,
                join=Join(train.join),
            ),
            dtype=getattr(torch, train.dtype),
        )
    return Path(train.out) / MODEL_FOLDER


def _trained_rows(learner: Learner) -> dict[str, list[int]]:
    """Return the tag pieces' ids for each matrix that has rows of tokens, by its name."""
    ids = sorted(learner.vocabulary.piece_ids.values())
    return dict.fromkeys(token_matrices(learner.model), ids)


# --- cut from a model with all weights trained


@dataclass(frozen=True, slots=True)
class Change:
    """How far training moved the weights of one kind, such as all ``q_proj``."""

    relative: float
    """Norm of the difference, divided by the norm of the base's weights."""
    kept: float
    """Share of the squared difference that the adapter keeps."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An adapter with what it keeps of each kind of weights."""

    adapter: Adapter
    changes: Mapping[str, Change]


@dataclass(slots=True)
class _Sums:
    base: float = 0.0
    moved: float = 0.0
    kept: float = 0.0


@torch.no_grad()
def cut_difference(
    base: PreTrainedModel, taught: PreTrainedModel, piece_ids: Mapping[str, int], rank: int
) -> Cut:
    """Return the low-rank part of what training changed.

    Args:
        base: The model before training, with its tag pieces.
        taught: The model after it.
        piece_ids: The tag pieces' token ids in both.
        rank: Of each linear layer's matrices A [r, in] and B [out, r]; they share its singular
            values evenly, so that they can be trained on.

    Raises:
        ModelError: the two models have other weights, or a layer is smaller than the rank.
    """
    before, after = dict(base.named_parameters()), dict(taught.named_parameters())
    if {name: w.shape for name, w in before.items()} != {
        name: w.shape for name, w in after.items()
    }:
        raise ModelError(
            "the two models have other weights: one is no finetuning of the other",
            hint="give the model that training began with",
        )
    layers = _linear_layers(base)
    matrices = {f"{name}.weight": matrix for name, matrix in token_matrices(base).items()}
    is_old = torch.ones(len(next(iter(matrices.values()))), dtype=torch.bool)
    is_old[list(piece_ids.values())] = False
    sums: defaultdict[str, _Sums] = defaultdict(_Sums)
    low_rank = {}
    for name, old in before.items():
        first, second = old.float(), after[name].float()
        kind = sums[_kind(name)]
        if name in matrices:
            first, second = first[is_old], second[is_old]
        kind.base += float(first.square().sum())
        kind.moved += float((second - first).square().sum())
        if layer := layers.get(name):
            a, b, kept = _cut(name, second - first, rank)
            low_rank[layer] = a, b
            kind.kept += kept
    return Cut(
        Adapter(low_rank=low_rank, rows=tag_rows(taught, piece_ids)),
        {name: _change(one) for name, one in sums.items()},
    )


def _linear_layers(model: PreTrainedModel) -> dict[str, str]:
    """Return the names of all linear layers but the output matrix, by those of their weights."""
    output = model.get_output_embeddings()
    return {
        f"{name}.weight": name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not output
    }


def _cut(name: str, difference: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """Return A [r, in], B [out, r] and the squared norm of their product."""
    if rank > min(difference.shape):
        raise ModelError(f"{name} has the shape {tuple(difference.shape)}: rank {rank} is too high")
    u, s, v = torch.linalg.svd(difference, full_matrices=False)
    root = s[:rank].sqrt()
    return root[:, None] * v[:rank], u[:, :rank] * root, float(s[:rank].square().sum())


def _kind(name: str) -> str:
    """Return the name of a weight's module without the layer's number."""
    parts = name.split(".")
    return ".".join(part for part in parts[-3:-1] if not part.isdigit()) or name


def _change(sums: _Sums) -> Change:
    relative = (sums.moved / sums.base) ** 0.5 if sums.base else 0.0
    return Change(relative, sums.kept / sums.moved if sums.moved else 1.0)
