"""The notebooks, in Jupyter Lab or executed and saved with their outputs: `bash run.sh tutorials`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..packages import ROOT, pip
from . import flags

FOLDER = ROOT / "tutorials"

CELL_SECONDS = 600  # time limit of a cell: a whole notebook takes less than 60 on two idle cores

EXTRA = 'extra == "tutorials"'


@dataclass(frozen=True, kw_only=True)
class Tutorials:
    """The options of `tutorials`."""

    execute: bool = False
    """Execute the notebooks and save them with their outputs, instead of opening Jupyter Lab."""
    notebooks: tuple[str, ...] = ()
    """Names of notebooks, or beginnings of names; all by default."""


def main(arguments: list[str]) -> int:
    """Install missing packages, then open Jupyter Lab in tutorials/, or execute notebooks; return the exit code."""
    description = "Open the tutorials in Jupyter Lab."
    (options,) = flags.read("run.sh tutorials", description, arguments, {"options": Tutorials}, positional="notebooks")
    if not FOLDER.is_dir():
        raise UserError("the tutorials are part of the source checkout, which this installation is not")
    notebooks = found(options.notebooks)
    install_what_is_missing("nbclient" if options.execute else "jupyterlab")
    if not options.execute:
        return subprocess.call(lab(has_screen=bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))))
    for path in notebooks:
        print(path.name, flush=True)  # noqa: T201
        save(path, execute(path, times=2))  # a saved notebook runs twice in one kernel
    return 0


def found(names: tuple[str, ...] = ()) -> list[Path]:
    """Return the notebooks whose names begin with one of these, in order.

    Raises:
        UserError: no notebook matches.
    """
    paths = sorted(FOLDER.glob("*.ipynb"))
    chosen = [path for path in paths if not names or path.name.startswith(tuple(Path(name).name for name in names))]
    if not chosen:
        raise UserError(
            f"no notebook has a name that begins so. Known: {', '.join(path.stem for path in paths)}. Received: "
            f"{', '.join(names)}"
        )
    return chosen


def lab(has_screen: bool) -> list[str]:
    """Return the command of Jupyter Lab; without a screen, it prints its address instead of opening a browser."""
    quiet = [] if has_screen else ["--no-browser", "--log-level=CRITICAL"]  # the address is logged at that level
    root = ["--allow-root"] if os.geteuid() == 0 else []  # for containers; it listens on loopback and needs a token
    return [sys.executable, "-m", "jupyterlab", f"--notebook-dir={FOLDER}", *quiet, *root]


def install_what_is_missing(module: str) -> None:
    """Install the extra `tutorials` unless `module`, which is part of it, is installed."""
    if importlib.util.find_spec(module):
        return
    wanted = [line.partition(";")[0].strip() for line in requires("distsgd") or () if EXTRA in line.replace("'", '"')]
    print(f"Installing {', '.join(wanted)} ...", file=sys.stderr, flush=True)  # noqa: T201
    if pip(["install", "--quiet", *wanted]):
        raise UserError("what the notebooks need could not be installed: see above")


def execute(path: Path, times: int = 1) -> Any:
    """Execute a notebook so many times in one kernel; return it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, resources=where, record_timing=False)
    kernel = client.create_kernel_manager()
    with tempfile.TemporaryDirectory(prefix="distsgd-kernel-") as folder:
        kernel.transport, kernel.connection_file = "ipc", f"{folder}/kernel.json"  # by TCP others could connect
        with client.setup_kernel():
            for _ in range(times):
                client.code_cells_executed = 0
                for number, cell in enumerate(notebook.cells):
                    client.execute_cell(cell, number)
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
    return notebook


def save(path: Path, notebook: Any) -> None:
    """Write a notebook without metadata that varies between machines and executions."""
    import nbformat

    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)
