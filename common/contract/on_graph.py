"""The base of algorithms whose workers average with their neighbours in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from ..errors import UserError
from ..sync.gossip import Gossip
from ..sync.synchronization import Synchronization
from ..sync.topology import CHANGING
from .hyperparameters import Graph
from .mixing import Mix, check_growth, limits
from .scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class OnGraph(Scheme):
    """A scheme with the hyperparameter `topology`, whose workers send parameters to their neighbours.

    Attributes:
        rule: class of its synchronization rule, `Gossip` or `Pairs`.
        linear_vectors: number of vectors of a worker in `linear_round`; 0 if the scheme has none.
        linear_rates: names of the hyperparameters, besides the learning rate, that `linear_round` reads.
    """

    rule: ClassVar[Any] = Gossip
    sends = "params"
    linear_vectors: ClassVar[int] = 0
    linear_rates: ClassVar[tuple[str, ...]] = ()

    topology: Graph = "ring"
    """Graph of the workers: ring, torus, hypercube, exponential, one-peer, random-matching, complete, or file:PATH with
    the mixing matrix."""

    @property
    def sync(self) -> Synchronization:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rule on this graph."""
        return self.rule(topology=self.topology)

    def linear_round(self, mix: Mix, vectors: Sequence[Any], curvature: Any) -> Sequence[Any]:
        """Return the vectors of all workers after a round on the loss ½Lx² without noise: the rules of the scheme.

        The factors by which distances between workers grow, and the limits of hyperparameters, follow from it; see
        `mixing`.

        Args:
            mix: the weighted sums of what the workers hear, a linear function.
            vectors: the `linear_vectors` of the workers at the begin of the round, the parameters first.
            curvature: ηL, 0 for no gradients.
        """
        raise NotImplementedError(f"{type(self).__name__} has no linear_round")

    def check(self, workers: int) -> Iterable[str] | None:
        """Raise `UserError` if the distances between the workers would grow without gradients."""
        if self.linear_vectors:
            check_growth(self, workers)

    @final
    def refuse_changing_graph(self, why: str) -> None:
        """Raise `UserError` with the reason `why` if the graph is not the same in all rounds."""
        if self.topology in CHANGING:
            raise UserError(
                f"{self.name} {why}, and needs the same neighbours in all rounds: choose another topology. "
                f"Received: topology={self.topology}"
            )

    @final
    def limits(self, workers: int) -> Iterable[str]:
        """Return what follows from the eigenvalues of the graph, in one line."""
        return limits(self, workers) if self.linear_vectors else []
