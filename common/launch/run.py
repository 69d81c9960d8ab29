"""A run started by this program: its folder, its subscribers, its tasks, and the final center for the model."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..cards import ask, crowded
from ..cluster.fingerprint import class_digest, data_digest, identity, model_digest
from ..contract.checks import limits_of, warnings_of
from ..errors import CannotWrite, Diverged, Interrupted
from ..files import Lock, in_one_line, replacing
from ..kernels import VARIABLE, used_here
from ..record import checkpoint
from ..record.callbacks import Callback, CallbackList
from ..record.display import Display, SimulationDisplay, in_notebook, native_output
from ..record.events import EventBus
from ..record.keras_callbacks import EVALUATED
from ..record.run_directory import RunRecord, check_steps, load_center
from ..settings import compared, using
from ..signals import StopSignals
from ..tasks.interruption import stop_file
from ..tasks.job import Job, checkpoints_of
from ..tasks.results import write_data, write_graph
from ..worker.flat_model import FlatModel, unused_optimizer
from .gpus import planned, shares
from .here import run_here
from .launcher import launch
from .supervisor import OnEvent

CALLBACK_ROOM = 100  # events may wait for the callbacks before those of progress are thinned


def run(
    job: Job,
    config: dict[str, Any],
    verbose: bool,
    model: Any = None,
    callbacks: Sequence[Callback] = (),
    begin: Callable[..., None] | None = None,
) -> tuple[RunRecord, BaseException | None]:
    """Run a job; returns its record and its failure, None if it ended well.

    With `model`, the tasks of the threads and simulation back ends run in this process. The model receives the center,
    also if a signal has interrupted the run.
    `begin`, if given, takes the place of `start`.
    """
    with StopSignals(job.options.recovery.signals, partial(_ask_to_stop, job)) as stop:
        return _run(job, config, verbose, model, callbacks, begin or start, stop)


def _ask_to_stop(job: Job, name: str) -> None:
    """Ask the evaluator to end the run; elsewhere the tasks wait for that, as the others may have had the signal, too.

    Raises:
        CannotWrite: the file cannot be written.
    """
    if job.cluster.evaluates:
        with replacing(stop_file(job)) as file:
            file.write(name.encode())


def _has_begun(job: Job, event: dict[str, Any]) -> bool:
    """Return True for an event from which on a run that is interrupted has results."""
    begins = ("observing", "first_update", "ordered") if job.cluster.evaluates else ("listening", "ready")
    return event["event"] in begins


def _run(
    job: Job,
    config: dict[str, Any],
    verbose: bool,
    model: Any,
    callbacks: Sequence[Callback],
    begin: Callable[..., None],
    stop: StopSignals,
) -> tuple[RunRecord, BaseException | None]:
    if job.cluster.task is not None:
        job.identity = identity(config, job.cluster.task, in_common(job, model))
        job.program = uuid.uuid4().hex
    lock = Lock(job.run_dir)  # until the record is finished
    try:
        warnings = _resume(job, job.options.recovery.resume) if job.options.recovery.resume is not None else []
        warnings += checkpoint.tidy(job.run_dir)
        warnings += [*job.warnings, *warnings_of(job.scheme, job.cluster.workers)]
        every, uses_ps = job.options.evaluate_every, job.ps > 0
        for hook in callbacks:
            warnings += hook.warnings(every is not None, uses_ps)
        if model is not None and (optimizer := unused_optimizer(model)):
            warnings.append(f"the model's optimizer, {optimizer}, is not used: {job.scheme.name} takes the steps")
        record = RunRecord(job.run_dir, config, job.cluster.task, lock)
    except BaseException:
        lock.release()
        raise
    if job.cluster.simulated:
        display = SimulationDisplay(config)
    else:
        is_local = job.cluster.task is None
        display = Display(config, planned=planned(job.cluster.workers, job.devices_per_worker) if is_local else "")
    error: BaseException | None = None
    hooks = None
    try:
        hooks = CallbackList(callbacks, config, job.run_dir)
        bus = _event_bus(record, hooks, display, verbose)
        record.publish = bus.publish

        def publish(event: dict[str, Any]) -> None:
            stop.begun = stop.begun or _has_begun(job, event)
            bus.publish(event)

        quiet = native_output(job.run_dir / "logs" / "notebook.log") if in_notebook() else contextlib.nullcontext()
        with quiet, display if verbose else contextlib.nullcontext(), bus:
            for message in warnings:
                bus.publish({"event": "warning", "message": message})
            for message in limits_of(job.scheme, job.cluster.workers):
                bus.publish({"event": "limits", "message": message})
            if job.cluster.task is not None and verbose:
                display.task(job.cluster.task, job.cluster.wait_seconds)
            if job.cluster.evaluates:
                write_graph(job.run_dir, job.scheme.sync.topology, job.cluster.workers)
            begin(job, publish, model, lambda: stop.number)
            stop.check()
            if job.script is not None:
                check_steps(record)
        if record.unwritten:
            raise CannotWrite("; ".join(record.unwritten))
        _keep(job, config, model)
    except Interrupted as signal:
        error = signal
    except KeyboardInterrupt:
        error = Interrupted(2)
    except BaseException as problem:  # `SystemExit` too: the caller finishes the record, and frees the folder
        error = in_one_line(problem)
        if isinstance(error, Diverged) and record.too_large:
            error = Diverged(f"{error}; {record.too_large}")
    stop.over = True
    if isinstance(error, Interrupted):
        with contextlib.suppress(CannotWrite):
            _keep(job, config, model)
    elif error is None and stop.number is not None:
        error = Interrupted(stop.number)
    if hooks is not None:
        try:
            hooks.close(error)
        except Exception as problem:
            error = error or in_one_line(problem)
    if job.cluster.is_chief:
        checkpoint.sweep(job.run_dir)
        with contextlib.suppress(OSError):
            (job.run_dir / EVALUATED).unlink(missing_ok=True)  # still there if a callback has raised
    if job.cluster.evaluates:
        checkpoint.sweep_results(job.run_dir)
        with contextlib.suppress(OSError):
            stop_file(job).unlink(missing_ok=True)
    return record, error


def _keep(job: Job, config: dict[str, Any], model: Any) -> None:
    """Write the data that a replay needs, and load the center, if there is one, into the caller's model."""
    if not (job.cluster.evaluates and (job.run_dir / "center.npz").exists()):
        return
    write_data(job.run_dir, config, job.train, job.test)
    if model is not None:
        load_center(job.recipe.flat(model), job.run_dir)


def start(job: Job, on_event: OnEvent, model: Any = None, interrupted: Callable[[], object] = bool) -> None:
    """Start all tasks of a job, and return when all of them have ended; `on_event` receives every event.

    Once `interrupted()` is true, tasks in other processes have a limited time to end.

    The tasks run in this process if it has the Keras `model` and the back end allows it, else in supervised processes,
    which build a model of their own.

    Raises:
        DistsgdError: the first failure.
    """
    if model is not None and job.cluster.placement.in_process:
        report_kernels(job, on_event)
        if job.cluster.simulated is None and (sharing := shares(job)):
            for line in crowded(ask()(), dict.fromkeys(sharing, 1), in_process=True):
                on_event({"event": "warning", "message": line})
        with using(job.recipe.settings):
            run_here(job, lambda **event: on_event(event), job.recipe.flat(model))
    else:
        launch(job, on_event, interrupted)


def report_kernels(job: Job, on_event: OnEvent) -> None:
    """Report the kernels of a run in this process, with a warning if others were asked for, or are faster."""
    used, chosen = used_here(), job.kernels
    why = chosen.why if used == chosen.name else "TensorFlow was imported before the run"
    on_event({"event": "kernels", "used": used, "why": why})
    if used != chosen.name and (chosen.name == "onednn" or job.options.kernels != "auto"):
        pair = f"{VARIABLE}={chosen.environment[VARIABLE]}"
        text = f"TensorFlow was imported with the kernels {used}: for {chosen.name}, set {pair} before ({chosen.why})"
        on_event({"event": "warning", "message": text})


def _event_bus(record: RunRecord, hooks: CallbackList, display: Display, verbose: bool) -> EventBus:
    """Return the subscribers of a run: callbacks, record, and the display if `verbose`; late ones cause a warning."""
    bus = EventBus(announce=display.say)
    disk = f"the disk of {record.run_dir}"

    def warn(name: str, seconds: float) -> None:
        text = f"{name} cannot keep up, and is {seconds:.0f} s behind: it may miss some reports of progress"
        bus.publish({"event": "warning", "message": text})

    if hooks.callbacks:
        bus.add(hooks.on_event, hooks.slowest, room=CALLBACK_ROOM, on_late=lambda s: warn(hooks.slowest(), s))
    bus.add(record.on_event, lambda: disk, on_late=lambda s: warn(disk, s))
    if verbose:
        bus.add(display.on_event, lambda: "the display", room=0)
    return bus


def in_common(job: Job, model: Any) -> dict[str, Any]:
    """Return the properties outside the configuration that the tasks of a run on several machines must share."""
    recovery = {name: getattr(job.options.recovery, name) for name in ("max_restarts", "min_workers", "on_nan")}
    data = data_digest((job.train, job.test))  # of a name, too: files, or texts from Python, may differ
    options: dict[str, Any] = {"recovery": recovery, "source": class_digest(type(job.scheme)), "data": data}
    if job.script is not None:
        options["script"] = hashlib.sha256(job.script.path.read_bytes()).hexdigest()[:12]
    if model is not None:
        options["model"] = model_digest(model)
        options["keras_settings"] = compared(job.recipe.settings)
        options["weights that do not train"] = data_digest(
            FlatModel(model).frozen_values()
        )  # the chief sends the others
    return options


def _resume(job: Job, source: Path) -> list[str]:
    """Copy the files of the run to resume: the checkpoint for the chief, the record for an evaluator elsewhere."""
    if job.cluster.is_chief:
        warnings = checkpoint.take_over(checkpoints_of(source, job.cluster), job.run_dir)
        for join in source.iterdir() if job.script is not None else ():  # those of a script, but for the first
            warnings += checkpoint.take_over(join, job.run_dir / join.name) if checkpoint.found(join) else []
        return warnings
    if job.cluster.evaluates:
        checkpoint.take_over_record(source, job.run_dir)
    return []
