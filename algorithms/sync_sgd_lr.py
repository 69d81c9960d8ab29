"""Synchronous SGD with a learning rate for each worker.

    worker k    push η_k g_k(θ),  wait,  x ← θ
    server      θ ← θ − Σ η_k g_k   (or their mean),  then release everybody

Reference: none; a variant that goes round in distributed TensorFlow guides.
Departures: none.
Limits: η_k = η with the mean, or η_k = η/W with the sum, is `sync_sgd` with η. Scaling a gradient is scaling a rate for
plain SGD only, so there is no other optimizer. Unequal rates minimise the weighted objective Σ η_k f_k: with shards
that differ, another one than the mean. Staleness is always zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..common.contract.optimizers import sgd
from ..common.contract.scheme import Scheme
from ..common.errors import UserError, one_of, positive
from ..common.gates.barrier import Barrier


@dataclass(frozen=True, kw_only=True)
class SyncSGDLR(Scheme):
    """One gradient of each worker, each with its own step size."""

    name = "sync_sgd_lr"
    idea = "synchronous, with a learning rate for each worker"
    paper = "none"

    learning_rates: tuple[float, ...] = (0.1,)
    """Step sizes η_k, one for each worker; a single one is everybody's."""
    reduction: Literal["sum", "mean"] = "sum"
    """What the server makes of the weighted gradients."""

    def __post_init__(self):
        if not isinstance(self.learning_rates, tuple) or not self.learning_rates:
            raise UserError(f"learning_rates must be a tuple of numbers. Received: {self.learning_rates}")
        for rate in self.learning_rates:
            positive(learning_rates=rate)
        one_of(("sum", "mean"), reduction=self.reduction)

    @property
    def gate(self) -> Barrier:
        """All wait for all."""
        return Barrier()

    def check(self, workers: int) -> None:
        """As many rates as workers, or one."""
        if len(self.learning_rates) not in (1, workers):
            raise UserError(
                f"learning_rates must hold one number for each of the {workers} workers, or a single one. "
                f"Received: {self.learning_rates}"
            )

    def message(self, worker: Any) -> Any:
        """η_k g_k."""
        import tensorflow as tf

        rates = self.learning_rates * (worker.num_workers // len(self.learning_rates))
        return tf.gather(rates, worker.index) * worker.gradient

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """θ ← θ − Σ η_k g_k; the message is the mean over the workers."""
        sgd(server.center, message, float(server.num_workers) if self.reduction == "sum" else 1.0)
        return server.center
