"""The import of TensorFlow without the messages of its libraries, which would be the first lines of every script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

WANTED = ("0", "1")  # levels of a user who wants to see messages


class QuietFinder:
    """A finder of TensorFlow, which then reads the log level 3, and loads its libraries in silence.

    Some of their messages come before they read the level, so no setting turns those off.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return TensorFlow as the other finders have it, with a silent start; None if a level is set, or else."""
        if name != "tensorflow" or os.environ.get(LOG_LEVEL) in WANTED:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _in_silence(loader.exec_module)
        return spec


def _in_silence(execute: Any) -> Any:
    def execute_quietly(module: ModuleType) -> None:
        from .files import standard_error_to

        told = os.environ.get(LOG_LEVEL)
        os.environ[LOG_LEVEL] = told or "3"  # TensorFlow reads it once; tasks set their own log level
        try:
            with standard_error_to(Path(os.devnull)):
                execute(module)
        finally:
            if told is None:
                del os.environ[LOG_LEVEL]

    return execute_quietly


def import_quietly() -> None:
    """Let the first import of TensorFlow print nothing, unless the environment asks for its messages."""
    if not any(isinstance(finder, QuietFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, QuietFinder())
