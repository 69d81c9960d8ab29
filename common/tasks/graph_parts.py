"""Pruning of graphs: before the first call of each kind a session copies its whole graph, so a small one is faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def needed_for(names: Sequence[str], definition: Any) -> Any:
    """Return the definition without the nodes and functions that the named nodes do not depend on."""
    nodes = {node.name: node for node in definition.node}
    needed: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().removeprefix("^").split(":")[0]
        if name not in needed:
            needed.add(name)
            left += nodes[name].input
    del definition.node[:]
    definition.node.extend(node for name, node in nodes.items() if name in needed)
    functions = {function.signature.name: function for function in definition.library.function}
    called = _called(definition.node, functions)
    del definition.library.function[:]
    definition.library.function.extend(function for name, function in functions.items() if name in called)
    return definition


def _called(nodes: Sequence[Any], functions: dict[str, Any]) -> set[str]:
    """Return the names of the functions that these nodes call, directly or through other functions."""
    called: set[str] = set()
    left = [nodes]
    while left:
        for node in left.pop():
            values = node.attr.values()
            asked = {node.op, *(v.func.name for v in values), *(f.name for v in values for f in v.list.func)}
            new = (asked & functions.keys()) - called
            called |= new
            left += [functions[name].node_def for name in new]
    return called
