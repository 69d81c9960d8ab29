"""The libraries of TensorFlow, PyTorch and Triton, which are loaded with care where `distsgd` is imported first.

TensorFlow's print messages, which would be the first lines of every script. Some come before the libraries read the log
level, so no setting turns those off.

Those of PyTorch and Triton, its compiler, have functions of the same names as TensorFlow's. Loaded after it, Triton's
would call its LLVM, and the process would die of a segmentation fault, already at `torch.optim.SGD(...)`. PyTorch's
would call its stand-ins for a missing CUDA runtime, and warn at the first `backward` that the GPU will not be used.
With `RTLD_DEEPBIND` each calls its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
WANTED = ("0", "1")  # levels of a user who wants to see messages

TRITON, PYTORCH = "triton._C.libtriton", "torch._C"

DEEPLY = getattr(os, "RTLD_DEEPBIND", 0)  # Linux has it


class Finder:
    """A finder of one module: as the other finders have it, but for one step of its loading.

    Args:
        name: full name of the module.
        step: name of the loader's function for the step.
        make: makes the step, given that function and its argument.
    """

    def __init__(self, name: str, step: str, make: Callable[[Callable[[Any], Any], Any], Any]):
        self.name, self.step, self.make = name, step, make

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module with the other step; None for all other modules."""
        if name != self.name:
            return None
        finders = (getattr(other, "find_spec", None) for other in sys.meta_path if other is not self)  # or an old one
        specs = (find(name, path, target) for find in finders if find is not None)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, self.step, partial(self.make, getattr(spec.loader, self.step)))
        return spec


def _execute_silently(execute: Callable[[Any], Any], module: Any) -> None:
    """Import TensorFlow at the log level 3, without what its libraries print, unless the user wants to see that."""
    from .files import standard_error_to

    level = os.environ.get(LOG_LEVEL)
    if level in WANTED:
        return execute(module)
    os.environ[LOG_LEVEL] = level or "3"  # TensorFlow reads it once; tasks set their own log level
    try:
        with standard_error_to(Path(os.devnull)):
            execute(module)
    finally:
        if level is None:
            del os.environ[LOG_LEVEL]


def _create_deeply(create: Callable[[Any], Any], spec: Any) -> ModuleType | None:
    """Load a library, which then uses its own functions where TensorFlow has some of the same name."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | DEEPLY)
    try:
        return create(spec)
    finally:
        sys.setdlopenflags(flags)


def load_with_care() -> None:
    """Set how these libraries are loaded from now on."""
    finders = [Finder("tensorflow", "exec_module", _execute_silently)]
    if DEEPLY:
        finders.append(Finder(TRITON, "create_module", _create_deeply))
    if DEEPLY and "LD_PRELOAD" not in os.environ:  # else two libraries may allocate and free the same memory
        finders.append(Finder(PYTORCH, "create_module", _create_deeply))
    installed = [finder.name for finder in sys.meta_path if isinstance(finder, Finder)]
    sys.meta_path[:0] = [finder for finder in finders if finder.name not in installed]
