"""The framework: everything that is not an algorithm. Each name is imported at its first use."""

import importlib
from typing import Any

PLACES = {
    "Callback": "record.callbacks",
    "Cluster": "cluster.cluster",
    "Group": "group",
    "Optimizer": "optimizer",
    "Platform": "cluster.platform",
    "Recovery": "tasks.options",
    "Result": "training",
    "Scheme": "contract.scheme",
    "join": "launch.join",
    "keep_warm": "launch.client",
    "problem": "training",
    "sweep": "sweeping",
    "train": "training",
    **dict.fromkeys(("DistsgdError", "UserError"), "errors"),
    **dict.fromkeys(("MLflowLogger", "WandbLogger"), "record.loggers"),
}

__all__ = sorted(PLACES)  # __init__.pyi has the names for type checkers


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *PLACES]
