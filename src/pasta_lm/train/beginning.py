"""How attention begins: some heads look back a few tokens, others look for what they see again.

At random, a model this small spends most of its training before it can copy a word, and never
finds a record by its name (``docs/log.md``). Both need two heads in a row: one that brings each
token what stands before it, one that looks for the token after an earlier occurrence. Here the
first kind begins as such by its biases; the second has a bent to what it shall find, by projections
that fit. Everything is learned from there on, and nothing of any task is in it.

Source: the circuit is that of C. Olsson et al., "In-context learning and induction heads", 2022;
beginning attention with structure is A. Trockman and Z. Kolter, arXiv 2305.09828.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pasta_lm.engines.torch.self_test import rope_parameters
from pasta_lm.errors import UsageError

LOOK_BACK = {0: (1, 2, 3), 1: (1,)}
"""Layer -> how many tokens each of its first heads looks back."""
SEEKERS = ((1, 2), (2, 0))
"""Layer and head of those that look for an earlier occurrence, by what layer 0, head 0 brings."""
SHARPNESS = 6.5
"""Length of a bias in each plane that is rotated: the wanted token has most of the attention."""
NUM_SHARP = 4
"""Planes that turn too fast for tokens far apart to be compared in them."""
WRITTEN = 0.02
"""What the first head writes: as large as the embeddings at their beginning."""


@torch.no_grad()
def begin_with_heads(model: PreTrainedModel) -> None:
    """Give the first heads of a random model their beginnings, in place.

    Args:
        model: Of the Llama or Qwen2 shape: biases of queries and keys, rotation of all of a head.

    Raises:
        UsageError: it has no such biases, or too few layers or heads.
    """
    layers = _attentions(model)
    size = model.config.head_dim
    angles = _angles(model, size)
    for layer, offsets in LOOK_BACK.items():
        for head, offset in enumerate(offsets):
            own = slice(head * size, (head + 1) * size)
            layers[layer].k_proj.bias[own] = SHARPNESS * _pair(torch.zeros_like(angles))
            layers[layer].q_proj.bias[own] = SHARPNESS * _pair(-offset * angles)
    hidden = model.config.hidden_size
    basis_2DH: Tensor = torch.linalg.qr(torch.randn(hidden, 2 * size)).Q.T
    read_DH, written_DH = basis_2DH[:size], basis_2DH[size:]
    layers[0].v_proj.weight[:size] = read_DH
    layers[0].o_proj.weight[:, :size] = WRITTEN * written_DH.T
    is_slow = torch.arange(size) % (size // 2) >= NUM_SHARP
    for layer, head in SEEKERS:
        own = slice(head * size, (head + 1) * size)
        layers[layer].q_proj.weight[own] = read_DH * is_slow[:, None]
        layers[layer].k_proj.weight[own] = written_DH * is_slow[:, None]


def _attentions(model: PreTrainedModel) -> list[Any]:
    config, body = model.config, model.base_model
    assert isinstance(body, nn.Module)
    found = [layer.self_attn for layer in getattr(body, "layers", ())]
    has_biases = all(
        getattr(getattr(attention, name, None), "bias", None) is not None
        for attention in found
        for name in ("q_proj", "k_proj")
    )
    is_large = len(found) > 2 and config.num_attention_heads == config.num_key_value_heads > 2
    is_wide = config.hidden_size >= 2 * config.head_dim
    if not (has_biases and is_large and is_wide):
        raise UsageError(
            "[model] begin = 'looking_back' needs three layers, three heads with keys of their "
            "own, and biases of queries and keys",
            hint='set "attention_bias": true in the architecture, or leave begin out',
        )
    return found


def _angles(model: PreTrainedModel, size: int) -> Tensor:
    """Return by which angle each plane turns from one position to the next; float32 [size / 2]."""
    theta = float(next(rope_parameters(model.config))["rope_theta"])
    turns: Tensor = theta ** (-torch.arange(size // 2) / (size // 2))
    return turns


def _pair(angles: Tensor) -> Tensor:
    """Return unit vectors at these angles, one for each plane, in the order of rotate_half."""
    return torch.cat([torch.cos(angles), torch.sin(angles)])
