"""Weighing of mean gradients by what divides the losses of the workers' batches, such as their valid positions.

    worker k            g_k,  n_k = what divides its loss,  push n_k g_k and n_k
    server              its rule for (Σ n_k g_k) / (Σ n_k), of a set of messages or of the K that make an update
    without a ps        n̄ = mean n_k,  (n_k / n̄) g_k in place of g_k: a number more to exchange in each step

so that the update is that of one batch with the examples of all workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..lazy import tf
from .optimizers import gathered
from .scheme import Scheme

LEAST_COUNT = 1e-30  # in place of zero: batches without a valid value have no gradient


def weighed(scheme: Scheme) -> Scheme:
    """Return a scheme of mean gradients (`Scheme.means_gradients`) that weighs them; its workers have a `count`."""
    at_server = scheme.sync.uses_ps
    base = _AmongWorkers if not at_server else _AtServer if scheme.messages_per_update == 1 else _Gathering
    return extended(scheme, base, weighs=True, in_place=False, elementwise=scheme.elementwise and at_server)


def extended(scheme: Scheme, base: type, **attributes: Any) -> Scheme:
    """Return a scheme whose class has the methods of `base` before its own, and these attributes."""
    kind = type(scheme)
    own = {"__module__": kind.__module__, "name": kind.name, "idea": kind.idea, "elementwise": kind.elementwise}
    found = object.__new__(type(kind.__name__, (base, kind), own | attributes))
    vars(found).update(vars(scheme))
    return found


class _Counting:
    """The local variable with what divides the loss of the last batch, which the engine sets."""

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        return {**super().local_variables(params), "count": 0 * params[0] + 1}  # pyright: ignore[reportAttributeAccessIssue]


class _AtServer(_Counting):
    scalars = ("count",)

    def message(self, worker: Any) -> Any:
        count = worker.count.read_value()
        return count * super().message(worker), {"count": count}  # pyright: ignore[reportAttributeAccessIssue]

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        mean = message / tf.maximum(server.sent.count, LEAST_COUNT)
        return super().server_update(server, mean, staleness)  # pyright: ignore[reportAttributeAccessIssue]


class _Gathering(_AtServer):
    """A server that gets the messages of an update one by one: its rule gets zeros, and with the last their mean."""

    def global_variables(self, center: Any) -> Mapping[str, Any]:
        own = super().global_variables(center)  # pyright: ignore[reportAttributeAccessIssue]
        return {**own, "weighed": 0 * center, "counts": tf.zeros([])}

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        total = gathered(server.weighed, message, server.completes)
        count = gathered(server.counts, server.sent.count, server.completes)
        mean = total / tf.maximum(count, LEAST_COUNT)
        each = self.messages_per_update * mean  # pyright: ignore[reportAttributeAccessIssue]
        return super(_AtServer, self).server_update(server, each, staleness)  # pyright: ignore[reportAttributeAccessIssue]


class _AmongWorkers(_Counting):
    def message_sizes(self, shapes: Any) -> Sequence[int]:
        return [1, *super().message_sizes(shapes)]  # pyright: ignore[reportAttributeAccessIssue]

    def message(self, worker: Any) -> Any:
        count = worker.count.read_value()
        worker.gradient *= count / tf.maximum(worker.mean(count), LEAST_COUNT)
        return super().message(worker)  # pyright: ignore[reportAttributeAccessIssue]
