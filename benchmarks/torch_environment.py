"""Where PyTorch lives, a peer and no dependency: beside this package if the user has installed it there.

Otherwise it is in an environment of its own beside `.venv`, made on first use.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ..common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "benchmarks" / "torch-constraints.txt"
PLACE = ROOT / ".venv-torch"


def torch_python(place: Path = PLACE, pins: Path = PINS) -> Path:
    """Return the Python that has PyTorch.

    Raises:
        UserError: there is none, and its environment cannot be made.
    """
    if find_spec("torch"):
        return Path(sys.executable)
    python, stamp = place / "bin" / "python", place / "pins"
    if not pins.exists():
        raise UserError("PyTorch as a peer needs a source checkout, which this installation is not")
    if not (stamp.exists() and stamp.read_text() == pins.read_text()):
        print(f"setting up {place.name} (once; 1 GB, or 6 GB where pip finds no CPU build of torch) ...", flush=True)
        run(sys.executable, "-m", "venv", "--clear", str(place))
        run(str(python), "-m", "pip", "install", "-qq", "--constraint", str(pins), "torch", "numpy")
        stamp.write_text(pins.read_text())  # last: what was interrupted is done again
    return python


def torch_version() -> str:
    """Return the version of PyTorch."""
    return run(str(torch_python()), "-c", "from importlib.metadata import version; print(version('torch'))").strip()


def run(*command: str) -> str:
    """Run a step of the set-up and return its output; raise `UserError` with the last line of that if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UserError(f"--peers torch: PyTorch could not be installed: {last[0]}")
    return done.stdout
