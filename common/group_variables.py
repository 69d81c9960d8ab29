"""The variables of a run in one process: those of the workers, and those of the parameter servers (see `group`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .contract.kept import kept
from .contract.scheme import Scheme
from .contract.seen import for_message, of_round, server_view, worker_view
from .contract.views import Tensor
from .lazy import tf
from .messages.message import MeanUnknown, as_message, declared_means, known_means, returned, sent_by
from .messages.stand_in import Row
from .sync.store import Message
from .turns import Now


def as_variable(value: Any, name: str) -> Any:
    """Return a variable of TensorFlow with this first value."""
    return tf.Variable(value, trainable=False, name=name)


class LocalVariables:
    """The variables of all workers.

    Args:
        scheme: the algorithm.
        center: the first center [P].
        sizes: sizes of the slices of the center: the codec has variables for each.
        common: what all workers know: `num_workers`, `shapes`, `uniform`, `decayed`.
        variable: makes a variable of a value and a name.
    """

    def __init__(
        self, scheme: Scheme, center: Tensor, sizes: Sequence[int], common: Mapping[str, Any], variable: Callable
    ):
        def rows(values: Mapping[str, Any]) -> dict[str, Tensor]:
            return {name: variable(tf.stack([value] * common["num_workers"]), name) for name, value in values.items()}

        self.scheme, self.common, self.sizes = scheme, common, sizes
        self.all = rows({"params": center, **scheme.worker_variables(center)})
        self.codecs = [rows(scheme.codecs()[0].local_variables(tf.zeros([n]))) for n in sizes]
        vectors = [name for name in for_message(scheme) if name != "loss"]
        self.kept = rows({name: tf.zeros_like(center) for name in vectors} | {"loss": tf.constant(0.0)})
        self.brings_loss = False  # True if the last step had a loss

    def row(self, name: str, k: Any) -> Row:
        """Return a variable of worker k."""
        return Row((self.all if name in self.all else self.kept)[name], k)

    def start(self, k: Any, center: Tensor) -> None:
        """Let worker k start from this center."""
        for name, value in {"params": center, **self.scheme.worker_variables(center)}.items():
            self.row(name, k).assign(value)
        for rows, n in zip(self.codecs, self.sizes, strict=True):
            for name, value in self.scheme.codecs()[0].local_variables(tf.zeros([n])).items():
                Row(rows[name], k).assign(value)

    def view(self, now: Now, **more: Any) -> Any:
        """Return a worker as its scheme sees it."""
        variables = {name: self.row(name, now.worker) for name in self.all}
        when = of_round([*self.scheme.kinds][now.kind], now.length, now.round, now.step)
        return worker_view(self.common, now.worker, variables, **when, **more)

    def local_step(self, scheme: Scheme, now: Now, gradient: Tensor, loss: Any) -> None:
        """Make one local step, with the scheme at this step's learning rates."""
        scheme.local_step(self.view(now), gradient)
        self.brings_loss, begins = loss is not None, tf.equal(now.step, now.first)
        sums = {"gradient_sum": gradient, "loss": float("nan") if loss is None else loss}
        for name in sums.keys() & self.kept.keys():
            total = self.row(name, now.worker)
            total.assign(tf.where(begins, 0.0, total.read_value()) + sums[name])
        if "gradient" in self.kept:
            self.row("gradient", now.worker).assign(gradient)

    def message(self, scheme: Scheme, now: Now, mean: Callable[[Any], Tensor]) -> Message:
        """Build the message of a round: a vector [P], and the scalars that the scheme sends with it."""
        members = {name: self.row(name, now.worker).read_value() for name in for_message(scheme)}
        if (total := members.pop("loss", None)) is not None and self.brings_loss:
            members["loss"] = total / tf.cast(now.length, tf.float32)
        mean = declared_means(scheme.name, scheme.message_sizes(self.common["shapes"]), mean)
        return as_message(scheme.name, scheme.scalars, scheme.message(self.view(now, mean=mean, **members)))

    def message_up_to(self, means: Sequence[Tensor], scheme: Scheme, now: Now) -> Any:
        """Return the message with these means over the workers; `MeanUnknown` if it takes another, and undo it."""
        before = [(row, row.read_value()) for row in (self.row(name, now.worker) for name in self.all)]
        try:
            return self.message(scheme, now, known_means(means))
        except MeanUnknown as unknown:
            for row, value in before:
                row.assign(value)
            return unknown


class GlobalVariables:
    """The variables of one parameter server: its slice [n] of the center, and the scheme's for it.

    Args:
        scheme: the algorithm.
        center, of_part: the slice, a variable; and the attributes `fragments`, `decayed` and `shapes` of the view.
        workers: number of workers, W.
        variable: makes a variable of a value and a name.
    """

    def __init__(self, scheme: Scheme, center: Any, constants: Mapping[str, Any], workers: int, variable: Callable):
        self.scheme, self.workers, self.center, self.constants = scheme, workers, center, constants
        initial = center.read_value()
        single, rows, numbers, self.pulled_names = kept(scheme.global_variables, initial)
        self.variables = {name: variable(value, name) for name, value in single.items()}
        each = {**rows, **numbers}
        self.of_workers = {name: variable(tf.stack([value] * workers), name) for name, value in each.items()}
        self.pulled: Any = None  # the center that each worker pulled last
        if self.pulled_names:
            self.pulled = variable(tf.stack([initial] * workers), "pulled_center")
        self.set = Message(variable(tf.zeros_like(initial), "set"), ())  # sum of the messages of a set
        if scheme.scalars:
            self.set = Message(self.set.vector, variable(tf.zeros([len(scheme.scalars)]), "set_scalars"))

    def note_pull(self, k: Any) -> None:
        """Note that worker k pulls the present center."""
        if self.pulled is not None:
            Row(self.pulled, k).assign(self.center.read_value())

    def call(self, rule: Callable[..., Any], message: Message, now: Now, k: Any) -> Tensor:
        """Call `server_update` or `weighted` of the scheme for a message of worker k, or with k=None for a mean.

        For worker k the rule sees the row and the number of this worker; for a mean, those of all workers.
        """
        event = {"num_workers": self.workers, "sender": k, "completes": tf.equal(now.completes, 1)}
        sent = sent_by(self.scheme.scalars, message.scalars)
        pulled = dict.fromkeys(self.pulled_names, self.pulled)
        server = server_view(self.constants, self.center, self.variables, self.of_workers, pulled, sent=sent, **event)
        staleness = tf.cast(0 if k is None else now.staleness, tf.float32)
        result = rule(server, message.vector, staleness)
        return tf.convert_to_tensor(returned(self.scheme.name, rule.__name__, result))
