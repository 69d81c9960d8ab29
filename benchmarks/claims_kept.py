"""Many runs at once, in processes of their own; what was run before is kept in a file."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.progress import track

KEPT = Path(__file__).parent / "cache" / "claims.jsonl"


def outcomes(cells: Sequence[Any], about: str) -> list[dict[str, list[float]]]:
    """Return the outcomes of all cells, in their order; those that were run before are read from the file.

    A cell has an `execute`, a `key` by which its outcome is kept, and a `weight`: the heaviest begin first.
    """
    kept = _kept()
    missing = list({cell.key: cell for cell in cells if cell.key not in kept}.values())
    if missing:
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that are started here
        context = multiprocessing.get_context("spawn")
        missing.sort(key=lambda cell: -cell.weight)
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool, KEPT.open("a") as file:
            runs = {pool.submit(_execute, cell): cell.key for cell in missing}
            try:
                for run in track(as_completed(runs), about, total=len(runs), transient=True):
                    kept[runs[run]] = run.result()
                    print(json.dumps([runs[run], run.result()]), file=file, flush=True)
            except BaseException:  # an interrupt, too: what has not begun is not waited for
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [kept[cell.key] for cell in cells]


def _execute(cell: Any) -> dict[str, list[float]]:
    return cell.execute()


def _kept() -> dict[str, dict[str, list[float]]]:
    """Return the outcomes that were kept; the last line of the file may have been cut off."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return dict(json.loads(line) for line in lines if line.endswith("]}]"))
