"""What a scheme sees of a worker and of the parameter server.

P is the number of trainable parameters. On the server vectors are the slice of one ps task, so they are shorter there:
rules must be elementwise. Besides what stands here, each has the variables of the scheme itself, by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..errors import UserError
from ..gates.store import Tensor


class Worker(Protocol):
    """A worker, and the local variables of the scheme by name."""

    params: Tensor
    """Its parameters, a variable of shape [P]."""
    gradient: Tensor
    """The gradient of the last step, [P]; only if a round is one step."""
    gradient_sum: Tensor
    """The sum of the gradients of this round, [P]; not for schemes that exchange first."""
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


WORKER_NAMES = {*Worker.__annotations__, "mean"}


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
    anchor: Tensor
    """The center that the sender of this message pulled last; only if the scheme `keeps_anchors`."""

    def __getattr__(self, name: str) -> Tensor: ...


def check_names(scheme: str, kind: str, names: Iterable[str], taken: Iterable[str]) -> None:
    """Refuse a variable that has the name of something else.

    Args:
        scheme: its name.
        kind: of its variables, "local" or "global".
        names: of these variables.
        taken: names of the engine.

    Raises:
        UserError: there is one.
    """
    for name in names:
        if name in (taken := set(taken)):
            raise UserError(f"{scheme}: a {kind} variable cannot be called {name!r}, the engine has one: rename it")
