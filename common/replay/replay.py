"""Replay of a run directory: the recorded events are executed by the papers' equations, and the centers compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.checks import check_scheme
from ..contract.rounding import only_takes_gradients
from ..contract.scheme import Scheme
from ..data.dataset import Dataset
from ..data.inputs import count_steps
from ..data.models import MODELS
from ..data.named import quiet
from ..data.skew import parsed
from ..errors import UserError, first_line, one_of
from ..files import read_rows, with_tuples
from ..record import kinds
from ..record.arrays import read_arrays, read_trace
from ..record.content import read_config, read_result
from ..spec import nearest, parse
from ..tasks.follow import problem_of
from ..tasks.job import is_dense
from . import limits, reference
from .adapters import TRANSCRIPTIONS
from .recorded import ROUNDINGS, RecordedRun, distance

NO_ROOM = "the run has no room in this machine's memory: replay one that has a smaller model, less data or fewer steps"


@dataclass(frozen=True)
class Verdict:
    """The result of a replay.

    Attributes:
        run: the replayed run.
        error: relative distance of the run's center from that of the equations; infinite if the equations cannot
            produce the record.
        reason: the difference, if it is not in the center alone.
        limit: largest error that float32 explains, see `limits`; a run with a larger error differs.
        moved: relative distance of the initial center from that of the equations.
        until: update up to which the recorded test losses are those of the equations; 0 if that was not needed.
    """

    run: RecordedRun
    error: float
    reason: str = ""
    limit: float = limits.LEAST
    moved: float = 1.0
    until: int = 0

    @property
    def differs(self) -> bool:
        """True if the run deviates from the equations."""
        return bool(self.reason) or not self.error < self.limit

    @property
    def agrees(self) -> bool:
        """True if the run follows the equations so closely that a factor wrong by 1 % would have been detected.

        If jumps have changed the center, this holds up to the update `until`.
        """
        near = limits.CERTAIN if limits.has_jumps(self.run) else limits.SHARP * self.moved
        return not self.differs and (self.error < near or 0 < self.until < self.run.result["updates"])


def replay(run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> Verdict:
    """Execute the equations of a recorded run, and compare.

    Args:
        run_dir: folder of a run that has ended.
        schemes: the catalogue, by name.

    Raises:
        UserError: this run cannot be replayed; the message gives the reason.
    """
    try:
        run = read(run_dir, schemes)
    except MemoryError:
        raise UserError(NO_ROOM) from None
    return judge(run)


def judge(run: RecordedRun) -> Verdict:
    """Execute the equations in the recorded order, and compare; raises `UserError` if they do not cover the run."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # `distance` raises if it is not finite
            exact = run.execute()
            error, moved = (distance(center, exact.center) for center in (run.center, run.start))
            references = limits.References(run, exact)
            until, reason = (0, "") if error < limits.CERTAIN else references.course()
            return Verdict(run, error, reason, references.limit, moved, until)
    except UserError:
        raise
    except MemoryError:
        raise UserError(NO_ROOM) from None
    except (ValueError, IndexError, ArithmeticError) as problem:  # the order of the record is impossible
        return Verdict(run, float("inf"), first_line(problem) or type(problem).__name__)


def read(run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> RecordedRun:
    """Read the recorded run of a folder.

    Raises:
        UserError: the run cannot be replayed; the message gives the reason.
    """
    config = read_config(run_dir)
    if not (run_dir / "result.json").is_file():
        raise UserError(f"the run in {run_dir} has not ended: it has no result.json")
    result = read_result(run_dir)
    if result["updates"] is None:
        raise UserError(f"the run in {run_dir} ended without a result: result.json has no updates")
    one_of(("float32", *ROUNDINGS), codec=config["codec"])
    scheme = _scheme(config, schemes)
    trace, center = read_trace(run_dir, config), read_arrays(run_dir, "center.npz")["center"]
    if center.dtype != np.float32 or center.ndim != 1:
        raise UserError(f"center.npz is damaged: center must be a vector of float32. Received: {center.dtype}")
    dataset, recipe = problem_of(run_dir, config)
    count_steps(dataset.train, config["workers"], config["batch_size"], 1, config["steps_per_worker"])
    problem = _problem(config, dataset)
    if problem.size != len(center):
        raise UserError(f"center.npz holds {len(center)} parameters, the model {config['model']} has {problem.size}")
    with quiet():
        model = recipe.flat()
        start, layers = model.pack().astype(np.float64), [math.prod(shape) for shape in model.shapes]
    dense = is_dense(*(config[name] for name in ("l2", "clip_norm", "ema_decay", "devices_per_worker")))
    has_course = scheme.name in limits.JUMPS and problem.loss is not None and config["ema_decay"] is None
    run = RecordedRun(
        scheme=scheme,
        workers=config["workers"],
        steps=config["steps_per_worker"],
        start=start,
        trace=trace,
        center=center,
        gradient=problem.gradient,
        result=result,
        earlier_step_targets=config["earlier_step_targets"],
        sparse=recipe.sparse and scheme.sparse and not dense,
        codec=config["codec"],
        ps=config["ps"],
        layers=layers,
        losses=_losses(run_dir) if has_course else {},
        loss=problem.loss,
    )
    _check(run)
    if run.codec != "float32":
        _check_codec(run)
    return run


def batch_gradient(
    on_rows: reference.GradientOnRows,
    *,
    examples: int,
    workers: int,
    seed: int,
    batch_size: int,
    skew: tuple[np.ndarray, float] | None = None,
) -> reference.Gradient:
    """Return the gradient of worker k's t-th batch at x, as a function of (x, k, t), on the reference's batches.

    With `skew`, a pair of labels and alpha, the shards have unequal labels.
    """
    if skew is None:
        order, size = reference.rows(seed, 0, examples, 1), examples // workers  # shards are parts of one permutation
        shards = [order[k * size : (k + 1) * size] for k in range(workers)]
    else:
        labels, alpha = skew
        shards = reference.skewed_rows(seed, labels, workers, alpha)
    return lambda x, k, t: on_rows(x, shards[k][reference.batch(seed, k, t, len(shards[k]), batch_size)])


def _scheme(config: Mapping[str, Any], schemes: Mapping[str, type[Scheme]]) -> Any:
    """Build the algorithm of a run, with its hyperparameters."""
    name = config["algorithm"]
    if name not in TRANSCRIPTIONS:
        why = "it takes no lock, so that its events have no order" if name == "hogwild" else "it is not transcribed"
        raise UserError(f"{name} has no reference in NumPy: {why}. Known: {', '.join(TRANSCRIPTIONS)}")
    given = with_tuples(config["hyperparameters"])
    for key, value in given.items():
        if key.endswith("rate") and isinstance(value, str):
            raise UserError(f"the reference knows constant rates alone. Received: {key}={value}")
    known = {own.name for own in fields(schemes[name])}
    if unknown := sorted(set(given) - known):
        raise UserError(f"{name} has no hyperparameter {unknown[0]!r}. {nearest(unknown[0], list(known))}")
    try:
        scheme = schemes[name](**given)
        check_scheme(scheme, config["workers"])
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} cannot have the recorded hyperparameters: {first_line(error)}") from None
    return scheme


@dataclass(frozen=True)
class Problem:
    """A model that the reference knows, on the data of a run.

    Attributes:
        gradient: gradient of worker k's t-th batch, written by hand.
        size: number of parameters of the model.
        loss: test loss as a function of the parameters, if the reference has it.
    """

    gradient: reference.Gradient
    size: int
    loss: Callable[[np.ndarray], float] | None


def _problem(config: Mapping[str, Any], dataset: Dataset) -> Problem:
    """Build the problem of a run; raises `UserError` if the reference does not know it."""
    name, options = parse("model", config["model"], MODELS)
    loss = None
    x, y = dataset.train
    if name in ("softmax", "mlp", "logistic") and (name == "logistic") != bool(dataset.features):
        raise UserError(f"the model {name} is not for the data set {config['dataset']}")
    if name == "logistic":
        size = dataset.features
        indices, values = x
        on_rows = reference.sparse_logistic_gradient(indices, values, y)
    elif name in ("softmax", "mlp"):
        x = x.reshape(len(x), -1)
        hidden = options.get("hidden", (128,)) if name == "mlp" else ()
        sizes = [x.shape[1], *hidden, dataset.classes]
        size = sum(n * m + m for n, m in pairwise(sizes))
        on_rows = reference.mlp_gradient(x, y, sizes)
        test_x, test_y = dataset.test
        loss = reference.mlp_loss(test_x.reshape(len(test_x), -1), test_y, sizes)
    else:
        raise UserError(f"the reference has no gradient of the model {name}. Known: softmax, mlp, logistic")
    if config["l2"] or config["clip_norm"] is not None:
        on_rows = reference.regularized(on_rows, config["l2"], config["clip_norm"])
    known = {name: config[name] for name in ("workers", "seed", "batch_size")}
    skew = None if config["skew"] is None else (y, parsed(config["skew"])[1]["alpha"])
    return Problem(batch_gradient(on_rows, examples=len(y), skew=skew, **known), size, loss)


def _losses(run_dir: Path) -> dict[int, float]:
    """Return the recorded losses on the test data, by the version of the center."""
    rows = [row for row in read_rows(run_dir / "metrics.jsonl") if kinds.is_row(row) and row["kind"] == "center"]
    found = {row.get("version"): row.get("test_loss") for row in rows}
    losses = {version: loss for version, loss in found.items() if isinstance(version, int) and isinstance(loss, float)}
    return dict(sorted((version, loss) for version, loss in losses.items() if version > 0))


def _check(run: RecordedRun) -> None:
    """Raise `UserError` for a run that its transcription does not cover.

    A resumed run may have a short round in its middle; only the transcription of `downpour` covers that.
    """
    name, period = run.scheme.name, run.scheme.period
    if not name.startswith("downpour") and any(target % period for target in run.earlier_step_targets):
        raise UserError(
            f"the run was resumed from one of {json.dumps(list(run.earlier_step_targets))} steps, whose last round was "
            f"shorter than the period of {period}: the transcription of {name} has no such round"
        )


def _check_codec(run: RecordedRun) -> None:
    """Raise `UserError` if the transcription does not cover messages that a codec has rounded."""
    name = run.scheme.name
    if not only_takes_gradients(type(run.scheme)):
        raise UserError(f"with a codec, only schemes that push gradients can be replayed. Received: a run of {name}")
    if run.joins.any() or run.earlier_step_targets:
        raise UserError(f"a worker of {name} was started again, and has lost what its codec would send later")
