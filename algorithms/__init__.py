"""The catalogue: one module for each algorithm."""

from ..common.scheme import Scheme
from .aeasgd import AEASGD
from .async_sgd import AsyncSGD
from .downpour import Downpour
from .downpour_easy import DownpourEasy
from .hogwild import Hogwild
from .serial import Serial
from .sync_sgd import SyncSGD

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme for scheme in (Serial, AsyncSGD, Hogwild, Downpour, DownpourEasy, SyncSGD, AEASGD)
}

__all__ = [
    "AEASGD",
    "SCHEMES",
    "AsyncSGD",
    "Downpour",
    "DownpourEasy",
    "Hogwild",
    "Scheme",
    "Serial",
    "SyncSGD",
]
