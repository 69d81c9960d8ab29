"""The package: `distsgd.train`, `distsgd.Downpour`. Each name is imported at its first use; see `__init__.pyi`."""

import importlib
import os
import sys
from typing import Any

FOLDERS = ("algorithms", "benchmarks", "common")


def _import_quietly() -> None:
    """Import TensorFlow without its startup messages, some of which no setting turns off."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with importlib.import_module("distsgd.common.data.named").quiet():
        importlib.import_module("tensorflow")


if sys.platform == "linux" and os.uname().machine == "x86_64" and "tensorflow" not in sys.modules:
    if "TF_ENABLE_ONEDNN_OPTS" not in os.environ:  # see common/kernels.py, which this module is to do without
        os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "1", "DISTSGD_SET_KERNELS": "1"}

if "ipykernel" in sys.modules and "tensorflow" not in sys.modules:
    _import_quietly()  # in a notebook the startup messages would be the output of a cell


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("distsgd")
    if name in FOLDERS:
        return importlib.import_module(f"distsgd.{name}")
    if not name.startswith("_"):
        common = importlib.import_module("distsgd.common")
        if name in common.__all__:
            return getattr(common, name)
        if name in (classes := _classes()):
            return classes[name]
    raise AttributeError(f"module 'distsgd' has no attribute {name!r}")


def _classes() -> dict[str, Any]:
    """Return the classes of the catalogue by name."""
    return {kind.__name__: kind for kind in importlib.import_module("distsgd.algorithms").SCHEMES.values()}


def __dir__() -> list[str]:
    return ["__version__", *FOLDERS, *importlib.import_module("distsgd.common").__all__, *_classes()]
