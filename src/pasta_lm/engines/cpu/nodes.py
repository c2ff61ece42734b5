"""What all rewrites of a traced pass need of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

Node = fx.Node


def is_call(node: Any, target: Any) -> bool:
    """Return whether a node is a call of a function."""
    return isinstance(node, Node) and node.target is target


def replace(
    graph: fx.GraphModule, node: Node, function: Callable[..., Any], args: tuple[Any, ...]
) -> Node:
    """Compute a node by another function, and return the new node."""
    with graph.graph.inserting_before(node):
        new = graph.graph.call_function(function, args)
    node.replace_all_uses_with(new)
    return new
