"""The graph of a task: the global variables, the workers that live in it, and a name for all that is ever run."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cluster.devices import compute_devices, ps_devices, worker_device
from ..engine.flat_model import FlatModel
from .job import CHIEF, Job, shard


class TaskGraph:
    """The graph of one task: the global variables, and the workers that live in it.

    `ops` names everything that a session ever runs or feeds; what belongs to a worker is in `worker_ops[k]`.
    """

    def __init__(self, job: Job, workers: Sequence[int] = (), model: FlatModel | None = None):
        import tensorflow as tf

        from ..engine.parameter_server import ParameterServer

        self.job = job
        self.model = model or job.recipe.flat()
        self.initial = self.model.pack(), self.model.pack_state()
        self.frozen = self.model.frozen_values() if workers else []
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ps = ParameterServer(
                job.scheme,
                size=self.model.size,
                state_size=self.model.state_size,
                num_workers=job.cluster.workers,
                devices=ps_devices(job.cluster, job.uses_ps),
                last_version=None if job.options.schedule else len(job.rounds(CHIEF)),
                ema_decay=job.options.ema_decay,
                in_process=job.cluster.backend == "threads",
                min_workers=job.recovery.min_workers,
            )
            self.ops = self._global_ops()
            gradient = tf.function(self.model.gradient, reduce_retracing=True, autograph=False)
            self.worker_ops = {k: self._worker_ops(k, gradient) for k in workers}

    def _global_ops(self) -> dict[str, Any]:
        import tensorflow as tf

        from ..engine.ops import turnstile

        ps = self.ps
        with tf.device(ps.devices[0]):
            # Fed with every call: it goes along with the call, where a constant of each worker's own graph would
            # mean that no worker can use another's.
            self.index = tf.compat.v1.placeholder_with_default(-1, [], name="index")
            set_finished = tf.raw_ops.ResourceScatterUpdate(
                resource=ps.finished.handle, indices=self.index, updates=True
            )
            dismiss = tf.group(*ps.close_slots(tf.equal(tf.range(ps.num_workers), self.index)))
            confirmed = tf.compat.v1.placeholder(tf.int64, [], name="confirmed")
            of_restoration = tf.compat.v1.placeholder(tf.int64, [], name="of_restoration")
        ops = {
            "index": self.index,
            "initial_center": ps.initial_center,
            "initial_state": ps.initial_state,
            "restoration": ps.restoration,
            "initialize": ps.initialize,
            "passport": ps.passport,
            # Who comes through puts the token back for the next one, or for himself should he come back.
            "announce": ps.initialized.enqueue(True),
            "await_initialized": turnstile(ps.initialized),
            "go": ps.go.enqueue(True),
            "await_go": turnstile(ps.go),
            "set_finished": set_finished,
            "ready": ps.ready.read_value(),
            "finished": ps.finished.read_value(),
            "active": ps.active.read_value(),
            "active_now": ps.count(ps.active | ps.finished),
            "dismiss": dismiss,
            "standing": tf.function(ps.standing, autograph=False)(),
            "restoration_now": ps.restored[0],
            "folded": ps.folded.read_value(),
            "refused": ps.refused.read_value(),
            "version": ps.read_version(),
            "recorded": ps.records.size(),
            "drained": ps.drained.read_value(),
            "confirmed": confirmed,
            "of_restoration": of_restoration,
            "confirm": tf.function(ps.confirm, autograph=False)(of_restoration, confirmed),
            "whole": tf.function(ps.whole, autograph=False)(),
            "stop": tf.function(ps.stop, autograph=False)(),
            "wake": tf.function(ps.wake_all, autograph=False)(),
            "stopping": ps.is_ending(),
            **{f"drain_{name}": op for name, op in tf.function(ps.drain, autograph=False)().items()},
            "over": ps.over.enqueue_many([tf.ones([ps.num_workers], tf.bool)]),
            "await_over": ps.over.dequeue(),
            "leave": ps.left.enqueue(True),
            "chief_leaves": tf.group(ps.left.enqueue(True), ps.chief_left.enqueue(True)),
            "left": ps.left.size(),
            "chief_left": ps.chief_left.size(),
            "end": tf.group(*(queue.enqueue(True) for queue in ps.ends)),
            "await_end": ps.ends[0].dequeue(),
            **{f"saved/{name}": op for name, op in tf.function(ps.values, autograph=False)().items()},
            **ps.restoring(),
            **tf.function(ps.snapshot, autograph=False)(),
        }
        if self.job.sees_waiting:
            gate = self.job.scheme.gate
            ops |= {"arrived": gate.arrived(ps), "awaited": gate.awaited(ps)}
        return ops

    def _worker_ops(self, k: int, gradient: Any) -> dict[str, Any]:
        import tensorflow as tf

        from ..engine.replica import Replica
        from ..engine.sparse_worker import SparseWorker
        from ..engine.worker import Worker

        job = self.job
        devices = compute_devices(worker_device(job.cluster, k), job.devices_per_worker)
        with tf.device(devices[0]):
            source, structure = _source(job, k)
        slot = self.ps.slot(k, k if job.shared_graph is None else self.index)
        if job.sparse:
            worker = SparseWorker(job.scheme, self.ps, slot, devices[0], source)
        else:
            name = f"worker_{k}"
            numbers = slot.index, job.cluster.workers
            loss = job.options.l2, job.options.clip_norm
            replica = Replica(self.model, gradient, name, numbers, devices, source, structure, *loss)
            worker = Worker(job.scheme, replica, self.ps, slot, name)
        with tf.device(self.ps.devices[0]):
            recorded = tf.compat.v1.placeholder_with_default(True, [])
        with tf.device(devices[0]):
            steps_done = tf.compat.v1.placeholder(tf.int64, [])
        ops = {
            "initialize": worker.initialize,
            "recorded_join": recorded,
            "steps_done": steps_done,
            "set_clock": worker.clock.assign(steps_done).op if isinstance(worker, Worker) else tf.no_op(),
            "refuse": tf.function(self.ps.refuse, autograph=False)(slot),
        }
        ops |= {f"join_{name}": op for name, op in tf.function(worker.start, autograph=False)(recorded).items()}
        if job.sees_waiting:
            gate = job.scheme.gate
            ops["expel"], ops["retire"] = (
                tf.function(f, autograph=False)(self.ps, slot) for f in (gate.evict, gate.deregister)
            )
            ops["await_token"] = slot.sleep()
        ops |= {f"data_{i}": fed for i, fed in enumerate(source.fed)}
        ops |= {f"frozen_{i}": fed for i, fed in enumerate(worker.replica.fed if isinstance(worker, Worker) else [])}
        for count in sorted({1, job.rounds_per_call}):
            rows = tf.compat.v1.placeholder(tf.int32, [count, None, job.batch_size])
            ops[f"rows_{count}"] = rows
            for event in sorted(job.scheme.events):
                ops[f"{event}_{count}"] = tf.function(worker.rounds, autograph=False)(rows, event)
        return ops

    # A graph that one task has built serves all workers: building takes longer than everything else at the start.

    def export(self, path: Path) -> None:
        """Write the graph of worker 0 for `TaskGraph.load`."""
        names = [{key: op.name for key, op in ops.items()} for ops in (self.ops, self.worker_ops[CHIEF])]
        content = (self.graph.as_graph_def().SerializeToString(), names, self.initial, self.frozen)
        path.with_suffix(".part").write_bytes(pickle.dumps(content))
        path.with_suffix(".part").rename(path)

    @classmethod
    def load(cls, job: Job, worker: int, path: Path) -> TaskGraph:
        """The graph of a worker, from what `export` has written for worker 0."""
        import tensorflow as tf

        serialized, names, initial, frozen = pickle.loads(path.read_bytes())
        definition = tf.compat.v1.GraphDef.FromString(serialized)
        chief, own = (worker_device(job.cluster, k) for k in (CHIEF, worker))
        for function in [definition, *definition.library.function]:
            for node in function.node if function is definition else function.node_def:
                node.device = node.device.replace(chief, own)
                if node.name == "own_tokens":
                    node.attr["shared_name"].s = f"token_{worker}".encode()
        self = cls.__new__(cls)
        self.job, self.initial, self.frozen, self.graph = job, initial, frozen, tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(definition, name="")
            self.ops, mine = ({key: self.graph.as_graph_element(name) for key, name in part.items()} for part in names)
        self.worker_ops = {worker: mine}
        return self


def _source(job: Job, worker: int) -> tuple[Any, Any]:
    """The batches of a worker in the current graph, and how x and y are nested."""
    import tensorflow as tf

    from ..engine.batches import Shard, Stream

    if callable(job.train):
        dataset: Any = job.train(tf.distribute.InputContext(job.cluster.workers, worker, job.cluster.workers))
        return Stream(dataset.repeat()), dataset.element_spec
    return Shard(shard(job, worker), f"worker_{worker}"), job.train
