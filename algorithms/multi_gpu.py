"""Multi-GPU SGD: one process and one copy of the parameters; p devices share each batch.

    each step      device i    g_i(θ) on its p-th part of the batch
                   θ ← θ − η (1/p) Σ g_i

Use: on one machine with several devices; on several machines take `all_reduce` or `sync_sgd`.
Reference: data parallelism in Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014,
arXiv:1404.5997; the pattern of TensorFlow's `cifar10_multi_gpu_train`, today `tf.distribute.MirroredStrategy`.
Departures: devices are the local GPUs in turn, or p logical CPU devices without GPUs; the parameters are on the first.
Batch normalisation sees a device's part of the batch, and its averages are the mean over the devices.
Limits: the arithmetic is that of `serial` with the whole batch (without batch normalisation), and of `sync_sgd` with
p workers of batch b/p. `--devices-per-worker p` gives each worker of any other algorithm p devices.
"""

from dataclasses import dataclass

from ..common.contract import Alone, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class MultiGPU(Scheme):
    """One process, each batch shared by its GPUs (or logical CPU devices)."""

    paper = "Krizhevsky 2014"
    sync = Alone()
    default_devices_per_worker = 2
    elementwise = True

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)
