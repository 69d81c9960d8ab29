"""EF21-SGDM: each worker estimates its gradient, and sends a compressed change of what the server knows of it.

    worker k    v ← β v + (1 − β) g_k(θ),  c = C(v − h_k),  h_k ← h_k + c,  push c,  wait,  x ← θ
    server      h ← h + (1/W) Σ c_k,  θ ← θ − η h,  then release all workers

    topk        C keeps the elements of largest magnitude of the whole vector, and sets the others to zero
    sign        C(p) = (‖p‖₁/d) sign(p), for each variable of the model separately, with d elements; sign(0) = 0

Worker and server both keep h_k, what the server knows of worker k's gradient. The worker sends only the compressed
difference, which both add to h_k: as gradients settle, the difference vanishes, and with it the error of compression.

Messages have the size of those of `ef_sgd`; the reply is the whole center. The mean of all h_k is h at every event.

Use: where the bytes of messages must be few and data are unequal; not with workers that are often lost.
Reference: Fatkhullin, Tyurin, Richtárik, *Momentum Provably Improves Error Feedback!*, NeurIPS 2023, arXiv:2305.15155,
Algorithm 1; their momentum is 1 − β. With β = 0 it is EF21: Richtárik, Sokolov, Fatkhullin, *EF21: A New, Simpler,
Theoretically Better, and Practically Faster Error Feedback*, NeurIPS 2021, arXiv:2106.05203.
Departures: v and h_k begin at zero; in the paper they begin at the worker's first gradient, which is sent whole. EF21
begins with C(g_k), as here.
Limits: with β = 0 and a share of one it is `sync_sgd`. As v − h_k vanishes where gradients no longer change, so does
the error of the compression: for a full gradient it converges to the minimum at a constant rate, also if the workers'
data differ, where compressed gradients without memory may diverge. A worker that is started again without its state
begins with h_k = 0, while the share of its old h_k in h stays: from then on the center comes to rest where the mean
gradient is the negative of that share. The loss of a worker leaves such a remainder, too.
Defaults: a momentum of 0.9 is what makes noisy gradients of small batches converge; EF21 needs large batches.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Coordinates, Decay, Fraction, Rate, ScaledSigns, Scheme, scaled_signs, sgd, top_k


@dataclass(frozen=True, kw_only=True)
class EF21SGDM(Scheme):
    """Workers send a compressed change of their momentum, and the server adds up the changes."""

    paper = "Richtárik et al. 2021, Fatkhullin et al. 2023"
    sync = Barrier()

    learning_rate: Rate = 0.2
    """Step size η of the mean estimate."""
    momentum: Decay = 0.9
    """Momentum β of the worker's estimate of its gradient; 0 for EF21."""
    share: Fraction = 0.02
    """Fraction of all elements that a top-k message has, at least one element."""
    compressor: Literal["topk", "sign"] = "topk"
    """Compressor C: the largest elements, or scaled signs."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share) if self.compressor == "topk" else ScaledSigns()

    def local_variables(self, params):
        return {"estimate": 0 * params, "known": 0 * params}

    def global_variables(self, center):
        return {"known": 0 * center}

    def message(self, worker):
        estimate = worker.estimate.assign(self.momentum * worker.estimate + (1 - self.momentum) * worker.gradient)
        change = estimate - worker.known
        sent = top_k(change, self.share) if self.compressor == "topk" else scaled_signs(change, worker.shapes)
        worker.known.assign_add(sent)
        return sent

    def server_update(self, server, message, staleness):
        sgd(server.center, server.known.assign_add(message), self.learning_rate)
        return server.center
