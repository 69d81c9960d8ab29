"""The views of a worker and of the parameter server that a scheme receives.

P is the number of trainable parameters. On the server, vectors are the slice of one ps task, which is shorter, so rules
must be elementwise. Each view also has the scheme's own variables as attributes: the worker its local variables, the
server its global variables. So the names below are reserved. A local and a global variable may share a name.

Attributes marked "for `message`" can be read in `Scheme.message` alone; all back ends refuse them elsewhere. The other
attributes can be read in each function that gets the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from keyword import iskeyword
from types import SimpleNamespace
from typing import Any

from ..errors import UserError
from ..sync.store import Tensor

MESSAGE_ONLY = {
    "gradient": "there, and only if a round is one step",
    "gradient_sum": 'there, if the class has sends = "gradient_sum"',
    "loss": "there, not of schemes that overlap, and in a Group if each step brings its loss",
}


class Worker(SimpleNamespace):
    """A worker, and the local variables of the scheme by name."""

    params: Tensor
    """The worker's parameters, a variable of shape [P]."""
    gradient: Tensor
    """The gradient of the last step, [P]; for `message`, only if a round is one step."""
    gradient_sum: Tensor
    """The sum of the gradients of this round, [P]; for `message`, if the class has `sends = "gradient_sum"`."""
    round: Tensor
    """Rounds that this worker did before this one, an int64 scalar; it continues after a restart or a resumed run."""
    step: Tensor
    """Local steps that this worker has done, an int64 scalar: in `local_step` the number of the step, from 0; in
    `message` and `on_reply` the steps so far. A restarted or resumed worker continues to count."""
    kind: str
    """The kind of this round, a name in `Scheme.kinds`: not a tensor, so that `if worker.kind == "push"` is fine."""
    steps: Tensor
    """Local steps of this round, a float scalar, see `Scheme.rounds`; by default the period, or fewer at the end."""
    loss: Tensor
    """The mean loss of the steps of this round, a float scalar; for `message`; not with an overlap."""
    index: Any
    """The worker's index from 0: a whole number, or a scalar tensor in a graph that serves several workers."""
    num_workers: int
    """Number W of workers of the run."""
    shapes: Sequence[tuple[int, ...]]
    """Shapes of the model's variables, which are concatenated in a vector [P]."""

    def uniform(self, *key: Any, count: int | None = None) -> Tensor:
        """Return random numbers [P], float32, at least 0 and below 1, a function of the run's seed and the key.

            mask = worker.uniform(worker.index, worker.round) < self.share

        The key is one or more whole numbers. The same key gives the same numbers in each function, on each worker
        (`worker.uniform(worker.round)` is the same mask on all) and on each back end. `contract.uniform_numbers`
        returns the same numbers in NumPy. With `count`, only the first numbers are computed, [count]: a worker that
        draws one number for a step should not draw P.
        """
        raise NotImplementedError

    def fragments(self, count: int) -> Tensor:
        """Return the fragment of each coordinate, [P], int32 from 0, if the vector is cut into so many equal parts.

        A server has the same function, for the coordinates of its slice [n]: so a message can hold one part alone.
        """
        raise NotImplementedError

    def decayed(self, vector: Tensor) -> Tensor:
        """Return the vector [P] with zeros for the variables that weight decay leaves as they are.

            worker.params.assign_sub(rate * self.weight_decay * worker.decayed(worker.params))

        The loss does not depend on them, or the user has excluded them (`exclude_from_weight_decay`). A server has the
        same function, for the coordinates of its slice [n].
        """
        raise NotImplementedError

    def mean(self, vector: Tensor) -> Tensor:
        """Return the mean of a float tensor over all workers (an all-reduce); its shape must be the same on all.

        For `message`; each worker must call it for the same means in the same order, in each of its rounds, and
        `Scheme.message_sizes` has the elements of each. Only synchronization rules without a parameter server, such as
        `Collective`, have it. The wait for the other workers counts as computing.

        Raises:
            UserError: the synchronization rule has no mean, the scheme declares no mean of that size, or the call is
                not in `message`.
        """
        raise UserError("worker.mean is for Scheme.message alone: take it there, and keep it in a local variable")

    def __getattr__(self, name: str) -> Tensor:
        if name in MESSAGE_ONLY:
            raise UserError(
                f"worker.{name} is for Scheme.message alone ({MESSAGE_ONLY[name]}): take it there, and keep it in a "
                "local variable"
            )
        names = ", ".join(name for name in vars(self) if not name.startswith("_"))
        raise AttributeError(f"a worker of this scheme has no {name} here. It has: {names}", name=name, obj=self)


class Server(SimpleNamespace):
    """The slice of the center on one ps task, and the global variables of the scheme by name."""

    center: Tensor
    """The parameters θ that workers share, a variable."""
    num_workers: int
    """Number W of workers of the run."""
    sender: Any
    """Index of the worker that sent the message, a whole number or scalar from 0; None if the message is a mean."""
    sent: Any
    """The scalars of the message as attributes, `server.sent.<name>`; their means if the message is a mean."""
    completes: Tensor
    """True if this message is the last of `Async.messages_per_update` and so completes an update, a bool scalar."""
    shapes: Sequence[tuple[int, ...]]
    """Shapes of the model's variables, which the center concatenates if the scheme says `whole_center = True`."""

    def fragments(self, count: int) -> Tensor:
        """Return the fragment of each coordinate of the slice, [n], see `Worker.fragments`."""
        raise NotImplementedError

    def decayed(self, vector: Tensor) -> Tensor:
        """Return a vector [n] with zeros for the variables that weight decay leaves, see `Worker.decayed`."""
        raise NotImplementedError

    def row(self, name: str, index: Any) -> Any:
        """Return a row of a global variable [R, ...], such as that of a region, used like a variable [...]."""
        from ..messages.stand_in import Row  # imports TensorFlow

        return Row(vars(self)[name], index)

    def __getattr__(self, name: str) -> Tensor:
        raise AttributeError(f"the server has no {name} for this scheme", name=name, obj=self)


# A variable of a scheme cannot have one of these names, nor begin with an underscore. Variables of the engine and of
# synchronization rules do not appear in the views, so they reserve no names.
WORKER_NAMES = frozenset({*Worker.__annotations__, "mean", "uniform", "fragments", "decayed"})
SERVER_NAMES = frozenset({*Server.__annotations__, "fragments", "decayed", "row"})


def check_names(scheme: str, kind: str, names: Iterable[str]) -> None:
    """Refuse variables whose names are reserved, or no identifiers.

    Args:
        scheme: name of the scheme.
        kind: "local variable" or "global variable".
        names: names of the scheme's variables of this kind.

    Raises:
        UserError: a name cannot be used.
    """
    view, reserved = ("worker", WORKER_NAMES) if kind == "local variable" else ("server", SERVER_NAMES)
    for name in names:
        cannot = f"{scheme}: a {kind} cannot be called {name!r}"
        if name in reserved:
            raise UserError(f"{cannot}: a {view} has members with the names {', '.join(sorted(reserved))}. Rename it")
        if not (name.isascii() and name.isidentifier()) or iskeyword(name) or name.startswith("_"):
            raise UserError(
                f"{cannot}: it is read as {view}.{name}. Use letters from a to z, and none of Python's keywords"
            )
