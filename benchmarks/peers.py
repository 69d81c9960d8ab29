"""What the throughput benchmark compares with, each in processes of its own.

    python -m distsgd.benchmarks.peers single MODEL SECONDS   one process, all cores, a loop inside the graph
    python -m distsgd.benchmarks.peers apart MODEL SECONDS    two of them, each on a core of its own
    python -m distsgd.benchmarks.peers pss MODEL SECONDS      ParameterServerStrategy, 1 ps + 2 workers
    python -m distsgd.benchmarks.peers fit MODEL SECONDS      Keras' `fit` of the resnet; fit-xla: compiled with XLA

All print one line of JSON: {"rate": steps per second, "cpu": {task: CPU milliseconds per step}}; `torch_peers.py` has
others. Variables are per layer and the step is written with plain operations; of Keras, which only adds to the time of
either, is the function that the cnn is. To be fair to the strategy, its servers get the thread pools that ours get (12
to 24 % faster on the medium model in three trials), and its batches are gathered on the workers, as ours are (no clear
difference from a `tf.data` pipeline there).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ..common.cluster.failure_detector import cpu_seconds
from ..common.data.models import ModelRecipe
from ..common.launch.isolation import network_of
from ..common.lazy import keras, tf

WORKERS = 2
CORES = len(os.sched_getaffinity(0))
BATCH = 64
EXAMPLES = 4096
LEARNING_RATE = 0.01  # nothing is learnt here; it only must not diverge
WARM_SECONDS = 1.0
PR_SET_PDEATHSIG = 1

# Units of each layer, inputs first; of the cnn and the resnet, pixels and classes.
MLPS = {"small": (64, 128, 10), "medium": (784, 1024, 1024, 10), "large": (1000, 4096, 4096, 10)}
LAYERS = {**MLPS, "cnn": (784, 10), "resnet": (3072, 10)}

BATCHES = {model: 256 if model == "resnet" else BATCH for model in LAYERS}


def examples(model: str) -> tuple[Any, ...]:
    """Return X and y."""
    from ..common.data.recipes import synthetic

    return synthetic(examples=BATCHES[model] // BATCH * EXAMPLES, features=LAYERS[model][0]).train


def variables(units: tuple[int, ...]) -> list[Any]:
    """Return weights and biases of each layer."""
    tf.random.set_seed(0)
    parameters = []
    for inputs, outputs in itertools.pairwise(units):
        parameters.append(tf.Variable(tf.random.normal([inputs, outputs], stddev=inputs**-0.5)))
        parameters.append(tf.Variable(tf.zeros([outputs])))
    return parameters


def logits(values: list[Any], x: Any) -> Any:
    """Return the logits of an mlp with these weights and biases."""
    for layer in range(0, len(values), 2):
        x = tf.matmul(x if layer == 0 else tf.tanh(x), values[layer]) + values[layer + 1]
    return x


def step(params: list[Any], x: Any, y: Any, forward: Callable[[list[Any], Any], Any] = logits) -> None:
    """Make one step of SGD on one batch, of the model that `forward(values of its variables, x)` is."""
    values = [p.read_value() for p in params]  # one read each: on a ps, every further one is one more transfer
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, forward(values, x)))
    gradients: list[Any] = tape.gradient(loss, values)  # type: ignore[assignment]
    for variable, gradient in zip(params, gradients, strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)


def trained(model: str) -> tuple[list[Any], Callable[[list[Any], Any], Any]]:
    """Return the variables of a model, and its function of their values and x. The cnn is ours."""
    if model in MLPS:
        return variables(MLPS[model]), logits
    pixels, classes = LAYERS[model]
    built = ModelRecipe.named(model, (pixels,), classes, seed=0).build()
    return [v.value for v in built.trainable_variables], lambda values, x: built.stateless_call(values, [], x)[0]


def timed(run: Callable[[int], None], seconds: float, pids: Mapping[str, int]) -> dict[str, Any]:
    """Measure `run(steps)` per second, after a warm-up which also finds how many steps to take.

    Args:
        run: takes that many steps.
        seconds: to measure for, about.
        pids: the processes that are at it.
    """
    steps, took = WORKERS, 0.0
    run(steps)  # traces
    while took < WARM_SECONDS:
        steps *= 2
        began = time.perf_counter()
        run(steps)
        took = time.perf_counter() - began
    steps = max(2, round(seconds * steps / took))
    used, began = {task: cpu_seconds(pid) or 0.0 for task, pid in pids.items()}, time.perf_counter()
    run(steps)
    rate = steps / (time.perf_counter() - began)
    cpu = {task: 1e3 * ((cpu_seconds(pid) or 0.0) - used[task]) / steps for task, pid in pids.items()}
    return {"rate": rate, "cpu": cpu}


def single(model: str, seconds: float) -> dict[str, Any]:
    """Measure the limit of one process: batches are gathered and steps are looped over inside one graph call."""
    x, y = (tf.constant(a) for a in examples(model))
    params, forward = trained(model)

    @tf.function
    def run(steps: Any) -> None:
        for _ in tf.range(steps):
            rows = tf.random.uniform([BATCH], maxval=EXAMPLES, dtype=tf.int32)
            step(params, tf.gather(x, rows), tf.gather(y, rows), forward)

    return timed(lambda steps: run(tf.constant(steps)), seconds, {"process": os.getpid()})


def fit(model: str, seconds: float, xla: bool = False) -> dict[str, Any]:
    """Measure Keras' `fit` of the resnet with its plain SGD, in whole epochs."""
    from .resnet import build

    x, y = examples(model)
    built = build(optimizer=keras.optimizers.SGD(LEARNING_RATE), jit_compile=xla)
    each = len(x) // BATCHES[model]
    x, y = x[: each * BATCHES[model]], y[: each * BATCHES[model]]  # XLA would compile a shorter batch, too

    def epochs(number: int) -> float:
        began = time.perf_counter()
        built.fit(x, y, batch_size=BATCHES[model], epochs=number, verbose=0)
        return time.perf_counter() - began

    epochs(1)  # traces
    number = max(2, round(seconds / epochs(1)))
    used = cpu_seconds(os.getpid()) or 0.0
    steps, took = number * each, epochs(number)
    return {"rate": steps / took, "cpu": {"process": 1e3 * ((cpu_seconds(os.getpid()) or 0.0) - used) / steps}}


def apart(model: str, seconds: float) -> dict[str, Any]:
    """Measure as many independent processes as workers, each with a core of its own."""
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", __spec__.name, "single", model, str(seconds)]
    started = [
        subprocess.Popen([*command, str(core)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for core in itertools.islice(cores, WORKERS)
    ]
    results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    rate = sum(r["rate"] for r in results)
    return {"rate": rate, "cpu": {"process": sum(r["rate"] * r["cpu"]["process"] for r in results) / rate}}


def pss(model: str, seconds: float) -> dict[str, Any]:
    """Measure `ParameterServerStrategy` with `ClusterCoordinator`: a full queue of single steps, then one join.

    The private network needs a process with one thread, so OPENBLAS_NUM_THREADS must be 1 from the start.
    """
    network_of("auto")
    with servers() as (spec, pids):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec), rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            params = variables(MLPS[model])
        x, y = examples(model)

        @tf.function
        def train() -> None:
            rows = tf.random.uniform([BATCH], maxval=EXAMPLES, dtype=tf.int32)
            step(params, tf.gather(x, rows), tf.gather(y, rows))

        def run(steps: int) -> None:
            for _ in range(steps):
                coordinator.schedule(train)
            coordinator.join()

        return timed(run, seconds, {"coordinator": os.getpid(), **pids})


@contextlib.contextmanager
def servers() -> Iterator[tuple[dict[str, list[str]], dict[str, int]]]:
    """Start the servers of one ps and two workers as processes; yield addresses and pids, and end them."""
    spec = free_addresses()
    started: list[subprocess.Popen[bytes]] = []
    try:
        for job, hosts in spec.items():
            for index in range(len(hosts)):
                command = [sys.executable, "-m", __spec__.name, "server", json.dumps(spec), job, str(index)]
                started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr))
        tasks = [f"{job}-{index}" for job, hosts in spec.items() for index in range(len(hosts))]
        yield spec, {task: process.pid for task, process in zip(tasks, started, strict=True)}
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def free_addresses(workers: int = WORKERS) -> dict[str, list[str]]:
    """Return a free port of this machine for each server, of one ps and that many workers."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(1 + workers):
            holder = held.enter_context(socket.socket())
            holder.bind(("127.0.0.1", 0))
            ports.append(f"127.0.0.1:{holder.getsockname()[1]}")
    return {"ps": ports[:1], "worker": ports[1:]}


def serve(spec: dict[str, list[str]], job: str, index: int) -> None:
    """Run one server until it is killed, at the latest when the coordinator ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=max(1, CORES // WORKERS))
    tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc", config=config).join()


def main() -> None:
    """Run one of the processes above."""
    role, *rest = sys.argv[1:]
    if role == "server":
        serve(json.loads(rest[0]), rest[1], int(rest[2]))
        return
    model, seconds, *core = rest
    if core:
        os.sched_setaffinity(0, {int(core[0])})
    roles = {"single": single, "apart": apart, "pss": pss, "fit": fit, "fit-xla": partial(fit, xla=True)}
    result = roles[role](model, float(seconds))
    print(json.dumps(result), flush=True)
    os._exit(0)  # the coordinator's threads would wait for servers that have gone


if __name__ == "__main__":
    main()
