"""What a scheme sees of a worker and of the parameter server.

P is the number of trainable parameters. On the server vectors are the slice of one ps task, so they are shorter there:
rules must be elementwise. Besides what stands here, each has the variables of the scheme itself, by their names: the
worker its local variables, the server its global variables, worker rows and worker numbers. So names that stand here
are taken. A local and a global variable may share a name.

What can be read where: what has "for `message`" below is refused elsewhere, in all back ends alike; the rest can be
read in each function that gets the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from keyword import iskeyword
from typing import Any, Protocol

from ..errors import UserError
from ..gates.store import Tensor


class Worker(Protocol):
    """A worker, and the local variables of the scheme by name."""

    params: Tensor
    """Its parameters, a variable of shape [P]."""
    gradient: Tensor
    """The gradient of the last step, [P]; for `message`, only if a round is one step."""
    gradient_sum: Tensor
    """The sum of the gradients of this round, [P]; for `message`, if the class has `uses_gradient_sum = True`; not of
    schemes that exchange first."""
    round: Tensor
    """Rounds that this worker has done before this one, an int64 scalar; a restarted or resumed worker counts on."""
    step: Tensor
    """Local steps that it has done, an int64 scalar: in `local_step` the number of the step, from 0, and in `message`
    and `adopt` those up to the message. A restarted or resumed worker counts on."""
    steps: Tensor
    """Local steps of this round, a float scalar, see `Scheme.rounds`; by default the period, or fewer at the end."""
    loss: Tensor
    """The mean loss of the steps of this round, a float scalar; for `message`, not of schemes that exchange first."""
    index: Any
    """Which worker this is, a whole number or scalar from 0."""
    num_workers: int
    """Workers W of the run."""
    shapes: Sequence[tuple[int, ...]]
    """Shapes of the model's variables, which lie one after the other in a vector [P]."""

    def uniform(self, *key: Any) -> Tensor:
        """Random numbers [P], float32, at least 0 and below 1, that follow from the run's seed and the key.

            mask = worker.uniform(worker.index, worker.round) < self.share

        The key is one or more whole numbers. The same key gives the same numbers, in each function, on each worker
        (all draw one mask with `worker.uniform(worker.round)`) and on each back end. `contract.uniform_numbers` is the
        same in NumPy.
        """
        ...

    def mean(self, vector: Tensor) -> Tensor:
        """The mean over all workers of a float tensor, which has one shape on all: the same result on each.

        For `message`, and each worker must ask for the same means in the same order, in each of its rounds. Only gates
        without a parameter server have it, such as `Collective`. The wait for the others counts as computing. What it
        sends, 4 bytes for each element 2 (W - 1)/W times, is not in `bytes_pushed` and `bytes_pulled`.

        Raises:
            UserError: the gate cannot, the run is simulated, or it is asked for elsewhere.
        """
        ...

    def __getattr__(self, name: str) -> Tensor: ...


class Server(Protocol):
    """The slice of one ps task, and the global variables of the scheme by name."""

    center: Tensor
    """The parameters θ that workers share, a variable."""
    num_workers: int
    """Workers W of the run."""
    sender: Any
    """The worker whose message it is, a whole number or scalar from 0; None behind a barrier: there it is a mean."""
    sent: Any
    """The scalars of the message as attributes, `server.sent.<name>`; of a mean of messages, their means."""
    completes: Tensor
    """True if this message completes an update, a bool scalar: the last of `Scheme.messages_per_update`."""
    anchor: Tensor
    """The center that the sender of this message pulled last; only if the scheme `keeps_anchors`."""

    def __getattr__(self, name: str) -> Tensor: ...


# A variable of a scheme cannot have one of these names, nor begin with an underscore. What the engine and gates keep
# for themselves takes no name.
WORKER_NAMES = frozenset({*Worker.__annotations__, "mean", "uniform"})
SERVER_NAMES = frozenset(Server.__annotations__)

MESSAGE_ONLY = {
    "gradient": "there, and only if a round is one step",
    "gradient_sum": "there, if the class has uses_gradient_sum = True, and not of schemes that exchange first",
    "loss": "there, and not of schemes that exchange first",
}


def not_here(name: str) -> UserError:
    """The error where a scheme reads what a worker has in `Scheme.message` alone, the same in all back ends."""
    return UserError(
        f"worker.{name} is for Scheme.message alone ({MESSAGE_ONLY[name]}): take it there, and keep it in a local "
        "variable"
    )


def check_names(scheme: str, kind: str, names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse a variable that has the name of something else.

    Args:
        scheme: its name.
        kind: of its variables: "local variable", "global variable", "worker row" or "worker number".
        names: of these variables.
        others: names of its other variables in the same view.

    Raises:
        UserError: there is one.
    """
    view, taken = ("worker", WORKER_NAMES) if kind == "local variable" else ("server", SERVER_NAMES)
    for name in names:
        cannot = f"{scheme}: a {kind} cannot be called {name!r}"
        if name in taken:
            raise UserError(f"{cannot}: of a {view} these names are taken: {', '.join(sorted(taken))}. Rename it")
        if name in others:
            raise UserError(f"{cannot}: another variable of the scheme is. Rename one of them")
        if not (name.isascii() and name.isidentifier()) or iskeyword(name) or name.startswith("_"):
            raise UserError(
                f"{cannot}: it is read as {view}.{name}. Use letters from a to z, and none of Python's keywords"
            )
