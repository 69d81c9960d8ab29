"""The import of Triton, PyTorch's compiler, in a process that has TensorFlow.

Both have LLVM in their libraries, with the same names of functions. Triton's library, when it is loaded after
TensorFlow's, would call functions of TensorFlow's LLVM, and the process would die of a segmentation fault: already at
`torch.optim.SGD(...)`, which imports Triton if it is installed. With `RTLD_DEEPBIND` it calls its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LIBRARY = "triton._C.libtriton"

DEEPLY = getattr(os, "RTLD_DEEPBIND", 0)  # Linux has it


class TritonFinder:
    """A finder of Triton's library, which then uses its own functions where TensorFlow has some of the same name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module as Python finds it, with another way to load it; None for all other modules."""
        spec = PathFinder.find_spec(name, path, target) if name == LIBRARY else None
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.create_module

        def load_deeply(spec: ModuleSpec) -> ModuleType | None:
            flags = sys.getdlopenflags()
            sys.setdlopenflags(flags | DEEPLY)
            try:
                return load(spec)
            finally:
                sys.setdlopenflags(flags)

        loader.create_module = load_deeply
        return spec


def keep_apart() -> None:
    """Load Triton's library, whenever it is imported, apart from TensorFlow's."""
    if DEEPLY and not any(isinstance(finder, TritonFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TritonFinder())
