"""Shorten a traced forward pass: fewer and larger operations, the same arithmetic.

Each rewrite recognises one pattern of ATen operations and leaves everything else alone, so an
unknown architecture is at worst not shortened. Knows nothing of models by name.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch import fx

from pasta_lm.engines.cpu.choice import choose
from pasta_lm.engines.cpu.eight_bits import EightBits
from pasta_lm.engines.cpu.huge_pages import HugePages
from pasta_lm.engines.cpu.joined import join_attention
from pasta_lm.engines.cpu.kernels import MAX_COPIED_ELEMENTS, Gate, Linear, RmsNorm
from pasta_lm.engines.cpu.nodes import is_call, replace
from pasta_lm.engines.cpu.rotary import fuse_rotary

aten = torch.ops.aten
Node = fx.Node
_Layer = tuple[Node, Node, Node, Node | None]  # end of a linear layer, input, weight, bias


def rewrite(
    graph: fx.GraphModule,
    num_tokens: int,
    num_wanted: int,
    attend: Any,
    eight_bits: EightBits | None = None,
) -> None:
    """Rewrite a traced pass in place; its inputs are tokens [N], positions [N], wanted rows [W].

    ``num_tokens`` and ``num_wanted`` stood for N and W while tracing; they become free sizes.
    ``attend`` is the operation that stands for attention. With ``eight_bits`` codes stand for
    the weights.
    """
    graph.graph.eliminate_dead_code()
    _free_sizes(graph, num_tokens, num_wanted)
    _merge_equal(graph)
    linears = partial(_fuse_linears, eight_bits=eight_bits)
    for fuse in (fuse_rotary, _fuse_norms, linears, _fuse_residuals, _fuse_inputs):
        fuse(graph)
        graph.graph.eliminate_dead_code()
    join_attention(graph, attend)
    graph.graph.eliminate_dead_code()
    _merge_equal(graph)  # again: fused layers leave equal views behind
    graph.graph.eliminate_dead_code()
    choose([node.target for node in graph.graph.nodes if isinstance(node.target, Linear)])
    graph.graph.lint()
    graph.recompile()


def _free_sizes(graph: fx.GraphModule, num_tokens: int, num_wanted: int) -> None:
    """Replace the placeholder sizes for N and W by the sizes of the inputs."""
    tokens, _, wanted = (node for node in graph.graph.nodes if node.op == "placeholder")
    sizes: dict[int, Node] = {}
    with graph.graph.inserting_after(wanted):
        sizes[num_wanted] = graph.graph.call_function(aten.sym_size.int, (wanted, 0))
        sizes[num_tokens] = graph.graph.call_function(aten.sym_size.int, (tokens, 0))

    def freed(value: Any) -> Any:
        return sizes[value] if type(value) is int and value in sizes else value

    for node in graph.graph.nodes:
        if node not in sizes.values():
            node.args = fx.node.map_aggregate(node.args, freed)


_PURE = {
    aten.unsqueeze.default, aten.slice.Tensor, aten.view.default, aten.transpose.int,
    aten.select.int, aten.neg.default, aten._to_copy.default, aten.expand.default,
}  # fmt: skip


def _merge_equal(graph: fx.GraphModule) -> None:
    """Compute equal views and casts once."""
    seen: dict[str, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            key = f"parameter {id(_attribute(graph, node))}"
        elif node.target in _PURE:
            key = f"{node.target}{node.args}{node.kwargs}"
        else:
            continue
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.graph.erase_node(node)
        else:
            seen[key] = node


def _attribute(graph: fx.GraphModule, node: Node) -> Any:
    return operator.attrgetter(str(node.target))(graph)


# Root mean square norm: x * rsqrt(mean(x ** 2) + eps)


def _fuse_norms(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        parts = _norm_parts(node)
        if parts is None:
            continue
        x, eps = parts
        weight = _weight_of(node)
        last = node if weight is None else next(iter(node.users))
        casts = _casts_around(node, x)
        if casts is not None:  # the kernel computes in float32 by itself, and rounds as they do
            x, last = casts
        norm = RmsNorm(eps, None if weight is None else _attribute(graph, weight))
        replace(graph, last, norm, (x,)).meta["val"] = last.meta["val"]


def _norm_parts(node: Any) -> tuple[Node, float] | None:
    if not is_call(node, aten.mul.Tensor) or not is_call(node.args[1], aten.rsqrt.default):
        return None
    x, shifted = node.args[0], node.args[1].args[0]
    if not is_call(shifted, aten.add.Tensor) or not isinstance(shifted.args[1], float):
        return None
    mean = shifted.args[0]
    if not is_call(mean, aten.mean.dim) or tuple(mean.args[1:]) != ([-1], True):
        return None
    squared = mean.args[0]
    if not is_call(squared, aten.pow.Tensor_Scalar) or squared.args != (x, 2):
        return None
    return x, shifted.args[1]


def _casts_around(node: Node, x: Node) -> tuple[Node, Node] | None:
    """Return the bfloat16 tensor that x was cast from, and the cast of a node back to bfloat16."""
    users = list(node.users)
    if not is_call(x, aten._to_copy.default) or len(users) != 1:
        return None
    source, last = x.args[0], users[0]
    if not isinstance(source, Node) or not is_call(last, aten._to_copy.default):
        return None
    dtypes = [each.meta["val"].dtype for each in (source, x, last)]
    is_around = dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]
    return (source, last) if is_around else None


def _weight_of(node: Any) -> Node | None:
    """Return the weight that a normalised tensor is multiplied with at once, if of its dtype."""
    users = list(node.users)
    if len(users) != 1 or not is_call(users[0], aten.mul.Tensor):
        return None
    other = next((arg for arg in users[0].args if arg is not node), None)
    if not isinstance(other, Node) or other.op != "get_attr":
        return None
    value = other.meta.get("val")
    is_weight = value is not None and value.dtype == node.meta["val"].dtype and value.dim() == 1
    return other if is_weight else None


# Linear layers: view, mm with a transposed parameter, view back


def _fuse_linears(graph: fx.GraphModule, eight_bits: EightBits | None) -> None:
    """Put one kernel in place of each linear layer; layers of the same input become one."""
    layers = [(node, *parts) for node in graph.graph.nodes if (parts := _linear_parts(node))]
    sizes = {weight: _attribute(graph, weight).numel() for _, _, weight, _ in layers}
    may_copy = sum(sizes.values()) <= MAX_COPIED_ELEMENTS
    pages = HugePages()
    groups: dict[Node, list[_Layer]] = {}
    for node, source, weight, bias in layers:
        # Side by side their weights are a copy; without one each layer stays alone.
        groups.setdefault(source if may_copy else node, []).append((node, source, weight, bias))
    for group in groups.values():
        weights = [_attribute(graph, weight) for _, _, weight, _ in group]
        biases = [None if bias is None else _attribute(graph, bias) for _, _, _, bias in group]
        kernel = Linear(weights, biases, may_copy=may_copy, pages=pages, eight_bits=eight_bits)
        _replace_linears(graph, group, kernel)


def _replace_linears(graph: fx.GraphModule, group: list[_Layer], kernel: Linear) -> None:
    first, source, _, _ = group[0]
    with graph.graph.inserting_before(first):
        out = graph.graph.call_function(kernel, (source,))
    start = 0
    for node, _, _, _ in group:
        stop = start + node.meta["val"].shape[-1]
        replacement = out
        if len(group) > 1:
            with graph.graph.inserting_before(first):
                part = (out, 2, start, stop)
                replacement = graph.graph.call_function(aten.slice.Tensor, part)
        start = stop
        node.replace_all_uses_with(replacement)
        replacement.meta["val"] = node.meta["val"]


def _fuse_residuals(graph: fx.GraphModule) -> None:
    """Let a linear layer whose output is only added to something add it itself."""
    for node in list(graph.graph.nodes):
        if not is_call(node, aten.add.Tensor) or len(node.args) != 2:
            continue
        for linear, residual in (node.args, node.args[::-1]):
            fits = isinstance(linear, Node) and isinstance(linear.target, Linear)
            is_free = fits and len(linear.args) == 1 and len(linear.users) == 1
            if is_free and _same_shape(residual, node):
                fused = replace(graph, node, linear.target, (*linear.args, residual))
                fused.meta["val"] = node.meta["val"]
                break


def _same_shape(first: Any, second: Node) -> bool:
    if not isinstance(first, Node) or "val" not in first.meta or "val" not in second.meta:
        return False
    here, there = first.meta["val"], second.meta["val"]
    return bool(here.shape == there.shape and here.dtype == there.dtype)


def _linear_parts(node: Any) -> tuple[Node, Node, Node | None] | None:
    """Return input, weight and bias if a node is the end of a linear layer over [1, N, D]."""
    if node.target not in (aten._unsafe_view.default, aten.view.default):
        return None
    product = node.args[0]
    if not is_call(product, aten.addmm.default) and not is_call(product, aten.mm.default):
        return None
    *biases, flat, transposed = product.args
    bias = biases[0] if biases else None
    if not is_call(flat, aten.view.default) or not is_call(transposed, aten.t.default):
        return None
    source, weight = flat.args[0], transposed.args[0]
    shapes = [n.meta["val"].shape for n in (source, node) if "val" in n.meta]
    if len(shapes) != 2 or any(len(shape) != 3 for shape in shapes):
        return None
    return (source, weight, bias) if weight.op == "get_attr" else None


# Linear layers with a compiled product compute what stands before them


def _fuse_inputs(graph: fx.GraphModule) -> None:
    """Let each linear layer with a compiled product compute the norm or the gate of its input."""
    for node in list(graph.graph.nodes):
        kernel = node.target
        if not isinstance(kernel, Linear) or kernel.compiled is None:
            continue
        pair = _norm_before(graph, node.args[0]) or _gate_before(node.args[0])
        if pair is not None:
            source, before = pair
            kernel.put_before(before)
            node.args = (source, *node.args[1:])


def _norm_before(graph: fx.GraphModule, node: Any) -> tuple[Node, RmsNorm] | None:
    """Return input and norm of a norm, or of a norm times a weight, with no other user."""
    if not _has_one_user(node):
        return None
    if isinstance(node.target, RmsNorm):
        return (node.args[0], node.target) if _is_activation(node.args[0], node) else None
    if node.target is not aten.mul.Tensor:
        return None
    for weight, norm in (node.args[:2], node.args[1::-1]):
        is_norm = _has_one_user(norm) and isinstance(norm.target, RmsNorm)
        if not is_norm or norm.target.weight is not None:
            continue
        if isinstance(weight, Node) and weight.op == "get_attr" and _is_activation(norm, node):
            value = graph.get_parameter(str(weight.target))
            if value.dim() == 1 and value.dtype == node.meta["val"].dtype:
                joined = RmsNorm(norm.target.eps, value, rounds_before=True)
                return (norm.args[0], joined) if _is_activation(norm.args[0], node) else None
    return None


def _gate_before(node: Any) -> tuple[Node, Gate] | None:
    """Return input and gate of an activation of the first half times the second."""
    if not is_call(node, aten.mul.Tensor) or not _has_one_user(node):
        return None
    active, values = node.args[:2]
    if is_call(active, aten.silu.default):
        gate = Gate("silu")
    elif is_call(active, aten.gelu.default) and active.kwargs.get("approximate") == "tanh":
        gate = Gate("gelu")
    else:
        return None
    first, second, size = _columns(active.args[0]), _columns(values), node.meta["val"].shape[-1]
    if not _has_one_user(active) or first is None or second is None or first[0] is not second[0]:
        return None
    source = first[0]
    are_halves = first[1:] == (0, size) and second[1:] == (size, 2 * size)
    has_no_more = isinstance(source.target, Linear) and len(source.users) == 2
    return (source, gate) if are_halves and has_no_more else None


def _has_one_user(node: Any) -> bool:
    return isinstance(node, Node) and len(node.users) == 1


def _columns(node: Any) -> tuple[Node, int, int] | None:
    """Return source, start and end if a node is a slice of the last dimension of [1, N, D]."""
    if not is_call(node, aten.slice.Tensor) or len(node.args) != 4:
        return None
    source, dim, start, stop = node.args
    return (source, start, stop) if dim == 2 and isinstance(source, Node) else None


def _is_activation(node: Any, like: Node) -> bool:
    """Return whether a node is [1, N, D] of the dtype of another."""
    return _same_shape(node, like) and node.meta["val"].dim() == 3
