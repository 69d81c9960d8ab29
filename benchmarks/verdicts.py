"""Train every algorithm on threads, and replay each run: no verdict may accuse an honest run.

`bash run.sh verdicts` trains each algorithm with 1 to 8 workers on the default data and model, then with each other
inner optimizer, and replays each run. It prints one line for each, and counts verdicts at the end. It takes hours;
names of algorithms make it shorter, and `--workers 3,4` takes these numbers alone. Verdicts are kept in
benchmarks/cache/verdicts.jsonl, so that the same command continues an interrupted one, until the source changes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..algorithms import SCHEMES
from ..common import Cluster
from ..common.arguments import check_known, positive
from ..common.cli.flags import Parser
from ..common.cluster.fingerprint import source_digest
from ..common.contract.scheme import Scheme
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.errors import UserError, first_line
from ..common.record_format import read_rows
from ..common.replay.replay import replay
from ..common.sources import docstring
from ..common.tasks.job import make_job
from ..common.tasks.options import RunOptions
from .complete import completed
from .outcome_files import CACHE

DATASET, MODEL = "digits", "mlp:hidden=128"  # the defaults of the command line
WORKERS = tuple(range(1, 9))
STEPS = 100  # five rounds of the longest period, and longer than each warm-up: a verdict takes no more
RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 0.002, "adamw": 0.002, "lion": 0.0005, "muon": 0.02}
NO_ORDER = ("hogwild",)  # takes no lock, so that there is no order to replay
FILE = CACHE / "verdicts.jsonl"


def main(arguments: list[str]) -> int:
    """Run the command line; 0 if no run differs from its equations, and none failed."""
    parser = Parser("run.sh verdicts", docstring(sys.modules[__name__]).partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help="Names of algorithms. (default: all)")
    parser.add_argument(
        "--workers",
        type=_numbers,
        default=WORKERS,
        metavar="N,...",
        help="Numbers of workers. (default: 1,2,3,4,5,6,7,8)",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"Local steps of each worker. (default: {STEPS})"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="Random seed of model and batches. (default: 0)"
    )
    options = parser.values(arguments)
    positive(steps=options.steps)
    for name in options.names:
        check_known("algorithm", name, known=SCHEMES)
    counts: Counter[str] = Counter()
    source = source_digest()
    kept = {row["run"]: (row["verdict"], row["told"]) for row in read_rows(FILE) if row["verdict"] != "failed"}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    for scheme in variants(options.names or [name for name in SCHEMES if name not in NO_ORDER]):
        for workers in options.workers:
            run, began = f"{scheme}, {workers}, {options.steps}, {options.seed}, {source}", time.monotonic()
            if run not in kept:
                kept[run] = verdict, text = judged(scheme, workers, options.steps, options.seed)
                with FILE.open("a") as file:
                    print(json.dumps({"run": run, "verdict": verdict, "told": text}), file=file)
            verdict, text = kept[run]
            counts[verdict] += 1
            inner = f" with {optimizer}" if (optimizer := getattr(scheme, "inner_optimizer", None)) else ""
            about = f"{scheme.name}{inner}, {workers} workers, {time.monotonic() - began:.0f} s"
            print(f"{verdict:<11} {about}: {text}", flush=True)
    print(json.dumps({"steps": options.steps, "seed": options.seed, **counts}), flush=True)
    return 1 if counts["differs"] or counts["failed"] else 0


def _numbers(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"must be numbers of workers, as in 3,4. Received: {text}")
    return tuple(map(int, numbers))


def variants(names: Sequence[str]) -> Iterator[Scheme]:
    """Yield each algorithm with its defaults; then those with each other inner optimizer, at a usual rate for it."""
    defaults = [SCHEMES[name]() for name in names]
    yield from defaults
    for scheme in defaults:
        optimizer = getattr(scheme, "inner_optimizer", None)
        for inner, rate in RATES.items() if optimizer else ():
            if inner != optimizer:
                yield replace(scheme, **{"inner_optimizer": inner, "learning_rate": rate})


def judged(scheme: Scheme, workers: int, steps: int, seed: int) -> tuple[str, str]:
    """Return the verdict on a run, agrees, undecided, differs, refused or failed; and its numbers, or the reason."""
    data = load(DATASET)
    recipe = ModelRecipe.named(MODEL, data.shape, data.classes, seed)
    with tempfile.TemporaryDirectory(prefix="distsgd-verdicts-") as folder:
        run_dir = Path(folder) / "run"
        try:
            cluster = Cluster.local(workers, ps=1, backend="threads")
            settings = RunOptions(run_dir=run_dir, steps=steps, seed=seed, probe=False)
            job = make_job(scheme, recipe, data.train, data.test, cluster, settings)
        except UserError as error:
            return "refused", first_line(error)
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                completed(job, DATASET, MODEL, model=recipe.build())
            verdict = replay(run_dir, SCHEMES)
        except Exception as error:
            return "failed", f"{type(error).__name__}: {first_line(error)}"
    numbers = f"{verdict.error:.1e}, allowed {verdict.limit:.1e}, moved {verdict.moved:.1e}{verdict.reason and ', '}"
    kind = "differs" if verdict.differs else "agrees" if verdict.agrees else "undecided"
    return kind, f"{numbers}{verdict.reason}{f', losses until update {verdict.until}' if verdict.until else ''}"
