"""Operations of one worker, copied for another one in the same graph: tracing them again takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..lazy import tf
from ..sync.store import TOKENS, token_of
from .requests import Operation


class Copier:
    """Copies the operations of a worker for another worker, and the worker's resources with them.

    Both use the same operations of the server, and the same placeholders: of inputs, and of the number of the worker,
    which each call feeds.

    Args:
        shared: the operations that were built before the first worker.
        worker: number of the other worker.
    """

    def __init__(self, shared: Iterable[Any], worker: int):
        self._name, self._tokens = f"worker_{worker}", token_of(worker)
        self._copies: dict[Any, Any] = {op: op for op in shared}

    def __call__(self, operation: Operation) -> Operation:
        """Return the copy of an operation."""
        self._copy([each if isinstance(each, tf.Operation) else each.op for each in tf.nest.flatten(operation)])
        return tf.nest.map_structure(self._copied, operation)

    def _copied(self, item: Any) -> Any:
        """Return the copy of a tensor or of an operation that has been copied."""
        return self._copies[item] if isinstance(item, tf.Operation) else self._copies[item.op].outputs[item.value_index]

    def _copy(self, wanted: Iterable[Any]) -> None:
        """Copy operations, and those that they depend on."""
        new: dict[Any, None] = {}
        left = [*wanted]
        while left:
            op = left.pop()
            if op.type.startswith("Placeholder"):
                self._copies[op] = op
            if op not in self._copies and op not in new:
                new[op] = None
                left += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        if not new:
            return
        versions = next(iter(new)).graph.graph_def_versions  # without them the graph's own become the oldest
        definition = tf.compat.v1.GraphDef(node=map(self._definition, new), versions=versions)
        outer = {tensor.name: self._copied(tensor) for op in new for tensor in op.inputs if tensor.op not in new}
        controls = {op for each in new for op in each.control_inputs if op not in new}
        outer |= {f"^{op.name}": _tensor_after(self._copies[op]) for op in controls}
        found = tf.import_graph_def(definition, outer, [op.name for op in new], name=self._name)
        self._copies.update(zip(new, found, strict=True))

    def _definition(self, op: Any) -> Any:
        """Return the definition of a copy."""
        definition = op.node_def
        definition.attr.pop("_class", None)  # may name an operation that is not copied; devices are known without it
        shared = definition.attr["shared_name"].s.decode() if "shared_name" in definition.attr else ""
        if op.name == TOKENS:
            definition.attr["shared_name"].s = self._tokens.encode()
        elif shared == op.name:  # as of each variable; the author of a scheme may have chosen another name
            definition.attr["shared_name"].s = f"{self._name}/{shared}".encode()
        return definition


def _tensor_after(op: Any) -> Any:
    """Return a tensor that is ready after an operation."""
    if op.outputs:
        return op.outputs[0]
    with tf.control_dependencies([op]):
        return tf.constant(True)
