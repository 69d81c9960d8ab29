"""Pickles for the tasks of a run: code that a task could not import travels in the pickle."""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any

_registering = threading.RLock()  # the registry is one for all threads


def dumps(value: Any) -> bytes:
    """Return a pickle of `value` with the code of `__main__`, and of all modules that the import path does not have."""
    import cloudpickle

    with _registering:
        registered = cloudpickle.list_registry_pickle_by_value()
        modules = [module for module in unfindable() if module.__name__ not in registered]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(value)
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def unfindable() -> list[ModuleType]:
    """Return the imported modules that another process with this import path would not find, or not in the same file.

    For example, a program may have loaded them with `importlib.util.spec_from_file_location`.
    """
    found: dict[str, bool] = {}
    for name, module in sorted(sys.modules.copy().items()):  # a package before the modules in it
        file, is_alias = str(_own(module, "__file__")), _own(module, "__name__") != name
        if file.endswith(".py") and not is_alias and name not in ("__main__", "__mp_main__"):
            found[name] = _is_found(name, file, found)
    return [sys.modules[name] for name, is_found in found.items() if not is_found]


def _is_found(name: str, file: str, found: dict[str, bool]) -> bool:
    parent, _, last = name.rpartition(".")
    if not found.get(parent, True):
        return False
    folders = _own(sys.modules.get(parent), "__path__") if parent else sys.path
    stem = file.removesuffix(".py").removesuffix("/__init__")
    if stem in {os.path.join(folder or os.getcwd(), last) for folder in folders or ()}:
        return True
    for finder in sys.meta_path:
        if hasattr(finder, "find_spec") and (spec := finder.find_spec(name, folders if parent else None)) is not None:
            return not spec.has_location or os.path.realpath(str(spec.origin)) == os.path.realpath(file)
    return False


def _own(module: Any, name: str) -> Any:
    """Return an attribute of a module without a lookup that could import a lazy module."""
    return object.__getattribute__(module, "__dict__").get(name) if isinstance(module, ModuleType) else None
