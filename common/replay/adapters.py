"""The transcription of each scheme, and its arguments from a recorded run.

The trace gives the order of the workers. Quantities that the algorithm fixes (lengths of rounds, pulled versions,
messages of an update) are recomputed rather than read from the trace, so that errors in them are detected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UserError
from ..server.trace import EVENTS
from . import reference
from .recorded import RecordedRun, must

Centers = list[np.ndarray]  # the center after each event, or after each common update; [P] each


def _compressor(run: RecordedRun, scheme: Any) -> Callable[[np.ndarray], np.ndarray]:
    if scheme.compressor == "topk":
        return reference.largest(max(1, int(scheme.share * len(run.start))))
    return reference.scaled_sign(run.layers)


def _in_order(transcription: Callable[..., Centers], run: RecordedRun, memory: bool = False, **options: Any) -> Centers:
    """Execute an asynchronous scheme: one message after the other, ~k where worker k starts anew.

    `memory`: workers keep a state, which a restarted worker has lost.
    """
    _check_messages(run, memory)
    return transcription(run.start, run.gradient, run.contacts, run.workers, eta=_of(run).learning_rate, **options)


def _in_rounds(
    transcription: Callable[..., Centers], run: RecordedRun, memory: bool = False, **options: Any
) -> Centers:
    """Execute a synchronous scheme: only the number of rounds is read from the trace.

    `memory`: workers keep a state, which a restarted worker has lost.
    """
    if run.evicted:
        raise UserError(f"the run continued without a worker, which the transcription of {run.scheme.name} cannot")
    _check_messages(run, memory)
    updates = run.result["updates"]  # fewer than steps if the run was stopped early
    messages = np.bincount(run.trace["worker"][run.trace["accepted"] == 1], minlength=run.workers)
    must((messages == updates).all(), "how many messages each worker sent")
    steps = min(run.steps, updates * run.scheme.period)  # later steps are not in the center
    centers = transcription(run.start, run.gradient, run.workers, steps=steps, **options)
    must(updates <= len(centers), "how many updates there were")
    return centers[:updates]


def _async_sgd(run: RecordedRun, scheme: Any) -> Centers:
    if not run.sparse:
        return _in_order(reference.async_sgd, run)
    _check_messages(run)
    return reference.async_sgd_reading_apart(run.start, run.gradient, run.reads, run.workers, eta=scheme.learning_rate)


def _check_messages(run: RecordedRun, memory: bool = False) -> None:
    """Raise `UserError` if workers have lost a state that the transcription keeps, or messages were dropped."""
    if memory and run.joins.any():
        raise UserError(f"a worker was started again, whose memory the transcription of {run.scheme.name} would keep")
    pushes = np.isin(run.trace["event"], [EVENTS.index("exchange"), EVENTS.index("push")])
    if not run.trace["accepted"][pushes].all():
        raise UserError("some messages were not finite and were dropped: the reference knows of none")


def _of(run: RecordedRun) -> Any:
    return run.scheme


def _local(run: RecordedRun) -> dict[str, Any]:
    return {"steps": run.steps, "period": run.scheme.period}


def _serial(run: RecordedRun, scheme: Any) -> Centers:
    return reference.serial(run.start, run.gradient, run.steps, eta=scheme.learning_rate)


def _downpour(
    run: RecordedRun, push_period: int | None = None, pull_period: int | None = None, dean: bool = False, **options: Any
) -> Centers:
    _check_messages(run)
    scheme, trace = _of(run), run.trace
    first = [0] * run.workers  # updates in each worker's first pull; after a warm start it may be any number
    warm_start = min(getattr(scheme, "warm_start", 0), run.order.count(0))
    for k in range(1, run.workers):
        if len(mine := np.flatnonzero(trace["worker"] == k)):
            first[k] = int(trace["version"][mine[0]] - trace["staleness"][mine[0]])
            must(run.joins[mine[0]] or (first[k] >= warm_start if warm_start else first[k] == 0), "the first pull")
    return reference.downpour(
        run.start,
        run.gradient,
        [(k, EVENTS[event]) for k, event in zip(run.order, trace["event"], strict=True)],
        run.workers,
        eta=scheme.learning_rate,
        n_push=push_period or scheme.communication_period,
        n_fetch=pull_period or scheme.communication_period,
        runs=np.diff([0, *run.earlier_step_targets, run.steps]).tolist(),
        dean=dean,
        first=first,
        **options,
    )


def _sync_sgd(run: RecordedRun, backup_workers: int = 0) -> Centers:
    messages = {name: values[~run.joins] for name, values in run.trace.items()}
    pulled, sizes = (messages["version"] - messages["staleness"]).tolist(), []
    if run.evicted:  # only the trace tells how many workers were left
        sizes = np.bincount(messages["version"][messages["accepted"] == 1]).tolist()
    elif not backup_workers:  # all continue together: the n-th message of a worker (from 0) follows a pull of version n
        mine = [np.cumsum(messages["worker"] == k) - 1 for k in range(run.workers)]
        pulled = [int(mine[k][i]) for i, k in enumerate(messages["worker"])]
    centers, kept = reference.sync_sgd(
        run.start,
        run.gradient,
        list(zip(messages["worker"].tolist(), pulled, strict=True)),
        run.workers,
        eta=_of(run).learning_rate,
        updates=run.steps,
        backup=backup_workers,
        sizes=sizes,
    )
    must(kept == messages["accepted"].astype(bool).tolist(), "which messages were kept")
    must(len(centers) == run.result["updates"], "how many updates there were")
    return centers


def _ringmaster(run: RecordedRun, scheme: Any) -> Centers:
    centers, used = reference.ringmaster(
        run.start, run.gradient, run.contacts, run.workers, eta=scheme.learning_rate, threshold=scheme.delay_threshold
    )
    must(used == run.trace["accepted"][~run.joins].astype(bool).tolist(), "which messages were used")
    return centers


def _ssp(run: RecordedRun, scheme: Any) -> Centers:
    centers, lawful = reference.ssp(
        run.start, run.gradient, run.reads, run.workers, eta=scheme.learning_rate, slack=scheme.slack
    )
    must(lawful or run.evicted or run.joins.any(), "how far a worker was ahead")
    return centers


# By name of the scheme: a function of the run and of its scheme with hyperparameters.
TRANSCRIPTIONS: dict[str, Callable[[RecordedRun, Any], Centers]] = {
    "serial": _serial,
    "multi_gpu": _serial,
    "async_sgd": _async_sgd,
    "hierarchical": lambda run, s: _in_order(reference.async_sgd, run),
    "downpour": lambda run, s: _downpour(
        run,
        s.push_period,
        s.pull_period,
        s.phase == "dean",
        gamma=s.server_learning_rate,
        accumulator=s.initial_accumulator,
    ),
    "downpour_easy": lambda run, s: _downpour(run),
    "agn": lambda run, s: _in_order(reference.agn, run, gamma=s.server_learning_rate, **_local(run)),
    "adag": lambda run, s: _in_order(reference.agn, run, distance_scale=s.distance_scale, **_local(run)),
    "dynsgd": lambda run, s: _in_order(reference.dynsgd, run, **_local(run)),
    "aeasgd": lambda run, s: _in_order(reference.aeasgd, run, alpha=s.beta / run.workers, **_local(run)),
    "aeamsgd": lambda run, s: _in_order(
        reference.aeamsgd, run, alpha=s.beta / run.workers, delta=s.momentum, **_local(run)
    ),
    "dc_asgd": lambda run, s: _in_order(
        reference.dc_asgd, run, compensation=s.compensation, m=s.decay if s.form == "adaptive" else None
    ),
    "async_diloco": lambda run, s: _in_order(
        reference.async_diloco,
        run,
        memory=True,
        epsilon=s.outer_learning_rate,
        beta=s.momentum,
        c=s.momentum_share,
        weight_decay=s.weight_decay,
        **_local(run),
    ),
    "sync_sgd": lambda run, s: _sync_sgd(run, s.backup_workers),
    "all_reduce": lambda run, s: _sync_sgd(run),
    "sync_sgd_lr": lambda run, s: _in_rounds(
        reference.sync_sgd_lr,
        run,
        etas=s.learning_rates * (run.workers // len(s.learning_rates)),
        mean=s.reduction == "mean",
    ),
    "sagn": lambda run, s: _in_rounds(
        reference.sagn, run, eta=s.learning_rate, gamma=s.server_learning_rate, period=s.communication_period
    ),
    "easgd": lambda run, s: _in_rounds(
        reference.easgd, run, memory=True, eta=s.learning_rate, beta=s.beta, period=s.communication_period
    ),
    "local_sgd": lambda run, s: _in_rounds(
        reference.local_sgd, run, eta=s.learning_rate, synchronous=s.synchronous_steps, period=s.communication_period
    ),
    "diloco": lambda run, s: _in_rounds(
        reference.diloco,
        run,
        memory=s.inner_optimizer == "adamw",
        eta=s.learning_rate,
        epsilon=s.outer_learning_rate,
        mu=s.momentum,
        weight_decay=s.weight_decay if s.inner_optimizer == "adamw" else None,
        period=s.communication_period,
    ),
    "slowmo": lambda run, s: _in_rounds(
        reference.slowmo,
        run,
        eta=s.learning_rate,
        alpha=s.slow_learning_rate,
        beta=s.slow_momentum,
        period=s.communication_period,
    ),
    "bmuf": lambda run, s: _in_rounds(
        reference.bmuf,
        run,
        memory=s.form == "nesterov",  # a restarted worker begins at θ, not ahead of it
        eta=s.learning_rate,
        zeta=s.block_learning_rate,
        mu=1 - 1 / run.workers if s.block_momentum is None else s.block_momentum,
        nesterov=s.form == "nesterov",
        period=s.communication_period,
    ),
    "ringmaster": _ringmaster,
    "ssp": _ssp,
    "signsgd_mv": lambda run, s: _in_rounds(
        reference.signsgd_mv,
        run,
        memory=s.momentum > 0,
        eta=s.learning_rate,
        beta=s.momentum,
        weight_decay=s.weight_decay,
    ),
    "ef_sgd": lambda run, s: _in_rounds(
        reference.ef_sgd,
        run,
        memory=True,
        eta=s.learning_rate,
        compress=_compressor(run, s),
    ),
}
