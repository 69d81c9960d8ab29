"""A recorded run, read from its folder: the input of a transcription, and the distance of its result from the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import record_format
from ..data.recipes import Dataset, make
from ..errors import UserError
from ..record_format import ALONE_STEPS, DATA, EVENTS, INITIAL, MOST_TASKS, PARTS
from ..spec import parse
from .reference import gradients

Centers = list[np.ndarray]  # the center after each event, or after each common update; [P] each


@dataclass(frozen=True)
class Transcription:
    """The equations of an algorithm in NumPy.

    Attributes:
        execute: function of a run and its hyperparameters that executes the equations and returns the centers.
        kind: "asynchronous" if each accepted message makes an update, "synchronous" if several do, "alone" without any.
        jumps, scheduled: True if messages are discontinuous functions of the gradients, and if rates may be a schedule.
        codec, sends: the codec of the messages that it executes; True if they pass `RecordedRun.send`.
    """

    execute: Callable[[RecordedRun, Hyperparameters], Centers]
    kind: Literal["asynchronous", "synchronous", "alone"] = "asynchronous"
    jumps: bool = False
    codec: str = "float32"
    sends: bool = False
    scheduled: bool = False


class Hyperparameters(dict[str, Any]):
    """The hyperparameters of a run, by name, and as attributes; a missing one raises `UserError`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise UserError(f"config.json has no hyperparameter {name!r}, which the equations need")
        return self[name]


@dataclass(frozen=True)
class Execution:
    """The result of the equations of a run."""

    center: np.ndarray  # the last one, [P]
    losses: np.ndarray  # on the test data, at the versions of the recorded losses


@dataclass
class RecordedRun:
    """A finished run: its initial center, its events in order, and its final center.

    Attributes:
        algorithm, hyperparameters: its name, and what it was given.
        equations: the transcription of the algorithm.
        workers, steps: number of workers, and local steps of each.
        start, center: initial center, [P], float64; final center, [P].
        trace: the columns of trace.npz, a row for each event.
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        result: content of result.json.
        earlier_step_targets: steps of the runs from which this one was resumed.
        sparse: True if the model is sparse and no option needs whole vectors.
        ps, seed, servers_apart, hostile: those of config.json.
        shapes: shapes of the model's variables, in the order of a vector [P]; empty if they are unknown.
        decays: True for each parameter that weight decay applies to, [P]; None if it applies to all.
        losses: recorded test losses, by the version of the center; only of equations with jumps.
        factors: format to which factors of products were rounded, see `comparison.MANTISSA`.
        loss, send: test loss of a center [P]; what arrives of the next message [P] of worker k, given both.
    """

    algorithm: str
    hyperparameters: Hyperparameters
    equations: Transcription
    workers: int
    steps: int
    start: np.ndarray
    trace: dict[str, np.ndarray]
    center: np.ndarray
    gradient: gradients.Gradient
    result: Mapping[str, Any]
    earlier_step_targets: Sequence[int] = ()
    sparse: bool = False
    ps: int = 1
    seed: int = 0
    servers_apart: bool = False
    shapes: Sequence[tuple[int, ...]] = ()
    decays: np.ndarray | None = None
    factors: str = "float32"
    losses: Mapping[int, float] = field(default_factory=dict)
    hostile: str | None = None
    loss: Callable[[np.ndarray], float] | None = None
    send: Callable[[np.ndarray, int], np.ndarray] = lambda message, k: message

    @property
    def order(self) -> list[int]:
        """Worker of each event."""
        return self.trace["worker"].tolist()

    @property
    def contacts(self) -> list[int]:
        """Worker k of each event, and ~k for an event at which a lost worker k starts anew."""
        return np.where(self.joins, ~self.trace["worker"], self.trace["worker"]).tolist()

    @property
    def has_jumps(self) -> bool:
        """True if something in the run is a discontinuous function of the gradients: rule, codec or inner optimizer."""
        inner, outer = (str(self.hyperparameters.get(f"{which}_optimizer")) for which in ("inner", "server"))
        signs = inner.startswith("lion") or outer == "yogi"
        return self.equations.jumps or self.equations.codec != "float32" or signs

    @property
    def joins(self) -> np.ndarray:
        """Mask of the events that are no messages, at which a lost worker starts anew from the center."""
        return self.trace["event"] == EVENTS.index("join")

    def execute(self) -> Execution:
        """Execute the paper's equations in the recorded order.

        Raises:
            UserError: the transcription does not cover an event of this run, or returns no list of centers.
            ValueError: a run of this algorithm cannot have this record.
        """
        self._check_before()
        centers = self.equations.execute(self, self.hyperparameters)
        shapes = {np.shape(one) for one in centers} if isinstance(centers, Sequence | np.ndarray) else type(centers)
        if shapes not in (set(), {self.start.shape}):
            wanted = f"must return a list of centers, each of shape {self.start.shape}"
            raise UserError(f"the equations of {self.algorithm} {wanted}. Received: {shapes}")
        least, expected = max([1, *self.losses]), "one after each message, or after each common update"
        must(len(centers) >= least, f"the equations returned {len(centers)} centers, of at least {least}: {expected}")
        if self.equations.kind == "asynchronous":
            messages = ~self.joins & (self.trace["event"] != EVENTS.index("pull"))
            must(self.trace["accepted"][messages].sum() == self.result["updates"], "how many updates there were")
        return Execution(centers[-1], np.array([self.loss(centers[v - 1]) for v in self.losses] if self.loss else []))

    def _check_before(self) -> None:
        """Raise `ValueError` if the sizes in the record contradict each other, before any equation is executed."""
        updates, versions = self.result["updates"], self.trace["version"]
        must(updates > 0 and not self.joins.all(), "a run has messages and updates")
        must(versions.min() >= 0 and max([versions.max(), *self.losses]) <= updates, "how many updates there were")
        if self.equations.kind != "alone":
            must(updates <= len(self.order), "how many updates there were")
            return
        must(updates <= self.steps <= ALONE_STEPS * len(self.order), "how many steps there were")
        if updates < self.steps:
            raise UserError("replay needs all steps, and some were left out, not being finite: replay another run")

    def error(self) -> float:
        """Return the distance of the run from its replay; raises as `execute` and `distance` do."""
        return distance(self.center, self.execute().center)


def distance(center: np.ndarray, replayed: np.ndarray) -> float:
    """Return the distance between two centers [P], relative to the second; raises `ValueError` if one is not finite."""
    for name, vector in (("of the run", center), ("of the replay", replayed)):
        if not np.isfinite(vector).all():
            raise ValueError(f"the center {name} is not finite")
    apart, length = np.linalg.norm(replayed - center), np.linalg.norm(replayed)
    return float(apart / length) if apart else 0.0


def must(agrees: Any, difference: str) -> None:
    """Raise `ValueError` unless the rule agrees with the record; `difference` names the difference."""
    if not agrees:
        raise ValueError(f"the rule and the record differ: {difference}")


def read_run(
    run_dir: Path,
    transcriptions: Mapping[str, Transcription],
    hyperparameters: Mapping[str, Any] | None = None,
    load: Callable[[str], Dataset] = make,
    problem: Mapping[str, Any] = {},
) -> RecordedRun:
    """Read the recorded run of a folder.

    Args:
        run_dir: folder of a run that has ended.
        transcriptions: the known equations, by the name of the algorithm.
        hyperparameters: those of the run, if they are more than config.json has.
        load: function of the name of a data set.
        problem: gradient, steps and shapes, if they do not follow from config.json.

    Raises:
        UserError: the run cannot be replayed; the message gives the reason.
    """
    config = record_format.read_config(run_dir)
    equations = transcriptions.get(name := config["algorithm"])
    if equations is None:
        raise UserError(f"{name} has no reference in NumPy: it is not transcribed; --import a file with its equations")
    if config["codec"] != equations.codec:
        raise UserError(f"the equations of {name} have no codec {config['codec']}: replay a run without")
    values = Hyperparameters(config["hyperparameters"] if hyperparameters is None else hyperparameters)
    for key, value in values.items():
        if key.endswith("rate") and isinstance(value, str) and not equations.scheduled:
            raise UserError(f"replay needs constant rates: replay a run without a schedule. Received: {key}={value}")
    if not (run_dir / "result.json").is_file():
        raise UserError(f"the run in {run_dir} has not ended: it has no result.json")
    result = record_format.read_result(run_dir)
    if result["updates"] is None:
        raise UserError(f"the run in {run_dir} ended without a result: result.json has no updates")
    trace, center = record_format.read_trace(run_dir, config), record_format.read_center(run_dir, "center.npz")
    problem = {"seed": config["seed"], **(problem or _computed(run_dir, config, equations.jumps, load))}
    if (size := sum(map(math.prod, problem["shapes"]))) != len(center):
        raise UserError(f"center.npz holds {len(center)} parameters, the model {config['model']} has {size}")
    start = record_format.read_center(run_dir, INITIAL).astype(np.float64)
    if len(start) != len(center):
        raise UserError(f"initial.npz holds {len(start)} parameters, and center.npz {len(center)}")
    return RecordedRun(
        algorithm=name,
        hyperparameters=values,
        equations=equations,
        workers=config["workers"],
        start=start,
        trace=trace,
        center=center,
        result=result,
        earlier_step_targets=config["earlier_step_targets"],
        ps=max(1, config["ps"]),
        servers_apart=config.get("servers_apart", False),
        hostile=config.get("hostile"),
        decays=_decays(problem["shapes"], config.get("without_decay", ())),
        factors=format_of_factors(config.get("arithmetic", {})),
        **problem,
    )


def _decays(shapes: Sequence[tuple[int, ...]], without: Sequence[int]) -> np.ndarray | None:
    """Return True for each parameter, [P], except those of the variables at the positions `without`; None for all."""
    if not without:
        return None
    if max(without) >= len(shapes):
        raise UserError(f"config.json is damaged: of {len(shapes)} variables, without_decay has {max(without)}")
    return np.concatenate([np.full(math.prod(shape), i not in without) for i, shape in enumerate(shapes)])


def format_of_factors(arithmetic: Mapping[str, Any]) -> str:
    """Return the format to which factors of products were rounded, the coarser one if workers had several."""
    return "bfloat16" if arithmetic.get("bfloat16") else "TF32" if arithmetic.get("tf32") else "float32"


def _computed(run_dir: Path, config: Mapping[str, Any], jumps: bool, load: Callable[[str], Dataset]) -> dict[str, Any]:
    """Return the fields of a `RecordedRun` that follow from data and model."""
    dataset = _dataset(run_dir, config["dataset"], load)
    on_rows, shapes, loss = _model(config, dataset)
    of_labels = lambda labels: _model(config, replace(dataset, train=(dataset.train[0], labels)))[0]  # noqa: E731
    whole = config["l2"] or config["clip_norm"] is not None or config["devices_per_worker"] > 1 or config.get("hostile")
    averages = config["ema_decay"] is not None  # losses are those of the average
    return {
        "steps": config["steps_per_worker"],
        "gradient": on_batches(config, dataset.train[1], on_rows, of_labels),
        "sparse": bool(dataset.features) and not whole and not averages,
        "shapes": shapes,
        "losses": recorded_losses(run_dir) if jumps and loss is not None and not averages else {},
        "loss": loss,
    }


def _dataset(run_dir: Path, name: str, load: Callable[[str], Dataset]) -> Dataset:
    """Return the data in the folder, or those of that name; raise `UserError` if they are neither."""
    if not (run_dir / DATA).exists():
        return load(name)
    arrays = record_format.read_arrays(run_dir, DATA)
    x, y, test_x, test_y = (arrays[part] for part in PARTS)
    for some, labels in ((x, y), (test_x, test_y)):
        whole = some.ndim > 1 and labels.ndim == 1 and labels.dtype.kind in "iu" and len(some) == len(labels) > 0
        if not whole or some.shape[1:] != x.shape[1:] or labels.min() < 0 or labels.max() >= MOST_TASKS:
            raise UserError(f"{DATA} is damaged: it needs {', '.join(PARTS)}; x [n, ...] and class numbers y [n]")
    return Dataset((x, y), (test_x, test_y), classes=1 + int(max(y.max(), test_y.max())))


MODELS: Mapping[str, Callable[..., tuple[int, ...]]] = {  # sizes of hidden layers, by the options of a model
    "softmax": lambda: (), "mlp": lambda *, hidden=(128,): hidden, "logistic": lambda: (),
}  # fmt: skip

ALPHAS: Mapping[str, Callable[..., float]] = {"dirichlet": lambda *, alpha=0.1: alpha, "sorted": lambda: 0.0}


def _model(config: Mapping[str, Any], dataset: Dataset) -> tuple[gradients.GradientOnRows, list[tuple[int, ...]], Any]:
    """Return the gradient of a model, the shapes of its variables, and its test loss, None if that is not known."""
    if (name := config["model"].partition(":")[0]) not in MODELS:
        raise UserError(f"the reference has no gradient of the model {name}. Known: {', '.join(MODELS)}")
    hidden = MODELS[name](**parse("model", config["model"], MODELS)[1])
    if dataset.kind != ("sparse" if name == "logistic" else "dense"):
        raise UserError(f"the model {name} is not for the data set {config['dataset']}")
    (x, y), (test_x, test_y), loss = dataset.train, dataset.test, None
    if name == "logistic":
        on_rows, shapes = gradients.sparse_logistic_gradient(x[0], x[1], y), [(dataset.features, 1)]
    else:
        x, test_x = x.reshape(len(x), -1), test_x.reshape(len(test_x), -1)
        sizes = [x.shape[1], *hidden, dataset.classes]
        shapes = [shape for n, m in pairwise(sizes) for shape in ((n, m), (m,))]
        on_rows, loss = gradients.mlp_gradient(x, y, sizes), gradients.mlp_loss(test_x, test_y, sizes)
    return on_rows, shapes, loss


def on_batches(
    config: Mapping[str, Any], labels: np.ndarray, on_rows: gradients.GradientOnRows, of_labels: Callable[..., Any]
) -> gradients.Gradient:
    """Return the gradient of worker k's t-th batch, as config.json describes batches and changes of gradients.

    `on_rows` is that of examples, and `of_labels` returns it with other labels.
    """
    if config["l2"] or config["clip_norm"] is not None:
        on_rows = gradients.regularized(on_rows, config["l2"], config["clip_norm"])
    workers, size, seed = (config[name] for name in ("workers", "batch_size", "seed"))
    share = config.get("participation")
    clients = workers if share is None else max(workers, round(workers / max(share, 1 / MOST_TASKS)))
    if size > (shard := (n := len(labels)) // clients):
        raise UserError(f"batch_size must be at most {shard}, the examples of a shard. Received: batch_size={size}")
    rule, options = parse("skew", config["skew"], ALPHAS) if config["skew"] is not None else ("", {})
    skew = (labels, ALPHAS[rule](**options)) if rule else None
    gradient = gradients.batch_gradient(on_rows, examples=n, workers=clients, seed=seed, batch_size=size, skew=skew)
    if share is not None:
        from .elastic import of_clients  # not at the top: equations beside the base

        gradient = of_clients(config, gradient, clients)
    if config.get("hostile") is None:
        return gradient
    from .under_attack import of_hostile  # not at the top: equations beside the base

    honest = {**config, "hostile": None}
    return of_hostile(config, gradient, lambda: on_batches(honest, labels, of_labels(labels.max() - labels), of_labels))


def recorded_losses(run_dir: Path) -> dict[int, float]:
    """Return the recorded losses on the test data, by the version of the center."""
    rows = [row for row in record_format.read_rows(run_dir / "metrics.jsonl") if row.get("kind") == "center"]
    found = {row["version"]: row.get("test_loss") for row in rows if type(row.get("version")) is int}
    return {version: loss for version, loss in sorted(found.items()) if version > 0 and isinstance(loss, float)}
