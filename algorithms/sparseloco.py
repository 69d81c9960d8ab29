"""SparseLoCo: DiLoCo whose workers send the largest elements of their moves, and keep the rest for later rounds.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            periods and never leave the worker
    every period            e ← β e + θ − x,  q = C(e),  e ← e − q,  push q,  wait,  θ ← θ − s,  x ← θ
    server                  s = (ε/W) Σ q_k,  θ ← θ − s,  reply s,  then release all workers

where C keeps the elements of largest magnitude of the whole vector. Message and reply have pairs of an index and a
value, for each nonzero element: up to W times as many in a reply. Each worker keeps a copy of θ. With `senders` the sum
of an element is divided by the number of workers that have sent it, in place of W.

Use: like `diloco`, if even its messages are too large; not where the bytes decide less than the rounds.
Reference: Sarfi, Thérien, Lidin, Belilovsky, *Communication Efficient LLM Pre-training with SparseLoCo*, 2025,
arXiv:2508.15706.
Departures: the paper takes the largest elements of each chunk of a variable, and sends each in two bits, with the error
of that in e; here values are float32. Workers exchange the messages among themselves there; the sum is the same. The
paper divides by W, its production code by the senders, and scales each message down to the median norm of all first.
Limits: with a share of one it is `diloco` without outer momentum, for any β: e is zero. With β = 1 and the inner
optimizer SGD it is Qsparse-local-SGD (Basu et al. 2019) with top-k. With a small share an element is sent after many
rounds, as the decayed sum of its moves: that is the only momentum of the outer step.
Defaults: the paper's β = 0.95, and 1 to 3 % of the elements; its periods are 15 to 250. Of 4 workers few send the same
element, so that ε = 1 over the senders is about ε = 3 over all.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import (
    Barrier,
    Coordinates,
    Fraction,
    InnerOptimizer,
    Period,
    Rate,
    Scheme,
    SummedCoordinates,
    count_senders,
    mean_over_senders,
    top_k,
)


@dataclass(frozen=True, kw_only=True)
class SparseLoCo(Scheme):
    """Many local AdamW steps, then the largest elements of the moves; the rest decays, and is sent later."""

    paper = "Sarfi et al. 2025"
    sync = Barrier()

    communication_period: Period = 20
    """Local steps between two outer steps."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 1.0
    """Outer step size ε."""
    decay: Fraction = 0.95
    """Decay β of the elements that are not sent, in each round."""
    share: Fraction = 0.03
    """Fraction of all elements that a message has, at least one element."""

    mean_over: Literal["all", "senders"] = "all"
    """Workers over which the mean of an element is taken: all, or those that have sent it."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share), SummedCoordinates(self.share)

    def global_variables(self, center):
        return {"senders": 0 * center, "messages": 0 * center[0]} if self.mean_over == "senders" else {}

    def local_variables(self, params):
        return {"began": params, "memory": 0 * params}

    def message(self, worker):
        moved = self.decay * worker.memory + worker.began - worker.params
        sent = top_k(moved, self.share)
        worker.memory.assign(moved - sent)
        return sent

    def weighted(self, server, message, staleness):
        if self.mean_over == "senders":
            count_senders(server, message)
        return message

    def server_update(self, server, message, staleness):
        mean = mean_over_senders(server, message) if self.mean_over == "senders" else message
        step = self.outer_learning_rate * mean
        server.center.assign_sub(step)
        return step

    def on_reply(self, worker, reply):
        worker.params.assign(worker.began.assign_sub(reply))
