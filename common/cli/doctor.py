"""Facts about the machine for a bug report: `bash run.sh doctor`. It uses no network and changes nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..kernels import LEAST, choose, cpu_name
from ..messages.segments import allowed, needed
from ..record.tables import aligned
from ..system import usable_cores
from .flags import Parser

PACKAGES = ("distsgd", "tensorflow", "keras", "numpy")

MANY_TASKS = 1024

SECONDS = 60  # time limit of a subprocess

ROLE = ("TF_CONFIG", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "RANK", "WORLD_SIZE")

# The path of the file, not a module: only a process with one thread may enter a private network, and importing the
# package imports NumPy, which may start threads.
ISOLATION = str(Path(__file__).parent.parent / "launch" / "isolation.py")

PRIVATE_NETWORK = f"import runpy, sys; sys.exit(runpy.run_path({ISOLATION!r})['why_not']() or None)"

SURVEY = "from distsgd.common.launch.gpus import survey; print(survey())"


def main(arguments: list[str]) -> int:
    """Print the facts of `look`, with `--json` as one line; return the exit code."""
    parser = Parser("run.sh doctor", "Show versions, machine and permissions, for a bug report.")
    parser.add_argument("--json", action="store_true", help="Print one line of JSON.")
    as_json = parser.values(arguments).json
    found = look()
    print(json.dumps(found) if as_json else aligned(found))  # noqa: T201
    return 0


def look() -> dict[str, Any]:
    """Return versions, machine and permissions by name."""
    return {
        **{name: _version(name) for name in PACKAGES},
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cores": usable_cores(),
        "cpu": cpu_name(),
        "kernels": _kernels(),
        "memory": _memory(),
        "descriptors": _descriptors(),
        "gpu": gpus_seen(),
        "private network": _ask(PRIVATE_NETWORK, empty="possible"),
        "current folder": _folder(Path.cwd()),
        "temporary folder": _folder(Path(tempfile.gettempdir())),
        "role": ", ".join(f"{name}={os.environ[name]}" for name in ROLE if name in os.environ) or "none is set",
    }


def _kernels() -> str:
    """Return the kernels that runs choose on this machine, and why."""
    small, large = choose(products=0), choose(products=2 * LEAST)
    if small == large:
        return f"{large.name or 'auto'}: {large.why}"
    return (
        f"{large.name} from {LEAST:.0e} multiplications a step on, else {small.name}: TensorFlow does not turn "
        "oneDNN on by itself on this CPU"
    )


def _descriptors() -> str:
    """Return the descriptors allowed per process, and how many tasks can share large vectors in memory with them."""
    limit, tasks = allowed(), 2
    while tasks < MANY_TASKS and needed(2 * tasks) <= limit:
        tasks *= 2
    enough = f"enough for {tasks} tasks that share memory" if needed(tasks) <= limit else "few: use --transport sockets"
    return f"{'no limit' if limit == sys.maxsize else limit}, {enough}"


def gpus_seen() -> str:
    """Return the GPUs that TensorFlow sees, `none` and perhaps why, or the error."""
    return _ask(SURVEY, empty="none")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _memory() -> str:
    """Return free and total memory, as the kernel reports them."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free, whole = (int(lines[name].split()[0]) / 1e6 for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return "unknown"
    return f"{free:.1f} GB free of {whole:.1f}"


def _folder(path: Path) -> str:
    free = shutil.disk_usage(path).free / 1e9
    return f"{path}: {free:.1f} GB free, {'writable' if os.access(path, os.W_OK) else 'NOT writable'}"


def _ask(code: str, empty: str) -> str:
    """Run code in a subprocess; return its output, its error, or `empty` if it prints nothing."""
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-P", "-c", code]  # -P: do not import from the current folder
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=quiet)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    if done.returncode:
        return "no: " + (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    return done.stdout.strip() or empty
