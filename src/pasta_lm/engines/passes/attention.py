"""The attention function that decodes, replays and trains, registered with transformers, and masks.

The model runs on one flattened list of tokens ``[1, N]`` without a cache of its own. A pass object
travels to every layer as the keyword ``pasta_pass`` and decides which keys each query sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from pasta_lm.errors import UnsupportedModelError
from pasta_lm.interpreter.visibility import Row

NAME = "pasta"  # the name under which transformers finds the function (``attn_implementation``)

# Legend: N tokens of the pass, H query heads, G key/value heads, Q queries, K keys, D head size.

_HARMLESS = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "is_causal", "max_length_k",
    "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states",
    "output_router_logits", "position_embeddings", "position_ids", "return_dict", "use_cache",
}  # fmt: skip


class LayerCall(NamedTuple):
    """What distinguishes the attention of one layer."""

    layer: int
    scaling: float | None
    window: int | None  # width of the layer's sliding window in positions
    softcap: float | None
    sinks_H: Tensor | None  # one learned logit a head that takes part in the softmax


class Pass(Protocol):
    """One forward pass, as the attention of its layers sees it."""

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Return the attention output, dtype of the queries, [H, N, D]."""


def pasta_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, pasta_pass: Pass | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention function registered with transformers, which calls it in every layer.

    ``query`` is [1, H, N, D], ``key`` and ``value`` [1, G, N, D], all rotated already. ``softcap``
    bounds scores (Gemma 2), ``s_aux`` are sinks [H] (GPT-OSS); None of ``scaling``: 1 / sqrt(D).
    An ``UnsupportedModelError`` for an unknown argument; returns [1, N, H, D] and no weights.
    """
    unknown = [
        name for name, argument in kwargs.items() if argument is not None and name not in _HARMLESS
    ]
    if attention_mask is not None:
        unknown.append("a mask of its own")
    if unknown or pasta_pass is None or len(query) != 1:
        fault = "was called with a batch: passes are flattened to [1, N]"
        if pasta_pass is None:
            fault = "does not hand keywords on to its attention, or was called without pasta_pass"
        elif unknown:
            fault = f"gives its attention {', '.join(sorted(unknown))}, which we do not know"
        raise UnsupportedModelError(f"{type(module).__name__} {fault}")
    call = LayerCall(module.layer_idx, scaling, sliding_window, softcap, s_aux)  # type: ignore[arg-type]
    out_HND = pasta_pass.attend(call, query[0], key[0], value[0])
    return out_HND.transpose(0, 1).contiguous().unsqueeze(0), None


def register() -> None:
    """Make the function known to transformers; calling it again changes nothing."""
    # The pass decides what is seen. For a name without a mask function the model makes no mask, and
    # so never asks the device whether its positions are packed, which no captured graph could.
    transformers.AttentionInterface.register(NAME, pasta_attention)


MAX_GROUPED_ROWS = 256  # rows of queries that share a pass over the keys of their group
MAX_STORED_ROWS = 256  # queries whose scores a GPU stores at a time


def attend(
    call: LayerCall, q_HQD: Tensor, k_GKD: Tensor, v_GKD: Tensor, mask_QK: Tensor | None
) -> Tensor:
    """Return softmax(q k' * scaling + mask) v, with the layer's soft cap and sinks if it has any.

    Each of the G heads of keys and values serves H / G query heads. The mask, of the queries'
    dtype, is added to the scores; None: everything is visible.
    """
    if is_plain(call):
        queries, mask, group = q_HQD, mask_QK, len(q_HQD) // len(k_GKD)
        _, num_queries, size = q_HQD.shape
        if num_queries * group <= MAX_GROUPED_ROWS:  # heads of a group are rows of one head
            queries = q_HQD.reshape(len(k_GKD), -1, size)
            mask = mask if mask is None or num_queries == 1 else mask.repeat(group, 1)
        else:
            k_GKD, v_GKD = for_each_head(q_HQD, k_GKD, v_GKD)
        out = F.scaled_dot_product_attention(
            queries[None], k_GKD[None], v_GKD[None], mask if mask is None else mask[None, None],
            scale=call.scaling, enable_gqa=len(queries) != len(k_GKD),
        )  # fmt: skip
        return out.reshape(len(q_HQD), num_queries, -1)
    if q_HQD.device.type == "cpu" or q_HQD.shape[1] <= MAX_STORED_ROWS:
        return attend_by_products(call, q_HQD, k_GKD, v_GKD, mask_QK)
    parts = q_HQD.split(MAX_STORED_ROWS, dim=1)
    masks = [None] * len(parts) if mask_QK is None else mask_QK.split(MAX_STORED_ROWS)
    pairs = zip(parts, masks, strict=True)
    return torch.cat([attend_by_products(call, q, k_GKD, v_GKD, m) for q, m in pairs], dim=1)


def attend_causal(call: LayerCall, q_HQD: Tensor, k_GKD: Tensor, v_GKD: Tensor) -> Tensor:
    """Return ``attend`` of a plain layer on a GPU; the queries are the last keys, in order."""
    k_HKD, v_HKD = for_each_head(q_HQD, k_GKD, v_GKD)
    num_queries, num_keys = q_HQD.shape[1], k_HKD.shape[1]
    is_whole = num_queries == num_keys
    return F.scaled_dot_product_attention(
        q_HQD[None], k_HKD[None], v_HKD[None],
        None if is_whole else causal_lower_right(num_queries, num_keys),
        is_causal=is_whole, scale=call.scaling,
    )[0]  # fmt: skip


def for_each_head(q_HQD: Tensor, k_GKD: Tensor, v_GKD: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values, on a GPU for each query head: not all kernels take groups."""
    repeats = len(q_HQD) // len(k_GKD)
    if q_HQD.device.type == "cpu" or repeats == 1:
        return k_GKD, v_GKD
    return k_GKD.repeat_interleave(repeats, 0), v_GKD.repeat_interleave(repeats, 0)


def is_plain(call: LayerCall) -> bool:
    return call.softcap is None and call.sinks_H is None


def attend_by_products(
    call: LayerCall, q_HQD: Tensor, k_GKD: Tensor, v_GKD: Tensor, mask_QK: Tensor | None
) -> Tensor:
    """Return ``attend`` by matrix products and a softmax, with all scores in memory."""
    num_heads, num_queries, head_size = q_HQD.shape
    q = q_HQD.reshape(len(k_GKD), -1, head_size)  # [G, H/G * Q, D]
    scale = head_size**-0.5 if call.scaling is None else call.scaling
    scores = (q @ k_GKD.transpose(1, 2) * scale).view(num_heads, num_queries, -1)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask_QK is not None:
        scores = scores + mask_QK
    if call.sinks_H is not None:
        sinks = call.sinks_H[:, None, None].expand(-1, num_queries, 1).to(scores.dtype)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1).to(q_HQD.dtype)  # float32 inside
    if call.sinks_H is not None:
        weights = weights[..., :-1]
    out = weights.reshape(len(k_GKD), -1, weights.shape[-1]) @ v_GKD
    return out.view(num_heads, num_queries, -1)


# Masks. Legend: Q queries of a pass, K entries (keys), O owners. The rule of visibility is
# ``interpreter.visibility.Row.sees``; here it is evaluated for many queries and entries at once.


def cutoff_table(rows: Sequence[Row], num_owners: int, device: torch.device) -> Tensor:
    """Return rows of cutoffs, int64 [Q, O]: the first slot of each owner that is not visible."""
    table = [[row.cutoff(owner) for owner in range(num_owners)] for row in rows]
    return torch.tensor(table, dtype=torch.int64, device=device)


def visible(query_slots_Q: Tensor, cutoffs_QO: Tensor, owners_K: Tensor) -> Tensor:
    """Evaluate ``Row.sees`` for queries in slots [Q] and entries of owners [K]: bool [Q, K]."""
    slots_K = torch.arange(len(owners_K), device=owners_K.device)
    return (slots_K <= query_slots_Q[:, None]) & (slots_K < cutoffs_QO[:, owners_K])


def in_window(query_positions_Q: Tensor, key_positions_K: Tensor, window: int) -> Tensor:
    """Return the keys in a window of each query, bool [Q, K]; differences may be negative."""
    return query_positions_Q[:, None] - key_positions_K < window


def additive(visible_QK: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores [Q, K]: 0 where visible, a very low number elsewhere."""
    # Finite, because a block of keys that is masked as a whole makes NaN of -inf - (-inf).
    mask_QK = torch.zeros(visible_QK.shape, dtype=dtype, device=visible_QK.device)
    return mask_QK.masked_fill_(~visible_QK, torch.finfo(dtype).min / 2)
