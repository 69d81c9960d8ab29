"""Weighing of mean gradients by what divides the losses of the workers' batches, such as their valid positions.

    worker k            g_k,  n_k = what divides its loss,  push n_k g_k and n_k
    server              its rule for (Σ n_k g_k) / (Σ n_k), of a set of messages or of the K that make an update
    without a ps        n̄ = mean n_k,  (n_k / n̄) g_k in place of g_k: a number more to exchange in each step

so that the update is that of one batch with the examples of all workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..lazy import keras, tf
from .optimizers import gathered
from .scheme import Scheme

LEAST_COUNT = 1e-30  # in place of zero: batches without a valid value have no gradient


def weighed(scheme: Scheme) -> Scheme:
    """Return a scheme of mean gradients (`Scheme.means_gradients`) that weighs them; its workers have a `count`."""
    at_server = scheme.sync.uses_ps
    base = _AmongWorkers if not at_server else _AtServer if scheme.sync.messages_per_update == 1 else _Gathering
    return extended(scheme, base, elementwise=scheme.elementwise and at_server)


def weighs(scheme: Scheme) -> bool:
    """Return True for a scheme that `weighed` has returned: its workers set their `count` after each gradient."""
    return isinstance(scheme, _Counting)


def extended(scheme: Scheme, base: type, **attributes: Any) -> Scheme:
    """Return a scheme whose class has the methods of `base` before its own, and these attributes for its own."""
    kind = type(scheme)
    members = {"__module__": kind.__module__, "name": kind.name, "elementwise": kind.elementwise}
    found = object.__new__(type(kind.__name__, (base, kind), members | attributes))
    vars(found).update({name: value for name, value in vars(scheme).items() if name not in attributes})
    return found


def set_size(scheme: Scheme, workers: int) -> int:
    """Return the number of messages of which an update of the center is made; 0 or 1 if each counts by itself."""
    return (scheme.sync.set_size(workers) if scheme.sync.exchanges else 1) or scheme.sync.messages_per_update


def has_common_batch(scheme: Scheme, workers: int) -> bool:
    """Return True if each update takes the gradients of several workers, of one batch each."""
    return set_size(scheme, workers) > 1 and scheme.period == 1 and not scheme.sync.gossips


def takes_mean_of_means(name: str, remedy: str) -> str:
    """Return the line on an algorithm that does not weigh its gradients where a mask or weights divide the losses."""
    return (
        f"{name} takes the mean of its workers' means, each over the valid positions or weights of its own batch, "
        f"not the mean over all: {remedy} weighs them"
    )


def takes_mean_of_sums(name: str, remedy: str) -> str:
    """Return the line on an algorithm that does not add up losses that are sums."""
    return (
        f"{name} takes the mean of its workers' losses, which are sums over their batches, not the sum over all: "
        f"{remedy} adds them up"
    )


def mask_of(tensor: Any) -> Any:
    """Return the mask that a layer of Keras has left at a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def warning_of_means(scheme: Scheme, workers: int, model: Any) -> Callable[..., Any]:
    """Return the `compute_loss` of a model, which warns once of losses that plain means of gradients do not weigh."""
    compute, name = model.compute_loss, f"Optimizer({type(scheme).__name__}())"
    is_told = not has_common_batch(scheme, workers)

    def computed(*positional: Any, **named: Any) -> Any:
        nonlocal is_told
        loss = compute(*positional, **named)
        call = dict(zip(("x", "y", "y_pred", "sample_weight"), positional, strict=False)) | named
        for line in () if is_told else _unweighed(name, model, call.get("y_pred"), call.get("sample_weight")):
            warnings.warn(line, stacklevel=2)
        is_told = True
        return loss

    return computed


def _unweighed(name: str, model: Any, y_pred: Any, weight: Any) -> list[str]:
    """Return lines on the losses of a compiled model; they follow from losses and mask, `Divisors` has the numbers."""
    losses = [each.loss for each in getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or ()]
    kinds = {getattr(loss, "reduction", None) for loss in losses}
    ignores = any(getattr(loss, "ignore_class", None) is not None for loss in losses)
    masked = any(mask_of(part) is not None for part in keras.tree.flatten(y_pred))
    by_count = masked or ignores or ("mean_with_sample_weight" in kinds and weight is not None)
    remedy = "train(model, data, SyncSGD())"
    lines = [takes_mean_of_means(name, remedy)] * by_count
    return lines + [takes_mean_of_sums(name, remedy)] * ("sum" in kinds)


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
        variables = super().global_variables(center)  # pyright: ignore[reportAttributeAccessIssue]
        return {**variables, "weighed": 0 * center, "counts": tf.zeros([])}

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        total = gathered(server.weighed, message, server.completes)
        count = gathered(server.counts, server.sent.count, server.completes)
        mean = total / tf.maximum(count, LEAST_COUNT)
        each = self.sync.messages_per_update * mean  # pyright: ignore[reportAttributeAccessIssue]
        return super(_AtServer, self).server_update(server, each, staleness)  # pyright: ignore[reportAttributeAccessIssue]


class _AmongWorkers(_Counting):
    def message_sizes(self, shapes: Any) -> Sequence[int]:
        return [1, *super().message_sizes(shapes)]  # pyright: ignore[reportAttributeAccessIssue]

    def message(self, worker: Any) -> Any:
        count = worker.count.read_value()
        worker.gradient *= count / tf.maximum(worker.mean(count), LEAST_COUNT)
        return super().message(worker)  # pyright: ignore[reportAttributeAccessIssue]
