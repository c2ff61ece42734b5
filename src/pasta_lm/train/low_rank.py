"""Cut the difference of two models to a low rank: an adapter from a model with all weights trained.

What ships is small, and adapters alone do not learn to promise (``docs/log.md``). The best
approximation of rank r is the first r singular vectors (Eckart and Young 1936). Only linear layers
and the rows of the tag pieces are kept; norms, biases and rows of old tokens stay the base's.

Legend: r rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pasta_lm.engines.torch.adapter import Adapter, tag_rows, token_matrices
from pasta_lm.errors import ModelError


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
