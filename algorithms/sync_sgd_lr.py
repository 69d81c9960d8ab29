"""Synchronous SGD with a learning rate for each worker.

    worker k    push η_k g_k(θ),  wait,  x ← θ
    server      θ ← θ − (1/W) Σ η_k g_k   (or their sum),  then release all workers

Use: to study rates that differ between workers; else take `sync_sgd`.
Reference: none; a variant from guides to distributed TensorFlow.
Departures: none.
Limits: with η_k = η and the mean, or η_k = η/W and the sum, it is `sync_sgd` with η. To scale a gradient is to scale a
rate for plain SGD only, so no other optimizer is offered. Unequal rates minimise the weighted objective Σ η_k f_k,
which differs from the mean if the shards differ. Staleness is always zero.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Positive, Scheme, UserError, sgd, tf


@dataclass(frozen=True, kw_only=True)
class SyncSGDLR(Scheme):
    """Synchronous, with a learning rate for each worker."""

    sync = Barrier()

    learning_rates: tuple[Positive, ...] = (0.2,)
    """Step sizes η_k, one for each worker, or a single one for all."""
    reduction: Literal["sum", "mean"] = "mean"
    """Reduction of the weighted gradients on the server; the step of a sum grows with the number of workers."""

    @property
    def means_gradients(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.reduction == "mean"

    def check(self, workers):
        if len(self.learning_rates) not in (1, workers):
            raise UserError(
                f"learning_rates must hold one number for each of the {workers} workers, or a single one. "
                f"Received: {self.learning_rates}"
            )

    def message(self, worker):
        rates = self.learning_rates * (worker.num_workers // len(self.learning_rates))
        return tf.gather(rates, worker.index) * worker.gradient

    def server_update(self, server, message, staleness):
        sgd(server.center, message, float(server.num_workers) if self.reduction == "sum" else 1.0)
        return server.center
