"""Let attention read queries, keys and values from the product that computes them side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pasta_lm.engines.cpu.attention import fits
from pasta_lm.engines.cpu.kernels import Linear
from pasta_lm.engines.cpu.nodes import is_call
from pasta_lm.engines.cpu.rotary import rotate

aten = torch.ops.aten
Node = fx.Node

# Legend: N tokens, H query heads, G key/value heads, D head size, C columns of a joined tensor.


class _Head(NamedTuple):
    """Where the heads of queries, keys or values come from."""

    joined: Node  # [1, N, C]
    start: int  # their first column
    num_heads: int
    size: int
    turned_by: tuple[Node, Node] | None  # cos and sin


def attend_joined(
    joined_1NC: Tensor, turned_by: tuple[Tensor, Tensor] | None, layer: int, *shape: int
) -> Tensor:
    """Stand for attention in a graph, with rotation before it: [1, N, H * D].

    Args:
        joined_1NC: Queries, keys and values side by side.
        turned_by: cos and sin, [1, 1, N, D] each, the first half of sin negated; or None.
        layer: Which layer's settings hold.
        shape: The first columns of queries, of keys and of values, H, G and D.
    """
    raise AssertionError("the operation is replaced before it runs")


def parts_of(
    joined_1NC: Tensor, turned_by: tuple[Tensor, Tensor] | None, *shape: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [H, N, D], keys [G, N, D], both rotated, and values [G, N, D]."""
    *starts, num_heads, num_groups, size = shape
    parts = []
    for start, heads in zip(starts, (num_heads, num_groups, num_groups), strict=True):
        part = joined_1NC[:, :, start : start + heads * size]
        parts.append(part.unflatten(-1, (heads, size)).transpose(1, 2))
    q, k, v = parts
    if turned_by is not None:
        q, k = rotate(q, *turned_by), rotate(k, *turned_by)
    return q[0], k[0], v[0]


def join_attention(graph: fx.GraphModule, attend: Any) -> None:
    """Replace each attention whose queries, keys and values are parts of one product."""
    for node in list(graph.graph.nodes):
        if node.target is not attend:
            continue
        q, k, v = (_head(each) for each in node.args[:3])
        last = _flattened(node)
        if last is None or q is None or k is None or v is None:
            continue
        is_one = q.joined is k.joined is v.joined and q.turned_by == k.turned_by
        is_alike = (k.num_heads, k.size) == (v.num_heads, v.size) and q.size == k.size
        if not (is_one and is_alike and v.turned_by is None and _fits(node)):
            continue
        shape = (q.start, k.start, v.start, q.num_heads, k.num_heads, q.size)
        with graph.graph.inserting_before(last):
            new = graph.graph.call_function(
                attend_joined, (q.joined, q.turned_by, node.args[3], *shape)
            )
        new.meta["val"] = last.meta["val"]
        last.replace_all_uses_with(new)


def _fits(node: Any) -> bool:
    q, _, v = (each.meta["val"] for each in node.args[:3])
    return fits(q, v)


def _head(node: Any) -> _Head | None:
    """Return the source of a head: a part of a product, viewed as heads, perhaps rotated."""
    if not is_call(node, aten.select.int) or tuple(node.args[1:]) != (0, 0):
        return None
    node, turned_by = node.args[0], None
    if is_call(node, rotate):
        node, *factors = node.args
        sizes = [(each.meta["val"].dim(), each.meta["val"].shape[-1]) for each in factors]
        if sizes != [(4, node.meta["val"].shape[-1])] * 2:
            return None
        turned_by = (factors[0], factors[1])
    if not is_call(node, aten.transpose.int) or tuple(node.args[1:]) != (1, 2):
        return None
    view = node.args[0]
    if not is_call(view, aten.view.default) or not is_call(view.args[0], aten.slice.Tensor):
        return None
    part = view.args[0]
    joined, dim, start, stop = part.args
    _, _, num_heads, size = view.meta["val"].shape
    if dim != 2 or stop - start != num_heads * size or not isinstance(joined.target, Linear):
        return None
    return _Head(joined, start, num_heads, size, turned_by)


def _flattened(node: Node) -> Node | None:
    """Return the [1, N, H * D] that attention's [H, N, D] becomes, if it becomes nothing else."""
    steps = (
        (aten.transpose.int, (0, 1)),
        (aten.clone.default, ()),
        (aten.unsqueeze.default, (0,)),
        (aten.view.default, None),
    )
    for target, args in steps:
        if len(node.users) != 1:
            return None
        (node,) = node.users
        if node.target is not target or (args is not None and tuple(node.args[1:]) != args):
            return None
    return node if node.meta["val"].dim() == 3 else None
