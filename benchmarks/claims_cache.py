"""Many runs at once, in processes of their own; what was run before is cached in a file."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from rich.progress import track

from ..common.system import usable_cores
from .outcome_files import CACHE

FILE = CACHE / "claims.jsonl"


def outcomes(runs: Sequence[Any], about: str) -> list[dict[str, list[float]]]:
    """Return the outcomes of all runs, in their order; those that were run before are read from the file.

    A run has an `execute`, a `key` by which its outcome is cached, and a `weight`: the heaviest begin first.
    """
    cached = _cached()
    missing = list({run.key: run for run in runs if run.key not in cached}.values())
    if missing:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that are started here
        context = multiprocessing.get_context("spawn")
        missing.sort(key=lambda run: -run.weight)
        with ProcessPoolExecutor(usable_cores(), mp_context=context) as pool, FILE.open("a") as file:
            futures = {pool.submit(_execute, run): run.key for run in missing}
            try:
                for future in track(as_completed(futures), about, total=len(futures), transient=True):
                    cached[futures[future]] = future.result()
                    print(json.dumps([futures[future], future.result()]), file=file, flush=True)
            except BaseException:  # an interrupt, too: what has not begun is not waited for
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [cached[run.key] for run in runs]


def _execute(run: Any) -> dict[str, list[float]]:
    return run.execute()


def _cached() -> dict[str, dict[str, list[float]]]:
    """Return the outcomes that were cached; the last line of the file may have been cut off."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return dict(json.loads(line) for line in lines if line.endswith("]}]"))
