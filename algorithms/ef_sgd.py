"""EF-SGD: each worker sends a part of its step, the largest elements or signs, and remembers the rest for later.

    worker k    p = η g_k(θ) + e,  q = C(p),  e ← p − q,  push q,  wait,  x ← θ
    server      θ ← θ − (1/W) Σ q_k,  then release everybody

    topk        C(p) keeps the elements of the whole vector that are largest in size, and makes the others zero
    sign        C(p) = (‖p‖₁/d) sign(p), for each variable of the model by itself, of d elements; sign(0) = 0

Top-k travels as pairs of an index and a value; signs as two bits for each element, and for each variable its scale and
where it begins. The reply is the whole center.

Reference: Karimireddy, Rebjock, Stich, Jaggi, *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*,
ICML 2019, arXiv:1901.09847: error feedback with any such C; its EF-signSGD is `sign`. Stich, Cordonnier, Jaggi,
*Sparsified SGD with Memory*, NeurIPS 2018, arXiv:1809.07599: `topk`.
Departures: the messages of W workers are averaged at a barrier. Karimireddy et al. have one worker; in Stich et al.'s
parallel Mem-SGD each of W subtracts its whole message from shared memory, without waiting. η is within the memory, as
in both; if it is a schedule, what is remembered keeps its old rate.
Limits: top-k with a share of one is `sync_sgd`: nothing is remembered. With any C, what was sent and what is remembered
sum up to η times the sum of all gradients: nothing is lost, but late. Without memory neither converges in general.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Coordinates, Fraction, Rate, ScaledSigns, Scheme, scaled_signs, sgd, top_k


@dataclass(frozen=True, kw_only=True)
class EFSGD(Scheme):
    """A part of each step now, the largest elements or signs; what is left out later."""

    paper = "Stich et al. 2018, Karimireddy et al. 2019"
    gate = Barrier()

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    share: Fraction = 0.02
    """Part of all elements that a worker sends of its top-k, one element at least."""
    compressor: Literal["topk", "sign"] = "topk"
    """C: the largest elements (Stich et al.), or scaled signs (Karimireddy et al.)."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share) if self.compressor == "topk" else ScaledSigns()

    def local_variables(self, params):
        return {"memory": 0 * params}

    def message(self, worker):
        step = self.learning_rate * worker.gradient + worker.memory
        sent = top_k(step, self.share) if self.compressor == "topk" else scaled_signs(step, worker.shapes)
        worker.memory.assign(step - sent)
        return sent

    def server_update(self, server, message, staleness):
        sgd(server.center, message, 1.0)
        return server.center
