"""Update rules on flat vectors, as TensorFlow's fused kernels.

A variable is a `tf.Variable` of shape [P], a gradient a tensor of shape [P]. The kernels hold the
variable's own lock while they write, so concurrent updates of one variable are never lost.
"""

from __future__ import annotations

from typing import Any


def sgd(variable: Any, gradient: Any, learning_rate: Any) -> None:
    """X <- x - eta g."""
    import tensorflow as tf

    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=learning_rate, delta=gradient, use_locking=True)


def adagrad(variable: Any, squares: Any, gradient: Any, learning_rate: Any) -> None:
    """S <- S + g**2;  x <- x - gamma g / sqrt(S)   (Duchi, Hazan, Singer 2011; no epsilon, as in the paper)."""
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdagrad(
        var=variable.handle, accum=squares.handle, lr=learning_rate, grad=gradient, use_locking=True
    )
