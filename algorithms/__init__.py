"""The catalogue: one module for each algorithm, named here in the order of the table, and imported at its first use."""

import importlib
from typing import Any

from ..common.lazy import Catalogue

SCHEMES = Catalogue(
    __name__,
    {
        "serial": "Serial",
        "async_sgd": "AsyncSGD",
        "hogwild": "Hogwild",
        "downpour": "Downpour",
        "downpour_easy": "DownpourEasy",
        "agn": "AGN",
        "adag": "ADAG",
        "dc_asgd": "DCASGD",
        "ringmaster": "Ringmaster",
        "ringmaster_lmo": "RingmasterLMO",
        "delay_adaptive": "DelayAdaptive",
        "rescaled_asgd": "RescaledASGD",
        "ringleader": "Ringleader",
        "malenia": "Malenia",
        "softsync": "SoftSync",
        "k_batch_async": "KBatchAsync",
        "k_batch_sync": "KBatchSync",
        "dynsgd": "DynSGD",
        "fedasync": "FedAsync",
        "fedbuff": "FedBuff",
        "aeasgd": "AEASGD",
        "aeamsgd": "AEAMSGD",
        "async_diloco": "AsyncDiLoCo",
        "heloco": "HeLoCo",
        "halos": "HALoS",
        "hierarchical": "Hierarchical",
        "ad_psgd": "ADPSGD",
        "ssp": "SSP",
        "sync_sgd": "SyncSGD",
        "k_sync": "KSync",
        "k_async": "KAsync",
        "sync_sgd_lr": "SyncSGDLR",
        "trimmed_mean": "TrimmedMean",
        "krum": "Krum",
        "centered_clipping": "CenteredClipping",
        "rfa": "RFA",
        "sagn": "SAGN",
        "easgd": "EASGD",
        "signsgd_mv": "SignSGDMV",
        "dist_lion": "DistLion",
        "ef_sgd": "EFSGD",
        "ef21_sgdm": "EF21SGDM",
        "diana": "DIANA",
        "marina": "MARINA",
        "ef21_muon": "EF21Muon",
        "demo": "DeMo",
        "one_bit_adam": "OneBitAdam",
        "zero_one_adam": "ZeroOneAdam",
        "local_sgd": "LocalSGD",
        "slowmo": "SlowMo",
        "fedopt": "FedOpt",
        "scaffold": "Scaffold",
        "proxskip": "ProxSkip",
        "fedprox": "FedProx",
        "feddyn": "FedDyn",
        "fedexp": "FedExP",
        "fednova": "FedNova",
        "bmuf": "BMUF",
        "diloco": "DiLoCo",
        "edit": "EDiT",
        "streaming_diloco": "StreamingDiLoCo",
        "eager_diloco": "EagerDiLoCo",
        "co2": "CO2",
        "cocod_sgd": "CoCoDSGD",
        "decoupled_diloco": "DecoupledDiLoCo",
        "palsgd": "PALSGD",
        "des_loc": "DESLOC",
        "sparseloco": "SparseLoCo",
        "sparta": "Sparta",
        "loscar": "LoSCAR",
        "all_reduce": "AllReduce",
        "powersgd": "PowerSGD",
        "dion": "Dion",
        "d_psgd": "DPSGD",
        "qg_dsgdm": "QGDSGDm",
        "choco_sgd": "ChocoSGD",
        "exact_diffusion": "ExactDiffusion",
        "dsgd_tracking": "DSGDTracking",
        "sgp": "SGP",
        "noloco": "NoLoCo",
        "gasloc": "GASLoC",
        "multi_gpu": "MultiGPU",
    },
)

_MODULES = {kind: module for module, kind in SCHEMES.names.items()}

__all__ = ["SCHEMES", "Scheme", *_MODULES]  # __init__.pyi has the names for type checkers


def __getattr__(name: str) -> Any:
    if name == "Scheme":
        return importlib.import_module("..common.contract", __name__).Scheme
    if name in _MODULES:
        return SCHEMES[_MODULES[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
