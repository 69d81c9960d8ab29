"""Follow a run by its checkpoints: for an evaluator that shares a folder with the chief, and no network with the ps.

`bash run.sh evaluate RUN_DIR` measures each checkpoint on the test data as it appears, until the run has ended.
It reads files and writes one: it can be started and stopped at any time, and the run does not notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..engine.flat_model import FlatModel
from ..errors import UserError, WaitTimeout, positive
from ..files import dumps, open_in_place, read_rows, writing
from ..problems import data
from ..problems.dataset import Dataset
from ..problems.models import ModelRecipe
from ..record import checkpoint
from ..record.content import read_config
from .evaluation import Evaluation

EVALUATIONS = "evaluations.jsonl"

LOOK_SECONDS = 0.5


def follow(
    run_dir: Path,
    wait_seconds: float,
    report: Callable[[dict[str, Any]], None],
    warn: Callable[[str], object] = lambda message: None,
) -> None:
    """Evaluate the checkpoints of a run, new ones as they come; each is a line in `evaluations.jsonl`.

    Args:
        run_dir: of the chief.
        wait_seconds: how long to wait for the run to begin, and for its next checkpoint.
        report: called with `version`, `test_loss`, `test_accuracy`, ... of each checkpoint, also of those that had been
            evaluated before.
        warn: told of each checkpoint that is damaged, or of another format: it is passed over.

    Raises:
        UserError: the folder holds another kind of run than a real one of a named data set and model, or is none.
        WaitTimeout: there was no checkpoint for `wait_seconds`, and the run has not ended.
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
        problem = problem or problem_of(run_dir, read_config(run_dir))
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
    """True if a checkpoint is gone, or goes while one looks: it was one of the oldest, and the run goes on."""
    if path.exists():
        time.sleep(LOOK_SECONDS)
    return not path.exists() and not checkpoint.is_set_aside(path)


def _appearing(run_dir: Path, done: set[int], wait_seconds: float) -> Iterator[Path]:
    """Checkpoints but those of the versions that are `done`, until the run has ended."""
    news = time.monotonic()
    while True:
        ended = (run_dir / "result.json").exists()
        fresh = [path for path in checkpoint.found(run_dir) if int(path.name) not in done]
        for path in fresh:
            done.add(int(path.name))
            yield path
            news = time.monotonic()
        if ended and not fresh:
            return
        if time.monotonic() - news > wait_seconds:
            raise WaitTimeout(
                f"waited {wait_seconds:g} s for a checkpoint in {checkpoint.folder(run_dir)}: is the run still there, "
                "and does it save often enough (--checkpoint-seconds)?"
            )
        time.sleep(LOOK_SECONDS)


def _evaluation(run_dir: Path, dataset: Dataset, recipe: ModelRecipe, parameters: int) -> Evaluation:
    """Make the evaluation of a model with so many parameters; raises `UserError` if the model of the run has others."""
    if parameters != (known := recipe.parameters):
        raise UserError(
            f"the checkpoints in {run_dir} have {parameters} parameters, and the model of the run has {known}"
        )
    return Evaluation(FlatModel(recipe.build()), dataset.test)


def problem_of(run_dir: Path, config: Mapping[str, Any]) -> tuple[Dataset, ModelRecipe]:
    """Data and model by the names in the configuration of a run; raises `UserError` if it has some of its own."""
    try:
        dataset = data.load(config["dataset"])
        return dataset, ModelRecipe.named(config["model"], dataset.shape, dataset.classes, config["seed"])
    except UserError as error:
        raise UserError(
            f"the run in {run_dir} has a model or data of its own, which only its script knows ({error})"
        ) from None
