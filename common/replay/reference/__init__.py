"""Every scheme in NumPy, float64, transcribed from the paper's equations. Imports NumPy alone, nothing of the package.

A recorded run is a total order of events on the server: (version, worker, staleness, accepted). Each function
executes the paper's equations in a given order and returns the center after every event.

`gradient(x, k, t)` is the gradient of worker k's t-th batch at x: a function, so the same code serves a neural
network on recorded batches, a quadratic, or a list of gradients.
"""

from .asynchronous_rules import aeamsgd, aeasgd, agn, async_sgd, async_sgd_reading_apart, downpour, dynsgd
from .batch_order import batch, rows, skewed_rows
from .codecs import bf16, int8, pushed, whole
from .compressed import ef_sgd, largest, scaled_sign, signsgd_mv
from .delayed import async_diloco, dc_asgd, ringmaster, ssp
from .one_worker import Gradient, serial, window
from .problems import GradientOnRows, mlp_gradient, mlp_loss, regularized, sparse_logistic_gradient
from .synchronous_rules import bmuf, diloco, easgd, local_sgd, sagn, slowmo, sync_sgd, sync_sgd_lr

__all__ = [
    "Gradient",
    "GradientOnRows",
    "aeamsgd",
    "aeasgd",
    "agn",
    "async_diloco",
    "async_sgd",
    "async_sgd_reading_apart",
    "batch",
    "bf16",
    "bmuf",
    "dc_asgd",
    "diloco",
    "downpour",
    "dynsgd",
    "easgd",
    "ef_sgd",
    "int8",
    "largest",
    "local_sgd",
    "mlp_gradient",
    "mlp_loss",
    "pushed",
    "regularized",
    "ringmaster",
    "rows",
    "sagn",
    "scaled_sign",
    "serial",
    "signsgd_mv",
    "skewed_rows",
    "slowmo",
    "sparse_logistic_gradient",
    "ssp",
    "sync_sgd",
    "sync_sgd_lr",
    "whole",
    "window",
]
