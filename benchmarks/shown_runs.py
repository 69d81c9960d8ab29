"""The runs that two pictures show: the curves of docs/results.md, and the timelines of docs/timeline.md.

Their rows are in the folder of results, from which `bash run.sh pictures` draws. With `--again` the runs are executed:
those of the timelines, in virtual time, are the commands of their page, and have the same rows each time.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..common.record.plot import Drawn, draw
from ..common.timeline import picture
from ..common.timeline.lanes import Tracks, read_lanes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "timeline.md"
CURVES = f"bash {ROOT}/run.sh downpour --run-dir runs/downpour"
END = 0.2  # seconds of the timelines


def curves_of(rows: Mapping[str, Any]) -> Any:
    """Return the figure of a run, as its plot.png."""
    return draw([Drawn(rows["config"], rows["rows"])])


def timelines_of(rows: list[dict[str, Any]]) -> Any:
    """Return the figure of the two timelines."""
    tracks = []
    for row in rows:
        columns: Any = {name: np.array(column, np.int64) for name, column in row["columns"].items()}
        tracks.append(Tracks(**{**row, "columns": columns}))
    return picture.draw(tracks, 0.0, END)


def run_of_curves(folder: Path) -> dict[str, Any]:
    """Execute the run of the curves in a folder, and return its rows."""
    _execute(CURVES, folder)
    run = folder / "runs" / "downpour"
    config = json.loads((run / "config.json").read_text())
    return {"config": config, "rows": [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]}


def runs_of_timelines(folder: Path) -> list[dict[str, Any]]:
    """Execute the commands of the page in a folder, and return the rows of both runs."""
    (block,) = re.findall(r"```bash\n(machines=.*?)```", PAGE.read_text(), re.DOTALL)
    _execute(block.replace("bash run.sh", f"bash {ROOT}/run.sh"), folder)
    found = [read_lanes(folder / name, 0.0, END) for name in ("runs/together", "runs/alone")]
    return [
        asdict(tracks) | {"name": "", "columns": {name: column.tolist() for name, column in tracks.columns.items()}}
        for tracks in found
    ]


FIGURES: Mapping[str, Callable[[Any], Any]] = {"downpour": curves_of, "timeline": timelines_of}
RUNS: Mapping[str, Callable[[Path], Any]] = {"downpour": run_of_curves, "timeline": runs_of_timelines}


def execute(name: str, results: Path) -> None:
    """Execute the runs of a picture once more, and write their rows into the folder of results."""
    with tempfile.TemporaryDirectory() as folder:
        rows = RUNS[name](Path(folder))
    (results / f"{name}.json").write_text(json.dumps(rows, separators=(",", ":")) + "\n")


def _execute(commands: str, folder: Path) -> None:
    subprocess.run(["bash", "-ec", commands], cwd=folder, check=True, stdout=subprocess.DEVNULL)
