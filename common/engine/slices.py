"""A slice of the center on one ps task: its variables, and what a scheme sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.checks import check_variables
from ..contract.cut import COPIES
from ..contract.scheme import Scheme
from ..errors import UserError
from ..gates.store import WorkerSlot
from .ops import first_values
from .stand_in import StandIn

OWN = "scheme."  # begins the names of a scheme's variables in a checkpoint: those of engine and gate are free


@dataclass(frozen=True, eq=False)
class Row(StandIn):
    """One worker's row of a variable [W, ...], read and written like a variable [...] of its own."""

    rows: Any
    index: Any

    def read_value(self) -> Any:
        """The row, [...]."""
        return tf.raw_ops.ResourceGather(resource=self.rows.handle, indices=self.index, dtype=self.rows.dtype)

    def assign(self, value: Any) -> None:
        """Write the row."""
        value = tf.convert_to_tensor(value, self.rows.dtype)
        tf.raw_ops.ResourceScatterUpdate(resource=self.rows.handle, indices=self.index, updates=value)


class ServerView(SimpleNamespace):
    """A slice as `Scheme.server_update` sees it: `contract.views.Server`, and the scheme's variables by name."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the server has no {name} for this scheme", name=name, obj=self)


class Slice(SimpleNamespace):
    """A slice of the center on one ps task. Besides what is below, it has the gate's variables."""

    index: int
    device: str
    ema_decay: float | None = None  # of the average
    center: Any
    initial: Any  # value of the center
    num_workers: int
    own: dict[str, Any]  # the scheme's global variables, by name
    rows: dict[str, Any]  # its worker rows, variables [W, n]
    numbers: dict[str, Any]  # and its worker numbers, variables [W]
    average: Any = None  # of the center, for evaluation
    anchors: Any = None  # the center that each worker pulled last, [W, n]
    no_message: Any = None  # a message of zeros as it arrives, [n + m]: this slice, and m scalars

    def seen_by(self, slot: WorkerSlot | None, **known: Any) -> Any:
        """What a scheme sees while a message is merged or weighed, besides what is `known`.

        Args:
            slot: of its worker, which has rows and numbers of its own; None where the message is the mean of a set.
            known: `sent`, `completes`.
        """
        seen = ServerView(center=self.center, num_workers=self.num_workers, sender=None, **known, **self.own)
        of_workers = self.rows | self.numbers
        if slot is None:
            vars(seen).update(of_workers)
            return seen
        seen.sender = slot.index
        vars(seen).update({name: Row(values, slot.index) for name, values in of_workers.items()})
        if self.anchors is not None:
            seen.anchor = Row(self.anchors, slot.index).read_value()
        return seen

    def make(self, scheme: Scheme, ema_decay: float | None) -> None:
        """Its variables, on the present device: those of the scheme, the center, and what the engine keeps beside.

        Args:
            scheme: the algorithm.
            ema_decay: of the average of the center; no average without it.

        Raises:
            UserError: a variable of the scheme has a name that is taken.
        """
        rows, own = (first_values(build, self.initial) for build in (scheme.worker_rows, scheme.global_variables))
        numbers = scheme.worker_numbers()
        check_variables(scheme.name, {}, own, rows, numbers)

        def of_each(value: Any) -> Any:
            return tf.tile(value[None], [self.num_workers, 1])

        def variables(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tf.Variable(value, name=f"{prefix}{name}_{self.index}") for name, value in values.items()}

        self.own = variables(OWN, own)
        self.rows = variables(OWN, {name: of_each(row) for name, row in rows.items()})
        self.numbers = variables(COPIES, {name: tf.fill([self.num_workers], float(n)) for name, n in numbers.items()})
        self.ema_decay, kept = ema_decay, {"center": self.initial}
        if ema_decay is not None:
            kept["average"] = self.initial
        if scheme.keeps_anchors:
            kept["anchors"] = of_each(self.initial)
        self.keep(scheme.name, kept)

    def keep(self, scheme: str, values: Mapping[str, Any]) -> None:
        """Variables with these initial values, as attributes, on the present device; for engine and gate.

        Raises:
            UserError: there is something of that name.
        """
        for name, value in values.items():
            if getattr(self, name, None) is not None:
                raise UserError(f"{scheme}: a gate cannot keep {name!r} beside a slice of the center: it has one")
            setattr(self, name, tf.Variable(value, name=f"{name}_{self.index}"))

    def move_average(self, version: Any, completes: Any = None) -> None:
        """A <- d A + (1 - d) theta, with d = min(decay, (1 + n) / (10 + n)) as TensorFlow's averages have it.

        If a message only `completes` an update when that is True, else the average stays as it is.
        """
        if self.ema_decay is not None:
            n = tf.cast(version, tf.float32)
            decay = tf.minimum(self.ema_decay, (1 + n) / (10 + n))
            share = 1 - decay if completes is None else (1 - decay) * tf.cast(completes, tf.float32)
            self.average.assign_sub(share * (self.average - self.center))

    @property
    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, by name."""
        own = {OWN + name: value for name, value in {**self.own, **self.rows}.items()}
        copies = {COPIES + name: value for name, value in self.numbers.items()}
        return {name: value for name, value in vars(self).items() if isinstance(value, tf.Variable)} | own | copies
