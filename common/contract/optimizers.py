"""Update rules on flat vectors, as TensorFlow's fused kernels.

A variable is a `tf.Variable` of shape [P], a gradient a tensor of shape [P]. The kernels hold the
variable's own lock while they write, so concurrent updates of one variable are never lost. The gradient of `sgd` may
also be a `tf.IndexedSlices`: then only its coordinates are written, in place and without a lock.

Kernels need a `tf.Variable` and a scalar learning rate. For objects with the interface of a variable (a cell of the
simulation), and for a learning rate for each weight, [P], the same formula is written with ordinary operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..lazy import tf


def _has_kernel(variable: Any, rate: Any) -> bool:
    return hasattr(variable, "handle") and rate.shape.rank == 0


def gathered(buffer: Any, message: Any, completes: Any) -> Any:
    """Add a message to a buffer [n]; the one that completes an update gets the sum, and empties the buffer.

    Returns:
        The sum of the messages [n] if `completes` is true, else zeros.
    """
    total = buffer + message
    buffer.assign(tf.where(completes, 0.0, total))
    return tf.where(completes, total, 0.0)


def sgd(variable: Any, gradient: Any, learning_rate: Any) -> None:
    """Apply x <- x - eta g; coordinates that occur several times in a sparse g add up."""
    if isinstance(gradient, tf.IndexedSlices):
        tf.raw_ops.ResourceScatterSub(
            resource=variable.handle, indices=gradient.indices, updates=learning_rate * gradient.values
        )
        return
    rate = tf.cast(learning_rate, tf.float32)
    if not _has_kernel(variable, rate):
        variable.assign_sub(rate * gradient)
        return
    gradient, rate = _undivided(gradient, rate)
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient, use_locking=True)


def _undivided(gradient: Any, rate: Any) -> tuple[Any, Any]:
    """Return s and the rate eta / n for a gradient s / n, which in a graph saves two passes over the vector."""
    operation = getattr(gradient, "op", None)  # eager tensors and variables have no division to undo
    if operation is None or operation.type != "RealDiv" or operation.inputs[1].shape.rank != 0:
        return gradient, rate
    total, number = operation.inputs
    return total, rate / number


def adagrad(variable: Any, squares: Any, gradient: Any, learning_rate: Any) -> None:
    """Apply S <- S + g**2;  x <- x - gamma g / sqrt(S)   (Duchi, Hazan, Singer 2011; no epsilon, as in the paper)."""
    rate = tf.cast(learning_rate, tf.float32)
    if not _has_kernel(variable, rate):
        variable.assign_sub(rate * gradient / tf.sqrt(squares.assign_add(gradient * gradient)))
        return
    tf.raw_ops.ResourceApplyAdagrad(var=variable.handle, accum=squares.handle, lr=rate, grad=gradient, use_locking=True)


def adamw(
    variable: Any,
    first_moment: Any,
    second_moment: Any,
    steps: Any,
    gradient: Any,
    learning_rate: Any,
    weight_decay: float,
    *,
    decayed: Any = lambda vector: vector,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
) -> None:
    """Apply AdamW (Loshchilov and Hutter 2019): x <- x - eta lambda x, then Adam (Kingma and Ba 2015, algorithm 1).

    t <- t + 1;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g**2;
    x <- x - eta (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + epsilon). `decayed` is that of the worker.
    """
    rate = tf.cast(learning_rate, tf.float32)
    # Both in float32 before the subtractions: 1 - beta then has the rounding of 1 - beta**t, as in the kernel. With an
    # exact 1 - beta, the second moment of the first steps would be wrong by 1e-5.
    beta_1, beta_2 = tf.constant(beta_1, tf.float32), tf.constant(beta_2, tf.float32)
    t = steps.assign_add(1.0)  # a float stands still at 2**24, long after both powers have become zero
    power_1, power_2 = tf.pow(beta_1, t), tf.pow(beta_2, t)
    if weight_decay:
        variable.assign_sub(rate * weight_decay * decayed(variable))
    if not _has_kernel(variable, rate):
        m, v, moved = adam(first_moment, second_moment, gradient, t, beta_1, beta_2, epsilon)
        first_moment.assign(m)
        second_moment.assign(v)
        variable.assign_sub(rate * moved)
        return
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=first_moment.handle,
        v=second_moment.handle,
        beta1_power=power_1,
        beta2_power=power_2,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon * tf.sqrt(1 - power_2),  # the kernel adds it before the second moment is corrected
        grad=gradient,
        use_locking=True,
    )


def adam(m: Any, v: Any, gradient: Any, t: Any, beta_1: Any, beta_2: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Return the moments of Adam after step t, and the direction of the step, see `adamw`."""
    beta_1, beta_2 = tf.cast(beta_1, tf.float32), tf.cast(beta_2, tf.float32)
    m, v = beta_1 * m + (1 - beta_1) * gradient, beta_2 * v + (1 - beta_2) * gradient * gradient
    return m, v, (m / (1 - tf.pow(beta_1, t))) / (tf.sqrt(v / (1 - tf.pow(beta_2, t))) + epsilon)


def delayed_step(
    state: Sequence[Any],
    moved: Any,
    *,
    rate: Any,
    momentum: float,
    size: int,
    share: float = 0.0,
    when: Any = True,
) -> None:
    """Make the n-th step of a center x along a move g, [n] both (Liu et al. 2024).

    always          D <- D + g
    N divides n     m <- b m + D/N;  x <- x - rate ((1 - c N + c) b m + g/N);  D <- 0
    otherwise       x <- x - rate (c b m + g/N)

    with b = `momentum`, N = `size` and c = `share`.

    Args:
        state: the variables x, m, D and n modulo N, a float scalar.
        moved: g.
        rate: of the step.
        momentum: b.
        size: N.
        share: c.
        when: if False, the step is not made; a bool scalar.
    """
    center, velocity, buffer, count = state
    number = (count + 1) % size
    last, gathered = tf.equal(number, 0), buffer + moved
    faster = tf.where(last, momentum * velocity + gathered / size, velocity)
    step = tf.where(last, 1 - share * size + share, share) * momentum * faster + moved / size
    after = center - rate * step, faster, tf.where(last, 0.0, gathered), number
    for variable, value in zip(state, after, strict=True):
        variable.assign(value if when is True else tf.where(when, value, variable))


def orthogonal(matrix: Any) -> Any:
    """Return about U V^T of a matrix M = U S V^T, by five steps of Newton and Schulz (Jordan et al. 2024).

    X <- M / ||M||, then five times X <- a X + (b A + c A A) X with A = X X^T.
    """
    tall = matrix.shape[0] > matrix.shape[1]  # A is then smaller for the transposed matrix
    x = tf.transpose(matrix) if tall else matrix
    x = x / (tf.norm(x) + 1e-7)
    for _ in range(5):
        a = tf.matmul(x, x, transpose_b=True)
        x = 3.4445 * x + tf.matmul(-4.7750 * a + 2.0315 * tf.matmul(a, a), x)
    return tf.transpose(x) if tall else x


def of_muon(matrix: Any, shape: Sequence[int]) -> Any:
    """Return 0.2 sqrt(max(n, m)) U V^T, [n m], for a matrix [n, m] that is given as a vector; see `orthogonal`."""
    return 0.2 * math.sqrt(max(shape)) * tf.reshape(orthogonal(tf.reshape(matrix, shape)), [-1])


def steepest(vector: Any, shapes: Sequence[Sequence[int]]) -> Any:
    """Return 0.2 sqrt(max(n, m)) U V^T for each matrix [n, m] of a concatenated vector, and signs of other variables.

    Args:
        vector: the vector, [P].
        shapes: shapes of the variables, `server.shapes`.
    """
    parts = zip(tf.split(tf.convert_to_tensor(vector), [*map(math.prod, shapes)]), shapes, strict=True)
    return tf.concat([of_muon(part, shape) if len(shape) == 2 else tf.sign(part) for part, shape in parts], 0)


def top_k(vector: Any, share: float) -> Any:
    """Return the vector with all but its largest elements set to zero; a fraction `share` is kept, one at least.

    An element that is not finite counts as the largest, so that the server sees it and refuses the message.
    """
    sizes = tf.where(tf.math.is_finite(vector), tf.abs(vector), float("inf"))
    _, where = tf.math.top_k(sizes, max(1, int(share * vector.shape[0])), sorted=False)
    return tf.scatter_nd(where[:, None], tf.gather(vector, where), tf.shape(vector))


def random_k(vector: Any, numbers: Any, share: float) -> Any:
    """Return P/k times the k elements of a vector [P] with the smallest of drawn numbers [P], and zeros elsewhere.

    k is a fraction `share` of P, one at least: in the mean over the draws it is the vector. An element that is not
    finite is kept, so that the server sees it and refuses the message.
    """
    drawn, size = top_k(1 - numbers, share) > 0, vector.shape[0]
    return tf.where(drawn | ~tf.math.is_finite(vector), size / max(1, int(share * size)) * vector, 0.0)


def scaled_signs(vector: Any, shapes: Sequence[Sequence[int]]) -> Any:
    """Return (‖p‖₁/d) sign(p) for each variable p, of d elements, of a concatenated vector.

    Args:
        vector: the vector, [P].
        shapes: shapes of the variables, `worker.shapes`.
    """
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return tf.concat([tf.reduce_mean(tf.abs(part)) * tf.sign(part) for part in parts], 0)


def count_senders(server: Any, message: Any) -> None:
    """Count the workers of a set that have sent each element, [n], and their messages; see `mean_over_senders`."""
    server.senders.assign_add(tf.cast(tf.not_equal(message, 0), tf.float32))
    server.messages.assign_add(1.0)


def mean_over_senders(server: Any, mean: Any) -> Any:
    """Return the mean of each element over the workers that have sent it, [n], in place of the mean over all.

    The server has the global variables `senders` [n] and `messages`, a scalar, which `count_senders` fills in
    `Scheme.weighted`. An element that is zero was not sent.
    """
    over = mean * server.messages / tf.maximum(server.senders, 1.0)
    server.senders.assign(tf.zeros_like(server.senders))
    server.messages.assign(0.0)
    return over


def take(variable: Any) -> Any:
    """Return the value of an accumulator and reset it to zero."""
    value = variable.read_value()
    variable.assign(tf.zeros_like(value))
    return value
