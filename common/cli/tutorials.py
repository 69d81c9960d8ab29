"""`bash run.sh tutorials`: the notebooks in Jupyter Lab, or executed and saved with their outputs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import flags

ROOT = Path(__file__).resolve().parent.parent.parent

FOLDER = ROOT / "tutorials"

CELL_SECONDS = 600  # a limit: a whole notebook takes less than 60 on two cores that have nothing else to do

EXTRA = 'extra == "tutorials"'


@dataclass(frozen=True, kw_only=True)
class Tutorials:
    """What to do with the notebooks."""

    execute: bool = False
    """Execute the notebooks and save them with their outputs, instead of opening Jupyter Lab."""
    notebooks: tuple[str, ...] = ()
    """Their names, or the beginnings of those; all if none is given."""


def main(arguments: list[str]) -> int:
    """Install what is missing, then open Jupyter Lab in tutorials/, or execute notebooks."""
    description = "The tutorials, in Jupyter Lab."
    (options,) = flags.read("run.sh tutorials", description, arguments, {"options": Tutorials}, positional="notebooks")
    if not FOLDER.is_dir():
        raise UserError("the tutorials are part of the source checkout, which this installation is not")
    install_what_is_missing("nbclient" if options.execute else "jupyterlab")
    if not options.execute:
        return subprocess.call(lab(has_screen=bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))))
    for path in found(options.notebooks):
        print(path.name, flush=True)  # noqa: T201
        save(path, execute(path, times=2))  # what is saved has been seen to run twice in one kernel
    return 0


def found(names: tuple[str, ...] = ()) -> list[Path]:
    """The notebooks that begin with one of these names, in order.

    Raises:
        UserError: none does.
    """
    paths = sorted(FOLDER.glob("*.ipynb"))
    chosen = [path for path in paths if not names or path.name.startswith(tuple(Path(name).name for name in names))]
    if not chosen:
        raise UserError(f"there is no such notebook; there are {', '.join(path.stem for path in paths)}")
    return chosen


def lab(has_screen: bool) -> list[str]:
    """The command of Jupyter Lab; where there is no screen, it prints its address."""
    quiet = [] if has_screen else ["--no-browser", "--log-level=CRITICAL"]  # the address is of that level
    root = ["--allow-root"] if os.geteuid() == 0 else []  # as in a container; it listens on loopback, and wants a token
    return [sys.executable, "-m", "jupyterlab", f"--notebook-dir={FOLDER}", *quiet, *root]


def install_what_is_missing(module: str) -> None:
    """Install the extra `tutorials` unless `module`, one of it, is there."""
    if importlib.util.find_spec(module):
        return
    wanted = [line.partition(";")[0].strip() for line in requires("distsgd") or () if EXTRA in line.replace("'", '"')]
    print(f"Installing {', '.join(wanted)} ...", file=sys.stderr, flush=True)  # noqa: T201
    uv = shutil.which("uv")
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    if subprocess.call([*pip, "--quiet", *constraints, *wanted]):
        raise UserError("what the notebooks need could not be installed: see above")


def execute(path: Path, times: int = 1) -> Any:
    """A notebook with its outputs after so many executions in one kernel.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, resources=where, record_timing=False)
    with client.setup_kernel():
        for _ in range(times):
            client.code_cells_executed = 0
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
    return notebook


def save(path: Path, notebook: Any) -> None:
    """Write a notebook; what does not depend on its text stays out of it."""
    import nbformat

    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)
