"""The transcription of each scheme, and its arguments from a recorded run.

The trace gives the order of the workers. Quantities that the algorithm fixes (lengths of rounds, pulled versions,
messages of an update) are recomputed rather than read from the trace, so that errors in them are detected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..arguments import at_least, one_of
from ..errors import UserError
from ..record_format import EVENTS
from ..spec import parse
from .recorded import Centers, Hyperparameters, RecordedRun, Transcription, must
from .reference import asynchronous_rules, synchronous_rules
from .reference.inner_steps import INNER_STEPS


def _compressor(run: RecordedRun, scheme: Hyperparameters) -> Callable[[np.ndarray], np.ndarray]:
    if scheme.compressor == "topk":
        return synchronous_rules.largest(max(1, int(scheme.share * len(run.start))))
    return synchronous_rules.scaled_sign(run.layers)


def _in_order(transcription: Callable[..., Centers], run: RecordedRun, memory: bool = False, **options: Any) -> Centers:
    """Execute an asynchronous scheme: one message after the other, ~k where worker k starts anew.

    `memory`: workers keep a state, which a restarted worker has lost.
    """
    _check_period(run)
    _check_messages(run, memory)
    return transcription(
        run.start, run.gradient, run.contacts, run.workers, eta=run.hyperparameters.learning_rate, **options
    )


def _in_rounds(
    transcription: Callable[..., Centers], run: RecordedRun, memory: bool = False, **options: Any
) -> Centers:
    """Execute a synchronous scheme: only the number of rounds is read from the trace.

    `memory`: workers keep a state, which a restarted worker has lost.
    """
    _check_period(run)
    if _evicted(run):
        raise UserError(f"the run continued without a worker, which the transcription of {run.algorithm} cannot")
    _check_messages(run, memory)
    updates = run.result["updates"]  # fewer than steps if the run was stopped early
    messages = np.bincount(run.trace["worker"][run.trace["accepted"] == 1], minlength=run.workers)
    must((messages == updates).all(), "how many messages each worker sent")
    steps = min(run.steps, updates * _period(run))  # later steps are not in the center
    centers = transcription(run.start, run.gradient, run.workers, steps=steps, **options)
    must(updates <= len(centers), "how many updates there were")
    return centers[:updates]


def _async_sgd(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    if not run.sparse:
        return _in_order(asynchronous_rules.async_sgd, run)
    _check_messages(run)
    return asynchronous_rules.async_sgd_reading_apart(
        run.start, run.gradient, _reads(run), run.workers, eta=scheme.learning_rate
    )


def _reads(run: RecordedRun) -> list[tuple[int, int]]:
    """Return the worker of each message, and the number of updates in the center that it had read."""
    read = run.trace["version"] - run.trace["staleness"]
    return [(k, int(r)) for k, r, join in zip(run.order, read, run.joins, strict=True) if not join]


def _evicted(run: RecordedRun) -> bool:
    """Return True if the run continued without a worker."""
    return bool(run.result["recovery"]["evicted"])


def _period(run: RecordedRun) -> int:
    """Return the local steps of a round; raise `UserError` if that is no number of steps."""
    period = run.hyperparameters.get("communication_period", 1)
    at_least(1, communication_period=period)
    return period


def _check_period(run: RecordedRun) -> None:
    """Raise `UserError` for a resumed run with a short round in its middle, which only `downpour` covers."""
    if any(target % _period(run) for target in run.earlier_step_targets):
        raise UserError(
            f"the run was resumed from one of {json.dumps(list(run.earlier_step_targets))} steps, whose last round was "
            f"shorter than the period of {_period(run)}: the transcription of {run.algorithm} has no such round"
        )


def _check_messages(run: RecordedRun, memory: bool = False) -> None:
    """Raise `UserError` if workers have lost a state that the transcription keeps, or messages were dropped."""
    if memory and run.joins.any():
        raise UserError(f"a worker was started again, whose memory the transcription of {run.algorithm} would keep")
    pushes = np.isin(run.trace["event"], [EVENTS.index("exchange"), EVENTS.index("push")])
    if not run.trace["accepted"][pushes].all():
        raise UserError("some messages were not finite and were dropped: the reference knows of none")


def _local(run: RecordedRun) -> dict[str, Any]:
    return {"steps": run.steps, "period": _period(run)}


def _inner(scheme: Hyperparameters, memory: bool = False) -> dict[str, Any]:
    """Return the step of the inner optimizer, and whether workers keep a state, by `memory` or for that optimizer."""
    name, options = parse("inner_optimizer", scheme.inner_optimizer, INNER_STEPS)
    return {
        "inner": partial(INNER_STEPS[name], **options),
        "memory": memory or name != "sgd",
    }


def _serial(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    return asynchronous_rules.serial(run.start, run.gradient, run.steps, eta=scheme.learning_rate)


def _downpour(
    run: RecordedRun, push_period: int | None = None, pull_period: int | None = None, dean: bool = False, **options: Any
) -> Centers:
    _check_messages(run)
    scheme, trace = run.hyperparameters, run.trace
    first = [0] * run.workers  # updates in each worker's first pull; after a warm start it may be any number
    warm_start = min(scheme.get("warm_start", 0), run.order.count(0))
    for k in range(1, run.workers):
        if len(mine := np.flatnonzero(trace["worker"] == k)):
            first[k] = int(trace["version"][mine[0]] - trace["staleness"][mine[0]])
            must(run.joins[mine[0]] or (first[k] >= warm_start if warm_start else first[k] == 0), "the first pull")
    return asynchronous_rules.downpour(
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
    if _evicted(run):  # only the trace tells how many workers were left
        sizes = np.bincount(messages["version"][messages["accepted"] == 1]).tolist()
    elif not backup_workers:  # all continue together: the n-th message of a worker (from 0) follows a pull of version n
        mine = [np.cumsum(messages["worker"] == k) - 1 for k in range(run.workers)]
        pulled = [int(mine[k][i]) for i, k in enumerate(messages["worker"])]
    centers, kept = synchronous_rules.sync_sgd(
        run.start,
        run.gradient,
        list(zip(messages["worker"].tolist(), pulled, strict=True)),
        run.workers,
        eta=run.hyperparameters.learning_rate,
        updates=run.steps,
        backup=backup_workers,
        sizes=sizes,
    )
    must(kept == messages["accepted"].astype(bool).tolist(), "which messages were kept")
    must(len(centers) == run.result["updates"], "how many updates there were")
    return centers


def _ringmaster(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    centers, used = asynchronous_rules.ringmaster(
        run.start, run.gradient, run.contacts, run.workers, eta=scheme.learning_rate, threshold=scheme.delay_threshold
    )
    must(used == run.trace["accepted"][~run.joins].astype(bool).tolist(), "which messages were used")
    return centers


def _ssp(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    centers, lawful = asynchronous_rules.ssp(
        run.start, run.gradient, _reads(run), run.workers, eta=scheme.learning_rate, slack=scheme.slack
    )
    must(lawful or _evicted(run) or run.joins.any(), "how far a worker was ahead")
    return centers


# By name of the algorithm: a function of the run and of its hyperparameters.
EQUATIONS: dict[str, Callable[[RecordedRun, Hyperparameters], Centers]] = {
    "serial": _serial,
    "multi_gpu": _serial,
    "async_sgd": _async_sgd,
    "hierarchical": lambda run, s: _in_order(asynchronous_rules.async_sgd, run),
    "downpour": lambda run, s: _downpour(
        run,
        s.push_period,
        s.pull_period,
        s.phase == "dean",
        gamma=s.server_learning_rate,
        accumulator=s.initial_accumulator,
    ),
    "downpour_easy": lambda run, s: _downpour(run),
    "agn": lambda run, s: _in_order(asynchronous_rules.agn, run, gamma=s.server_learning_rate, **_local(run)),
    "adag": lambda run, s: _in_order(asynchronous_rules.agn, run, distance_scale=s.distance_scale, **_local(run)),
    "dynsgd": lambda run, s: _in_order(asynchronous_rules.dynsgd, run, **_local(run)),
    "aeasgd": lambda run, s: _in_order(asynchronous_rules.aeasgd, run, alpha=s.beta / run.workers, **_local(run)),
    "aeamsgd": lambda run, s: _in_order(
        asynchronous_rules.aeamsgd, run, alpha=s.beta / run.workers, delta=s.momentum, **_local(run)
    ),
    "dc_asgd": lambda run, s: _in_order(
        asynchronous_rules.dc_asgd, run, compensation=s.compensation, m=s.decay if s.form == "adaptive" else None
    ),
    "async_diloco": lambda run, s: _in_order(
        asynchronous_rules.async_diloco,
        run,
        epsilon=s.outer_learning_rate,
        beta=s.momentum,
        c=s.momentum_share,
        **_inner(s),
        **_local(run),
    ),
    "sync_sgd": lambda run, s: _sync_sgd(run, s.backup_workers),
    "all_reduce": lambda run, s: _sync_sgd(run),
    "sync_sgd_lr": lambda run, s: _in_rounds(
        synchronous_rules.sync_sgd_lr,
        run,
        etas=s.learning_rates * (run.workers // len(s.learning_rates)),
        mean=s.reduction == "mean",
    ),
    "sagn": lambda run, s: _in_rounds(
        synchronous_rules.sagn, run, eta=s.learning_rate, gamma=s.server_learning_rate, period=s.communication_period
    ),
    "easgd": lambda run, s: _in_rounds(
        synchronous_rules.easgd, run, memory=True, eta=s.learning_rate, beta=s.beta, period=s.communication_period
    ),
    "local_sgd": lambda run, s: _in_rounds(
        synchronous_rules.local_sgd,
        run,
        eta=s.learning_rate,
        synchronous=s.synchronous_steps,
        period=s.communication_period,
        **_inner(s),
    ),
    "diloco": lambda run, s: _in_rounds(
        synchronous_rules.diloco,
        run,
        eta=s.learning_rate,
        epsilon=s.outer_learning_rate,
        mu=s.momentum,
        period=s.communication_period,
        **_inner(s),
    ),
    "slowmo": lambda run, s: _in_rounds(
        synchronous_rules.slowmo,
        run,
        eta=s.learning_rate,
        alpha=s.slow_learning_rate,
        beta=s.slow_momentum,
        period=s.communication_period,
        **_inner(s),
    ),
    "bmuf": lambda run, s: _in_rounds(
        synchronous_rules.bmuf,
        run,
        eta=s.learning_rate,
        zeta=s.block_learning_rate,
        mu=1 - 1 / run.workers if s.block_momentum is None else s.block_momentum,
        nesterov=s.form == "nesterov",
        period=s.communication_period,
        **_inner(s, memory=s.form == "nesterov"),  # a restarted worker begins at θ, not ahead of it
    ),
    "ringmaster": _ringmaster,
    "ssp": _ssp,
    "signsgd_mv": lambda run, s: _in_rounds(
        synchronous_rules.signsgd_mv,
        run,
        memory=s.momentum > 0,
        eta=s.learning_rate,
        beta=s.momentum,
        weight_decay=s.weight_decay,
    ),
    "ef_sgd": lambda run, s: _in_rounds(
        synchronous_rules.ef_sgd,
        run,
        memory=True,
        eta=s.learning_rate,
        compress=_compressor(run, s),
    ),
}

ALONE = ("serial", "multi_gpu")

SYNCHRONOUS = (
    "sync_sgd", "all_reduce", "sync_sgd_lr", "sagn", "easgd", "local_sgd", "diloco", "slowmo", "bmuf", "signsgd_mv",
    "ef_sgd",
)  # fmt: skip

JUMPS = ("signsgd_mv", "ef_sgd")

# Workers use a reply only as the point of the next gradient, and send only that gradient, which a codec may round.
PUSH_GRADIENTS = ("async_sgd", "dc_asgd", "ringmaster", "hierarchical", "ssp", "sync_sgd")

TRANSCRIPTIONS = {
    name: Transcription(
        execute,
        "alone" if name in ALONE else "synchronous" if name in SYNCHRONOUS else "asynchronous",
        jumps=name in JUMPS,
    )
    for name, execute in EQUATIONS.items()
}

# By codec: the rounding of messages, and that of replies.
ROUNDINGS = {
    "bf16": (asynchronous_rules.bf16, asynchronous_rules.bf16),
    "int8": (asynchronous_rules.int8, asynchronous_rules.whole),
}


def rounded(name: str, equations: Transcription, codec: str) -> Transcription:
    """Return the transcription of the algorithm `name` with messages that a codec has rounded.

    Raises:
        UserError: the codec is unknown, or the messages are no gradients.
    """
    one_of(("float32", *ROUNDINGS), codec=codec)
    if codec == equations.codec:
        return equations
    if name not in PUSH_GRADIENTS:
        raise UserError(f"with a codec, only schemes that push gradients can be replayed. Received: a run of {name}")
    push, reply = ROUNDINGS[codec]

    def execute(run: RecordedRun, hyperparameters: Hyperparameters) -> Centers:
        if run.joins.any() or run.earlier_step_targets:
            raise UserError(f"a worker of {name} was started again, and has lost what its codec would send later")
        sizes = [len(part) for part in np.array_split(run.start, run.ps)]
        gradient = asynchronous_rules.pushed(run.gradient, push, sizes, run.workers, reply)  # keeps rounding errors
        return equations.execute(replace(run, gradient=gradient), hyperparameters)

    return replace(equations, execute=execute, codec=codec)
