"""Inner optimizers: the rule of a worker's local steps in schemes that exchange parameters.

They are chosen by a text: `sgd`, `momentum`, `adam`, `adamw`, `lion` or `muon`, with options as in
`adamw:weight_decay=0.1`. Their variables are local variables of the worker, are kept from one round to the next, and
never leave the worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ..errors import UserError
from ..lazy import tf
from ..spec import parse
from .hyperparameters import Decay, Positive, WeightDecay, check_fields
from .optimizers import adam, adamw, of_muon, sgd
from .views import Tensor, Worker


@dataclass(frozen=True, kw_only=True)
class InnerSGD:
    """Apply x <- x - eta g."""

    elementwise: ClassVar[bool] = True  # as in `Scheme`

    def __post_init__(self) -> None:
        check_fields(self)

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Return the initial values of the optimizer's variables on a worker, by name."""
        return {}

    def step(self, worker: Worker, gradient: Tensor, learning_rate: Any) -> None:
        """Make one local step."""
        sgd(worker.params, gradient, learning_rate)


@dataclass(frozen=True, kw_only=True)
class InnerMomentum(InnerSGD):
    """Apply v <- b v + g;  x <- x - eta v   (Polyak 1964)."""

    momentum: Decay = 0.9

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Return the velocity."""
        return {"inner_velocity": 0 * params}

    def step(self, worker: Worker, gradient: Tensor, learning_rate: Any) -> None:
        """Make one local step with the new velocity."""
        sgd(
            worker.params, worker.inner_velocity.assign(self.momentum * worker.inner_velocity + gradient), learning_rate
        )


@dataclass(frozen=True, kw_only=True)
class InnerAdam(InnerSGD):
    """Apply Adam, see `adamw`, without decay."""

    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Positive = 1e-8

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Return both moments, and the number of steps."""
        return {"first_moment": 0 * params, "second_moment": 0 * params, "adam_steps": 0 * params[0]}

    def step(self, worker: Worker, gradient: Tensor, learning_rate: Any) -> None:
        """Make one local step with the corrected moments."""
        moments = worker.first_moment, worker.second_moment, worker.adam_steps
        options = {"weight_decay": 0.0, "decayed": worker.decayed} | vars(self)
        adamw(worker.params, *moments, gradient, learning_rate, **options)


@dataclass(frozen=True, kw_only=True)
class InnerAdamW(InnerAdam):
    """Apply AdamW, see `adamw`."""

    weight_decay: WeightDecay = 0.01


@dataclass(frozen=True, kw_only=True)
class InnerMuon(InnerAdamW):
    """Apply Muon (Jordan et al. 2024, scaled as by Liu et al. 2025) to matrices, and AdamW to other variables.

    For a matrix [n, m]:  v <- mu v + g;  x <- x - eta (0.2 sqrt(max(n, m)) O(g + mu v) + lambda x), where O makes all
    singular values about 1, see `orthogonal`. The first moment of a matrix is v.
    """

    elementwise: ClassVar[bool] = False

    momentum: Decay = 0.95
    weight_decay: WeightDecay = 0.004

    def step(self, worker: Worker, gradient: Tensor, learning_rate: Any) -> None:
        """Make one local step, variable by variable."""
        t, sizes = worker.adam_steps.assign_add(1.0), [math.prod(shape) for shape in worker.shapes]
        vectors = worker.first_moment, worker.second_moment, gradient
        parts = [tf.split(tf.convert_to_tensor(vector), sizes) for vector in vectors]
        updates = [self._made(t, *part) for part in zip(worker.shapes, *parts, strict=True)]
        m, v, moved = (tf.concat(part, 0) for part in zip(*updates, strict=True))
        worker.first_moment.assign(m)
        worker.second_moment.assign(v)
        sgd(worker.params, moved + self.weight_decay * worker.decayed(worker.params), learning_rate)

    def _made(self, t: Tensor, shape: Sequence[int], m: Tensor, v: Tensor, gradient: Tensor) -> Sequence[Tensor]:
        """Return the next moments of one variable, and the direction of its step."""
        if len(shape) != 2:
            return adam(m, v, gradient, t, self.beta_1, self.beta_2, self.epsilon)
        m = self.momentum * m + gradient
        return m, v, of_muon(gradient + self.momentum * m, shape)


@dataclass(frozen=True, kw_only=True)
class InnerLion(InnerSGD):
    """Apply x <- x - eta (sign(b1 m + (1 - b1) g) + lambda x);  m <- b2 m + (1 - b2) g   (Chen et al. 2023)."""

    beta_1: Decay = 0.9
    beta_2: Decay = 0.99
    weight_decay: WeightDecay = 0.0

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Return the momentum."""
        return {"inner_momentum": 0 * params}

    def step(self, worker: Worker, gradient: Tensor, learning_rate: Any) -> None:
        """Make one local step of the length of the rate in each coordinate."""
        before = worker.inner_momentum.read_value()
        moved = tf.sign(self.beta_1 * before + (1 - self.beta_1) * gradient)
        if self.weight_decay:
            moved += self.weight_decay * worker.decayed(worker.params)
        worker.inner_momentum.assign(self.beta_2 * before + (1 - self.beta_2) * gradient)
        sgd(worker.params, moved, learning_rate)


KINDS = InnerSGD, InnerMomentum, InnerAdam, InnerAdamW, InnerLion, InnerMuon
INNER = {kind.__name__.lower().removeprefix("inner"): kind for kind in KINDS}


def inner(text: str) -> InnerSGD:
    """Return the inner optimizer that a text names; raises `UserError` if it names none."""
    name, options = parse("inner_optimizer", text, INNER)
    return INNER[name](**options)


def _refuse(**given: Any) -> None:
    ((name, text),) = given.items()
    if not isinstance(text, str):
        names = ", ".join(INNER)
        raise UserError(
            f"{name} must be a text: {names}, or with options, 'adamw:weight_decay=0.1'. Received: {text!r}"
        )
    inner(text)


InnerOptimizer = Annotated[str, _refuse, "inner_optimizer"]
"""The name of an inner optimizer, with options: `adamw:weight_decay=0.1`."""
