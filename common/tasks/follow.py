"""Evaluation of a run by its checkpoints: for an evaluator that shares a folder with the chief, but no network.

`bash run.sh evaluate RUN_DIR` evaluates each checkpoint on the test data as it appears, until the run has ended.
It only reads files and writes one of its own: it can be started and stopped at any time without effect on the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..arguments import positive
from ..data.models import ModelRecipe
from ..data.recipes import Dataset
from ..errors import UserError, WaitTimeout
from ..files import dumps, open_in_place, writing
from ..record import checkpoint
from ..record_format import read_config, read_rows
from ..settings import set_here
from ..waiting import awake
from .observer import Evaluation

EVALUATIONS = "evaluations.jsonl"

LOOK_SECONDS = 0.5


def follow(
    run_dir: Path,
    wait_seconds: float,
    find: Callable[[Mapping[str, Any]], tuple[Dataset, ModelRecipe]],
    report: Callable[[dict[str, Any]], None],
    warn: Callable[[str], object] = lambda message: None,
) -> None:
    """Evaluate the checkpoints of a run, new ones as they appear; each adds a line to `evaluations.jsonl`.

    Args:
        run_dir: run directory of the chief.
        wait_seconds: limit of the wait for the begin of the run, and for its next checkpoint.
        find: returns data and model of a run with this configuration.
        report: called with `version`, `test_loss`, `test_accuracy`, ... of each checkpoint, also of those that an
            earlier call has evaluated.
        warn: called with a message for each checkpoint that is damaged, or of another format, and is skipped.

    Raises:
        UserError: the path is no folder, or the run in it is simulated, or has its own data or model.
        WaitTimeout: no checkpoint appeared for `wait_seconds`, and the run has not ended.
    """
    positive(wait_seconds=wait_seconds)
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"the run directory is not a folder. Received: {run_dir}")
    if (run_dir / "config.json").exists() and "platform" in read_config(run_dir):
        raise UserError(
            f"a simulated run has no checkpoints: its center was measured meanwhile, see {run_dir / 'metrics.jsonl'}"
        )
    problem: tuple[Dataset, ModelRecipe] | None = None
    evaluate: Evaluation | None = None
    before = [line for line in read_rows(run_dir / EVALUATIONS) if isinstance(line.get("version"), int)]
    for line in before:
        report(line)
    for path in _appearing(run_dir, {line["version"] for line in before}, wait_seconds):
        problem = problem or find(read_config(run_dir))
        try:
            arrays = checkpoint.read(path).arrays
        except UserError as unreadable:
            if not _is_deleted(path):
                warn(f"{unreadable}; it was passed over")
            continue
        evaluate = evaluate or _evaluation(run_dir, *problem, len(arrays["center"]))
        center = {"center": arrays.get("average", arrays["center"]), "state": arrays["states"].mean(0)}
        line = {"version": int(arrays["version"]), **evaluate(center)}
        with writing(run_dir / EVALUATIONS), open_in_place(run_dir / EVALUATIONS, "a") as file:
            file.write(dumps(line) + "\n")
        report(line)


def _is_deleted(path: Path) -> bool:
    """Return True if the run has deleted a checkpoint, one of its oldest, before or while it was read."""
    if path.exists():
        time.sleep(LOOK_SECONDS)
    return not path.exists() and not checkpoint.is_quarantined(path)


def _appearing(run_dir: Path, done: set[int], wait_seconds: float) -> Iterator[Path]:
    """Yield checkpoints as they appear, except those of the versions in `done`, until the run has ended."""
    news = awake.now()
    while True:
        ended = (run_dir / "result.json").exists()
        fresh = [path for path in checkpoint.found(run_dir) if int(path.name) not in done]
        for path in fresh:
            done.add(int(path.name))
            yield path
            news = awake.now()
        if ended and not fresh:
            return
        if awake.now() - news > wait_seconds:
            raise WaitTimeout(
                f"waited {wait_seconds:g} s for a checkpoint in {checkpoint.folder(run_dir)}: is the run still there, "
                "and does it save often enough (--checkpoint-seconds)?"
            )
        time.sleep(LOOK_SECONDS)


def _evaluation(run_dir: Path, dataset: Dataset, recipe: ModelRecipe, parameters: int) -> Evaluation:
    """Build the evaluation of the run's model; raises `UserError` if its number of parameters is not `parameters`.

    From then on this process has the model's settings of Keras.
    """
    if parameters != (size := recipe.parameters):
        raise UserError(
            f"the checkpoints in {run_dir} have {parameters} parameters, and the model of the run has {size}"
        )
    set_here(recipe.settings)
    return Evaluation(recipe.flat(), dataset.test)
