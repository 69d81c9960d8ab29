"""The part of a graph that some calls need: before the first call of each kind, a session copies all that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def needed_for(names: Sequence[str], definition: Any) -> Any:
    """The definition without the nodes and functions that nothing with one of these names depends on."""
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
    """Names of the functions that these nodes call, and those that are called there."""
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
