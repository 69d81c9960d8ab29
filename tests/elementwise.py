"""A scheme's rules for a worker, traced on a small vector: does `Scheme.elementwise` say the truth?"""

import tensorflow as tf

from distsgd.common.contract.views import Worker
from distsgd.common.messages.ops import building

# Operations whose output is computed element by element, from tensors and scalars.
ELEMENTWISE = {
    *("Identity", "Const", "ZerosLike", "OnesLike", "Cast", "ReadVariableOp", "AssignVariableOp"),
    *("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyGradientDescent", "ResourceApplyAdagrad"),
    *("ResourceApplyAdam", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Neg", "Pow", "Square", "Sqrt", "Rsqrt", "Abs"),
    *("Sign", "Maximum", "Minimum", "Exp", "Log", "Tanh", "SelectV2", "Less", "Greater", "LessEqual", "GreaterEqual"),
}

SIZE = 3  # of the vectors


def is_elementwise(scheme):
    """Return True if a worker's rules are elementwise operations alone, and its vectors keep their shape.

    None of these operations makes a view of a part of its input.
    """
    graph = tf.Graph()
    with building(graph):
        now, one, vector = scheme.at(tf.constant(0.0)), tf.constant(1.0), tf.zeros([SIZE])
        known = {"index": tf.constant(0), "num_workers": 2, "steps": one, "loss": one}
        known |= dict.fromkeys(["round", "step"], tf.constant(0, tf.int64))
        known |= dict.fromkeys(["gradient", "gradient_sum"], vector)
        view = Worker(params=tf.Variable(vector), **known)  # rules for each coordinate, or for `shapes`, fail here
        try:
            local = now.worker_variables(view.params.read_value())
            vars(view).update({name: tf.Variable(value) for name, value in local.items()})
            begun = len(graph.get_operations())
            local = now.worker_variables(view.params.read_value())
            now.gradient_point(view)
            now.local_step(view, vector)
            message = now.message(view)
            now.on_reply(view, vector)
        except (AttributeError, ValueError, TypeError, NotImplementedError):  # the last one: random numbers by place
            return False
    shapes = {getattr(value, "shape", None) for value in [*local.values(), message]}
    return shapes <= {tf.TensorShape([SIZE])} and {op.type for op in graph.get_operations()[begun:]} <= ELEMENTWISE
