"""Rotary embeddings of a traced pass: x * cos + cat(-x[half:], x[:half]) * sin as one function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from pasta_lm.engines.cpu.nodes import is_call, replace

aten = torch.ops.aten
Node = fx.Node


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Return x * cos + roll(x) * signed_sin, the halves of the last dimension rolled."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def sign_sin(sin: Tensor) -> Tensor:
    """Return sin with its first half negated, so that rolled halves need no sign of their own."""
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)


def fuse_rotary(graph: fx.GraphModule) -> None:
    """Put one function in place of each rotation."""
    signed: dict[Node, Node] = {}
    for node in list(graph.graph.nodes):
        parts = _rotary_parts(node)
        if parts is None:
            continue
        x, cos, sin = parts
        if sin not in signed:
            with graph.graph.inserting_after(sin):
                signed[sin] = graph.graph.call_function(sign_sin, (sin,))
            signed[sin].meta["val"] = sin.meta["val"]
        replace(graph, node, rotate, (x, cos, signed[sin]))


def _rotary_parts(node: Any) -> tuple[Node, Node, Node] | None:
    if not is_call(node, aten.add.Tensor) or not all(
        is_call(a, aten.mul.Tensor) for a in node.args[:2]
    ):
        return None
    straight, turned = node.args[:2]
    x, cos = straight.args
    cat, sin = turned.args
    if not is_call(cat, aten.cat.default) or len(cat.args[0]) != 2:
        return None
    negated, first = cat.args[0]
    if not is_call(negated, aten.neg.default) or not is_call(first, aten.slice.Tensor):
        return None
    second = negated.args[0]
    if not is_call(second, aten.slice.Tensor) or second.args[0] is not x or first.args[0] is not x:
        return None
    size = x.meta["val"].shape[-1]
    is_halves = first.args[2:4] == (0, size // 2) and second.args[2] == size // 2
    covers_all = cos.meta["val"].shape[-1] == size and sin.meta["val"].shape[-1] == size
    return (x, cos, sin) if is_halves and covers_all else None
