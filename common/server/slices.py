"""A slice of the center on one ps task: its variables, and its view for the scheme."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.checks import check_variables
from ..contract.kept import first_kept
from ..contract.seen import server_view
from ..errors import UserError
from ..messages.cut import COPIES
from ..messages.message import sent_by
from ..messages.ops import zeros
from ..sync.store import Message, WorkerSlot

OWN = "scheme."  # in a checkpoint, prefix of a scheme's variables, so they may be named like the engine's


class Slice(SimpleNamespace):
    """A slice of the center on one ps task. Besides these attributes, it has the synchronization rule's variables.

    Args:
        scheme: the algorithm, see `contract.two_levels`.
        index: number of the slice.
        device: device of the ps task, the current one.
        initial: initial value of the center, [n].
        constants: attributes of the view, see `contract.seen.of_slices`.
        num_workers: number of workers, W.
        ema_decay: decay of the average of the center; no average without it.
        message_size: elements of the slice of a message.

    Attributes:
        center, average: the variables; the average is None if there is none.
        global_variables: those of the scheme, by name.
        of_regions: initial values of those that the servers of regions have instead, by name, [R, ...].
        rows: its vectors of each worker, variables [W, n].
        numbers: its numbers of each worker, variables [W].
        pulled_names: names of the pulled center in the scheme's view.
        pulled_centers: the center that each worker pulled last, [W, n], if the scheme reads it.
        no_message: a received message of zeros.

    Raises:
        UserError: a variable of the scheme has a name that cannot be used.
    """

    center: Any
    average: Any = None
    pulled_centers: Any = None

    def __init__(
        self,
        scheme: Any,
        index: int,
        device: str,
        initial: Any,
        constants: Mapping[str, Any],
        num_workers: int,
        ema_decay: float | None,
        message_size: int,
    ):
        super().__init__(
            constants=constants,
            index=index,
            device=device,
            initial=initial,
            num_workers=num_workers,
            ema_decay=ema_decay,
        )
        self.scalars = scheme.scalars
        self.no_message = Message(zeros(message_size), zeros(len(scheme.scalars)) if scheme.scalars else ())
        single, rows, numbers, self.pulled_names = first_kept(scheme.global_variables, self.initial)
        check_variables(scheme.name, {}, [*single, *rows, *numbers, *self.pulled_names])

        def rows_of(value: Any) -> Any:
            """Return a row with this value for each worker."""
            return tf.tile(value[None], [self.num_workers, 1])

        def variables(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tf.Variable(value, name=f"{prefix}{name}_{self.index}") for name, value in values.items()}

        apart = [*scheme.of_region(self.initial)] if scheme.sync.in_regions else ()
        self.of_regions = {name: single.pop(name) for name in apart}
        self.global_variables = variables(OWN, single)
        self.rows = variables(OWN, {name: rows_of(row) for name, row in rows.items()})
        self.numbers = variables(COPIES, {name: tf.fill([self.num_workers], n) for name, n in numbers.items()})
        values = {"center": self.initial}
        if ema_decay is not None:
            values["average"] = self.initial
        if self.pulled_names:
            values["pulled_centers"] = rows_of(self.initial)
        self.add_variables(scheme.name, values)

    def seen_by(self, slot: WorkerSlot | None, scalars: Any, completes: Any) -> Any:
        """Build the scheme's view of this slice for merging or weighing a message.

        Args:
            slot: slot of the sender, which selects its rows and numbers; None if the message is the mean of a set.
            scalars: the scalars of the message, [m].
            completes: True if the message completes an update.
        """
        return server_view(
            self.constants,
            self.center,
            self.global_variables,
            self.rows | self.numbers,
            dict.fromkeys(self.pulled_names, self.pulled_centers),
            num_workers=self.num_workers,
            sender=None if slot is None else slot.index,
            sent=sent_by(self.scalars, scalars),
            completes=completes,
        )

    def add_variables(self, scheme: str, values: Mapping[str, Any]) -> None:
        """Make variables with these initial values on the current device, as attributes, for the engine and its rule.

        Raises:
            UserError: the slice has an attribute of that name.
        """
        for name, value in values.items():
            if getattr(self, name, None) is not None:
                raise UserError(
                    f"{scheme}: the engine has a variable with a name of the synchronization rule: rename {name} "
                    "in the rule"
                )
            setattr(
                self, name, tf.nest.map_structure(lambda v, key=name: tf.Variable(v, name=f"{key}_{self.index}"), value)
            )

    def move_average(self, version: Any, completes: Any = None) -> None:
        """Update the average after the update of this version, unless `completes` is given and False."""
        if self.ema_decay is not None:
            move_average(self.average, self.center, self.ema_decay, version, completes)

    @property
    def saved(self) -> dict[str, Any]:
        """Variables of the slice for a checkpoint, by name."""
        values = {OWN + name: value for name, value in {**self.global_variables, **self.rows}.items()}
        copies = {COPIES + name: value for name, value in self.numbers.items()}
        for name, value in vars(self).items():
            vector, scalars = value if isinstance(value, Message) else (value, ())
            values |= {name: vector} if isinstance(vector, tf.Variable) else {}
            copies |= {f"{COPIES}{name}.scalars": scalars} if isinstance(scalars, tf.Variable) else {}
        return values | copies


def move_average(average: Any, vector: Any, most: float, number: Any, moves: Any = None) -> None:
    """Update A <- d A + (1 - d) x, with d = min(most, (1 + n) / (10 + n)) as in TensorFlow's averages.

    Args:
        average: the average A, a variable [P].
        vector: the vector x, [P].
        most: the decay, which d reaches after some updates.
        number: the number n of updates before, a scalar.
        moves: if given and False, the average does not change.
    """
    n = tf.cast(number, tf.float32)
    share = 1 - tf.minimum(most, (1 + n) / (10 + n))
    average.assign_sub((share if moves is None else share * tf.cast(moves, tf.float32)) * (average - vector))
