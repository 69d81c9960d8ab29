"""`join`: a run whose workers are scripts, which take the gradients in loops of their own.

A worker task executes the script. At `join` it builds the graph and the session of a worker beside the script's eager
TensorFlow, and runs the rounds in a thread: the graph of a round passes each point to the script, and waits for the
gradient.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import checked_call
from ..contract.checks import check_kind
from ..contract.decay import check_positions
from ..contract.scheme import Scheme
from ..errors import Interrupted, UserError
from ..files import no_link, writing
from ..lazy import tf
from ..messages.structure import Structure, arrays_of, check_eager, scalar
from ..messages.torch_tensors import NATIVE, is_torch, place, write
from ..record_format import GRADIENTS, read_arrays
from ..tasks.calls import ObserverCalls
from ..tasks.script_loop import Handoff
from .averages import mean_of_workers
from .launched import MOST_JOINS, Launched
from .own_state import OwnState
from .shards import Sharding
from .terms import Terms
from .unlaunched import Unlaunched

ALIGNMENT = 64  # bytes; TensorFlow aborts on a tensor that is not aligned


class ScriptArrays:
    """The variables of a script: the point of the next gradient is written into them.

    Args:
        variables: `tf.Variable`s, Keras variables, NumPy arrays or PyTorch tensors, in lists, tuples and dicts, or a
            single one; or a model of Keras or PyTorch, or another iterable of these.
    """

    def __init__(self, variables: Any):
        self.variables = variables = arrays_of(variables)
        self.leaves = tf.nest.flatten(variables)
        for leaf in self.leaves:
            if not hasattr(leaf, "assign") and not is_torch(leaf) and not _is_writeable(leaf):
                raise UserError(
                    "variables must be a model, variables of TensorFlow or Keras, tensors of PyTorch, or NumPy arrays, "
                    f"which join writes in place. Received: {type(leaf).__name__}"
                )
        self.structure = Structure(variables)
        size = sum(map(math.prod, self.structure.shapes))
        self._assign = (
            _graph(self._assign_parts, [size]) if any(hasattr(leaf, "assign") for leaf in self.leaves) else None
        )

    def vector(self, arrays: Any, name: str) -> np.ndarray:
        """Return arrays with the structure of the variables as one vector [P], which shares no memory with them."""
        leaves = self.structure.leaves(arrays, name)
        if all(isinstance(leaf, np.ndarray) for leaf in leaves):
            return np.concatenate([leaf.ravel() for leaf in leaves])
        return np.asarray(self._joined(*(tf.cast(leaf, tf.float32) for leaf in leaves)))

    @cached_property
    def _joined(self) -> Any:
        """The concatenation of tensors, as a graph: its time counts in each step of a script."""
        return _graph(self._join, *([*shape] for shape in self.structure.shapes))

    def _join(self, *leaves: Any) -> Any:
        return _own(tf.concat([tf.reshape(leaf, [-1]) for leaf in leaves], 0), len(leaves))

    def now(self) -> np.ndarray:
        """Return the present values of the variables, as one vector [P]."""
        return self.vector(self.variables, "variables")

    def gradients(self) -> list[Any]:
        """Return the gradients that PyTorch has left in `.grad` of its parameters.

        Raises:
            UserError: there are none.
        """
        if not all(map(is_torch, self.leaves)):
            raise UserError("step() reads .grad of PyTorch's parameters, and these are none: call step(gradient)")
        gradients = [leaf.grad for leaf in self.leaves]
        if all(gradient is None for gradient in gradients):
            raise UserError("no parameter has a .grad: call loss.backward() before step()")
        return tf.nest.pack_sequence_as(self.structure.nested, gradients)

    @property
    def copied(self) -> str:
        """The devices and types of PyTorch's tensors that each step copies to the host's float32; empty if none."""
        places = {place(leaf) for leaf in self.leaves if is_torch(leaf)} - {NATIVE}
        return ", ".join(f"{dtype.removeprefix('torch.')} on {device}" for device, dtype in sorted(places))

    def write(self, vector: np.ndarray) -> None:
        """Write a vector [P] into the variables; none of them keeps a view of it."""
        if self._assign is not None:
            self._assign(_tensor(vector))
        end = 0
        for leaf, shape in zip(self.leaves, self.structure.shapes, strict=True):
            begin, end = end, end + math.prod(shape)
            if isinstance(leaf, np.ndarray):
                leaf[...] = vector[begin:end].reshape(shape)
            elif is_torch(leaf):
                write(leaf, vector[begin:end])

    def _assign_parts(self, vector: Any) -> None:
        parts = tf.split(_own(vector, len(self.leaves)), [math.prod(shape) for shape in self.structure.shapes])
        for leaf, part, dtype in zip(self.leaves, parts, self.structure.dtypes, strict=True):
            if hasattr(leaf, "assign"):
                leaf.assign(tf.cast(tf.reshape(part, leaf.shape), dtype))


def _graph(function: Any, *shapes: Sequence[int]) -> Any:
    """Return a function of float32 tensors of these shapes as a graph, whose calls do not look for a trace."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def _is_floating(leaf: Any) -> bool:
    return leaf.is_floating_point() if is_torch(leaf) else tf.as_dtype(leaf.dtype).is_floating


def _is_writeable(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.flags.writeable


def _tensor(vector: np.ndarray) -> Any:
    """Return a vector as a tensor: a view of its memory if TensorFlow can use that, as memory of its own."""
    if vector.flags.writeable and vector.ctypes.data % ALIGNMENT == 0:
        return tf.experimental.dlpack.from_dlpack(vector.__dlpack__())
    return tf.constant(vector)


def _own(vector: Any, parts: int) -> Any:
    """Return a vector that is to be one array alone: `tf.concat` and `tf.split` copy, but not the only part."""
    return tf.raw_ops.DeepCopy(x=vector) if parts == 1 else vector


class GradientLog:
    """The file of the gradients of one worker, from which a run is replayed: P + 1 numbers for each local step.

    The last is the kind: 1 for a gradient, 2 for a move, and 0 in a hole of the file, whose steps are missing.

    A step that is repeated after a fault has its row again. So the log needs no account of rounds that were undone.
    """

    def __init__(self, run_dir: Path, worker: int):
        self.path = run_dir / GRADIENTS.format(worker)
        with writing(self.path):
            self.file = os.fdopen(no_link(self.path, os.O_RDWR | os.O_CREAT), "r+b")

    def write(self, step: int, vector: np.ndarray, is_move: bool) -> None:
        """Write the gradient [P] of a step; or the move of the step, which an optimizer of the script has made."""
        row = np.append(vector, np.float32(2 if is_move else 1))
        with writing(self.path):
            self.file.seek(step * row.nbytes)
            self.file.write(row.data)
            self.file.flush()

    def end(self, steps: int, size: int) -> None:
        """Keep the rows of that number of steps, for vectors of that size, and close the file."""
        with writing(self.path), self.file:
            self.file.truncate(steps * (size + 1) * np.dtype(np.float32).itemsize)


class JoinedWorker:
    """This worker of a run, as a script sees it.

    Attributes:
        index: number of this worker, from 0.
        num_workers: number of workers, W.
    """

    def __init__(
        self, launched: Launched | Unlaunched, scheme: Scheme, variables: Any, name: str, without_decay: Any, state: Any
    ):
        self.index, self.num_workers = launched.index, launched.job.cluster.workers
        self._run_dir, self._has_files = launched.job.run_dir / name, launched.job.cluster.evaluates
        self._scheme, self._launched, self._name, self._averages = scheme, launched, name, 0
        self._sharding = Sharding(self.index, self.num_workers, lambda key, row: launched.exchange(f"{name}{key}", row))
        self._arrays = ScriptArrays(variables)
        shapes = self._arrays.structure.shapes
        check_positions(without_decay, len(shapes))
        terms = Terms(scheme, shapes, self._arrays.now(), tuple(without_decay), keeps_state=state is not None)
        self._handoff = Handoff(len(terms.initial))
        self._state = self._handoff.script_state = None if state is None else OwnState(state, self._arrays.leaves)
        self._loop = launched.loop(terms, name, self._handoff)
        self._log = GradientLog(self._run_dir, self.index) if launched.script.records_gradients else None
        self._thread = self._loop.begin()
        self._is_over = self._has_stepped = False  # the block has ended; `stepped` was called
        if self._arrays.copied and not self.index:
            copies = f"each step copies the variables, {self._arrays.copied}, to float32 of the host and back"
            launched.report(event="limits", message=copies)
        self._await_point()

    def step(self, gradient: Any = None, loss: Any = None) -> None:
        """Make one local step, and with the last step of a round the exchange with the other workers.

        Afterwards the variables hold the point of the next gradient. If the state was restored after a fault, the
        gradient is dropped, and they hold the point from which this worker continues.

        After a signal the joins of a script end one by one, each after a round of all workers. A step of one that has
        ended does nothing, and once all have ended a step raises `KeyboardInterrupt`.

        Args:
            gradient: the gradient at the values of the variables, with their structure; None for that in `.grad` of
                PyTorch's parameters.
            loss: the loss of this step, for algorithms that use it; reported as by `log(loss=loss)`.

        Raises:
            UserError: the gradient does not fit the variables; nothing was done.
        """
        check_eager("step")
        gradient = self._arrays.gradients() if gradient is None else gradient
        self._give(self._arrays.vector(gradient, "gradient"), loss)

    def stepped(self, loss: Any = None) -> None:
        """Count the local step that an optimizer of the script has made on the variables, in place of `step`.

        With the last step of a round follows the exchange with the other workers, as in `step`. The optimizer keeps its
        own variables, such as moments, over all rounds. The inner optimizer of the scheme is not used.

        Args:
            loss: the loss of this step, for algorithms that use it; reported as by `log(loss=loss)`.

        Raises:
            UserError: a local step of the scheme is not that of its `inner_optimizer` alone; nothing was done.
        """
        check_eager("stepped")
        if not self._scheme.makes_inner_steps:
            raise UserError(
                f"the local steps of {self._scheme.name} are not those of an inner optimizer alone: "
                "call worker.step(gradient), or join with local_sgd, diloco or another scheme with inner_optimizer"
            )
        if not self._has_stepped:
            self._has_stepped = True
            self._loop.progress.report(event="stepped")
        self._give(self._arrays.now(), loss, is_point=True)

    def _give(self, vector: np.ndarray, loss: Any, is_point: bool = False) -> None:
        if self._is_over:
            raise UserError("this worker has left the run: call step in the block of distsgd.join")
        if (loss := scalar(loss)) is not None:
            self.log(loss=loss)
        if self._log is not None and not self._handoff.stands:
            self._log.write(self.steps_done, self._point - vector if is_point else vector, is_point)
        self._handoff.give(vector, 0.0 if loss is None else float(loss), is_point)
        self._await_point()

    def _await_point(self) -> None:
        if (point := self._handoff.point()) is None:
            if self._launched.all_stand():
                raise Interrupted(signal.SIGINT)
            return
        if self._state is not None:
            self._state.load()
        self._arrays.write(point)
        if self._log is not None:
            self._point = point.copy()

    def log(self, **figures: Any) -> None:
        """Report numbers such as `loss`: their means go to metrics.jsonl and to the plot.

        The numbers of a second `join` have its name before theirs: `critic_loss`.
        """
        for name, value in figures.items():
            try:
                number = float(scalar(value))
            except (TypeError, ValueError):
                raise UserError(f"log takes numbers, as in log({name}=0.1). Received: {name}={value!r}"[:200]) from None
            self._loop.progress.figures[name].append(number)

    def average(self, tensors: Any) -> Any:
        """Write the mean over all workers into tensors that are no part of the algorithm, and return these.

        Call it after the block, on every worker, for tensors that each worker has for itself: running statistics of
        batch normalisation (`model.buffers()` of PyTorch, `model.non_trainable_variables` of Keras). `train` does so.
        Tensors of whole numbers, such as counters of batches, stay. The numbers travel as text: not for large tensors.

        Args:
            tensors: variables, tensors or arrays, in the structures of `join`, with the same shapes on all workers.

        Raises:
            UserError: the shapes differ between workers, or an array cannot be written.
            WaitTimeout: another worker has not called it.
        """
        leaves = tf.nest.flatten(arrays_of(tensors))
        if strange := [type(leaf).__name__ for leaf in leaves if not hasattr(leaf, "dtype")]:
            raise UserError(f"average takes variables, tensors or arrays. Received: {strange[0]}")
        leaves = [leaf for leaf in leaves if _is_floating(leaf)]
        if not leaves or self.num_workers == 1:
            return tensors
        self._averages += 1
        arrays, others = ScriptArrays(leaves), [k for k in range(self.num_workers) if k != self.index]
        wait = self._launched.job.cluster.wait_seconds
        key = f"{self._name}-average-{self._averages}"
        arrays.write(mean_of_workers(key, arrays.now(), others, self._launched.exchange, wait))
        return tensors

    def center(self) -> Any:
        """Return the center, with the structure of the variables."""
        return self._arrays.structure.arrays(tf.constant(self._center()))

    def _center(self) -> np.ndarray:
        """Return the present or final center, [P]; at the end from its file, unless that is on another machine."""
        if self._is_over and self._has_files:
            return read_arrays(self._run_dir, "center.npz")["center"]
        calls = self._loop.calls
        return ObserverCalls(calls.session, calls.graph, calls.wait_seconds).snapshot()["center"]

    @property
    def steps_done(self) -> int:
        """Local steps of this worker so far; with those before a restart of the worker, which count as done."""
        return self._loop.progress.steps + self._handoff.taken

    def shard(self, data: Any) -> Any:
        """Return every W-th example or batch, beginning with the one at the index of this worker.

        The data must come in the same order on all workers, which is compared: give `shuffle` a seed, or shuffle after
        `shard`. Only examples that workers have in common are compared, so that augmentation may differ.

        Args:
            data: a `tf.data.Dataset`; arrays, alone or in tuples and dicts, whose first axis is that of the examples;
                or another iterable, such as a list of batches.
        """
        return self._sharding.shard(data, self.steps_done)

    def _leave(self) -> None:
        """End the round, wait until all workers have left, and write the center into the variables."""
        self._handoff.leave()
        self._thread.join()
        self._handoff.check()
        self._is_over = True
        if self._log is not None:
            self._log.end(self._loop.progress.steps, len(self._point))
        self._arrays.write(self._center())


class Joining(AbstractContextManager[JoinedWorker]):
    """The block of a `join`, which has joined the run once it is entered."""

    def __init__(self, block: AbstractContextManager[JoinedWorker]):
        self._block = block

    def __enter__(self) -> JoinedWorker:
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if hasattr(JoinedWorker, name):
            raise UserError(f"join is a block: with join(...) as worker: ... Received: a call of {name} outside of one")
        raise AttributeError(name)


@contextmanager
def _joined(
    scheme: Scheme, variables: Any, name: str, without_decay: Collection[int], state: Any
) -> Iterator[JoinedWorker]:
    launched = Launched.current or Unlaunched.of_this_process()
    if not (isinstance(name, str) and re.fullmatch(r"\w*", name, re.ASCII)):
        raise UserError(f"the name of a join must have letters, digits and _ alone. Received: {name!r}")
    if name in launched.states:
        raise UserError(
            f"each join of a script needs a name of its own, as in join(..., name='critic'). Received: {name!r}"
        )
    if len(launched.states) == MOST_JOINS:
        raise UserError(f"a script can join {MOST_JOINS} times. Received: a join named {name!r}")
    worker = JoinedWorker(launched, scheme, variables, name, without_decay, state)
    launched.note(name, "joined")
    try:
        yield worker
        worker._leave()
    except BaseException as error:
        if launched.leave_by(name, error):
            worker._leave()
            launched.note(name, "left")
        raise
    launched.note(name, "left")


@checked_call
def join(
    scheme: Scheme, variables: Any, name: str = "", *, without_decay: Collection[int] = (), state: Any = None
) -> AbstractContextManager[JoinedWorker]:
    """Join the run of this script as one of its workers: the loop in the block makes the local steps.

    `bash run.sh launch --workers 4 my_script.py` starts the script in a process for each worker, beside the parameter
    servers. The values that the variables have on worker 0 are the first center. After `join`, and after each
    `worker.step(gradient)`, the variables hold the point of the next gradient. Leaving the block ends the last round
    early; the variables then hold the center, on every worker, and center.npz in the run directory has it. A script
    that was started as `python my_script.py` is the only worker of a run, in its own process.
    Gradients of all workers count alike, whatever the numbers of examples or valid positions of their batches.

    Args:
        scheme: the algorithm, for instance `DiLoCo(communication_period=50)`; the same on all workers.
        variables: TensorFlow or Keras variables, NumPy arrays or PyTorch tensors, in lists, tuples and dicts, or a
            single one; or a model of Keras or PyTorch, or an iterable such as `model.parameters()`, for a list of those
            that are trained. They are written in place. The algorithm computes in float32 on the host.
        name: a name for each join of a script that trains several groups of variables, such as generator and critic.
            The folder of this name in the run directory then has the results of the join.
        without_decay: positions of the variables, flattened, that the weight decay of the algorithm leaves as they are:
            biases and scales of normalisations, for instance.
        state: the optimizer of the script, of PyTorch or Keras, or another object with `state_dict()` and
            `load_state_dict(state)`. Checkpoints have its state on each worker, and a worker that resumes or restarts
            gets it back.

    Example:
        >>> with distsgd.join(DiLoCo(communication_period=50), variables) as worker:
        ...     for step, batch in enumerate(worker.shard(data)):
        ...         with tf.GradientTape() as tape:
        ...             loss = my_loss(batch)
        ...         worker.step(tape.gradient(loss, variables))

    Raises:
        UserError: the arguments do not fit, or the workers do not agree.
    """
    check_kind(scheme, "join(Downpour(), variables)")
    return Joining(_joined(scheme, variables, name, without_decay, state))
