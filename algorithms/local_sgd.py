"""Local SGD: workers take local steps, then all continue from the mean of their parameters.

    worker, each step       x ← x − η g_k(x), or another inner optimizer; its variables never leave the worker
    every period            push x,  wait,  x ← θ
    server                  θ ← (1/W) Σ x_k,  then release all workers

Post-local SGD (`--period-rule post-local:N`) averages after each of the first N steps, and then once in a period; with
`--period-rule qsr:ALPHA,H` the period is max(H, ⌊(α/η)²⌋), so that rounds become longer as the rate falls.

Use: for equal workers with slow links; on unequal data take `scaffold`, with few rounds `diloco` or `slowmo`.
Reference: Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019, arXiv:1805.09767; federated averaging:
McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2016, arXiv:1602.05629;
post-local: Lin et al., *Don't Use Large Mini-Batches, Use Local SGD*, ICLR 2020, arXiv:1808.07217; QSR: Gu, Lyu, Arora,
Zhang, Huang, *A Quadratic Synchronization Rule for Distributed Deep Learning*, ICLR 2024, arXiv:2310.14423.
Departures: the inner optimizer is a choice; the papers have SGD.
Limits: with a period of one, or with synchronous steps alone, it is `sync_sgd`; with one worker serial SGD for any
period; with a period of one epoch model averaging. `diloco` with the inner optimizer SGD, an outer rate of one and no
momentum is local SGD.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, InnerOptimizer, Period, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Scheme):
    """Local steps, then the mean of the parameters."""

    paper = "Stich 2019"
    equals = "diloco --outer-learning-rate 1 --momentum 0"
    aliases = ("fedavg",)
    sync = Barrier()
    elementwise = True
    sends = "params"

    communication_period: Period = 10
    """Local steps between two averages."""
    learning_rate: Rate = 0.2
    """Step size η."""
    inner_optimizer: InnerOptimizer = "sgd"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""

    def server_update(self, server, message, staleness):
        server.center.assign(message)
        return server.center
