"""An algorithm of the catalogue whose workers sleep in each round; tests import it, as no `--import` can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sleeping import rested

from distsgd.algorithms import DPSGD, SGP, AsyncSGD, NoLoCo, SyncSGD


@dataclass(frozen=True, kw_only=True)
class Resting(AsyncSGD):
    """Asynchronous SGD that sleeps in each round, under its name, so that it replays."""

    milliseconds: int = 20

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.milliseconds)


@dataclass(frozen=True, kw_only=True)
class RestingTogether(SyncSGD):
    """The same of synchronous SGD."""

    milliseconds: int = 20

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.milliseconds)


@dataclass(frozen=True, kw_only=True)
class RestingDPSGD(DPSGD):
    """The same of gossip."""

    milliseconds: int = 20

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.milliseconds)


@dataclass(frozen=True, kw_only=True)
class RestingSGP(SGP):
    """The same of gossip with one other."""

    milliseconds: int = 20

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.milliseconds)


@dataclass(frozen=True, kw_only=True)
class RestingNoLoCo(NoLoCo):
    """The same of gossip in random pairs after many steps."""

    milliseconds: int = 20

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.milliseconds)
