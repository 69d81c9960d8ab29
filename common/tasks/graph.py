"""The graph of a task: the global variables, the workers in it, and all operations that a session runs."""

from __future__ import annotations

import itertools
import math
import pickle
import threading
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..cluster.cluster import compute_devices
from ..contract.adapting import adapts
from ..data.mapped import loaded
from ..data.orders import agreeing
from ..files import replacing
from ..lazy import tf
from ..settings import is_deterministic
from ..sync.store import TOKENS, token_of
from ..worker.flat_model import FlatModel
from ..worker.parameters import Parameters
from .copied import Copier
from .job import CHIEF, Job
from .precision import has_gpu
from .requests import (
    OF_PS,
    Builds,
    CommonRequests,
    GraceRequests,
    LazyOperations,
    LossRequests,
    Operation,
    StreamRequests,
    WorkerRequests,
    carriers_of,
    operations_of,
    regions_of,
    requests_of,
    rounds_of,
)

COMPILED = "_XlaMustCompile"  # attribute of functions that XLA compiles, and of calls of them

IN_PLACE_FLOATS = 1 << 20  # a copy of a smaller vector costs less than operations on each variable of the model


class TaskGraph:
    """The graph of one task: the global variables, and the workers in it.

    Attributes:
        sync: the synchronization rule.
        in_process: True if one process runs all workers, on one session.
        sees_waiting: True if tasks can read which workers wait.
        workers: number of workers.
        operations: the operations of the requests to the ps, by name.
        of_workers: those of worker k, and its rounds.
        identity: placeholders of the number of the calling worker and of its incarnation, fed with each of its calls.
        multiples: versions of which snapshots are taken, or None; missing in a graph that was loaded.
        initial: center [P] and non-trainable state [S] that the run begins with. After `export` or `load` they are
            memory-mapped files, and take memory only for the parts that are read, while they are in use.
        frozen: arrays of the model that never change; empty in a graph without workers.
        in_place: True if its workers take gradients at the center itself.
        can_lose: True if the run may continue without some of its workers, and no ps knows of them.
    """

    in_place = can_lose = False

    def __init__(self, job: Job, workers: Sequence[int] = (), model: FlatModel | None = None):
        from ..messages.ops import building

        self._begin(job)
        self.model: Any = model or job.recipe.flat()
        self._initial: Any = self.model.pack(), self.model.pack_state()
        self.frozen = self.model.frozen_values() if workers else []
        self.in_place = job.in_place and self.model.size >= IN_PLACE_FLOATS
        with building(self.graph), self.graph.container(job.prefix):
            if is_deterministic():  # random operations, such as those of a data function, then need a seed
                tf.random.set_seed(job.options.seed + sum(workers[:1]))
            self.ps = self._parameter_server(job, workers)
            self.can_lose, first = self.ps.can_lose, self.ps.devices[0]
            with tf.device(first):
                index = tf.compat.v1.placeholder_with_default(-1, [], name="index")
            self.identity = index, self.ps.transactions.incarnation
            lazily = partial(LazyOperations, self.graph, threading.RLock())
            kinds = (*OF_PS, GraceRequests) if self.sync.grace else OF_PS
            builds, of_regions = operations_of(kinds, self.ps, first, self.sees_waiting), regions_of(self.ps)
            self.operations: Any = lazily(builds, of_regions)
            gradient, has_copies, shared = self._gradient(job), _have_copies(job, workers), self.graph.get_operations()
            # Without a constant the graphs of all workers are equal.
            numbers = dict.fromkeys(workers, index) if has_copies or job.shared_graph else {k: k for k in workers}
            built, others = (workers[:1], workers[1:]) if has_copies else (workers, ())
            self.of_workers: Any = {k: lazily(*self._of_worker(job, k, numbers[k], gradient)) for k in built}
            self.of_workers |= {k: self.of_workers[built[0]].copied(Copier(shared, k)) for k in others}
            if self.in_process:
                for operations in (self.operations, *self.of_workers.values()):
                    operations.build_usual()
            else:  # then the graph is sent to a ps or to other workers, whole
                self.operations = dict(self.operations)
                self.of_workers = {k: dict(operations) for k, operations in self.of_workers.items()}

    def _gradient(self, job: Job) -> Any:
        """Return the gradient of a batch as a function of the graph, shared by all workers in it; None of a script."""
        from ..worker.without_copy import logistic_gradient

        if isinstance(self.model, Parameters):
            return None
        # Whether a worker that loads this graph has a GPU is known there: `load` undoes the compilation on a CPU.
        compiles = job.compiles(gpu=job.shared_graph is not None or has_gpu())
        function = logistic_gradient if job.sparse else self.model.gradient
        return tf.function(function, jit_compile=compiles or None, reduce_retracing=True, autograph=False)

    def _begin(self, job: Job) -> None:
        """Set what every graph of this run has, and begin with an empty graph."""
        self.sync, self.in_process = job.scheme.sync, job.cluster.placement.in_process
        self.sees_waiting, self.workers, self.graph = job.sees_waiting, job.cluster.workers, tf.Graph()

    def _parameter_server(self, job: Job, workers: Sequence[int]) -> Any:
        """Return the global variables, in the current graph, and set the rounds after which their values are kept."""
        from ..messages.transport import TRANSPORTS, Client
        from ..server.center import Center
        from ..server.parameter_server import ParameterServer
        from ..server.snapshots import Multiples

        # Without test data no snapshot would be evaluated. Workers in pairs reach no version together, and the messages
        # of a region are counted many at a time.
        takes_some = job.test is not None and not (self.sync.in_pairs or job.regions)
        multiples = job.plan.multiples(self.model.size + self.model.state_size) if takes_some else None
        self.multiples = multiples and Multiples(*multiples)
        is_open = job.options.schedule or job.plan.is_endless or adapts(job.scheme)
        last = None if is_open else max(map(len, job.plan.all_rounds))
        place = job.cluster.placement
        servers = place.ps_devices(job.ps)
        near = f"{place.worker_device(workers[0])}/device:CPU:0" if workers else servers[0]
        sizes = [[math.prod(shape) for shape in self.model.shapes]] if self.in_place else None
        center = Center(
            job.scheme,
            sizes or [*([size] for size in job.slices(self.model.size)), *([] for _ in range(job.regions))],
            servers,
            job.cluster.workers,
            job.options.ema_decay,
            job.codec,
            job.plan.round_steps,
            client=Client(TRANSPORTS[job.transport](), near),
            holder=None if job.ps else _devices(job, CHIEF)[0],
            shapes=self.model.shapes,
            without_decay=self.model.without_decay,
            servers_apart=job.servers_apart,
            attack=job.attack,
        )
        return ParameterServer(
            center,
            state_size=self.model.state_size,
            last_version=last,
            in_process=place.in_process,
            min_workers=job.options.recovery.min_workers,
            multiples=self.multiples,
        )

    def _of_worker(self, job: Job, k: int, number: Any, gradient: Any) -> tuple[Builds, dict[str, Operation]]:
        """Return functions that build the requests of a worker, and its rounds: errors of a scheme appear here.

        Args:
            job: the job.
            k: the worker.
            number: its number in the graph.
            gradient: see `_gradient`.
        """
        from ..worker.fed_worker import FedReplica, FedWorker
        from ..worker.replica import Replica
        from ..worker.without_copy import InPlaceWorker, SparseWorker
        from ..worker.worker import DenseWorker

        devices, mail, of_stream = _devices(job, k), self._mail(job, k), {}
        slot = self.ps.slots.slot(k, number, mail)
        name, numbers = f"worker_{k}", (slot.index, job.cluster.workers)
        if isinstance(self.model, Parameters):
            replica: Any = FedReplica(self.model, name, devices[0])
            worker = FedWorker(job.scheme, replica, self.ps, slot, name, job.options.seed)
        elif job.sparse:
            worker = SparseWorker(job.scheme, self.ps, slot, devices[0], _source(job, k, devices[0])[0], gradient)
        else:
            source, structure = _source(job, k, devices[0])
            if callable(job.train):
                of_stream = operations_of([StreamRequests], source, devices[0], self.sees_waiting)
            loss = job.options.l2, job.options.clip_norm, job.attack, job.labels
            replica = Replica(self.model, gradient, name, numbers, devices, source, structure, *loss)
            parts = job.scheme, replica, self.ps, slot
            worker = InPlaceWorker(*parts) if self.in_place else DenseWorker(*parts, name, job.options.seed)
        kinds: list[type] = [WorkerRequests]
        built = rounds_of(worker, job.options.batch_size, {1, job.plan.rounds_per_call})
        if self.can_lose:
            worker.initialize = tf.group(worker.initialize, mail.links.initializer)
            kinds.append(LossRequests)
            built |= carriers_of(worker, job.cluster.workers)
        return {**operations_of(kinds, worker, worker.device, self.sees_waiting), **of_stream}, built

    def _mail(self, job: Job, k: int) -> Any:
        """Return the way of a worker to the others: queues, or the parameters of all if it averages in pairs."""
        from ..messages.carried import CarriedChannels
        from ..messages.channels import Channels
        from ..messages.copies import Copies
        from ..server.transaction import holding

        transport, workers = self.ps.center.transport, range(self.workers)
        tasks = [f"{job.cluster.placement.worker_device(other)}/device:CPU:0" for other in workers]
        if self.sync.in_pairs:
            return Copies([_devices(job, k)[0] for k in workers], tasks, transport, self.model.size, holding)
        if self.can_lose:
            gossip: Any = self.sync
            return CarriedChannels(k, tasks, transport, gossip.rows(k, self.workers))
        return Channels(k, tasks, transport)

    # One task builds the graph and the workers load it: building takes longer than all other steps of the start.

    def export(self, path: Path) -> None:
        """Write the graph of worker 0, the part that other workers need, and the initial values, for `load`.

        Raises:
            CannotWrite: a file cannot be written.
        """
        # The graph of the other workers has the common requests alone: with all it takes longer to load, and each kind
        # of call takes longer to prepare.
        identity, operations, of_chief = names = _names((self.identity, self.operations, self.of_workers[CHIEF]))
        common = operations.keys() & requests_of(CommonRequests)
        some = identity, {name: operations[name] for name in common}, of_chief
        definition = self.graph.as_graph_def()
        whole = definition.SerializeToString()
        part = needed_for(tf.nest.flatten(some), definition).SerializeToString()
        for place, vector in zip(_beside(path), self.initial, strict=True):
            with replacing(place) as file:
                np.save(file, vector)
        with replacing(path) as file:
            pickle.dump((((whole, names), (part, some)), self.frozen), file)
        self._initial = path

    @property
    def initial(self) -> tuple[np.ndarray, np.ndarray]:  # noqa: D102
        if not isinstance(self._initial, Path):
            return self._initial
        center, state = (loaded(place) for place in _beside(self._initial))
        return center, state

    def without_workers(self) -> TaskGraph:
        """Return the part of this graph that concerns the global variables, in a new graph."""
        names = _names((self.identity, self.operations))
        part = copy(self)
        part.frozen, part.of_workers, part.graph = [], {}, tf.Graph()
        with part.graph.as_default():
            definition = needed_for(tf.nest.flatten(names), self.graph.as_graph_def())
            _move(definition, self.ps.client.device, self.ps.devices[0])
            tf.import_graph_def(definition, name="")
        part.identity, part.operations = _found(names, part.graph)
        return part

    @classmethod
    def load(cls, job: Job, worker: int, path: Path) -> TaskGraph:
        """Return the graph of a worker, from the files that `export` has written for worker 0."""
        with path.open("rb") as file:
            graphs, frozen = pickle.load(file)
        serialized, names = graphs[worker != CHIEF]
        definition = tf.compat.v1.GraphDef.FromString(serialized)
        _move(definition, *(job.cluster.placement.worker_device(k) for k in (CHIEF, worker)))
        for node in _nodes(definition):
            if node.name == TOKENS:
                node.attr["shared_name"].s = token_of(worker).encode()
        if not job.compiles(has_gpu()):
            _without_xla(definition)
        self = cls.__new__(cls)
        self._begin(job)
        self._initial, self.frozen = path, frozen
        with self.graph.as_default():
            tf.import_graph_def(definition, name="")
        self.identity, self.operations, of_worker = _found(names, self.graph)
        self.of_workers = {worker: of_worker}
        return self


def _devices(job: Job, worker: int) -> list[str]:
    """Return the names of the devices on which a worker computes."""
    place, number = job.cluster.placement, job.devices_per_worker
    return compute_devices(place.worker_device(worker), number, first=worker * number if place.in_process else 0)


def _have_copies(job: Job, workers: Sequence[int]) -> bool:
    """Return True if the operations of one worker of this process may be copied for the others."""
    in_process = job.cluster.placement.in_process
    return in_process and job.alike and len({(*_devices(job, k),) for k in workers}) == 1


def _beside(path: Path) -> list[Path]:
    """Return the files of the initial center and state beside an exported graph."""
    return [path.with_name(f"{name}.npy") for name in ("center", "state")]


def _nodes(definition: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and of its functions."""
    return itertools.chain(definition.node, *(function.node_def for function in definition.library.function))


def _move(definition: Any, before: str, after: str) -> None:
    """Move all nodes from one device, or from the devices of one task, to another."""
    for node in _nodes(definition):
        node.device = node.device.replace(before, after)


def _without_xla(definition: Any) -> None:
    """Let XLA compile no function of a graph."""
    for part in (*_nodes(definition), *definition.library.function):
        if part.attr.pop(COMPILED, None):
            part.attr.pop("_noinline", None)  # TensorFlow sets it together with the other


def _names(operations: Any) -> Any:
    """Return a nested structure with names in place of the tensors and operations of the graph."""
    return tf.nest.map_structure(lambda op: op.name, operations)


def _found(names: Any, graph: Any) -> Any:
    """Return the tensors and operations that have these names in another graph."""
    return tf.nest.map_structure(graph.as_graph_element, names)


def _source(job: Job, worker: int, device: str) -> tuple[Any, Any]:
    """Return the batches of a worker on its device, and the nested structure of x and y."""
    from ..worker.replica import Shard, Stream

    with tf.device(device):
        if callable(job.train):
            context = tf.distribute.InputContext(job.cluster.workers, worker, job.cluster.workers)
            with agreeing(job.options.seed, worker):
                dataset: Any = job.train(context)
            return Stream(dataset, f"worker_{worker}"), dataset.element_spec
        return Shard(job.plan.shard(worker), f"worker_{worker}"), job.train


def needed_for(names: Sequence[str], definition: Any) -> Any:
    """Return the definition without the nodes and functions that the named nodes do not depend on."""
    nodes = {node.name: node for node in definition.node}
    needed: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().removeprefix("^").split(":")[0]
        if name not in needed:
            needed.add(name)
            left += nodes[name].input
    del definition.node[:]
    definition.node.extend(node for name, node in nodes.items() if name in needed)
    functions = {function.signature.name: function for function in definition.library.function}
    called = _called(definition.node, functions)
    del definition.library.function[:]
    definition.library.function.extend(function for name, function in functions.items() if name in called)
    return definition


def _called(nodes: Sequence[Any], functions: dict[str, Any]) -> set[str]:
    """Return the names of the functions that these nodes call, directly or through other functions."""
    called: set[str] = set()
    left = [nodes]
    while left:
        for node in left.pop():
            values = node.attr.values()
            names = {node.op, *(v.func.name for v in values), *(f.name for v in values for f in v.list.func)}
            new = (names & functions.keys()) - called
            called |= new
            left += [functions[name].node_def for name in new]
    return called
