"""Join a norm or a gate with the linear layers behind it, which may compute it themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pasta_lm.engines.torch.fast.kernels import Gate, Linear, RmsNorm

aten = torch.ops.aten
Node: Any = fx.Node  # its arguments and targets are unions of a dozen types


def fuse_inputs(graph: fx.GraphModule) -> None:
    """Let each linear layer with a compiled product compute the norm or the gate of its input."""
    for node in list(graph.graph.nodes):
        kernel = node.target
        if not isinstance(kernel, Linear) or kernel.compiled is None:
            continue
        found = _norm(graph, node.args[0]) or _gate(node.args[0])
        if found is not None:
            source, before = found
            kernel.put_before(before)
            node.args = (source, *node.args[1:])


def _norm(graph: fx.GraphModule, node: Any) -> tuple[Node, RmsNorm] | None:
    """Return input and norm of a norm, or of a norm times a weight, with no other user."""
    if not isinstance(node, Node) or len(node.users) != 1:
        return None
    if isinstance(node.target, RmsNorm):
        source = node.args[0]
        is_input = isinstance(source, Node) and _is_activation(source, node)
        return (source, node.target) if is_input else None
    if node.target is not aten.mul.Tensor:
        return None
    for weight, norm in (node.args[:2], node.args[1::-1]):
        is_norm = isinstance(norm, Node) and isinstance(norm.target, RmsNorm)
        if not is_norm or len(norm.users) != 1 or norm.target.weight is not None:
            continue
        if isinstance(weight, Node) and weight.op == "get_attr" and _is_activation(norm, node):
            value = graph.get_parameter(weight.target)
            if value.dim() == 1 and value.dtype == node.meta["val"].dtype:
                joined = RmsNorm(norm.target.eps, value, rounds_before=True)
                return (norm.args[0], joined) if _is_activation(norm.args[0], node) else None
    return None


def _gate(node: Any) -> tuple[Node, Gate] | None:
    """Return input and gate of an activation of the first half times the second."""
    if not isinstance(node, Node) or node.target is not aten.mul.Tensor or len(node.users) != 1:
        return None
    active, values = node.args[:2]
    if not isinstance(active, Node) or not isinstance(values, Node) or len(active.users) != 1:
        return None
    if active.target is aten.silu.default:
        gate = Gate("silu")
    elif active.target is aten.gelu.default and active.kwargs.get("approximate") == "tanh":
        gate = Gate("gelu")
    else:
        return None
    gates, size = active.args[0], node.meta["val"].shape[-1]
    halves = [_part(gates), _part(values)]
    if halves[0] is None or halves[1] is None or halves[0][0] is not halves[1][0]:
        return None
    source = halves[0][0]
    are_halves = [half[1:] for half in halves if half] == [(0, size), (size, 2 * size)]
    has_no_more = isinstance(source.target, Linear) and len(source.users) == len(halves)
    return (source, gate) if are_halves and has_no_more else None


def _part(node: Any) -> tuple[Node, int, int] | None:
    """Return source, start and end if a node is a slice of the last dimension of [1, N, D]."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor or len(node.args) != 4:
        return None
    source, dim, start, stop = node.args
    return (source, start, stop) if dim == 2 and isinstance(source, Node) else None


def _is_activation(node: Node, like: Node) -> bool:
    """Return whether a node is [1, N, D] of the dtype of another."""
    if "val" not in node.meta or "val" not in like.meta:
        return False
    here, there = node.meta["val"], like.meta["val"]
    return bool(here.dim() == 3 and here.shape == there.shape and here.dtype == there.dtype)
