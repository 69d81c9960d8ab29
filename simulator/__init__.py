"""The simulator: it predicts runs on described machines, in virtual time. Each name is imported at its first use.

    virtual_time   the times and the order of events; forecasts. No TensorFlow
    execution      the arithmetic of a run in that order
    fitting        described machines, fitted to a recorded run
    cli            the commands `simulate`, `advise` and `bandwidth`
    back_end       what `common/` asks of the back end `simulation`

It imports `common/`, which names it in two tables alone: that of the back ends (`common/cluster/cluster.py`) and that
of the commands (`common/cli/main.py`). Training needs nothing of it.
"""

import importlib
from typing import Any

PLACES = {"forecast": "virtual_time.forecast"}

__all__ = sorted(PLACES)  # __init__.pyi has the names for type checkers


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *PLACES]
