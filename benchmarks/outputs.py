"""`bash run.sh outputs [NAME ...]`: what a run of each algorithm with its defaults prints, for the algorithm's page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..algorithms import SCHEMES
from ..common.arguments import check_known
from ..common.cli import flags
from ..common.errors import DistsgdError
from .outcome_files import write

FILE = Path(__file__).resolve().parent / "results" / "outputs.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which algorithms."""

    names: tuple[str, ...] = ()
    """Names of algorithms; all of them if none is given."""

    def __post_init__(self):
        check_known("algorithm", *self.names, known=SCHEMES)


def main(arguments: list[str]) -> int:
    """Run, save and show; return the exit code."""
    about = "Train each algorithm with its defaults, and keep the output for its page."
    options: Options = flags.read("run.sh outputs", about, arguments, {"options": Options}, positional="names")[0]
    outputs = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in options.names or SCHEMES:
        outputs[name] = output_of(name)
        print(f"{name}\n{outputs[name]}", flush=True)
        write(FILE, {algorithm: outputs[algorithm] for algorithm in SCHEMES if algorithm in outputs})
    return 0


def output_of(name: str) -> str:
    """Return the table that a run of the algorithm prints.

    Raises:
        DistsgdError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "distsgd", name, "--run-dir", "run"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise DistsgdError(f"{name} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
