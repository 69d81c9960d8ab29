"""The description of a run that each task receives: model, data, algorithm, options and cluster."""

from __future__ import annotations

import io
import numbers
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..arguments import at_most
from ..cluster.cluster import Cluster
from ..cluster.fingerprint import in_words
from ..cluster.restart_rule import RestartRule
from ..contract.adapting import adapting, adapts
from ..contract.attacks import check_attack
from ..contract.checks import check_update, fitted, kept_by
from ..contract.decay import weight_decay_of
from ..contract.rounding import only_takes_gradients
from ..contract.scheme import Scheme
from ..data import inputs, skew
from ..data.dataset import largest_labels, number_of_clients
from ..data.examples import arrays_of
from ..data.models import ModelRecipe
from ..errors import UserError
from ..hostile import Attack, attack_of
from ..kernels import Choice, choose
from ..lazy import tf
from ..messages import segments
from ..messages.codec import BatchCoordinates, Codec
from ..messages.cut import even_sizes
from ..record import checkpoint
from ..record.event_log import KEEP, EventLog
from ..record.metrics import Summaries
from ..record.run_directory import is_complete, new_run_dir
from ..record_format import read_config
from ..server.traffic import Traffic
from ..settings import is_deterministic, set_here, unusual
from ..sync.asynchronous import Async, Unlocked
from ..sync.in_regions import InRegions
from .options import MAX_STEPS, Recovery, RunOptions, TransportName
from .plan import Plan

CHIEF = 0


@dataclass(frozen=True)
class Script:
    """A script that the workers of a run execute: its own loops take the gradients.

    Attributes:
        path: absolute path of the script.
        arguments: the words after it on the command line.
        folder: where worker 0 leaves the terms of each join; the launcher makes it.
        records_gradients: True if each worker writes the gradients of its steps to the run directory.
    """

    path: Path
    arguments: Sequence[str] = ()
    folder: Path = Path()
    records_gradients: bool = False


@dataclass
class Job:
    """The description of a run, the same for every task but for the folder."""

    scheme: Scheme
    recipe: Any  # a `ModelRecipe`, or the `Parameters` of a script
    train: Any  # nested arrays, or a function of a tf.distribute.InputContext that returns a tf.data.Dataset
    test: Any
    cluster: Cluster
    options: RunOptions
    steps: int  # local steps of each worker
    run_dir: Path  # folder of this task: that of the whole run, or one in it
    kernels: Choice = field(default_factory=choose)
    earlier_step_targets: Sequence[int] = ()  # steps of the earlier runs that this one resumes, if they were fewer
    shares: Sequence[int] = ()  # batches of each worker in an epoch, if they differ and the steps are those of epochs
    evaluate_seconds: float = 0.1  # between two evaluations of the center
    evaluate_later: bool = False  # evaluate only snapshots, after the training
    shows_centers: bool = False  # Keras' callbacks see each evaluated center, and the evaluator waits for them
    graph_file: Path | None = None  # where the evaluator leaves a graph for the workers of this machine
    identity: Mapping[str, Any] = field(default_factory=dict)  # values that must agree between tasks on all machines
    script: Script | None = None  # of a run that `launch` starts
    warnings: list[str] = field(default_factory=list)  # of its preparation: the run prints them when it begins
    losses: list[float] = field(default_factory=list)  # of the run so far, where its rounds follow from them
    prefix: str = ""  # of the names of all variables, queues and locks: different for each `join` of a script
    program: str = ""  # the program that has started this task, among those of several machines
    began: int = field(default_factory=lambda: time.time_ns() // 1000)  # this start, in microseconds since 1970

    @property
    def plan(self) -> Plan:
        """The rounds and batches of each worker."""
        steps = self.steps, self.earlier_step_targets, self.shares, self.losses
        return Plan(self.scheme, self.train, self.cluster.workers, self.options, *steps)

    @property
    def sees_waiting(self) -> bool:
        """True if tasks can read which workers wait for others: on a ps, or in the memory of all threads."""
        sync = self.scheme.sync
        return sync.waits and not sync.gossips and (sync.uses_ps or self.cluster.placement.in_process)

    def event_log(self) -> EventLog:
        """Return the log of the run's events in the folder of this task."""
        return EventLog(self.run_dir, self.cluster.workers, None if self.options.every_round else KEEP)

    def summaries(self) -> Summaries | None:
        """Return the writer of summaries for TensorBoard; None unless the options ask for them."""
        return Summaries(self.run_dir / "tb") if self.options.tensorboard else None

    @property
    def shared_graph(self) -> Path | None:
        """File with the workers' graph; None if each builds its own."""
        return self.graph_file if self.alike else None

    @property
    def alike(self) -> bool:
        """True if the graphs of all workers are equal: not with a data function, a collective or regions."""
        return not (callable(self.train) or self.scheme.sync.is_collective or self.scheme.sync.in_regions)

    @property
    def ps(self) -> int:
        """Number of ps tasks; 0 without a parameter server."""
        return self.cluster.ps if self.scheme.sync.uses_ps else 0

    @property
    def sparse(self) -> bool:
        """True if workers pull and push only the coordinates of their batch; else vectors are dense."""
        options, devices = self.options, self.devices_per_worker
        return self.recipe.sparse and self.scheme.sparse and not is_dense(options, options.ema_decay, devices)

    @property
    def in_place(self) -> bool:
        """True if workers may take gradients at the center itself, which is in their memory, instead of at a copy."""
        options, codecs = self.options, (type(self.codec), type(self.scheme.codecs()[1]))
        whole = self.sparse or is_dense(options, None, self.devices_per_worker)
        fits = isinstance(self.scheme.sync, Unlocked) and only_takes_gradients(self.scheme)
        return fits and self.cluster.placement.in_process and not whole and codecs == (Codec, Codec)

    @property
    def attack(self) -> Attack:
        """What hostile workers do."""
        return attack_of(self.options.hostile)

    @property
    def labels(self) -> list[float | None]:
        """The largest labels, if hostile workers count them from the other end."""
        return largest_labels(self.train[1]) if self.attack.kind == "label-flip" else []

    @property
    def codec(self) -> Codec:
        """The codec of messages."""
        if self.sparse:
            return BatchCoordinates(self.options.batch_size * self.train[0][0].shape[1])
        return self.scheme.codecs()[0]

    def compiles(self, gpu: bool) -> bool:
        """Return True if XLA compiles the gradients of workers that compute on a GPU, or on a CPU."""
        jit = self.options.jit
        return jit == "on" or (jit == "auto" and gpu and not self.recipe.without_xla)

    @property
    def transport(self) -> TransportName:
        """The transport of large vectors; without shared memory, or with tasks on several machines, it is sockets."""
        between_processes = self.cluster.task is None and not self.cluster.placement.in_process
        return self.options.transport if between_processes and segments.available() else "sockets"

    def slices(self, size: int) -> list[int]:
        """Return the sizes of the slices of a vector of `size` on the ps tasks."""
        return even_sizes(size, 1 if self.servers_apart else self.ps or 1)

    @property
    def regions(self) -> int:
        """Number of regions whose servers have ps tasks of their own, after that of the global server; 0 for none."""
        return self.ps - 1 if self.scheme.sync.in_regions else 0

    @property
    def servers_apart(self) -> bool:
        """True if each server of a region, and the global one, is at a place of its own."""
        return bool(self.scheme.regions) and (self.cluster.simulated is not None or self.scheme.sync.in_regions)

    def traffic(self, model: Any) -> Traffic:
        """Return the bytes that events move, for a model (a `FlatModel`)."""
        codec = self.codec.for_model(len(model.shapes))
        sizes = self.slices(model.size)
        return Traffic(self.scheme, codec, self.cluster.workers, sizes, model.state_size, model.shapes)

    @property
    def leaves(self) -> bool:
        """True if a signal ends the part of this program alone: the others wait for it to come back."""
        return self.cluster.task is not None and self.restarts.recovers

    @property
    def restarts(self) -> RestartRule:
        """The rule of restarts: which tasks are restarted, which may be lost, and how long the others wait."""
        sync, recovery = self.scheme.sync, self.options.recovery
        return RestartRule(
            uses_ps=sync.uses_ps,
            wait_seconds=self.cluster.wait_seconds,
            alone=not sync.exchanges,
            max_restarts=recovery.max_restarts,
            min_workers=recovery.min_workers,
            loses_without_ps=sync.can_lose,
            awaits_workers=self.script is not None,
        )

    @property
    def devices_per_worker(self) -> int:
        """Number of devices that share the batches of a worker."""
        return self.cluster.devices_per_worker or self.scheme.default_devices_per_worker


def unpickled(settings_and_job: bytes) -> Job:
    """Return a job from its pickle, which follows that of its settings; this process then has these settings.

    It has them before the job is loaded, since modules that it imports may read them, and after, as these may set
    others.
    """
    file = io.BytesIO(settings_and_job)
    set_here(pickle.load(file))
    job: Job = pickle.load(file)
    set_here(job.recipe.settings)
    if is_deterministic():  # random operations, such as those of a data function, then need a seed
        tf.random.set_seed(job.options.seed)
    return job


def is_dense(options: RunOptions, ema_decay: float | None, devices_per_worker: int) -> bool:
    """Return True if these options need whole vectors, also on a sparse problem."""
    changes = bool(options.l2) or options.clip_norm is not None or options.hostile is not None
    return changes or ema_decay is not None or devices_per_worker > 1


def make_job(scheme: Scheme, recipe: ModelRecipe, train: Any, test: Any, cluster: Cluster, options: RunOptions) -> Job:
    """Join scheme, model, data, cluster and options to a job, and check that they fit each other.

    Args:
        scheme: the algorithm.
        recipe: of the model.
        train: (x, y) or (x, y, sample_weight) of nested arrays, or a function that returns a `tf.data.Dataset`.
        test: the same, or None.
        cluster: tasks and machines of the run.
        options: settings of the run.

    Raises:
        UserError: they do not fit; the message says in one line what is wrong.
    """
    scheme = checked(scheme, train, cluster, options)
    train = inputs.sharding(train) if callable(train) else arrays_of(train, "data")
    if test is not None and not callable(test):
        test = arrays_of(test, "validation_data")
    clients = number_of_clients(cluster.workers, options.participation)
    owner = "worker" if options.participation is None else "client"
    measured = inputs.shares(train, cluster.workers) if callable(train) else train
    steps = inputs.count_steps(measured, clients, options.batch_size, options.epochs, options.steps, owner)
    steps = options.steps or steps * clients // cluster.workers  # an epoch is a pass over the shards of all clients
    at_most(MAX_STEPS, steps=steps)
    if options.skew is not None:
        skew.labels_of(train)
    run_dir = options.run_dir or new_run_dir(scheme.name)
    own_dir = run_dir if cluster.evaluates else run_dir / str(cluster.task)
    resume = options.recovery.resume
    if options.exclude_from_weight_decay is not None and not weight_decay_of(scheme):
        raise UserError(
            f"{scheme.name} has no weight decay here, from which variables could be excluded: give weight_decay, as in "
            "inner_optimizer='adamw:weight_decay=0.1', or a kernel_regularizer in the model. Received: "
            f"exclude_from_weight_decay={options.exclude_from_weight_decay!r}"
        )
    job = Job(scheme, recipe, train, test, cluster, options, steps, own_dir)
    if options.steps is None:
        together = not scheme.sync.uses_ps or scheme.sends_in_turn  # all workers must make the same rounds
        if callable(train) and len(set(measured)) > 1 and not together:
            job.shares = measured
        if warning := inputs.uneven(measured, clients, options.batch_size, together):
            job.warnings.append(warning)
    before = own_dir if resume is None else checkpoints_of(resume, cluster)
    earlier = config_before(before)
    job.earlier_step_targets = _earlier_step_targets(earlier, steps)
    products = recipe.products and job.options.batch_size / job.devices_per_worker * recipe.products
    job.kernels = choose(options.kernels, products, earlier.get("kernels"))
    job.plan.check()
    check_update(scheme, cluster.placement.in_process)
    _check_left(job, before, earlier)
    if job.sparse and options.codec != "float32":
        raise UserError(
            "on a sparse problem, the coordinates of a batch travel as they are: leave codec out. Received: "
            f"codec={options.codec}"
        )
    if options.batch_size % job.devices_per_worker:
        raise UserError(
            f"batch_size must be a multiple of the devices of a worker. Received: batch_size={options.batch_size}, "
            f"devices_per_worker={job.devices_per_worker}"
        )
    return job


def checked(scheme: Scheme, train: Any, cluster: Cluster, options: RunOptions) -> Scheme:
    """Return the scheme with the codec of the options; raises `UserError` if these tasks cannot run it."""
    task, uses_ps, wanted = cluster.task, scheme.sync.uses_ps, options.recovery.min_workers
    scheme = fitted(scheme, cluster.workers, cluster.ps if task is None or uses_ps else 1, options.codec)
    if task is not None and bool(task.addresses.ps) != uses_ps:
        need = "needs a ps: give --ps_hosts" if uses_ps else "has no ps: leave --ps_hosts out"
        origin = f"{task.origin} " if task.origin else ""
        raise UserError(f"{scheme.name} {need}. {origin}Received: {task.addresses.as_dict()}")
    if wanted is not None and wanted > cluster.workers:
        raise UserError(
            f"min_workers must be at most the number of workers, {cluster.workers}. Received: min_workers={wanted}"
        )
    if wanted not in (None, cluster.workers) and (why := _why_all(scheme)) is not None:
        error = f"{scheme.name} needs all its workers{why}: leave min_workers out. Received: min_workers={wanted}"
        raise UserError(error)
    recovery = options.recovery
    behind = recovery.max_restarts or recovery.on_nan == "drop" or wanted not in (None, cluster.workers)
    if scheme.sends_in_turn and behind:
        raise UserError(
            f"workers of {scheme.name} must make the same rounds: leave max_restarts, min_workers and on_nan out"
        )
    if not uses_ps and (options.stop_at_version is not None or options.stop_at_accuracy is not None):
        raise UserError("a run without a parameter server cannot be stopped early: it does all its steps")
    if (scheme.sync.gossips or scheme.takes_means) and options.schedule:
        raise UserError(f"{scheme.name} cannot follow a schedule, as its workers meet within a round: leave it out")
    if scheme.regions and cluster.simulated is None and cluster.ps == 1 + scheme.regions.number:
        _check_regions(scheme, scheme.regions.number, cluster.workers, options)
        scheme = scheme.but(sync=InRegions())
    if scheme.sync.in_pairs:
        why = f"{scheme.name} has no time at which all its workers stand still, leave out a round or have made as many"
        defaults = {"checkpoint_seconds": None, "checkpoint_steps": None, "on_nan": "stop", "ema_decay": None}
        _must_be(defaults, options, why)
    if (grace := scheme.sync.grace) and options.schedule:
        raise UserError(
            f"{scheme.name} cannot follow a schedule with a time of grace, which a clock ends: leave one of both out. "
            f"Received: grace={grace:g}"
        )
    if cluster.simulated is None and grace >= cluster.wait_seconds:
        raise UserError(
            f"grace must be less than wait_seconds, after which a worker is taken for lost. Received: grace={grace:g}, "
            f"wait_seconds={cluster.wait_seconds:g}"
        )
    if adapts(scheme := adapting(scheme, cluster.workers)):
        if cluster.simulated is not None:
            raise UserError("a simulation plans all rounds before it begins, and adacomm does not know them: take qsr")
        defaults = {"min_workers": None, "on_nan": "stop", "participation": None}
        _must_be(defaults, options, "adacomm needs the losses of the same workers and data in each round")
    check_attack(scheme, attack := attack_of(options.hostile), cluster.workers)
    if attack.kind == "label-flip" and (callable(train) or (train is not None and len(train) < 2)):
        received = "a data function" if callable(train) else "data without labels"
        raise UserError(f"label-flip changes the labels of arrays. Received: {received}")
    if options.participation is not None:
        _check_participation(scheme, train, cluster.workers, options)
    if options.schedule and not cluster.placement.in_process:
        raise UserError("a schedule needs the threads back end: Cluster.local(..., backend='threads')")
    if cluster.simulated is not None:
        cluster.placement.back_end.refuse(scheme, train, cluster, options)
    elif scheme.sync.cancel_late:
        raise UserError(
            f"{scheme.name} cannot stop a computation on processes or threads, where a round is one gradient, a single "
            "call: leave cancel_late out, or simulate the run (--backend simulation). Received: cancel_late=True"
        )
    if any(worker not in range(cluster.workers) for worker in options.schedule):
        raise UserError(f"schedule names workers below {cluster.workers}. Received: {list(options.schedule)}")
    return scheme


def _why_all(scheme: Scheme) -> str | None:
    """Return why no worker of a run may be lost; None if one may."""
    if scheme.sync.uses_ps:
        return None
    if not scheme.sync.can_lose:
        return ""
    keeps = scheme.declares_sizes and not scheme.cleared
    why = ", as the sum of what they keep may change, and none of its local variables is in ClearedOnLoss"
    return why if keeps else None


def _must_be(defaults: Mapping[str, Any], options: RunOptions, why: str) -> None:
    """Raise `UserError` with the reason `why` if one of these options does not have its default."""
    for name, default in defaults.items():
        if (value := (vars(options) | vars(options.recovery))[name]) != default:
            raise UserError(f"{why}: leave {name} out. Received: {name}={value or repr(value)}")


def _check_regions(scheme: Scheme, regions: int, workers: int, options: RunOptions) -> None:
    """Raise `UserError` for what servers of regions on ps tasks of their own cannot do."""
    _, rows, numbers, pulled = kept_by(scheme)
    plain = scheme.events == {"exchange"} and scheme.sync == Async()
    if rows or numbers or pulled or not plain or scheme.sparse:
        raise UserError(
            f"{scheme.name}: one ps task for each region needs sync = Async(), which accepts all messages, and no "
            "variables that are kept for each worker: choose another number of ps tasks. Received: "
            f"ps={1 + regions}"
        )
    if workers < regions:
        raise UserError(f"each of {regions} regions needs a worker. Received: workers={workers}")
    defaults = {field.name: field.default for field in fields(Recovery)} | {"ema_decay": None, "schedule": ()}
    why = f"{regions} regions with a ps task each have no checkpoints, restarts, schedule or moving average; one ps has"
    _must_be(defaults, options, why)


def _check_participation(scheme: Scheme, train: Any, workers: int, options: RunOptions) -> None:
    """Raise `UserError` unless all workers meet in each round, and the data can be split over any number of clients."""
    sync, why = scheme.sync, ""
    if callable(train):
        why = "data must be arrays, which can be split over the clients. Received: a data function"
    elif options.hostile is not None:
        why = "hostile names workers, which play other clients in each round. Leave one of both out"
    elif scheme.describes_data:
        why = f"the workers of {scheme.name} keep what they know of their own data. Choose another algorithm"
    elif options.recovery.min_workers not in (None, workers):
        why = "no round can go without a worker: leave min_workers out"
    elif not sync.meets(workers):
        why = f"all workers must meet in each round, as with local_sgd. Received: {scheme.name}"
    if why:
        raise UserError(f"with participation, {why}")


def checkpoints_of(run_dir: Path, cluster: Cluster) -> Path:
    """Return the folder of the checkpoints in a run directory: that of the results, or of a separate chief."""
    return run_dir if cluster.task is None or not cluster.task.separate_evaluator else run_dir / "worker-0"


def config_before(before: Path) -> dict[str, Any]:
    """Return the configuration of the run in a folder; an empty one if there is nothing to resume."""
    try:
        return read_config(before) if checkpoint.found(before) else {}
    except OSError as error:
        raise UserError(f"cannot use the folder {before}: {error.strerror}") from None


def _earlier_step_targets(earlier: dict[str, Any], steps: int) -> list[int]:
    """Return the steps of the earlier runs that this one resumes: their last rounds may have been shorter."""
    targets = (*earlier["earlier_step_targets"], earlier["steps_per_worker"]) if earlier else ()
    return [target for target in targets if target < steps]


def _check_left(job: Job, before: Path, earlier: dict[str, Any]) -> None:
    """Raise `UserError` if the resumed run has already done all the requested steps."""
    wanted, had = job.steps, earlier.get("steps_per_worker", 0)
    if not had or (wanted == had and not is_complete(before)):
        return
    try:
        names = ["version", "rounds_applied", "joins", *(["mean_losses"] if adapts(job.scheme) else [])]
        last = checkpoint.read(checkpoint.found(before)[-1], names)
    except checkpoint.Damaged:
        return  # the damage is reported when the checkpoint is restored
    if adapts(job.scheme):
        now = {"version": last.arrays["version"], "losses": last.arrays["mean_losses"][:-1]}
        job.plan.learn(SimpleNamespace(losses=lambda: now))
    done, rounds = last.arrays["rounds_applied"], job.plan.all_rounds
    if len(done) == len(rounds) and all(n >= len(planned) for n, planned in zip(done, rounds, strict=True)):
        raise UserError(
            f"the run in {before} has done all that is asked for: ask for more steps, or choose another run directory. "
            f"Received: {wanted} steps of each worker"
        )


def describe(job: Job, dataset: str, model: str) -> dict[str, Any]:
    """Return the configuration of a run, as it is written to config.json and shown."""
    cluster, options = job.cluster, job.options
    plain = numbers.Real | str | list | tuple | None  # types that JSON has; values of other types become text
    uneven = {"label_distance": skew.distance(skew.labels_of(job.train), job.plan.shards())} if options.skew else {}
    steps = [rounds.steps() for rounds in job.plan.all_rounds]  # a scheme may change the number of steps of a worker
    is_plain = options.schedule or job.plan.is_endless or set(steps) == {job.steps}
    uneven_steps = {} if is_plain else {"steps_of_workers": steps}
    return {
        "algorithm": job.scheme.name,
        "hyperparameters": {
            field.name: value if isinstance(value := getattr(job.scheme, field.name), plain) else in_words(value)
            for field in fields(job.scheme)
        },
        "backend": cluster.backend,
        "workers": cluster.workers,
        "ps": job.ps,
        **({"servers_apart": True} if job.servers_apart else {}),
        "isolation": cluster.isolation,
        **({} if cluster.simulated is None else {"platform": cluster.simulated.described()}),
        "dataset": dataset,
        "model": model,
        **({"keras_settings": settings} if (settings := unusual(job.recipe.settings)) else {}),
        "devices_per_worker": job.devices_per_worker,
        **options.settings,
        **({"transport": job.transport} if not cluster.placement.in_process else {}),
        "kernels": job.kernels.name,
        "steps_per_worker": job.steps,
        **uneven_steps,
        "earlier_step_targets": list(job.earlier_step_targets),
        **({"without_decay": sorted(job.recipe.without_decay)} if job.recipe.without_decay else {}),
        **uneven,
    }
