"""A worker as its scheme sees it, and what can be told of a scheme by letting it look at one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..errors import UserError

# Each element of what they make depends on that element of what they are given, and on scalars.
ELEMENTWISE = {
    *("Identity", "Const", "ZerosLike", "OnesLike", "Cast", "ReadVariableOp", "AssignVariableOp"),
    *("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyGradientDescent", "ResourceApplyAdagrad"),
    *("ResourceApplyAdam", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Neg", "Pow", "Square", "Sqrt", "Rsqrt", "Abs"),
    *("Sign", "Maximum", "Minimum", "Exp", "Log", "Tanh", "SelectV2", "Less", "Greater", "LessEqual", "GreaterEqual"),
}


class View(SimpleNamespace):
    """A worker as its scheme sees it: `contract.views.Worker`."""

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(name for name in vars(self) if not name.startswith("_"))
        raise AttributeError(f"a worker of this scheme has no {name} here. It has: {known}", name=name, obj=self)


def show(views: Iterable[Any], **known: Any) -> None:
    """The same to the scheme in each piece of a worker."""
    for view in views:
        vars(view).update(known)


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

    probe: Any = Probe(**vars(view) | {"steps": tf.constant(1.0), "loss": tf.constant(1.0), "mean": tf.identity})
    tf.function(lambda: scheme.at(tf.constant(0.0)).message(probe), autograph=False).get_concrete_function()
    return bool(asked)


def is_elementwise(scheme: Scheme) -> bool:
    """True if what a worker does between two gradients treats each coordinate by itself, as far as one can tell.

    Then it may be done on any part of the vectors alone, with the same bits. Who sends scalars has one vector for them,
    and who asks for shapes of the model or for means of all workers thinks of the whole one, too.
    """

    def between_gradients(now: Scheme, view: Any, vector: Any) -> list[Any]:
        first = now.local_variables(view.params.read_value())
        now.gradient_point(view)
        now.local_step(view, vector)
        message = tf.convert_to_tensor(now.message(view))
        now.adopt(view, vector)
        return [message, *first.values()]

    return not scheme.scalars and _by_coordinates(scheme, between_gradients)


def adopts_elementwise(scheme: Scheme) -> bool:
    """The same of what a worker does with a reply: it takes no view of it.

    TensorFlow knows that a whole vector lies in memory that is not its own. Into a view of it, it writes the result of
    an operation, or the next value of a variable, if nobody else has that buffer; and other workers read the same.
    """

    def adopt(now: Scheme, view: Any, vector: Any) -> list[Any]:
        now.adopt(view, vector)
        return []

    return _by_coordinates(scheme, adopt)


def _by_coordinates(scheme: Scheme, act: Callable[[Scheme, Any, Any], list[Any]]) -> bool:
    """True if a worker acts by operations on each coordinate alone, and all that it returns is [n], as its vectors."""
    with tf.Graph().as_default() as graph:
        # What a scheme has for each coordinate has the model's size: it does not fit, and that is an error.
        now, one, vector = scheme.at(tf.constant(0.0)), tf.constant(1.0), tf.zeros([3])
        known = {"index": tf.constant(0), "num_workers": 2, "steps": one, "loss": one, "gradient_sum": vector}
        view: Any = View(params=tf.Variable(vector), **known)
        try:
            slots = now.local_variables(view.params.read_value())
            vars(view).update({name: tf.Variable(value) for name, value in slots.items()})
            begun = len(graph.get_operations())
            returned = act(now, view, vector)
        except Exception:  # if it is a fault, it is raised again where the whole vectors are
            return False
        made = graph.get_operations()[begun:]
    return {value.shape for value in returned} <= {vector.shape} and {op.type for op in made} <= ELEMENTWISE
