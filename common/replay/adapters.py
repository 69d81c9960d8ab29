"""The transcription of each scheme, and its arguments from a recorded run.

The trace gives the order of the workers. Quantities that the algorithm fixes (lengths of rounds, pulled versions,
messages of an update) are recomputed rather than read from the trace, so that errors in them are detected.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from ..errors import UserError
from ..record_format import EVENTS
from ..spec import parse
from . import compressors, draws, elastic, lengths
from .between import between_servers, of_workers
from .members import GOSSIP, MOMENTUM, members_of
from .recorded import Centers, Hyperparameters, RecordedRun, Transcription, must
from .reference import (
    asynchronous_rules,
    buffered_rules,
    compressed_rules,
    federated_rules,
    gossip_rules,
    outer_rules,
    overlapped_rules,
    quorum_rules,
    regional_rules,
    robust_rules,
    synchronous_rules,
)
from .reference.inner_steps import INNER_STEPS

Argument = str | Callable[[RecordedRun, Hyperparameters], Any]  # a hyperparameter by its name, or a function of the run

Memory = Callable[[Hyperparameters], bool]


def _in_order(
    rule: Callable[..., Centers], memory: Memory = lambda s: False, *, buffered: bool = False, **given: Argument
) -> Transcription:
    """Return the transcription of an asynchronous scheme: one message after the other, ~k where worker k starts anew.

    Args:
        rule: the equations.
        memory: returns True if workers keep a state, which a restarted worker has lost.
        buffered: True if several messages make an update.
        given: the keyword arguments of the rule, besides the usual ones.
    """

    def execute(run: RecordedRun, scheme: Hyperparameters) -> Centers:
        _check_period(run)
        _check_messages(run, memory(scheme))
        centers = rule(run.start, run.gradient, run.contacts, run.workers, **_arguments(rule, run, given))
        must(len(centers) == run.result["updates"], "how many updates there were")
        return centers

    return Transcription(execute, "synchronous" if buffered else "asynchronous", sends=_sends(rule))


def _in_rounds(
    rule: Callable[..., Centers], memory: Memory = lambda s: False, *, jumps: bool = False, **given: Argument
) -> Transcription:
    """Return the transcription of a synchronous scheme: only the number of rounds is read from the trace."""

    def execute(run: RecordedRun, scheme: Hyperparameters) -> Centers:
        _check_period(run)
        members = members_of(run)
        if not members.lost:
            _check_evicted(run)
        back = [lost.worker for lost in members.lost if lost.returned_at <= run.result["updates"]]
        _check_messages(run, memory(scheme) and sorted(run.trace["worker"][run.joins]) != sorted(back))
        updates = run.result["updates"]  # fewer than steps if the run was stopped early
        counted = run.trace["accepted"] == 1
        if run.result.get("stopped_by") is not None:  # the last set may be open
            counted &= run.trace["version"] < updates
        messages = np.bincount(run.trace["worker"][counted], minlength=run.workers)
        must((messages == members.rounds(run.workers, updates)).all(), "how many messages each worker sent")
        arguments = _arguments(rule, run, given)
        if "steps" in arguments:  # later steps are not in the center
            arguments["steps"] = max(itertools.islice(lengths.ends(run, run.steps), updates), default=0)
        centers = rule(run.start, run.gradient, run.workers, **arguments)
        must(updates <= len(centers), "how many updates there were")
        return centers[:updates]

    return Transcription(execute, "synchronous", jumps=jumps, sends=_sends(rule))


def _in_sets(
    rule: Callable[..., tuple[Centers, bool]], memory: Memory = lambda s: False, **given: Argument
) -> Transcription:
    """Return the transcription of a scheme with a quorum: the order of the messages, and what each worker had read."""

    def execute(run: RecordedRun, scheme: Hyperparameters) -> Centers:
        _check_period(run)
        _check_evicted(run)
        _check_messages(run, memory(scheme))
        arguments = _arguments(rule, run, {"ends": lambda run, s: (), **given})
        rounds = [sum(1 for _ in lengths.ends(run, end)) for end in [*run.earlier_step_targets, run.steps]]
        # Workers leave a run that is resumed later at its steps, but none does if it was stopped before.
        for ends in (rounds, rounds[-1:]):
            centers, lawful = rule(run.start, run.gradient, _reads(run), run.workers, **arguments | {"ends": ends})
            if lawful:
                break
        must(lawful, "how long a worker waited")
        # A stop may find the last set open: a worker that is done, and has not left yet, is still waited for.
        updates, is_stopped = run.result["updates"], run.result.get("stopped_by") is not None
        must(updates <= len(centers) <= updates + is_stopped, "how many updates there were")
        return centers[:updates]

    return Transcription(execute, "synchronous", sends=_sends(rule))


def _sends(rule: Callable[..., Any]) -> bool:
    """Return True if the messages of a rule pass an argument `send`."""
    return "send" in signature(rule).parameters


def _arguments(rule: Callable[..., Any], run: RecordedRun, given: Mapping[str, Argument]) -> dict[str, Any]:
    """Return the keyword arguments of a rule for a run: given ones, usual ones, and hyperparameters by their names."""
    named = {p.name: p for p in signature(rule).parameters.values() if p.kind is p.KEYWORD_ONLY}
    found = {name: name for name, p in named.items() if p.default is p.empty}
    found |= {name: USUAL[name] for name in named if name in USUAL} | dict(given)
    return {
        name: getattr(run.hyperparameters, value) if isinstance(value, str) else value(run, run.hyperparameters)
        for name, value in found.items()
    }


def _async_sgd(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    if not run.sparse:
        return _in_order(asynchronous_rules.async_sgd).execute(run, scheme)
    _check_messages(run)
    return asynchronous_rules.async_sgd_reading_apart(
        run.start, run.gradient, _reads(run), run.workers, eta=scheme.learning_rate
    )


def _reads(run: RecordedRun) -> list[tuple[int, int]]:
    """Return the worker of each message, and the number of updates in the center that it had read."""
    read = run.trace["version"] - run.trace["staleness"]
    return [(k, int(r)) for k, r, join in zip(run.order, read, run.joins, strict=True) if not join]


def _set_sizes(run: RecordedRun) -> list[int]:
    """Return the number of messages in each set: those that the record has at the same version."""
    versions = run.trace["version"][~run.joins]
    return np.bincount(versions, minlength=run.result["updates"])[: run.result["updates"]].tolist()


def _evicted(run: RecordedRun) -> bool:
    """Return True if the run continued without a worker."""
    return bool(run.result["recovery"]["evicted"])


def _check_evicted(run: RecordedRun) -> None:
    """Raise `UserError` if the run continued without a worker."""
    if _evicted(run):
        raise UserError(f"the run continued without a worker, which the transcription of {run.algorithm} cannot")


def _check_period(run: RecordedRun) -> None:
    """Raise `UserError` for a resumed run with a short round in its middle, which few equations cover."""
    if run.algorithm in elastic.NAMES and not elastic.exchanged_at_once(run, run.hyperparameters):
        return
    ends, earlier = lengths.ends(run, run.steps), {*run.earlier_step_targets}
    if earlier and not earlier <= {*ends}:
        raise UserError(
            f"the run was resumed from one of {json.dumps(list(run.earlier_step_targets))} steps, whose last round was "
            f"shorter than a period: the transcription of {run.algorithm} has no such round"
        )


def _check_messages(run: RecordedRun, memory: bool = False) -> None:
    """Raise `UserError` if workers have lost a state that the transcription keeps, or messages were dropped."""
    if memory and run.joins.any():
        raise UserError(f"a worker was started again, whose memory the transcription of {run.algorithm} would keep")
    pushes = np.isin(run.trace["event"], [EVENTS.index("exchange"), EVENTS.index("push")])
    if not run.trace["accepted"][pushes].all():
        raise UserError("some messages were not finite and were dropped: the reference knows of none")


def _inner(run: RecordedRun, scheme: Hyperparameters) -> Any:
    """Return the step of the inner optimizer."""
    name, options = parse("inner_optimizer", scheme.inner_optimizer, INNER_STEPS)
    if name == "muon":
        options["shapes"] = run.shapes
    if run.decays is not None and name in ("adamw", "lion", "muon"):
        options["decays"] = run.decays
    return partial(INNER_STEPS[name], **options)


def _decays(run: RecordedRun) -> np.ndarray | bool:
    """Return True for each parameter that weight decay applies to."""
    return True if run.decays is None else run.decays


def _adam(run: RecordedRun, scheme: Hyperparameters) -> dict[str, Any]:
    """Return the numbers of AdamW, and the parameters that weight decay applies to."""
    return {"decays": _decays(run), **{name: scheme[name] for name in ("beta_1", "beta_2", "weight_decay")}}


def _correction(run: RecordedRun, scheme: Hyperparameters) -> outer_rules.Correction:
    """Return how `heloco` turns moves to the momentum."""
    names = "keep_above", "shrinkage", "most_shrinkage", "turning", "momentum_weight"
    return outer_rules.Correction(*(scheme[name] for name in names))


def _inner_memory(scheme: Hyperparameters) -> bool:
    """Return True if workers keep a state for the inner optimizer."""
    return parse("inner_optimizer", scheme.inner_optimizer, INNER_STEPS)[0] not in ("sgd", "own")


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
        if len(rows := np.flatnonzero(trace["worker"] == k)):
            first[k] = int(trace["version"][rows[0]] - trace["staleness"][rows[0]])
            must(run.joins[rows[0]] or (first[k] >= warm_start if warm_start else first[k] == 0), "the first pull")
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
        send=run.send,
        **options,
    )


def _sync_sgd(run: RecordedRun, backup_workers: int = 0) -> Centers:
    messages = {name: values[~run.joins] for name, values in run.trace.items()}
    pulled, sizes = (messages["version"] - messages["staleness"]).tolist(), []
    if _evicted(run):  # only the trace tells how many workers were left
        sizes = np.bincount(messages["version"][messages["accepted"] == 1]).tolist()
    elif not backup_workers:  # all continue together: the n-th message of a worker (from 0) follows a pull of version n
        counts = [np.cumsum(messages["worker"] == k) - 1 for k in range(run.workers)]
        pulled = [int(counts[k][i]) for i, k in enumerate(messages["worker"])]
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


_DELAYED = _in_rounds(overlapped_rules.delayed_all_reduce, lambda s: True)


def _ringmaster(run: RecordedRun, scheme: Hyperparameters, **arguments: Any) -> Centers:
    arguments |= {"eta": scheme.learning_rate, "threshold": scheme.delay_threshold}
    centers, used = asynchronous_rules.ringmaster(run.start, run.gradient, run.contacts, run.workers, **arguments)
    must(used == run.trace["accepted"][~run.joins].astype(bool).tolist(), "which messages were used")
    return list(itertools.compress(centers, used))  # one after each update


def _k_batch(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    centers, used = asynchronous_rules.k_batch(
        run.start,
        run.gradient,
        run.contacts,
        run.workers,
        eta=scheme.learning_rate,
        count=scheme.messages_per_update,
        present=run.algorithm == "k_batch_sync",
    )
    must(used == run.trace["accepted"][~run.joins].astype(bool).tolist(), "which messages were used")
    must(len(centers) == run.result["updates"], "how many updates there were")
    return centers


def _ssp(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    centers, lawful = asynchronous_rules.ssp(
        run.start, run.gradient, _reads(run), run.workers, eta=scheme.learning_rate, slack=scheme.slack
    )
    must(lawful or _evicted(run) or run.joins.any(), "how far a worker was ahead")
    return centers


def _halos(run: RecordedRun, scheme: Hyperparameters) -> Centers:
    arguments: dict[str, Any] = {name: name for name in regional_rules.RATES}
    arguments["between"] = lambda *_: between_servers(run, scheme)
    return _in_order(regional_rules.halos, _inner_memory, **arguments).execute(of_workers(run), scheme)


# Keyword arguments that many rules take.
USUAL: dict[str, Argument] = {
    "eta": "learning_rate",
    "period": lengths.period_of,
    "steps": lambda run, s: run.steps,
    "inner": _inner,
    "send": lambda run, s: run.send,
    "decays": lambda run, s: _decays(run),
    "shapes": lambda run, s: run.shapes,
}

OUTER: dict[str, Any] = {"epsilon": "outer_learning_rate", "mu": "momentum"}

FACTORS: dict[str, Any] = {"mu": "momentum", "first": draws.first_factors}

TRANSCRIPTIONS = {
    "serial": Transcription(_serial, "alone"),
    "multi_gpu": Transcription(_serial, "alone"),
    "async_sgd": Transcription(_async_sgd),
    "hierarchical": _in_order(asynchronous_rules.async_sgd),
    "downpour": Transcription(
        lambda run, s: _downpour(
            run,
            s.push_period,
            s.pull_period,
            s.phase == "dean",
            gamma=s.server_learning_rate,
            accumulator=s.initial_accumulator,
        ),
        sends=True,
    ),
    "downpour_easy": Transcription(lambda run, s: _downpour(run), sends=True),
    "agn": _in_order(asynchronous_rules.agn, gamma="server_learning_rate"),
    "adag": _in_order(asynchronous_rules.agn, distance_scale="distance_scale"),
    "delay_adaptive": _in_order(asynchronous_rules.delay_adaptive),
    "rescaled_asgd": _in_order(asynchronous_rules.rescaled_asgd),
    "ringleader": _in_order(buffered_rules.ringleader),
    "malenia": _in_order(buffered_rules.malenia, s="gradients_per_worker"),
    "softsync": _in_order(buffered_rules.softsync, buffered=True, alpha="learning_rate", c="messages_per_update"),
    "k_batch_async": Transcription(_k_batch, "synchronous"),
    "k_batch_sync": Transcription(_k_batch, "synchronous"),
    "dynsgd": _in_order(asynchronous_rules.dynsgd),
    "fedasync": _in_order(federated_rules.fedasync, alpha="mixing", rho="proximity"),
    "fedbuff": _in_order(
        buffered_rules.fedbuff,
        buffered=True,
        epsilon="server_learning_rate",
        size="messages_per_update",
        p="staleness_exponent",
    ),
    "aeasgd": _in_order(asynchronous_rules.aeasgd, **elastic.OPTIONS),
    "aeamsgd": _in_order(asynchronous_rules.aeamsgd, delta="momentum", **elastic.OPTIONS),
    "dc_asgd": _in_order(asynchronous_rules.dc_asgd, m=lambda run, s: s.decay if s.form == "adaptive" else None),
    "async_diloco": _in_order(
        outer_rules.async_diloco,
        _inner_memory,
        epsilon="outer_learning_rate",
        beta="momentum",
        c="momentum_share",
        tau=lambda run, s: s.get("delay", 0),
    ),
    "heloco": _in_order(outer_rules.heloco, _inner_memory, correction=_correction, **OUTER),
    "halos": Transcription(_halos, sends=True),
    "sync_sgd": Transcription(lambda run, s: _sync_sgd(run, s.backup_workers), "synchronous"),
    "k_sync": Transcription(lambda run, s: _sync_sgd(run, max(0, run.workers - s.workers_per_update)), "synchronous"),
    "k_async": _in_sets(quorum_rules.k_async, count="workers_per_update"),
    "all_reduce": Transcription(
        lambda run, s: _DELAYED.execute(run, s) if s.get("delay") else _sync_sgd(run), "synchronous"
    ),
    "d_psgd": _in_rounds(gossip_rules.d_psgd, lambda s: True, **GOSSIP, **MOMENTUM),
    "exact_diffusion": _in_rounds(gossip_rules.exact_diffusion, lambda s: True, **GOSSIP),
    "qg_dsgdm": _in_rounds(gossip_rules.qg_dsgdm, lambda s: True, **GOSSIP, beta="momentum", mu="smoothing"),
    "choco_sgd": _in_rounds(gossip_rules.choco_sgd, lambda s: True, jumps=True, **GOSSIP, **compressors.CHOCO),
    "ad_psgd": _in_order(gossip_rules.ad_psgd, lambda s: True, peer=draws.peer),
    "dsgd_tracking": _in_rounds(gossip_rules.dsgd_tracking, lambda s: True, **GOSSIP),
    "sgp": _in_rounds(gossip_rules.sgp, lambda s: True, **GOSSIP, **MOMENTUM),
    "noloco": _in_rounds(gossip_rules.noloco, lambda s: True, gamma="consensus_rate", **GOSSIP, **OUTER),
    "gasloc": _in_rounds(gossip_rules.gasloc, lambda s: True, alpha="consensus_rate", **GOSSIP, **OUTER),
    "sync_sgd_lr": _in_rounds(
        synchronous_rules.sync_sgd_lr,
        etas=lambda run, s: s.learning_rates * (run.workers // len(s.learning_rates)),
        mean=lambda run, s: s.reduction == "mean",
    ),
    "sagn": _in_rounds(synchronous_rules.sagn, gamma="server_learning_rate"),
    "easgd": _in_rounds(synchronous_rules.easgd, lambda s: True),
    "local_sgd": replace(_in_rounds(synchronous_rules.local_sgd, _inner_memory, eta=lengths.rate_of), scheduled=True),
    "diloco": _in_rounds(synchronous_rules.diloco, _inner_memory, **OUTER),
    "edit": _in_rounds(synchronous_rules.edit, _inner_memory, clip="move_clip", warmup="warmup_rounds", **OUTER),
    "streaming_diloco": _in_rounds(
        overlapped_rules.streaming_diloco, lambda s: True, alpha="mixing", tau="delay", **OUTER
    ),
    "eager_diloco": _in_rounds(overlapped_rules.eager_diloco, lambda s: True, **OUTER),
    "co2": _in_rounds(overlapped_rules.co2, lambda s: True, gap="gap_penalty", clip="momentum_clip", **OUTER),
    "cocod_sgd": _in_rounds(overlapped_rules.cocod_sgd, lambda s: True),
    "decoupled_diloco": _in_sets(
        quorum_rules.decoupled_diloco,
        _inner_memory,
        count="quorum",
        together=lambda run, s: _set_sizes(run) if s.grace else None,
        tau="delay",
        sizes=lambda run, s: [] if s.average == "plain" else [*map(math.prod, run.shapes)],
        **OUTER,
    ),
    "palsgd": _in_rounds(
        synchronous_rules.palsgd,
        _inner_memory,
        p="pull_probability",
        gamma="pull_strength",
        drawn=draws.drawn_in_step,
        **OUTER,
    ),
    "des_loc": _in_rounds(
        synchronous_rules.des_loc,
        lambda s: True,
        a="first_moment_every",
        b="second_moment_every",
        adam=_adam,
    ),
    "slowmo": _in_rounds(synchronous_rules.slowmo, _inner_memory, alpha="slow_learning_rate", beta="slow_momentum"),
    "fedopt": _in_rounds(synchronous_rules.fedopt, epsilon="server_learning_rate", form="server_optimizer"),
    "scaffold": _in_rounds(federated_rules.scaffold, lambda s: True, epsilon="server_learning_rate"),
    "proxskip": _in_rounds(federated_rules.proxskip, lambda s: True, p="probability", ends=draws.ends),
    "fednova": _in_rounds(federated_rules.fednova),
    "trimmed_mean": _in_rounds(robust_rules.trimmed_mean, beta="trim", rows=draws.rows),
    "krum": _in_rounds(robust_rules.krum, jumps=True, beta=draws.hostile_share, rows=draws.rows),
    "centered_clipping": _in_rounds(
        robust_rules.centered_clipping, beta="hostile_share", tau="radius", rows=draws.rows
    ),
    "rfa": _in_rounds(robust_rules.rfa, beta="hostile_share", nu="smoothing", rows=draws.rows),
    "fedprox": _in_rounds(federated_rules.fedprox, mu="proximity"),
    "feddyn": _in_rounds(federated_rules.feddyn, lambda s: True, alpha="regularization"),
    "fedexp": _in_rounds(federated_rules.fedexp),
    "bmuf": _in_rounds(
        synchronous_rules.bmuf,
        lambda s: s.form == "nesterov" or _inner_memory(s),  # a restarted worker begins at θ, not ahead of it
        zeta="block_learning_rate",
        mu=lambda run, s: 1 - 1 / run.workers if s.block_momentum is None else s.block_momentum,
        nesterov=lambda run, s: s.form == "nesterov",
    ),
    "ringmaster": Transcription(_ringmaster),
    "ringmaster_lmo": Transcription(
        lambda run, s: _ringmaster(run, s, beta=s.momentum, direction=compressors.direction(run, s)), jumps=True
    ),
    "ssp": Transcription(_ssp),
    "signsgd_mv": _in_rounds(
        synchronous_rules.signsgd_mv, lambda s: s.momentum > 0, jumps=True, beta="momentum", weight_decay="weight_decay"
    ),
    "dist_lion": _in_rounds(synchronous_rules.dist_lion, lambda s: True, jumps=True),
    "ef_sgd": _in_rounds(synchronous_rules.ef_sgd, lambda s: True, jumps=True, compress=compressors.of_share),
    "ef21_sgdm": _in_rounds(
        compressed_rules.ef21_sgdm, lambda s: True, jumps=True, beta="momentum", compress=compressors.of_share
    ),
    "diana": _in_rounds(compressed_rules.diana, lambda s: True, **compressors.DIANA),
    "marina": _in_rounds(
        compressed_rules.marina, lambda s: True, coin=draws.coin, compress=compressors.random_elements
    ),
    "ef21_muon": _in_rounds(compressed_rules.ef21_muon, lambda s: True, jumps=True, **compressors.EF21_MUON),
    "sparseloco": _in_rounds(
        compressed_rules.sparseloco,
        lambda s: True,
        jumps=True,
        epsilon="outer_learning_rate",
        beta="decay",
        compress=compressors.of_share,
        senders=lambda run, s: s.mean_over == "senders",
    ),
    "demo": _in_rounds(compressed_rules.demo, lambda s: True, jumps=True, **compressors.DEMO),
    "one_bit_adam": _in_rounds(
        compressed_rules.one_bit_adam, lambda s: True, jumps=True, early="warmup_steps", **compressors.SIGNS_OF_ADAM
    ),
    "zero_one_adam": _in_rounds(
        compressed_rules.zero_one_adam,
        lambda s: True,
        jumps=True,
        kappa="variance_repeats",
        freeze="warmup_steps",
        double="doubling_steps",
        longest="communication_period",
        **compressors.SIGNS_OF_ADAM,
    ),
    "powersgd": _in_rounds(compressed_rules.powersgd, lambda s: True, **FACTORS),
    "dion": _in_rounds(compressed_rules.dion, lambda s: True, adam=_adam, **FACTORS),
    "sparta": _in_rounds(compressed_rules.sparta, lambda s: True, drawn=draws.drawn),
    "loscar": _in_rounds(overlapped_rules.loscar, lambda s: True, drawn=draws.drawn, tau="delay"),
}
