"""EF-SGD: SGD with error feedback. Each worker sends a compressed step and adds the residual to its next step.

    worker k    p = η g_k(θ) + e,  q = C(p),  e ← p − q,  push q,  wait,  x ← θ
    server      θ ← θ − (1/W) Σ q_k,  then release all workers

    topk        C(p) keeps the elements of largest magnitude of the whole vector, and sets the others to zero
    sign        C(p) = (‖p‖₁/d) sign(p), for each variable of the model separately, with d elements; sign(0) = 0

A top-k message has pairs of an index and a value; a sign message two bits for each element, and the scale and offset of
each variable. The reply is the whole center.

Use: where the bytes of messages must be few, on equal data; not where those of the replies decide.
Reference: Karimireddy, Rebjock, Stich, Jaggi, *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*,
ICML 2019, arXiv:1901.09847: error feedback with any such C; its EF-signSGD is `sign`. Stich, Cordonnier, Jaggi,
*Sparsified SGD with Memory*, NeurIPS 2018, arXiv:1809.07599: `topk`.
Departures: the messages of W workers are averaged at a barrier. Karimireddy et al. have one worker; in Stich et al.'s
parallel Mem-SGD each of W workers subtracts its whole message from shared memory, without waiting. η is part of the
residual e, as in both papers; if η is a schedule, the residual keeps its old rate.
Limits: top-k with a share of one is `sync_sgd`: the residual is zero. With any C, all messages and the residual sum up
to η times the sum of all gradients: each element is sent in the end, but late. Without the residual neither C converges
in general.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Coordinates, Fraction, Rate, ScaledSigns, Scheme, scaled_signs, sgd, top_k


@dataclass(frozen=True, kw_only=True)
class EFSGD(Scheme):
    """A part of each step now, the largest elements or signs; the rest later."""

    paper = "Stich et al. 2018, Karimireddy et al. 2019"
    sync = Barrier()

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    share: Fraction = 0.02
    """Fraction of all elements that a top-k message has, at least one element."""
    compressor: Literal["topk", "sign"] = "topk"
    """Compressor C: the largest elements (Stich et al.), or scaled signs (Karimireddy et al.)."""

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
