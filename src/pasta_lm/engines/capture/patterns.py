"""Patterns of traced operations, and what they find of heads: rotation, and joined products.

Attention reads queries, keys and values from the product that computes them side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from pasta_lm.engines.cpu.attention import fits
from pasta_lm.engines.cpu.kernels import Linear

aten = torch.ops.aten
Node = fx.Node
Argument: TypeAlias = Any
"""What traced operations take: nodes, numbers, functions and lists of them."""

# Legend: N tokens, H query heads, G key/value heads, D head size, C columns of a joined tensor.


def _matches(node: Argument, pattern: Argument, names: dict[str, Argument]) -> bool:
    """Compare a node with a pattern, and note the parts that it names.

    A pattern is (function, patterns of its first arguments), a list of patterns, the name of a
    part, which is the same wherever it stands ("_": any), or a constant.
    """
    match pattern:
        case "_":
            return True
        case str():
            return bool(names.setdefault(pattern, node) == node)
        case (function, *arguments) if isinstance(pattern, tuple):
            if not isinstance(node, Node) or node.target is not function:
                return False
            pairs = list(zip(node.args, arguments, strict=False))
            return len(pairs) == len(arguments) and all(_matches(*pair, names) for pair in pairs)
        case list():
            is_list = isinstance(node, list) and len(node) == len(pattern)
            return is_list and all(map(partial(_matches, names=names), node, pattern))
    return bool(node == pattern)


def parts_of(node: Argument, *patterns: Argument) -> dict[str, Argument]:
    """Return the named parts of the first pattern that a node is; none: it is another."""
    for pattern in patterns:
        names: dict[str, Argument] = {}
        if _matches(node, pattern, names):
            return names
    return {}


def replace(
    graph: fx.GraphModule, node: Node, function: Callable[..., Argument], args: tuple[Argument, ...]
) -> None:
    with graph.graph.inserting_before(node):
        new = graph.graph.call_function(function, args)
    new.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(new)


def has_one_user(node: Argument) -> bool:
    return isinstance(node, Node) and len(node.users) == 1


# Rotary embeddings: x * cos + cat(-x[half:], x[:half]) * sin

_SECOND_HALF = (aten.slice.Tensor, "x", "_", "half")
_HALVES = [(aten.neg.default, _SECOND_HALF), (aten.slice.Tensor, "x", "_", 0, "half")]
_ROTARY = (
    aten.add.Tensor,
    (aten.mul.Tensor, "x", "cos"),
    (aten.mul.Tensor, (aten.cat.default, _HALVES), "sin"),
)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Return x * cos + roll(x) * signed_sin, the halves of the last dimension rolled."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def sign_sin(sin: Tensor) -> Tensor:
    """Return sin with its first half negated, so that rolled halves need no sign of their own."""
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)


def fuse_rotary(graph: fx.GraphModule) -> None:
    signed: dict[Node, Node] = {}
    for node in list(graph.graph.nodes):
        parts = parts_of(node, _ROTARY)
        if not parts:
            continue
        x, cos, sin = (parts[name] for name in ("x", "cos", "sin"))
        sizes = {node.meta["val"].shape[-1] for node in (x, cos, sin)}
        if len(sizes) > 1 or parts["half"] != sizes.pop() // 2:
            continue
        if sin not in signed:
            with graph.graph.inserting_after(sin):
                signed[sin] = graph.graph.call_function(sign_sin, (sin,))
            signed[sin].meta["val"] = sin.meta["val"]
        replace(graph, node, rotate, (x, cos, signed[sin]))


# Attention over a joined product

_HEADS = (aten.view.default, (aten.slice.Tensor, "joined", 2, "start", "stop"), "shape")
_TURNED = (aten.transpose.int, _HEADS, 1, 2)
_HEAD_PATTERNS = (
    (aten.select.int, _TURNED, 0, 0),
    (aten.select.int, (rotate, _TURNED, "cos", "sin"), 0, 0),
)
_FLATTENING = (
    (aten.transpose.int, (0, 1)),
    (aten.clone.default, ()),
    (aten.unsqueeze.default, (0,)),
    (aten.view.default, None),
)


def attend_joined(
    joined_1NC: Tensor, rotation: tuple[Tensor, Tensor] | None, layer: int, *shape: int
) -> Tensor:
    """Stand for attention in a graph, with rotation before it: [1, N, H * D].

    cos and sin are [1, 1, N, D], the first half of sin negated; ``shape`` is the first columns of
    queries, of keys and of values, H, G and D.
    """
    raise AssertionError("the operation is replaced before it runs")


def split_heads(
    joined_1NC: Tensor, rotation: tuple[Tensor, Tensor] | None, *shape: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [H, N, D], keys [G, N, D], both rotated, and values [G, N, D]."""
    *starts, num_heads, num_groups, size = shape
    parts = []
    for start, heads in zip(starts, (num_heads, num_groups, num_groups), strict=True):
        part = joined_1NC[:, :, start : start + heads * size]
        parts.append(part.unflatten(-1, (heads, size)).transpose(1, 2))
    q, k, v = parts
    if rotation is not None:
        q, k = rotate(q, *rotation), rotate(k, *rotation)
    return q[0], k[0], v[0]


def join_attention(graph: fx.GraphModule, attend: Argument) -> None:
    for node in list(graph.graph.nodes):
        if node.target is not attend:
            continue
        last, heads = _flattened(node), [_head(arg) for arg in node.args[:3]]
        values = [arg.meta["val"] for arg in node.args[:3]]
        if last is None or not all(heads) or not fits(*values):
            continue
        q, k, v = heads
        is_same = q["joined"] is k["joined"] is v["joined"] and q["rotation"] == k["rotation"]
        is_like = k["shape"] == v["shape"] and q["shape"][-1] == k["shape"][-1]
        if is_same and is_like and v["rotation"] is None:
            starts = (q["start"], k["start"], v["start"])
            shape = (*starts, q["shape"][2], *k["shape"][2:])
            args = (q["joined"], q["rotation"], node.args[3], *shape)
            replace(graph, last, attend_joined, args)


def _head(node: Argument) -> dict[str, Argument]:
    """Return the source of a head: columns of a product, viewed as heads, perhaps rotated."""
    head = parts_of(node, *_HEAD_PATTERNS)
    if not head or not isinstance(head["joined"].target, Linear):
        return {}
    turned = node.args[0].args[0] if "cos" in head else node.args[0]
    head["shape"] = turned.args[0].meta["val"].shape
    head["rotation"] = (head["cos"], head["sin"]) if "cos" in head else None
    sizes = {(4, head["shape"][-1])}
    sizes |= {(f.meta["val"].dim(), f.meta["val"].shape[-1]) for f in head["rotation"] or ()}
    num_columns = head["shape"][2] * head["shape"][3]
    return head if len(sizes) == 1 and head["stop"] - head["start"] == num_columns else {}


def _flattened(node: Node) -> Node | None:
    """Return the [1, N, H * D] that attention's [H, N, D] becomes, if it becomes nothing else."""
    for target, args in _FLATTENING:
        if not has_one_user(node):
            return None
        (node,) = node.users
        if node.target is not target or (args is not None and tuple(node.args[1:]) != args):
            return None
    return node if node.meta["val"].dim() == 3 else None
