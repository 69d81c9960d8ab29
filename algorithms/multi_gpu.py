"""Multi-GPU: one process, one copy of the parameters, p towers that share each batch.

    each step      tower i    g_i(θ) on its p-th part of the batch
                   θ ← θ − η (1/p) Σ g_i

Reference: data parallelism in Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014,
arXiv:1404.5997; the pattern of TensorFlow's `cifar10_multi_gpu_train`, today `tf.distribute.MirroredStrategy`.
Departures: towers are the local GPUs in turn, or p logical CPU devices where there are none; the parameters are on the
first. Batch normalisation sees a tower's part of the batch, and its averages are the mean over the towers.
Limits: the arithmetic is that of `serial` with the whole batch (without batch normalisation), and of `sync_sgd` with
p workers of batch b/p. `--towers p` gives towers to the workers of any other algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import positive
from ..common.gates.alone import Alone


@dataclass(frozen=True, kw_only=True)
class MultiGPU(Scheme):
    """SGD in one process on several devices."""

    name = "multi_gpu"
    idea = "one process, each batch shared by its GPUs (or logical CPU devices)"
    paper = "Krizhevsky 2014"
    default_towers = 2

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""

    def __post_init__(self):
        positive(learning_rate=self.learning_rate)

    @property
    def gate(self) -> Alone:
        """One worker alone."""
        return Alone()

    def local_step(self, worker: Any, gradient: Any) -> None:
        """θ ← θ − η ḡ; the gradient is the mean over the towers."""
        sgd(worker.params, gradient, self.learning_rate)
