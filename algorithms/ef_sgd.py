"""EF-SGD with top-k: each worker sends the largest elements of its step alone, and remembers the rest for later.

    worker k    p = η g_k(θ) + e,  q = top-k of p,  e ← p − q,  push q,  wait,  x ← θ
    server      θ ← θ − (1/W) Σ q_k,  then release everybody

Top-k keeps the elements of the whole vector that are largest in size, and makes the others zero. What is sent travels
as pairs of an index and a value; the reply is the whole center.

Reference: Karimireddy, Rebjock, Stich, Jaggi, *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*,
ICML 2019, arXiv:1901.09847; with top-k: Stich, Cordonnier, Jaggi, *Sparsified SGD with Memory*, NeurIPS 2018,
arXiv:1809.07599.
Departures: η is within the memory, as in the papers; if it is a schedule, what is remembered keeps its old rate.
Limits: a share of one is `sync_sgd`: nothing is remembered. With any share, what was sent and what is remembered sum
up to η times the sum of all gradients: nothing is lost, but late.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Coordinates, Fraction, Rate, Scheme, sgd, top_k


@dataclass(frozen=True, kw_only=True)
class EFSGD(Scheme):
    """The largest elements of each step now, what is left out later."""

    paper = "Karimireddy et al. 2019"
    gate = Barrier()

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    share: Fraction = 0.02
    """Part of all elements that a worker sends, one element at least."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share)

    def local_variables(self, params):
        return {"memory": 0 * params}

    def message(self, worker):
        step = self.learning_rate * worker.gradient + worker.memory
        sent = top_k(step, self.share)
        worker.memory.assign(step - sent)
        return sent

    def server_update(self, server, message, staleness):
        sgd(server.center, message, 1.0)
        return server.center
