"""The packages of the environment that runs use: how to install one, and what to say where one is missing.

This module imports the standard library alone, so that `pip` can repair an environment in which nothing else works.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # of a checkout

CONSTRAINTS = ROOT / "constraints.txt"

PROGRAM = "bash run.sh" if (ROOT / "run.sh").is_file() else "distsgd"  # if installed

IS_CHECKOUT = Path(sys.prefix) == ROOT / ".venv"  # the environment is that of `run.sh`

INSTALL = f"{PROGRAM if IS_CHECKOUT else 'distsgd'} pip install"  # the command that installs a package here

LEAST_PIP = 25  # the version after it has `--group`

# Names under which the package index has modules of other names.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def remedy(error: BaseException) -> str:
    """Return how to install the package whose absence an error reports, in parentheses; an empty text for others.

    Keras and TensorFlow raise errors of other kinds, whose text has that of the first one.
    """
    found = re.search(r"No module named '(\w+)", str(error))
    if found is None or (name := found[1]) in sys.stdlib_module_names or _is_installed(name):
        return ""
    return f" (if it is a package: {INSTALL} {DISTRIBUTIONS.get(name, name)})"


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module that a program has made
        return True


def pip(arguments: Sequence[str]) -> int:
    """Run a command of uv or pip on the environment of this program; return its exit code.

    An installation keeps to the versions that this package is tested with: one that needs others is refused, and the
    conflict is named.
    """
    import subprocess

    command, *rest = arguments or ["--help"]
    kept = _kept() if command == "install" else []
    code = subprocess.call([*_program(command), *kept, *rest], env=_environment())
    if code and kept:
        print(f"note: distsgd needs {' '.join(kept)}".replace("--constraint", "the versions in"), file=sys.stderr)  # noqa: T201
    return code


def _kept() -> list[str]:
    """Return the arguments of an installation that keep what this package needs: its versions in a checkout."""
    if CONSTRAINTS.is_file():
        return ["--constraint", str(CONSTRAINTS)]
    from importlib.metadata import requires

    return [line for line in requires("distsgd") or () if "extra ==" not in line]


def _program(command: str) -> list[str]:
    """Return the words that run a command of uv, or of pip, which uv leaves out of environments that it makes."""
    if uv := shutil.which("uv"):
        return [uv, "pip", command, *(["--python", sys.executable] if not command.startswith("-") else [])]
    import subprocess
    from importlib.metadata import version

    python = [sys.executable, "-m"]
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL, env=_environment())
    if find_spec("pip") is None:
        run([*python, "ensurepip"])
        invalidate_caches()
    if int(version("pip").partition(".")[0]) < LEAST_PIP:
        run([*python, "pip", "install", "-qq", "--upgrade", f"pip>{LEAST_PIP}"])
    return [*python, "pip", command]


def _environment() -> dict[str, str]:
    """Return the variables of this program without those that would lead elsewhere, as its user may have set them."""
    env = {name: value for name, value in os.environ.items() if name not in ("UV_SYSTEM_PYTHON", "PIP_TARGET")}
    # Compile: importing TensorFlow takes twice as long otherwise, each time where PYTHONDONTWRITEBYTECODE is set.
    env |= {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_COMPILE_BYTECODE": "1"}
    cache = Path(env.get("UV_CACHE_DIR") or Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/"), ".cache")))
    existing = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    return env if os.access(existing, os.W_OK) else env | {"UV_NO_CACHE": "1"}


if __name__ == "__main__":
    sys.exit(pip(sys.argv[1:]))
