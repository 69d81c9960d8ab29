"""The kernels with which TensorFlow computes a model on a CPU: Eigen's, or those of the library oneDNN.

TensorFlow reads the choice from an environment variable when it is imported; later it has no effect. By itself it turns
oneDNN on only for CPUs with one of the features `ON`. On others oneDNN slows small models down, as it takes longer to
start an operation, and makes large ones up to twice as fast: there a run chooses by the size of its model.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import UserError

Kernels = Literal["auto", "eigen", "onednn"]

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"

SET_HERE = "DISTSGD_SET_KERNELS"  # an environment variable: the value of the other one if this package has set it

VALUES = {"0": "eigen", "false": "eigen", "1": "onednn", "true": "onednn"}

ON = ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")

LEAST = 2e7  # multiplications of a step from which on oneDNN is faster, measured with dense layers and without AVX-512


@dataclass(frozen=True)
class Choice:
    """The kernels of a run.

    Attributes:
        name: "eigen" or "onednn"; None leaves the choice to TensorFlow.
        why: the reason, in words.
    """

    name: str | None
    why: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a process that has not imported TensorFlow."""
        return {} if self.name is None else {VARIABLE: str(int(self.name == "onednn")), SET_HERE: ""}


def choose(asked: Kernels = "auto", products: float | None = None, before: str | None = None) -> Choice:
    """Choose the kernels of a run.

    Args:
        asked: the option of the run.
        products: multiplications of one step; None if they are not known before the run.
        before: kernels of the run that this one resumes.

    Raises:
        UserError: the environment variable, set by the user, says otherwise.
    """
    if value := _set_by_user():
        kernels = VALUES[value.lower()]
        if asked not in ("auto", kernels):
            raise UserError(f"{VARIABLE}={value} in the environment excludes --kernels {asked}: leave one of them out")
        return Choice(kernels, f"{VARIABLE}={value} is set")
    if asked != "auto":
        return Choice(asked, "asked for")
    if before is not None:
        return Choice(before, "those of the run that is resumed")
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return Choice(None, f"TensorFlow's own choice on {platform.system()} {platform.machine()}")
    features = cpu_features()
    if extension := next((feature for feature in ON if feature in features), None):
        return Choice("onednn", f"the CPU has {extension}")
    if products is None:
        return Choice("onednn", "the size of the model is not known before the run")
    compared, name = ("at least", "onednn") if products >= LEAST else ("fewer than", "eigen")
    return Choice(name, f"{products:.1e} multiplications a step, {compared} {LEAST:.0e}, on a CPU without {ON[0]}")


def _set_by_user() -> str:
    """Return the value of the variable if the user has set it, else an empty text."""
    value = os.environ.get(VARIABLE, "")
    return value if value.lower() in VALUES and value != os.environ.get(SET_HERE) else ""


def cpu_features(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the names of the CPU's features, as Linux has them; an empty list where it cannot be read."""
    return _of_cpu("flags", path).split()


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU, and which sets of vector instructions it has."""
    features = cpu_features(path)
    vector = [feature for feature in ("avx2", "avx512f", *ON) if feature in features]
    return f"{_of_cpu('model name', path) or platform.machine()} ({', '.join(vector) or 'no avx2'})"


def _of_cpu(field: str, path: Path) -> str:
    try:
        with path.open() as lines:  # each core has its own, and all would take long
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
    except OSError:
        return ""


def set_here(asked: Kernels) -> None:
    """Set the variable for the import of TensorFlow in this process, if that is ahead and the user has not set it."""
    if "tensorflow" not in sys.modules and not _set_by_user() and (chosen := choose(asked).environment):
        os.environ.update(chosen | {SET_HERE: chosen[VARIABLE]})


def used_here() -> str:
    """Return the kernels that TensorFlow, imported in this process, uses: "eigen" or "onednn"."""
    found = importlib.import_module("tensorflow.python.util._pywrap_util_port")
    return "onednn" if found.IsMklEnabled() else "eigen"
