"""Attacks of hostile workers that know what the others send: the server puts them in place of what these have sent.

    ALIE    μ − z σ, the mean and standard deviation of the honest workers in each coordinate (Baruch, Baruch and
            Goldberg, *A Little Is Enough*, NeurIPS 2019, arXiv:1902.06156)
    IPM     −ε μ (Xie, Koyejo and Gupta, *Fall of Empires*, UAI 2019, arXiv:1903.03936)

A hostile worker could compute both if it knew the data of the others. Here it takes part as an honest one, and the rule
of the server gets the attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..hostile import Attack
from ..lazy import tf
from .kept import EachWorker
from .optimizers import take
from .robust import Robust
from .scheme import Scheme
from .weighed import extended


def check_attack(scheme: Scheme, attack: Attack, workers: int) -> None:
    """Raise `UserError` if there are too many hostile workers, or if none can know what the others send."""
    if attack.workers >= workers:
        raise UserError(f"hostile workers must be fewer than the {workers} workers. Received: {attack.workers}")
    if not attack.knows:
        return
    sync = scheme.sync
    plain = type(scheme).weighted is Scheme.weighted or isinstance(scheme, Robust)
    if not (sync.uses_ps and sync.meets(workers) and plain) or scheme.sends_in_turn or scheme.regions:
        raise UserError(
            f"{attack.kind} needs the messages of all workers at one time: a barrier for all, and a rule of their mean "
            f"or of the gradient of each, as that of sync_sgd, trimmed_mean or krum. Received: {scheme.name}"
        )
    if workers - attack.workers < 2:
        raise UserError(f"{attack.kind} needs two honest workers. Received: {attack.workers} hostile of {workers}")
    if attack.kind == "alie" and attack.of(workers) <= 0:
        raise UserError(
            f"alie needs a z above 0, and {attack.workers} of {workers} workers hide among the others only with "
            f"z={attack.of(workers):.2g}: give one, as in alie:{attack.workers},z=1"
        )


def attacked(scheme: Any, attack: Attack, workers: int) -> Any:
    """Return the scheme whose server gets the attack from the last workers, if these know what the others send."""
    if not attack.knows:
        return scheme
    return extended(scheme, _OnRows if isinstance(scheme, Robust) else _OnMean, attack=attack, of_workers=workers)


class _Attacked:
    attack: Attack
    of_workers: int

    def forged(self, rows: Any, present: Any) -> Any:
        """Return the rows of all workers, [W, n], with the attack in those of the hostile ones."""
        honest = tf.range(self.of_workers) < self.of_workers - self.attack.workers
        counts = (honest & present)[:, None]
        number = tf.reduce_sum(tf.cast(counts, tf.float32))
        mean = tf.reduce_sum(tf.where(counts, rows, 0.0), 0) / tf.maximum(number, 1.0)
        strength = self.attack.of(self.of_workers)
        if self.attack.kind == "ipm":
            forged = -strength * mean
        else:
            squares = tf.reduce_sum(tf.where(counts, tf.square(rows - mean), 0.0), 0)
            forged = mean - strength * tf.sqrt(squares / tf.maximum(number - 1, 1.0))
        return tf.where(honest[:, None], rows, forged)


class _OnRows(_Attacked):
    def rows(self, server: Any, present: Any) -> Any:
        return self.forged(super().rows(server, present), present)  # pyright: ignore[reportAttributeAccessIssue]


class _OnMean(_Attacked):
    def global_variables(self, center: Any) -> Mapping[str, Any]:
        variables = super().global_variables(center)  # pyright: ignore[reportAttributeAccessIssue]
        return {**variables, "rows_of_all": EachWorker(0 * center), "arrived": EachWorker(0.0)}

    def weighted(self, server: Any, message: Any, staleness: Any) -> Any:
        server.rows_of_all.assign(message)
        server.arrived.assign(1.0)
        return message

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        present = take(server.arrived) > 0
        rows = tf.where(present[:, None], self.forged(server.rows_of_all.read_value(), present), 0.0)
        mean = tf.reduce_sum(rows, 0) / tf.maximum(tf.reduce_sum(tf.cast(present, tf.float32)), 1.0)
        return super().server_update(server, mean, staleness)  # pyright: ignore[reportAttributeAccessIssue]
