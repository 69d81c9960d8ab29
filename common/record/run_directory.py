"""The record of a run: its folder, with configuration, metrics, result and plot.

runs/<algorithm>/<time>-<id>/
    config.json     the configuration that was asked for
    metrics.jsonl   a line for each report of a worker ("worker") and each evaluation of the center ("center");
                    every n-th of each if the run is long
    result.json     how the run ended; also written after a failure
    plot.png        loss and error over time
    checkpoints/    states from which the run can be resumed; events.bin: the events so far (with record="off" only
                    the last ones, and counts.json)
    trace.npz       every event on the parameter server, in order (not with record="off")
    initial.npz     the center before the first update (not with record="off"); data.npz: data that have no NumPy recipe
    topology.txt    the mixing matrix of workers that gossip, if it is from a file
    rounds.npz      every round: begun, ready, computed, arrived, released, replied (not with record="off")
    center.npz      the center as one flat vector; model.keras: the same as a Keras model
    logs/           the output of each task
    .lock           held by the program of this run until it ends
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cluster.task_spec import TaskSpec
from ..errors import CannotWrite, DistsgdError, Interrupted, UserError
from ..files import Lock, cannot_write_into, dumps, finite, write_json
from ..record_format import DATA, INITIAL, is_of_script, read_arrays, read_config, read_json, short, with_script
from ..reports import OF_LATER_JOIN
from ..signals import held
from ..sync.topology import GRAPH
from ..worker.flat_model import FlatModel
from . import checkpoint
from .cpu import CpuRecord
from .faults import Faults
from .latest import ROOT, make_latest
from .metrics import Metrics, Row, logged, others, worsened
from .plot import Drawn, accuracy_of, draw, save
from .round_log import Shares

NOT_FIGURES = {"event", "task", "when", "virtual", "join", "its"}  # fields of an event that are no metrics

# Kind of row in metrics.jsonl, by event.
ROWS = {"worker": "worker", "figures": "worker", "center": "center", "passed": "center"}

SHOWN = 400  # characters of a differing value that an error shows

# Fields of the configuration that a resumed run must have in common with the run before.
RESUMED = (
    "algorithm", "hyperparameters", "workers", "dataset", "model", "architecture", "keras_settings", "batch_size",
    "ema_decay", "seed", "skew", "participation", "hostile", "clip_norm", "l2", "codec", "record", "without_decay",
)  # fmt: skip

OF_JOIN = ("algorithm", "hyperparameters", "model")  # those of a script's run, known when it joins


def new_run_dir(algorithm: str) -> Path:
    """Return the path of a new run directory; it is not created yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return ROOT / algorithm / f"{stamp}-{uuid.uuid4().hex[:6]}"


def load_center(model: FlatModel, run_dir: Path, name: str = "center.npz") -> None:
    """Load into a model the center of a run that has ended, or its moving average if the run kept one."""
    saved = read_arrays(run_dir, name)
    model.load(saved["average" if "average" in saved else "center"], saved["state"])


def is_complete(run_dir: Path) -> bool:
    """Return True if the run in this folder has completed."""
    with contextlib.suppress(UserError):  # no result, or a damaged one
        return read_json(run_dir / "result.json").get("outcome") == "completed"
    return False


def check_resumed(run_dir: Path, config: dict[str, Any]) -> None:
    """Raise `UserError` if a run with this configuration cannot resume the one in the folder."""
    before, wanted = read_config(run_dir), json.loads(dumps(config))
    if is_of_script(before.get("hyperparameters", {})):  # that optimizer has made no step yet in this start
        wanted["hyperparameters"] = with_script(wanted["hyperparameters"])
    for name in RESUMED:
        if before.get(name) != wanted.get(name):
            had, wants = (short(some.get(name), SHOWN) for some in (before, wanted))
            raise UserError(
                f"{run_dir} holds checkpoints of a run with {name}={had}: resume with the same, or choose another run "
                f"directory. Received: {name}={wants}"
            )


class RunRecord:
    """Collects the events of a run and writes its folder.

    Args:
        run_dir: the folder.
        config: the configuration.
        task: the task of this program in a run on several machines.
        lock: of the folder, held until the end.
        is_part: True for a later join of a script, whose folder is in that of the run.
    """

    def __init__(
        self,
        run_dir: Path,
        config: dict[str, Any],
        task: TaskSpec | None = None,
        lock: Lock | None = None,
        *,
        is_part: bool = False,
    ):
        self.run_dir, self.config, self.task, self.lock = run_dir, config, task, lock
        self.later_joins: dict[str, RunRecord] = {}  # of a script, by their names
        self.publish: Callable[[dict[str, Any]], None] = self.on_event  # publishes an event to all subscribers
        self.began = time.monotonic()
        self.finished: dict[int, dict[str, Any]] = {}
        self.steps: dict[int, int] = {}
        self.last: dict[str, Any] = {}
        self.first_update: float | None = None
        self.network: str | None = None
        self.kernels: dict[str, str] | None = None  # which are used, and why
        self.devices: dict[int, list[str]] = {}  # of each worker that has reported them here
        self.unusable = ""  # why workers compute on the CPU, though there is a driver for GPUs
        self.simulated: dict[str, Any] = {}  # only of a run in virtual time: its virtual and real durations
        self.curvature: dict[str, float] | None = None  # of the loss where the run began, and the limit of the rate
        self.too_large = ""  # why the learning rate is above that limit
        self.stopped: str | None = None
        self.has_result = False
        self.advice: str | None = None  # a warning on the losses, which takes precedence over advice on the rounds
        self.unwritten: list[str] = []  # why some of the result files could not be written
        self.faults, self.cpu = Faults(), CpuRecord(config["workers"])
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            elsewhere = task is not None and task.separate_evaluator  # the checkpoints are on the chief's machine
            resuming = bool(checkpoint.found(run_dir)) or (elsewhere and (run_dir / "events.bin").exists())
            if is_part:  # its configuration is written when the script joins, after a comparison
                (run_dir / "result.json").unlink(missing_ok=True)
            elif resuming:
                self._prepare_to_resume()
            elif (task is None or task.evaluates) and self._holds_results():
                raise UserError(
                    f"the run directory already holds a run without checkpoints: choose another. Received: {run_dir}"
                )
            else:
                for name in (INITIAL, DATA, GRAPH):  # of a run that failed here
                    (run_dir / name).unlink(missing_ok=True)
            if not is_part:
                write_json(run_dir / "config.json", config)
                make_latest(run_dir)
            self.metrics = Metrics(run_dir / "metrics.jsonl", resuming)
            self.began -= max((row["seconds"] for row in self.rows), default=0)  # seconds of the run that is resumed
        except OSError as error:
            raise cannot_write_into(run_dir, error) from None

    @property
    def rows(self) -> list[Row]:
        """Rows of metrics.jsonl; of a long run every n-th of each series, its first and its last."""
        return self.metrics.rows

    def _holds_results(self) -> bool:
        """Return True if the folder has results of a run; a run that failed before its first metrics has none."""
        metrics = self.run_dir / "metrics.jsonl"
        return (self.run_dir / "result.json").exists() and metrics.exists() and metrics.stat().st_size > 0

    def _prepare_to_resume(self) -> None:
        """Prepare to resume the run in this folder; raise `UserError` if its configuration is another one."""
        before = read_config(self.run_dir)
        self.config |= {name: before[name] for name in ("arithmetic",) if name in before}
        is_script = "steps_per_worker" not in self.config
        if is_script:  # its algorithm is compared when worker 0 joins
            self.config |= {name: before[name] for name in OF_JOIN if name in before}
        check_resumed(self.run_dir, self.config)
        done = not is_script and is_complete(self.run_dir)
        if done and self.config["steps_per_worker"] <= before["steps_per_worker"]:
            raise UserError(
                f"the run in {self.run_dir} is complete: ask for more steps, or choose another run directory. "
                f"Received: {self.config['steps_per_worker']} steps of each worker"
            )
        for name in ("result.json", "trace.npz"):  # of the start before: no evidence of one that fails from here on
            (self.run_dir / name).unlink(missing_ok=True)

    def on_event(self, event: dict[str, Any]) -> None:
        """Record one event."""
        self.faults.on_event(event)
        if self.task is None:  # with several machines, it would see only some of the tasks
            self.cpu.on_event(event)
        now = event["virtual"] if "virtual" in event else event.get("when", time.monotonic()) - self.began
        kind = event["event"]
        if kind in ROWS:
            fields = {k: v for k, v in event.items() if k not in NOT_FIGURES}
            row = {"kind": ROWS[kind], "seconds": round(now, 3), **fields}
            self._add(row)
        if kind == "worker":
            self.steps[event["worker"]] = event["steps"]
        elif kind == "finished":
            self.finished[event["worker"]] = event
            self.steps[event["worker"]] = event["steps"]  # a restarted worker without rounds left reports nothing else
        elif kind in ("result", "center", "kept"):
            self.has_result = self.has_result or kind == "result"
            self.last = {k: v for k, v in event.items() if k not in NOT_FIGURES}  # without metrics of an older center
            self.unwritten = event.get("unwritten", [])
            if kind == "result" and (
                worse := worsened(self.rows, self.last, self.config["hyperparameters"], self.too_large)
            ):
                self.advice = worse
                self.publish({"event": "warning", "message": worse})
            if (
                kind == "result" and self.stopped is not None and self.stopped in signal.Signals.__members__
            ):  # the last checkpoint may take longer
                with contextlib.suppress(CannotWrite):  # than a scheduler allows
                    interrupted = Interrupted(signal.Signals[self.stopped])
                    write_json(self.run_dir / "result.json", finite(self._result(interrupted)))
        elif kind == "curvature":
            self.curvature = {name: event[name] for name in ("curvature", "largest_rate")}
            self.too_large = event["too_large"]
        elif kind in ("resumed", "restored"):
            self.metrics.undo(event["version"])
        elif kind == "first_update" and self.first_update is None:
            self.first_update = now
        elif kind == "stopped":
            self.stopped = event["reason"]
        elif kind == "arithmetic":
            self._note_arithmetic(event)
        elif kind == "joined":  # the algorithm of a script is known
            self.config |= event["config"]
            write_json(self.run_dir / "config.json", self.config)
        elif kind == "stepped":  # the optimizer of a script makes the local steps
            self.config["hyperparameters"] = with_script(self.config["hyperparameters"])
            write_json(self.run_dir / "config.json", self.config)
        elif kind == OF_LATER_JOIN:
            self._later_join(event["join"]).on_event({**event, "event": event["its"]})
        elif kind == "network":
            self.network = event["state"]
        elif kind == "devices":
            self.devices[event["worker"]] = event["devices"]
            if event["unusable"] and not self.unusable:
                self.unusable = event["unusable"]
                self.publish({"event": "warning", "message": self.unusable})
        elif kind == "kernels":
            self.kernels = {name: event[name] for name in ("used", "why")}
        if "virtual" in event:
            self.simulated["virtual_seconds"] = event["virtual"]
        self.simulated |= {name: event[name] for name in ("order_seconds", "arithmetic_seconds") if name in event}

    def _note_arithmetic(self, event: dict[str, Any]) -> None:
        """Add the arithmetic of a worker to that of the others, and of the runs that this one resumes."""
        before = self.config.get("arithmetic", {})
        now = {name: before.get(name, False) or event[name] for name in ("tf32", "bfloat16", "xla")}
        if now != before:
            self.config["arithmetic"] = now
            with contextlib.suppress(CannotWrite):  # result.json has it, too
                write_json(self.run_dir / "config.json", self.config)

    def _later_join(self, name: str) -> RunRecord:
        """Return the record of a later join of a script."""
        if name not in self.later_joins:
            self.later_joins[name] = RunRecord(self.run_dir / name, dict(self.config), self.task, is_part=True)
        return self.later_joins[name]

    def _add(self, row: Row) -> None:
        """Add a row to the metrics; if it cannot be written, warn and continue the run without metrics on the disk."""
        try:
            self.metrics.add(row)
        except CannotWrite as error:
            self.metrics.stop_writing()
            self.publish({"event": "warning", "message": f"{error}: the metrics from here on are not on the disk"})

    def history(self) -> dict[str, list[Any]]:
        """Return the metrics of the center over time, a list for each name; `loss` is the workers' mean so far."""
        centers = [row for row in self.rows if row["kind"] == "center"]
        names = {name: None for row in centers for name in row if name != "kind"}
        return {name: [row.get(name) for row in centers] for name in names}

    def finish(self, error: BaseException | None, picture: bool = True) -> dict[str, Any]:
        """Write result.json and the plot (if a `picture` is wanted); returns the result as JSON can hold it.

        Raises:
            CannotWrite: the run succeeded, but its result cannot be written.
        """
        with held():
            return self._finish(error, picture)

    def _finish(self, error: BaseException | None, picture: bool) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            self.metrics.close()
        result = finite(self._result(error))
        if self.lock is not None:
            self.lock.make_room()
        try:
            for join in self.later_joins.values():
                join.network, join.kernels, join.stopped = self.network, self.kernels, self.stopped
                join.devices = self.devices
                join.finish(error, picture)
            write_json(self.run_dir / "result.json", result)
            if picture and any(row["kind"] == "center" for row in self.rows):
                save(draw([Drawn(self.config, self.rows)]), self.run_dir / "plot.png")
        except CannotWrite as problem:
            if error is None:
                with contextlib.suppress(CannotWrite):  # only the plot may have had no room
                    write_json(self.run_dir / "result.json", self._result(problem))
                raise
            result["recovery"]["warnings"].append(str(problem))
        finally:
            if self.lock is not None:
                self.lock.release()
        return result

    def _result(self, error: BaseException | None) -> dict[str, Any]:
        config, last = self.config, self.last
        seconds, rate, tracing = last.get("training"), None, None
        if seconds is None and self.finished:  # the record has no first round: it is off, and the run was long
            ended = max(e["ended"] for e in self.finished.values())
            seconds = ended - min(e["started"] for e in self.finished.values())
        elif self.finished:  # a worker that was started again prepares later than its first round
            begun = last["first_rounds"]
            tracing = max(0, *(begun.get(str(k), 0) - e["prepared"] for k, e in self.finished.items())) / 1e6
        if "updates" in last and self.simulated:
            seconds = self.simulated["virtual_seconds"]
        steps = last.get("steps", sum(self.steps.values()))  # the count of the ps at the end is the exact one
        examples = steps * config["batch_size"] if "batch_size" in config else None  # a script has batches of its own
        if seconds and examples is not None:
            before = sum(e["first"] for e in self.finished.values()) if self.faults.resumption else 0
            rate = (examples - before * config["batch_size"]) / seconds
        shares = Shares(**last["round"]) if last.get("round") else None
        # Only of a run in virtual time: its machines and real durations. All other times are virtual there.
        simulated = {name: _rounded(value) for name, value in self.simulated.items()}
        simulated |= {"platform": config.get("platform")}
        outcome, code = "completed", 0
        if isinstance(error, Interrupted) and self.has_result and self.stopped != error.signal:
            error = None  # the signal came when the run was complete
        if error is not None:
            outcome = error.outcome if isinstance(error, DistsgdError | Interrupted) else "failed"
            code = error.exit_code if isinstance(error, DistsgdError | Interrupted) else 1
        stopped = error.signal if isinstance(error, Interrupted) else self.stopped  # perhaps before a task noticed it
        return {
            "algorithm": config["algorithm"],
            "outcome": outcome,
            "exit_code": code,
            "message": _message_of(error),
            "backend": config["backend"],
            **({"simulated": simulated} if "platform" in config else {}),
            "workers": config["workers"],
            "ps": config["ps"],
            "seed": config["seed"],
            "steps": steps,
            "examples": examples,
            "updates": last.get("updates", last.get("version")),
            "seconds_to_first_update": _rounded(self.first_update),
            "seconds_tracing": _rounded(tracing),
            "seconds_training": _rounded(seconds),
            "seconds_total": _rounded(time.monotonic() - self.began),
            "examples_per_second": _rounded(rate, 1),
            "test_accuracy": accuracy_of(last),
            "test_loss": last.get("test_loss"),
            **others(last),
            **({"losses": last["losses"]} if "losses" in last else {}),
            **({"figures": logged(self.rows)} if examples is None else {}),
            "staleness": {
                "mean": last.get("staleness_mean"),
                **({"steady": last["staleness_steady"]} if "staleness_steady" in last else {}),
                "max": last.get("staleness_max"),
                "histogram": last.get("staleness_histogram", {}),
            },
            "bytes_pushed": last.get("bytes_pushed", 0),
            "bytes_pulled": last.get("bytes_pulled", 0),
            "dropped": last.get("dropped", 0),
            "share_of_updates": last.get("share_of_updates"),
            "round": shares.as_dict() if shares else None,
            "advice": self.advice or (shares.in_words(config) if shares else None),
            "curvature": self.curvature,
            "cpu": self.cpu.summary(),
            "stopped_by": stopped,
            "recovery": self.faults.summary(),
            "network": self.network,
            "kernels": self.kernels,
            "devices": {f"worker-{worker}": devices for worker, devices in sorted(self.devices.items())},
            "arithmetic": config.get("arithmetic"),
            "record": config["record"],
            "run_dir": str(self.run_dir),
        }


def _message_of(error: BaseException | None) -> str | None:
    """Return the message for result.json if the run has failed, else None."""
    if isinstance(error, SystemExit):
        return f"this program was ended by sys.exit({error.code!r})"
    return None if error is None else str(error)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def check_steps(record: RunRecord) -> None:
    """Name the joins of a script that has ended in which no worker has made a step.

    Raises:
        UserError: these are all joins of the script.
    """
    joins = {"": record, **record.later_joins}
    idle = {name: join for name, join in joins.items() if not _has_steps(join)}
    if not idle or record.stopped is not None:
        return
    where = " and ".join(f"the join {name or 'of ' + join.config['algorithm']}" for name, join in idle.items())
    message = (
        f"no worker has made a step in {where}, so the center is where it began: call worker.step(gradient), or "
        "worker.stepped() after an optimizer, in the block of distsgd.join"
    )
    if len(idle) == len(joins):
        raise UserError(message)
    record.publish({"event": "warning", "message": message})


def _has_steps(join: RunRecord) -> bool:
    """Return True if a worker has made a step, or the number is not known here."""
    return bool(sum(join.steps.values()) or join.last.get("updates", 1))
