"""What a scheme declares, and the few schemes that together declare all of it: with these an executor is tested."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from distsgd.algorithms import (
    ADAG,
    DCASGD,
    DESLOC,
    EF21SGDM,
    EFSGD,
    SCHEMES,
    AsyncDiLoCo,
    DecoupledDiLoCo,
    Downpour,
    FedOpt,
    HALoS,
    KAsync,
    KBatchSync,
    KSync,
    LocalSGD,
    OneBitAdam,
    Ringmaster,
    StreamingDiLoCo,
    SyncSGD,
    SyncSGDLR,
    TrimmedMean,
    ZeroOneAdam,
)
from distsgd.common.contract.checks import kept_by
from distsgd.common.contract.rounds import Kind
from distsgd.common.contract.scheme import Scheme
from distsgd.common.messages.codec import Codec
from distsgd.common.sync.synchronization import Synchronization
from distsgd.common.turns import operations_of, replies_wait

CATALOGUE = {name: scheme() for name, scheme in SCHEMES.items()} | {
    "adag": ADAG(distance_scale=1e-5, communication_period=3),  # a distance at which the scale matters
    "dc_asgd": DCASGD(compensation=100.0),  # a strength at which it matters
    "dc_asgd, adaptive": DCASGD(compensation=5.0, form="adaptive", decay=0.9),
    "halos": HALoS(learning_rate=0.05, communication_period=2, regional_buffer=3, moves_per_merge=2, merge_delay=1),
    "ringmaster": Ringmaster(delay_threshold=2),
    "k_sync": KSync(workers_per_update=2),
    "k_async": KAsync(workers_per_update=2),
    "k_sync that cancels": KSync(workers_per_update=2, cancel_late=True),
    "k_batch_sync that cancels": KBatchSync(messages_per_update=3, cancel_late=True),
    "ringmaster that cancels": Ringmaster(delay_threshold=2, cancel_late=True),
    "sync_sgd_lr": SyncSGDLR(learning_rates=(0.3, 0.1, 0.05)),
    "decoupled_diloco": DecoupledDiLoCo(quorum=2),
    "decoupled_diloco with plain averages": DecoupledDiLoCo(average="plain", quorum=3),
    "trimmed_mean": TrimmedMean(trim=0.4),  # of three workers, the median
    "fedopt with yogi": FedOpt(server_optimizer="yogi"),
    "fedopt with adagrad": FedOpt(server_optimizer="adagrad"),
    "ef_sgd with signs": EFSGD(compressor="sign"),
    "ef21_sgdm with signs": EF21SGDM(compressor="sign"),
    "one_bit_adam": OneBitAdam(warmup_steps=4),
    "zero_one_adam": ZeroOneAdam(warmup_steps=4, doubling_steps=4, communication_period=4, variance_repeats=2),
    "des_loc": DESLOC(communication_period=4, first_moment_every=2, second_moment_every=3),  # some means of each
    "downpour with periods of its own": Downpour(push_period=3, pull_period=4, initial_accumulator=0.5),
    "downpour in dean's phase": Downpour(phase="dean"),
    "downpour with a warm start": Downpour(warm_start=3),
    "sync_sgd with a backup worker": SyncSGD(backup_workers=1),
    "async_diloco with a delay": AsyncDiLoCo(communication_period=5, delay=2),
    "streaming_diloco in fragments": StreamingDiLoCo(communication_period=12, fragments=3, delay=2),
    "local_sgd with rounds of one step at first": LocalSGD(communication_period="post-local:15,10"),
}

# A smallest set of schemes that has all that `declares` finds in the catalogue. One that cancels is only simulated.
COVER = (
    *("serial", "hogwild", "adag", "k_batch_sync", "downpour with periods of its own"),
    *("downpour with a warm start", "halos", "ssp", "demo", "sparseloco", "zero_one_adam", "streaming_diloco"),
    *("k_sync that cancels", "decoupled_diloco", "all_reduce", "dsgd_tracking", "ad_psgd", "trimmed_mean"),
)

# A run on processes has the graph of one on threads: what one shows, the other need not show once more.
ON_PROCESSES = "async_sgd", "ssp", "ef_sgd", "k_async", "all_reduce", "ad_psgd", "streaming_diloco"

# An `Optimizer` plays the operations of a `Group` from a table, compiled: a smallest set of schemes that has each kind
# of operation, each kind of plan, and each method of a codec.
COVER_OF_OPTIMIZER = (
    *("zero_one_adam", "demo", "sparseloco", "ad_psgd", "k_batch_sync that cancels", "async_diloco with a delay"),
    *("downpour with periods of its own", "downpour with a warm start"),
)

# What concerns no executor: names, checks and advice, and what follows from other declarations.
IRRELEVANT = {
    *("aliases", "at", "but", "check", "declares_sizes", "default_devices_per_worker", "describes_data", "elementwise"),
    *("events", "name", "paper", "period", "period_rule", "scheduled", "sends"),
    *("server_update", "sparse", "takes_means"),
}

# What a synchronization rule may ask for besides its methods.
OF_SYNC = "buckets", "grace", "late", "outliers", "messages_per_update", "warm_start", "cancel_late"


def changes(thing: Any, kind: type) -> set[str]:
    """Return the public methods that the class of an object overrides, and the values that are not those of `kind`."""
    found, plain = set(), kind()
    for name, base in vars(kind).items():
        if name.startswith("_") or isinstance(base, (Codec, Synchronization)):
            continue
        if callable(base):
            is_own = getattr(type(thing), name) is not base
        else:
            is_own = getattr(thing, name) != getattr(plain, name)
        found |= {name} if is_own else set()
    return found


def declares(scheme: Scheme) -> set[str]:
    """Return what a scheme declares that an executor has to do, in words."""
    found, sync = changes(scheme, Scheme) - IRRELEVANT, scheme.sync
    found |= {f"sync = {type(sync).__name__}"}
    found |= own_kinds(scheme)
    found |= {f"kept: {name}" for name, own in kept_by(scheme)._asdict().items() if own and name != "single"}
    found |= {f"sync.{name}" for name in OF_SYNC if getattr(sync, name) != vars(Synchronization)[name]}
    found |= {f"codec.{name}" for name in changes(scheme.codecs()[0], Codec)}
    found |= {f"reply_codec.{name}" for name in changes(scheme.codecs()[1], Codec)}
    found |= {"late messages are dropped"} if sync.uses_ps and not sync.accepts(1000) else set()
    found |= {"sets of some workers"} if sync.set_size(3) not in (None, 3) else set()
    return found | ({"local steps"} if scheme.period > 1 else set())


def own_kinds(scheme: Scheme) -> set[str]:
    """Return the kinds of rounds of a scheme that are no plain exchange, in words."""
    kinds = (f"kinds = {kind}" for kind in scheme.kinds.values() if kind != Kind())
    return {re.sub(" object at 0x[0-9a-f]+", "", words) for words in kinds}


def plays(scheme: Scheme) -> set[str]:
    """Return what a scheme asks of the one who plays its operations: those of `Turns`, their plan, and its codecs."""
    sync = scheme.sync
    plan = {
        "gossip": sync.gossips,
        "pairs": sync.in_pairs,
        "no ps": sync.exchanges and not sync.uses_ps,
        "overlap": scheme.overlap,
        "replies wait": replies_wait(scheme),
        "cancels": sync.cancel_late,
        "local steps": scheme.period > 1,
    }
    found = {*operations_of(scheme), *(name for name, has in plan.items() if has), *own_kinds(scheme)}
    found |= {f"codec.{name}" for name in changes(scheme.codecs()[0], Codec)}
    return found | {f"reply_codec.{name}" for name in changes(scheme.codecs()[1], Codec)}


def in_rotation(names: Iterable[str] = CATALOGUE, always: Iterable[str] = COVER) -> list[Any]:
    """Return the names as parameters of a test of an executor: all but those that each gate has rotate."""
    each = {*always}
    return [pytest.param(name, marks=() if name in each else pytest.mark.rotating) for name in names]
