"""DeMo: workers keep the momentum that they do not send, and send its largest cosine coefficients.

    worker k    m ← β m + g_k(θ),  q = C(m),  m ← m − q,  push q,  wait,  x ← θ
    server      θ ← θ − η sign((1/W) Σ q_k),  then release all workers

where C(m) has the largest coefficients of the discrete cosine transform of each chunk of m. A message has an index and
a value for each of them; the reply is the whole center.

Use: for large models with momentum and few bytes; not for small models, for which `ef_sgd` is simpler.
Reference: Peng, Chen, Su, Quesnelle, Kingma, Liu, *DeMo: Decoupled Momentum Optimization*, ICLR 2026, arXiv:2411.19870.
Departures: a chunk is a part of the flat vector, and each ps task's slice begins a new one; the paper has squares of a
matrix. There workers gather the messages of all, and each makes the step itself; here the ps does, so that replies are
not compressed. Gradients are not multiplied by η in m, which matters under a schedule alone. No weight decay.
Limits: the momentum is the error memory of `--codec dct` with a decay. If all coefficients of a chunk are sent, m is
zero after each message, and the step has the sign of the mean gradient. Every element moves by η in each step, however
small its gradient is, so only a falling rate converges.
Defaults: the authors' β = 0.999 and chunks of 64; they send 32 of the 4096 coefficients of a square.
"""

from dataclasses import dataclass

from ..common.contract import DCT, Barrier, Fraction, Natural, Rate, Scheme, WithMemory, sgd, tf


@dataclass(frozen=True, kw_only=True)
class DeMo(Scheme):
    """The largest cosine coefficients of each worker's momentum now, the rest later; steps of signs."""

    paper = "Peng et al. 2026"
    sync = Barrier()

    learning_rate: Rate = 0.003
    """Step size η of each weight."""
    decay: Fraction = 0.999
    """Decay β of the momentum."""
    chunk: Natural = 64
    """Elements of a chunk."""
    kept: Natural = 4
    """Coefficients of each chunk that a message has."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return WithMemory(DCT(block=self.chunk, kept=self.kept), self.decay)

    def server_update(self, server, message, staleness):
        sgd(server.center, tf.sign(message), self.learning_rate)
        return server.center
