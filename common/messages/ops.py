"""Small graph operations shared by workers and parameter server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import func_graph_from_py_func
from tensorflow.python.ops import script_ops

from ..settings import is_deterministic


class _Building(threading.local):
    """Thread-local state."""

    active = False  # True if this thread builds a graph


_BUILDING = _Building()


@contextmanager
def building(graph: Any) -> Iterator[None]:
    """Build into this graph, in whose functions `==` and `!=` compare the values of tensors and variables.

    Elsewhere TensorFlow 2 does that by itself. In the functions of a graph that a session runs, the operators compare
    objects, as in TensorFlow 1: `worker.round == 0` in a scheme, or `y == 0` in a loss, would be False for all values.
    """
    before, _BUILDING.active = _BUILDING.active, True
    try:
        with graph.as_default():
            yield
    finally:
        _BUILDING.active = before


def _compare_values(kind: Any, name: str, compare: Callable[..., Any]) -> None:
    """Make an operator of tensors or variables `compare` values in functions inside `building`."""
    objects = getattr(kind, name)

    def operator(self: Any, other: Any) -> Any:
        if other is None or not _BUILDING.active or not tf.inside_function():
            return objects(self, other)  # outside of functions TensorFlow itself searches lists for tensor objects
        return compare(x=self, y=other, incompatible_shape_error=False)

    setattr(kind, name, operator)


for _kind in (tf.Tensor, tf.Variable):
    _compare_values(_kind, "__eq__", tf.raw_ops.Equal)
    _compare_values(_kind, "__ne__", tf.raw_ops.NotEqual)


def in_program_order(build: Callable[..., Any], *arguments: Any) -> Any:
    """Build operations into the current graph, of which the stateful ones run in the order of the Python code.

    They are traced as a `tf.function`, which adds that order, and copied into the graph. TensorFlow would optimize each
    function that a graph calls by itself before its first call: starting a run took half as much CPU time again. They
    are copied all at once, because a session takes new operations whenever another thread calls it.

    A call of a function waits for all its arguments and captured tensors. A copied operation waits for those it uses.

    Args:
        build: builds the operations; returns tensors, nested.
        arguments: its arguments, of which the tensors become inputs of the function.

    Returns:
        what `build` returns, computed after all stateful operations.
    """
    function = func_graph_from_py_func("in_order", build, arguments, {})
    tensors = [*filter(tf.is_tensor, tf.nest.flatten(arguments)), *function.external_captures]
    outer = {inner.op.name: tensor for inner, tensor in zip(function.inputs, tensors, strict=True)}
    definition = function.as_graph_def()
    nodes = [node for node in definition.node if node.name not in outer]
    with tf.control_dependencies(function.function_captures.control):  # as a call: of these, and of those around it
        outer[begin := function.unique_name("begin")] = first = tf.constant(True)
    for node in nodes:
        node.attr.pop("_class", None)  # may name an operation outside of the function; devices are known without it
        if first.op.control_inputs:
            node.input.append(f"^{begin}")
    del definition.node[:]
    definition.node.extend(nodes)
    used = {text for node in nodes for text in node.input}  # "^a" for a control edge from node "a"
    inputs = {text: outer[node] for text in used if (node := text.removeprefix("^")) in outer}
    results = [tensor.name for tensor in function.outputs]
    found = tf.import_graph_def(definition, inputs, results, name="in_order")
    return tf.nest.pack_sequence_as(function.structured_outputs, found)


def without_order(op: Any) -> None:
    """Exempt a stateful operation from the order of the Python code, see `in_program_order`."""
    if order := getattr(op.graph, "experimental_acd_manager", None):
        order.run_independently(op)


def token(function: Callable[..., Any]) -> str:
    """Return the token by which TensorFlow calls a Python function of arrays, as `tf.numpy_function` registers it.

    Tokens are consecutive numbers. All processes import this module and `transport` before any other that registers
    Python functions, so their tokens agree, and a process can build a graph that calls the functions of another.
    No graph is built: it would start a thread, and the fork server, which imports this module, may have one only.

    Args:
        function: a function that its module keeps; TensorFlow does not.
    """
    return script_ops._py_funcs.insert(function)


def call(function_token: str, data: Any, dtype: Any) -> Any:
    """Build the call of the Python function with this token, which waits for its arguments alone; returns its result.

    In a `tf.function` it would also wait for all such calls that were built before it, so a worker would write each
    part of a message only after the one before it.
    """
    result = tf.raw_ops.PyFunc(input=data, token=function_token, Tout=[dtype])[0]
    without_order(result.op)
    return result


def _time() -> float:
    return time.time()


TIME = token(_time)


def now() -> Any:
    """Return the time at which the control inputs have run: seconds since 1970, float64.

    Where TensorFlow executes only deterministic operations, it refuses its own clock; Python's takes its place.
    """
    if not is_deterministic():
        return tf.timestamp()
    found = tf.raw_ops.PyFunc(input=[], token=TIME, Tout=[tf.float64])[0]
    found.set_shape([])
    return found


def clock() -> Any:
    """Return the time at which the control inputs have run: microseconds since 1970, int64.

    Nothing else waits for it: local steps beside an exchange shall not wait for the time of its record, nor a worker
    for the ps to unlock.
    """
    found = now()
    without_order(found.op)
    return tf.cast(found * 1e6, tf.int64)


def end_queue(index: int) -> Any:
    """Return the queue on which a ps task waits for the end of the run."""
    return queue(f"end_{index}")


def zeros(size: int) -> Any:
    """Return a vector of zeros, [size]. `tf.zeros` would first make a constant of that size."""
    return tf.raw_ops.Empty(shape=[size], dtype=tf.float32, init=True)


def is_finite(message: Any) -> Any:
    """Return True if the sum of all elements of vector and scalars is finite: twice as fast as testing each.

    So a message whose sum overflows is refused, too.
    """
    parts = tf.nest.flatten(message)
    sums = [tf.reduce_sum(part.values if isinstance(part, tf.IndexedSlices) else part) for part in parts]
    return tf.math.is_finite(tf.add_n(sums) if len(sums) > 1 else sums[0])


def queue(name: str, shared_name: str | None = None, shape: Sequence[int] = (), dtype: Any = "bool") -> Any:
    """Return an unbounded queue on the current device, shared by name among the tasks."""
    return tf.queue.FIFOQueue(-1, [tf.as_dtype(dtype)], [list(shape)], shared_name=shared_name or name, name=name)


def when(condition: Any, action: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Any:
    """Build `action` to run only if `condition` holds, and `otherwise` if not; returns a tensor computed after it.

    A control edge from a `tf.cond` does not wait for the assignments in its branches; an edge from an identity of its
    output does.
    """

    def done(build: Callable[[], Any], result: bool) -> Callable[[], Any]:
        def act() -> Any:
            build()
            return tf.constant(result)  # inside a function, a result waits for every operation built before it

        return act

    return tf.identity(tf.cond(condition, done(action, True), done(otherwise, False)))
