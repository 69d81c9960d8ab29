"""The catalogue: one module for each algorithm."""

from ..common.contract.scheme import Scheme
from .adag import ADAG
from .aeamsgd import AEAMSGD
from .aeasgd import AEASGD
from .agn import AGN
from .all_reduce import AllReduce
from .async_sgd import AsyncSGD
from .diloco import DiLoCo
from .downpour import Downpour
from .downpour_easy import DownpourEasy
from .dynsgd import DynSGD
from .easgd import EASGD
from .hierarchical import Hierarchical
from .hogwild import Hogwild
from .local_sgd import LocalSGD
from .multi_gpu import MultiGPU
from .sagn import SAGN
from .serial import Serial
from .sync_sgd import SyncSGD
from .sync_sgd_lr import SyncSGDLR

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        Serial,
        AsyncSGD,
        Hogwild,
        Downpour,
        DownpourEasy,
        AGN,
        ADAG,
        DynSGD,
        AEASGD,
        AEAMSGD,
        Hierarchical,
        SyncSGD,
        SyncSGDLR,
        SAGN,
        EASGD,
        LocalSGD,
        DiLoCo,
        AllReduce,
        MultiGPU,
    )
}

__all__ = [
    "ADAG",
    "AEAMSGD",
    "AEASGD",
    "AGN",
    "EASGD",
    "SAGN",
    "SCHEMES",
    "AllReduce",
    "AsyncSGD",
    "DiLoCo",
    "Downpour",
    "DownpourEasy",
    "DynSGD",
    "Hierarchical",
    "Hogwild",
    "LocalSGD",
    "MultiGPU",
    "Scheme",
    "Serial",
    "SyncSGD",
    "SyncSGDLR",
]
