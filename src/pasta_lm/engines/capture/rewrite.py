"""Shorten a traced forward pass: fewer and larger operations, the same arithmetic.

Each rewrite recognises one pattern of ATen operations and leaves everything else alone, so an
unknown architecture is at worst not shortened. Knows nothing of models by name.
"""

from __future__ import annotations

import operator
from functools import partial

import torch
from torch import fx

from pasta_lm.engines.capture import patterns
from pasta_lm.engines.capture.patterns import Argument, parts_of
from pasta_lm.engines.cpu.int8 import linear_operation
from pasta_lm.engines.cpu.kernels import MAX_COPIED_ELEMENTS, Gate, Linear, RmsNorm, join
from pasta_lm.engines.cpu.library import HugePages

aten = torch.ops.aten
Node = fx.Node


def rewrite(graph: fx.GraphModule, num_tokens: int, num_wanted: int, attend: Argument) -> None:
    """Rewrite a traced pass in place; its inputs are tokens [N], positions [N], wanted rows [W].

    ``num_tokens`` and ``num_wanted`` stood for N and W while tracing; they become free sizes.
    ``attend`` is the operation that stands for attention.
    """
    graph.graph.eliminate_dead_code()
    _free_sizes(graph, num_tokens, num_wanted)
    _merge_equal(graph)
    joined = partial(patterns.join_attention, attend=attend)
    fusions = (patterns.fuse_rotary, _fuse_norms, _fuse_linears, _fuse_residuals, _fuse_inputs)
    for fuse in (*fusions, joined, _merge_equal):  # fused layers leave equal views behind
        fuse(graph)
        graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()


def _free_sizes(graph: fx.GraphModule, num_tokens: int, num_wanted: int) -> None:
    tokens, _, wanted = (node for node in graph.graph.nodes if node.op == "placeholder")
    sizes: dict[int, Node] = {}
    with graph.graph.inserting_after(wanted):
        sizes[num_wanted] = graph.graph.call_function(aten.sym_size.int, (wanted, 0))
        sizes[num_tokens] = graph.graph.call_function(aten.sym_size.int, (tokens, 0))

    def freed(value: Argument) -> Argument:
        return sizes[value] if type(value) is int and value in sizes else value

    for node in graph.graph.nodes:
        if node not in sizes.values():
            node.args = fx.node.map_aggregate(node.args, freed)


_PURE = {
    aten.unsqueeze.default, aten.slice.Tensor, aten.view.default, aten.transpose.int,
    aten.select.int, aten.neg.default, aten._to_copy.default, aten.expand.default,
}  # fmt: skip


def _merge_equal(graph: fx.GraphModule) -> None:
    seen: dict[str, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            key = f"parameter {id(_attribute(graph, node))}"
        elif node.target in _PURE:
            key = f"{node.target}{node.args}{node.kwargs}"
        else:
            continue
        if (first := seen.setdefault(key, node)) is not node:
            node.replace_all_uses_with(first)
            graph.graph.erase_node(node)


def _attribute(graph: fx.GraphModule, node: Node) -> Argument:
    return operator.attrgetter(str(node.target))(graph)


def _is_alike(first: Argument, second: Argument) -> bool:
    nodes = (first, second)
    if not all(isinstance(node, Node) and "val" in node.meta for node in nodes):
        return False
    here, there = (node.meta["val"] for node in nodes)
    return bool(here.shape == there.shape and here.dtype == there.dtype)


def _is_activation(node: Argument, like: Node) -> bool:
    return _is_alike(node, like) and node.meta["val"].dim() == 3


# Root mean square norm: x * rsqrt(mean(x ** 2) + eps)

_MEAN_SQUARE = (aten.mean.dim, (aten.pow.Tensor_Scalar, "x", 2), [-1], True)
_NORM = (aten.mul.Tensor, "x", (aten.rsqrt.default, (aten.add.Tensor, _MEAN_SQUARE, "eps")))


def _fuse_norms(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        parts = parts_of(node, _NORM)
        if not isinstance(parts.get("eps"), float):
            continue
        # The kernel rounds as casts do.
        x, last = _casts_around(node, parts["x"]) or (parts["x"], node)
        patterns.replace(graph, last, RmsNorm(parts["eps"], None), (x,))


def _casts_around(node: Node, x: Node) -> tuple[Node, Node] | None:
    """Return the bfloat16 tensor that x was cast from, and the cast of a node back to bfloat16."""
    cast, last = aten._to_copy.default, next(iter(node.users), None)
    parts = parts_of(x, (cast, "source"))
    if not (parts and last is not None and patterns.has_one_user(node) and last.target is cast):
        return None
    source = parts["source"]
    dtypes = [part.meta["val"].dtype for part in (source, x, last)]
    is_around = dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]
    return (source, last) if is_around else None


# Linear layers: view, mm with a transposed parameter, view back

_PRODUCT = ((aten.view.default, "x"), (aten.t.default, "weight"))
_PRODUCTS = ((aten.mm.default, *_PRODUCT), (aten.addmm.default, "bias", *_PRODUCT))
_VIEWS = (aten._unsafe_view.default, aten.view.default)
_LINEARS = [(view, product) for view in _VIEWS for product in _PRODUCTS]
_TENSORS = ("weight", "bias", "scales")


def _fuse_linears(graph: fx.GraphModule) -> None:
    layers = {node: parts for node in graph.graph.nodes if (parts := _linear_parts(node))}
    sizes = {p["weight"]: _attribute(graph, p["weight"]).numel() for p in layers.values()}
    may_copy = sum(sizes.values()) <= MAX_COPIED_ELEMENTS
    pages, groups = HugePages(), dict[Node, list[Node]]()
    for node, parts in layers.items():
        # Side by side their weights are a copy for a while; without one each layer stays alone.
        weight = _attribute(graph, parts["weight"])
        joins = may_copy or weight.device.type != "cpu"
        groups.setdefault(parts["x"] if joins else node, []).append(node)
    for group in groups.values():
        weights, biases, scales = (
            [_attribute(graph, node) if isinstance(node, Node) else None for node in nodes]
            for nodes in zip(*(map(layers[node].get, _TENSORS) for node in group), strict=True)
        )
        kernel = join(weights, biases, scales, may_copy=may_copy, pages=pages)  # type: ignore[arg-type]
        _replace_linears(graph, group, layers[group[0]]["x"], kernel)


def _linear_parts(node: Node) -> dict[str, Argument]:
    """Return input, weight and the like if a node is the end of a linear layer over [1, N, D]."""
    parts = parts_of(node, *_LINEARS, (linear_operation(), "x", "weight", "scales", "bias"))
    if not parts or parts["weight"].op != "get_attr":
        return {}
    values = [part.meta.get("val") for part in (parts["x"], node)]
    is_layer = all(value is not None and value.dim() == 3 for value in values)
    return parts if is_layer else {}


def _replace_linears(graph: fx.GraphModule, group: list[Node], x: Node, kernel: Linear) -> None:
    start = 0
    with graph.graph.inserting_before(group[0]):
        out = graph.graph.call_function(kernel, (x,))
        for node in group:
            stop, replacement = start + node.meta["val"].shape[-1], out
            if len(group) > 1:
                columns = (out, 2, start, stop)
                replacement = graph.graph.call_function(aten.slice.Tensor, columns)
            start = stop
            node.replace_all_uses_with(replacement)
            replacement.meta["val"] = node.meta["val"]


def _fuse_residuals(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        if node.target is not aten.add.Tensor or len(node.args) != 2:
            continue
        for linear, residual in (node.args, node.args[::-1]):
            fits = isinstance(linear, Node) and isinstance(linear.target, Linear)
            is_free = fits and len(linear.args) == 1 and len(linear.users) == 1
            if is_free and _is_alike(residual, node):
                patterns.replace(graph, node, linear.target, (*linear.args, residual))
                break


# Linear layers with a compiled product compute the norm or the gate of their input

_COLUMNS = ((aten.slice.Tensor, "x", 2, 0, "size"), (aten.slice.Tensor, "x", 2, "size", "stop"))
_GATES = {
    name: (aten.mul.Tensor, (function, _COLUMNS[0]), _COLUMNS[1])
    for name, function in (("silu", aten.silu.default), ("gelu", aten.gelu.default))
}


def _fuse_inputs(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        kernel = node.target
        if not isinstance(kernel, Linear) or kernel.compiled is None:
            continue
        pair = _norm_before(graph, node.args[0]) or _gate_before(node.args[0])
        if pair is not None:
            source, before = pair
            kernel.put_before(before)
            node.args = (source, *node.args[1:])


def _norm_before(graph: fx.GraphModule, node: Argument) -> tuple[Node, RmsNorm] | None:
    if not patterns.has_one_user(node):
        return None
    if isinstance(node.target, RmsNorm):
        return (node.args[0], node.target) if _is_activation(node.args[0], node) else None
    if node.target is not aten.mul.Tensor:
        return None
    for weight, norm in (node.args[:2], node.args[1::-1]):
        if not (patterns.has_one_user(norm) and isinstance(norm.target, RmsNorm)):
            continue
        if isinstance(weight, Node) and weight.op == "get_attr" and _is_activation(norm, node):
            value = graph.get_parameter(str(weight.target))
            if value.dim() == 1 and value.dtype == node.meta["val"].dtype:
                joined = RmsNorm(norm.target.eps, value)
                return (norm.args[0], joined) if _is_activation(norm.args[0], node) else None
    return None


def _gate_before(node: Argument) -> tuple[Node, Gate] | None:
    for name, pattern in _GATES.items():
        parts = parts_of(node, pattern)
        if not parts or not patterns.has_one_user(node) or not patterns.has_one_user(node.args[0]):
            continue
        if name == "gelu" and node.args[0].kwargs.get("approximate") != "tanh":
            continue
        x, size = parts["x"], node.meta["val"].shape[-1]
        are_halves = (parts["size"], parts["stop"]) == (size, 2 * size)
        if are_halves and isinstance(x.target, Linear) and len(x.users) == 2:
            return x, Gate(name)
    return None
