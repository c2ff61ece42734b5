"""A trained model gets room for something new: dimensions, heads and neurons beside its own.

What a small model has learned by heart grows large: its hidden states are hundreds of times as long
as at the beginning, its attention is sharp, and no gradient brings a new decision in
(``docs/log.md``). In dimensions of their own, which norms enlarge, new heads learn as soon as in a
model from nothing, and the old ones need not forget. At first the wider model computes nearly what
the old one did: nothing new is read by anything old, and norms allow for the new dimensions.

Source: after "Net2Net" (T. Chen et al., arXiv 1511.05641), whose wider layers keep the function;
here the new units begin at random, and old weights can be kept as they are.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from pasta_lm.errors import UsageError
from pasta_lm.train.config import WiderConfig

WRITTEN = 0.05
"""How large new dimensions begin in embeddings, and what layers write there, beside the old ones:
small, so that norms change little for these."""
SHOWN = 8.0
"""By how much norms enlarge new dimensions, which are small beside the old ones."""
SPOKEN = 0.1
"""The same for the last norm: what new dimensions say of the next token at first."""
READ = 0.6
"""Standard deviation of what new heads and neurons read, for inputs of unit size."""
KNOWN = {
    *("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "o_proj"),
    *("gate_proj", "up_proj", "down_proj", "input_layernorm", "post_attention_layernorm", "norm"),
}
"""Modules whose weights can be widened here."""
READS_ALIKE = 0.05
"""The most by which log-probabilities may change, on average."""


@torch.no_grad()
def widened(model: PreTrainedModel, room: WiderConfig) -> PreTrainedModel:
    """Return a wider copy that computes nearly the same; new weights are drawn at random.

    Args:
        model: Of the Llama or Qwen2 shape, each head with keys of its own.
        room: How much wider.

    Raises:
        UsageError: it has another shape, or the copy would compute something else.
    """
    for name, _ in model.named_parameters():
        if name.split(".")[-2] not in KNOWN:
            raise UsageError(f"[model.wider] is for models of the Llama shape: not for {name}")
    config = deepcopy(model.config)
    heads = config.num_attention_heads
    if heads != getattr(config, "num_key_value_heads", heads):
        raise UsageError("[model.wider] needs a model in which each head has keys of its own")
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    config.hidden_size += room.dimensions
    config.num_attention_heads = config.num_key_value_heads = heads + room.heads
    config.intermediate_size += room.neurons
    if config.hidden_size % config.num_attention_heads:
        raise UsageError(
            f"[model.wider] makes {config.hidden_size} dimensions and {config.num_attention_heads} "
            "heads: these must divide those",
            hint="give new dimensions and new heads in the proportion that the base has",
        )
    wide: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=model.dtype
    )
    old = dict(model.named_parameters())
    share = (model.config.hidden_size / config.hidden_size) ** 0.5
    for name, weight in wide.named_parameters():
        _fill(name, weight, old[name], share)
        if room.only_new:
            corner = tuple(slice(size) for size in old[name].shape)
            weight.register_hook(partial(_without_corner, corner=corner))
    _check_alike(model.eval(), wide.eval())
    return wide


def _fill(name: str, weight: Tensor, old: Tensor, share: float) -> None:
    """Write a weight of the wider model: the old one in its corner, the rest as at a beginning.

    Norms divide by the root mean square over all dimensions, of which the old ones are a share.
    """
    rows = old.shape[0]
    if "norm" in name and old.ndim == 1:
        is_last = ".layers." not in name
        weight.fill_(SPOKEN if is_last else SHOWN)
        weight[:rows] = old * share
    elif old.ndim == 1:
        weight.zero_()
        weight[:rows] = old
    elif rows == weight.shape[0]:  # embeddings: a row for each token
        weight.normal_(0, WRITTEN * _size(old))
        weight[:, : old.shape[1]] = old
    else:
        is_writer = name.endswith(("o_proj.weight", "down_proj.weight"))
        weight.normal_(0, WRITTEN * _size(old) if is_writer else READ / weight.shape[1] ** 0.5)
        weight[:rows] = 0
        weight[:rows, : old.shape[1]] = old


def _size(weight: Tensor) -> float:
    """Return the root mean square."""
    return float(weight.square().mean().sqrt())


def _without_corner(grad: Tensor, *, corner: tuple[slice, ...]) -> Tensor:
    """Return a gradient that does not reach the old weights."""
    kept = grad.clone()
    kept[corner] = 0
    return kept


def _check_alike(model: PreTrainedModel, wide: PreTrainedModel) -> None:
    """Refuse a copy that computes something else: the shape was none of those known here."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (1, 32), generator=generator)
    ids = ids.to(model.device)
    old, new = (one(ids).logits.float().log_softmax(-1) for one in (model, wide))
    apart = float((old.exp() * (old - new)).sum(-1).mean())
    if not apart < READS_ALIKE:
        raise UsageError(
            f"[model.wider] does not fit this model: its copy is {apart:.3g} nats away from it",
            hint="fewer dimensions, or a model of the Llama shape",
        )
