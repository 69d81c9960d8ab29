"""A worker as its scheme sees it, and what can be told of a scheme by letting it look at one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import tensorflow as tf

from ..contract.scheme import Scheme
from ..contract.views import MESSAGE_ONLY, not_here
from ..errors import UserError
from .ops import building

# Each element of what they make depends on that element of what they are given, and on scalars.
ELEMENTWISE = {
    *("Identity", "Const", "ZerosLike", "OnesLike", "Cast", "ReadVariableOp", "AssignVariableOp"),
    *("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyGradientDescent", "ResourceApplyAdagrad"),
    *("ResourceApplyAdam", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Neg", "Pow", "Square", "Sqrt", "Rsqrt", "Abs"),
    *("Sign", "Maximum", "Minimum", "Exp", "Log", "Tanh", "SelectV2", "Less", "Greater", "LessEqual", "GreaterEqual"),
}

# What they make may lie in the buffer of what they are given, as a part of it.
VIEWS = {"StridedSlice", "Slice", "Split", "SplitV", "Unpack"}

# They do what cannot be seen.
HIDING = {
    *("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"),
    *("PartitionedCall", "StatefulPartitionedCall"),
}

SIZE = 3  # of the vectors that a scheme is shown


class View(SimpleNamespace):
    """A worker as its scheme sees it: `contract.views.Worker`."""

    def __getattr__(self, name: str) -> Any:
        if name in MESSAGE_ONLY:
            raise not_here(name)
        known = ", ".join(name for name in vars(self) if not name.startswith("_"))
        raise AttributeError(f"a worker of this scheme has no {name} here. It has: {known}", name=name, obj=self)


def show(views: Iterable[Any], **known: Any) -> None:
    """The same to the scheme in each piece of a worker."""
    for view in views:
        vars(view).update(known)


def hide(views: Iterable[Any]) -> None:
    """From now on the scheme cannot read what is for its message alone."""
    for view in views:
        for name in MESSAGE_ONLY:
            vars(view).pop(name, None)


def show_each(views: Iterable[Any], **vectors: Sequence[Any]) -> None:
    """Vectors to the scheme, to each piece its own."""
    for name, parts in vectors.items():
        for view, part in zip(views, parts, strict=True):
            setattr(view, name, part)


def no_mean(why: str) -> Callable[[Any], Any]:
    """`worker.mean` where there is none."""

    def mean(vector: Any) -> Any:
        del vector
        raise UserError(why)

    return mean


def asks_for_sum(scheme: Scheme, view: Any) -> bool:
    """True if the scheme's message is made of the sum of gradients; others need not add them up."""
    asked = []

    class Probe(View):
        @property
        def gradient_sum(self) -> Any:
            asked.append(True)
            return tf.zeros_like(self.params)

    where = dict.fromkeys(["round", "step"], tf.constant(0, tf.int64))
    probe: Any = Probe(
        **vars(view) | where | {"steps": tf.constant(1.0), "loss": tf.constant(1.0), "mean": tf.identity}
    )
    tf.function(lambda: scheme.at(tf.constant(0.0)).message(probe), autograph=False).get_concrete_function()
    return bool(asked)


def is_elementwise(scheme: Scheme) -> bool:
    """True if what a worker does between two gradients treats each coordinate by itself, as far as one can tell.

    Then it may be done on any part of the vectors alone, with the same bits. Who sends scalars has one vector for them,
    and who asks for shapes of the model or for means of all workers thinks of the whole one, too.
    """

    def act(now: Scheme, view: Any, vector: Any) -> list[Any]:
        return [*now.local_variables(view.params.read_value()).values(), *_between_gradients(now, view, vector)]

    trace = None if scheme.scalars else _trace(scheme, act)
    return trace is not None and _by_coordinates(trace)


def has_no_views(scheme: Scheme) -> bool:
    """True if no worker keeps a view of a reply or of its parameters, which are a reply, as far as one can tell.

    TensorFlow knows that a whole vector lies in memory that is not its own. Into a view of it, it writes the result of
    an operation, or the next value of a variable, if nobody else has that buffer; and other workers read the same.
    """

    def adopt(now: Scheme, view: Any, vector: Any) -> list[Any]:
        now.adopt(view, vector)
        return []

    adopting = _trace(scheme, adopt)
    if adopting is None or not _by_coordinates(adopting):
        return False
    if not adopting.keeps:
        return True
    whole = _trace(scheme, _between_gradients, vectors=["gradient"], shapes=[(SIZE,)])
    return whole is not None and not whole.views


def _between_gradients(now: Scheme, view: Any, vector: Any) -> list[Any]:
    """All that a worker does in a round but for its gradients; returns its message."""
    now.gradient_point(view)
    now.local_step(view, vector)
    message = now.message(view)
    now.adopt(view, vector)
    return [message]


class Trace(NamedTuple):
    """What a worker's acts are made of."""

    kinds: set[str]  # of operations
    views: bool  # there may be some of numbers among what they make
    returned: list[Any]
    keeps: bool  # it has variables of its own


def _trace(
    scheme: Scheme, act: Callable[[Scheme, Any, Any], list[Any]], vectors: Sequence[str] = (), **known: Any
) -> Trace | None:
    """Let a worker act on vectors [SIZE]; None if it cannot. It sees those `vectors` and what is `known`, too."""
    graph = tf.Graph()
    with building(graph):
        # What a scheme has for each coordinate has the model's size: it does not fit, and that is an error.
        now, one, vector = scheme.at(tf.constant(0.0)), tf.constant(1.0), tf.zeros([SIZE])
        known |= {"index": tf.constant(0), "num_workers": 2, "steps": one, "loss": one}
        known |= dict.fromkeys(["round", "step"], tf.constant(0, tf.int64))
        known |= dict.fromkeys(["gradient_sum", *vectors], vector)
        view: Any = View(params=tf.Variable(vector), **known)
        try:
            slots = now.local_variables(view.params.read_value())
            vars(view).update({name: tf.Variable(value) for name, value in slots.items()})
            begun = len(graph.get_operations())
            returned = act(now, view, vector)
        except Exception:  # if it is a fault, it is raised again where the whole vectors are
            return None
        made = graph.get_operations()[begun:]
        kinds = {op.type for op in made}
        cut = any(op.type in VIEWS and op.outputs[0].dtype.is_floating for op in made)
        return Trace(kinds, cut or bool(kinds & HIDING), returned, bool(slots))


def _by_coordinates(trace: Trace) -> bool:
    """True if a worker acts by operations on each coordinate alone, and all that it returns is [n], as its vectors."""
    shapes = {getattr(value, "shape", None) for value in trace.returned}
    return shapes <= {tf.TensorShape([SIZE])} and trace.kinds <= ELEMENTWISE
