"""BMUF: blockwise model-update filtering. Local SGD, then momentum on the mean move of a block of steps.

    worker, each step       x ← x − η g_k(x), or another inner optimizer; its variables never leave the worker
    every period            push x − b,  wait,  x, b ← B
    server                  D ← μ D + ζ (1/W) Σ (x_k − b_k),  θ ← θ + D,  reply B
                            nesterov    B = θ + μ D
                            classical   B = θ

where b are the worker's parameters at the start of the block. The center θ, which is evaluated and saved, is the
paper's global model.

Use: like `slowmo`, for few rounds; not with a block momentum far above 1 − 1/W.
Reference: Chen and Huo, *Scalable Training of Deep Learning Machines by Incremental Block Training with Intra-block
Parallel Optimization and Blockwise Model-Update Filtering*, ICASSP 2016.
Departures: none. A worker that restarts, or starts in a resumed run, begins its first block at θ.
Limits: with μ = 0 and ζ = 1 it is `local_sgd`. With Nesterov momentum it is `diloco` with the inner optimizer SGD, the
center B and the outer rate ζ. In the long run a block is multiplied by ζ/(1 − μ), which is W by default, as if the
blocks of all workers were summed.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Fraction, InnerOptimizer, Period, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class BMUF(Scheme):
    """Local steps, then momentum on the workers' mean move."""

    paper = "Chen & Huo 2016"
    aliases = ("fedavgm --form classical --block-momentum 0.9",)
    sync = Barrier()
    elementwise = True

    communication_period: Period = 10
    """Local steps in a block."""
    learning_rate: Rate = 0.1
    """The worker's step size η."""
    inner_optimizer: InnerOptimizer = "sgd"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    block_learning_rate: Rate = 1.0
    """Block learning rate ζ of the workers' mean move."""
    block_momentum: Fraction | None = None
    """Block momentum μ; 1 − 1/W by default."""
    form: Literal["nesterov", "classical"] = "nesterov"
    """Start of a block: ahead of the global model (nesterov), or at it (classical)."""

    def global_variables(self, center):
        return {"block": 0 * center}

    def local_variables(self, params):
        return {"began": params}

    def message(self, worker):
        return worker.params - worker.began

    def server_update(self, server, message, staleness):
        momentum = 1 - 1 / server.num_workers if self.block_momentum is None else self.block_momentum
        server.block.assign(momentum * server.block + self.block_learning_rate * message)
        server.center.assign_add(server.block)
        return server.center + momentum * server.block if self.form == "nesterov" else server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.began.assign(reply)
