"""The package: `distsgd.train`, `distsgd.Downpour`. Each name is imported at its first use; see `__init__.pyi`."""

import importlib
import os
import sys
from typing import Any

FOLDERS = ("algorithms", "benchmarks", "common", "simulator")
FRONT_PAGE = ("common", "simulator", "algorithms")  # the folders whose names are those of the package


if sys.platform == "linux" and os.uname().machine == "x86_64" and "tensorflow" not in sys.modules:
    if "TF_ENABLE_ONEDNN_OPTS" not in os.environ:  # see common/kernels.py, which this module is to do without
        os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "1", "DISTSGD_SET_KERNELS": "1"}

importlib.import_module("distsgd.common.libraries").load_with_care()

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # see common/cards.py


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("distsgd")
    if name in FOLDERS:
        return importlib.import_module(f"distsgd.{name}")
    if not name.startswith("_"):
        for package in map(_names, FRONT_PAGE):
            if name in package.__all__:
                return getattr(package, name)
    raise AttributeError(f"module 'distsgd' has no attribute {name!r}")


def _names(folder: str) -> Any:
    return importlib.import_module(f"distsgd.{folder}")


def __dir__() -> list[str]:
    names = (name for folder in FRONT_PAGE for name in _names(folder).__all__)
    return ["__version__", *FOLDERS, *names]
