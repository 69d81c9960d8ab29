"""The workers that a run without a center has lost, and the round from which on each is out: the same for all others.

Each worker that notices the loss of worker k reports it to the task of worker 0, with the first round whose message of
k it has not heard. The first report fixes the round from which on k is out, one that no worker has begun. For that,
before each call, a worker announces at the same place the round after the last of that call, and reads which workers
are out. Both are atomic, so a worker that has not read of the loss has announced its rounds before the first report.

    round            ... 40    41    42    43    44 ...      worker 1 is killed while it sends its message of round 41
    worker 0             hears 1     |           |           the messages of 1 that were not heard are missing: the
    worker 2             hears |     |           |           weight of each is given back to the worker itself
                                                 out         from here on the graph is that without worker 1

A worker that was lost may return when the run is resumed; it then begins at the center, as any worker without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..lazy import tf
from .store import Store, Tensor, WorkerSlot

NEVER = 1 << 62  # a round or a version that no run reaches


def variables(workers: int) -> dict[str, Tensor]:
    """Return the initial values of the variables on the task of worker 0, by name.

    begun       the round after the last one that each worker has announced, [W]
    lost        the round from which on each worker is out, [W]; `NEVER`
    returned    the number of rounds after which it took part again, [W]; `NEVER`
    losses      the number of times that it was lost, [W]
    kept        the last version of the center that has its parameters, [W], while it was not lost before
    missed      the first round whose message of worker k was not heard by worker i, [i, k]; `NEVER`
    """
    zeros, never = tf.zeros([workers], tf.int64), tf.fill([workers], tf.constant(NEVER, tf.int64))
    return {
        "begun": zeros,
        "lost": never,
        "returned": never,
        "losses": zeros,
        "kept": zeros,
        "missed": tf.tile(never[None], [workers, 1]),
    }


def out_from(ps: Store) -> Tensor:
    """Return the round from which on each worker is out now, [W]; `NEVER` for one that has returned."""
    ps_variables = ps.variables
    return tf.where(ps_variables.returned < NEVER, tf.constant(NEVER, tf.int64), ps_variables.lost)


def begin(ps: Store, slot: WorkerSlot, end: Tensor) -> Tensor:
    """Announce rounds before the one of that number; returns the round from which on each worker is out, [W]."""
    with ps.transactions.lock([]), tf.device(ps.devices[0]):
        ps.slots.write(ps.variables.begun, slot, end)
        return tf.identity(out_from(ps))


def lose(ps: Store, slot: WorkerSlot, of: Tensor, missed: Tensor) -> tuple[Tensor, Tensor]:
    """Report that worker `of` is lost, and the first round whose message of it the worker in `slot` has not heard.

    Returns:
        True if the run continues without it: enough others are left, and it is not worker 0; True if this is the first
        report of this loss. Both are False if both workers have done all their rounds: worker `of` may have left.
    """
    ps_variables = ps.variables
    with ps.transactions.lock([]), tf.device(ps.devices[0]):
        is_out, is_worker = out_from(ps) < NEVER, tf.equal(tf.range(ps.num_workers, dtype=tf.int64), of)
        enough = (ps.slots.count(~(is_out | is_worker)) >= ps.min_workers) & (of > 0)
        ended = tf.reduce_any(ps.slots.finished & is_worker) & tf.gather(ps.slots.finished, slot.index)
        is_lost = tf.reduce_any(is_out & is_worker)
        new = is_worker & enough & ~is_lost & ~ended
        missed_so_far = tf.gather(ps_variables.missed, slot.index)
        ps.slots.write(ps_variables.missed, slot, tf.where(is_worker, missed, missed_so_far))
        ps_variables.losses.assign_add(tf.cast(new, tf.int64))
        ps_variables.lost.assign(tf.where(new, tf.reduce_max(ps_variables.begun), ps_variables.lost))
        ps_variables.returned.assign(tf.where(new, tf.constant(NEVER, tf.int64), ps_variables.returned))
        ps.slots.close_slots(new)
        return (enough | is_lost) & ~ended, enough & ~is_lost & ~ended


def rejoin(ps: Store, slot: WorkerSlot) -> None:
    """Let a worker take part from the present version on, without the rounds that it was out; under the lock."""
    ps_variables, version = ps.variables, ps.center.read_version()
    back = ps.slots.only(slot) & (out_from(ps) < NEVER)
    ps.slots.write(ps_variables.begun, slot, version)
    ps.journal.skip_rounds(tf.where(back, version - ps.journal.rounds_applied, 0))
    ps_variables.returned.assign(tf.where(back, version, ps_variables.returned))


def keep(ps: Store, present: Tensor, version: Tensor) -> None:
    """Note that the center of this version has the parameters of the workers in `present` [W]."""
    ps_variables = ps.variables
    first = present & (ps_variables.returned >= NEVER)
    ps_variables.kept.assign(tf.where(first, version, ps_variables.kept))


def read(ps: Store) -> dict[str, Tensor]:
    """Return the variables that `described` needs, by name."""
    return {name: getattr(ps.variables, name).read_value() for name in ("lost", "returned", "losses", "kept", "missed")}


def out_in(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the workers that are out in a checkpoint, [W] booleans, given its arrays by name."""
    if "lost" not in arrays:
        return np.zeros(len(arrays["rounds_applied"]), bool)
    return (arrays["lost"] < NEVER) & (arrays["returned"] == NEVER)


def away(found: dict[str, np.ndarray]) -> np.ndarray | int:
    """Return the rounds that each worker was out before it returned, [W], given what `read` has found."""
    return np.where(found["returned"] < NEVER, found["returned"] - found["kept"], 0) if found else 0


def described(found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return an entry for each worker that was lost, as result.json has it: no value is `NEVER`."""

    def or_none(number: int) -> int | None:
        return None if number >= NEVER else int(number)

    return [
        {
            "worker": int(k),
            "out_from": int(found["lost"][k]),
            "in_center_until": int(found["kept"][k]),
            "missed_from": [or_none(number) for number in found["missed"][:, k]],
            "returned_at": or_none(found["returned"][k]),
            "times": int(found["losses"][k]),
        }
        for k in np.flatnonzero(found.get("losses", []))
    ]
