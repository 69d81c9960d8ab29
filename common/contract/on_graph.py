"""The base of algorithms whose workers average with their neighbours in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..sync.gossip import Gossip
from ..sync.synchronization import Synchronization
from .hyperparameters import Graph
from .scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class OnGraph(Scheme):
    """A scheme with the hyperparameter `topology`, whose workers send parameters to their neighbours.

    Attributes:
        rule: class of its synchronization rule, `Gossip` or `Pairs`.
    """

    rule: ClassVar[Any] = Gossip
    sends_params = True

    topology: Graph = "ring"
    """Graph of the workers: ring, torus, hypercube, exponential, one-peer, random-matching, complete, or file:PATH with
    the mixing matrix."""

    @property
    def sync(self) -> Synchronization:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rule on this graph."""
        return self.rule(topology=self.topology)
