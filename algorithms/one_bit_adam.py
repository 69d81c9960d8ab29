"""1-bit Adam: Adam on mean gradients at first; then its variance is frozen, and the momentum travels in signs.

    all steps t            x ← x − η m̂ / (√v̂ + ε),  m̂ = m / (1 − β₁ᵗ),  on each worker, and on the server with θ
    the first T            push g_k,  wait,  ḡ = (1/W) Σ g_k
                           m ← β₁ m + (1 − β₁) ḡ,  v ← β₂ v + (1 − β₂) ḡ²,  v̂ = v / (1 − β₂ᵗ)
    then, worker k         p = β₁ m + (1 − β₁) g_k + e_k,  q_k = C(p),  e_k ← p − q_k,  push q_k,  wait,  m ← reply
    then, server           p = (1/W) Σ q_k + e,  m = C(p),  e ← p − m,  reply m,  then release all workers

where C(p) = (‖p‖₁/d) sign(p) with sign(0) = 0, for each variable of the model on a worker, and for each slice on the
server, with d elements. With v fixed a step is linear in the momentum, so that an element which is sent later has the
effect that it would have had: error feedback needs that, and Adam with a variance of compressed gradients lacks it.

Messages and replies are floats in the first T rounds, and two bits for each element after them. x stays equal to θ.

Use: on slow links, for models that need Adam and many steps; not for runs that end soon after the first T steps.
Reference: Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He, *1-bit Adam: Communication Efficient Large-Scale
Training with Adam's Convergence Speed*, ICML 2021, arXiv:2102.02888, Algorithm 1.
Departures: m and v are corrected for their start at zero, as in Adam; the paper has neither, and a long T. A weight
whose v is zero after the first T steps is not moved: the authors' code has a mask for such weights. The authors' scale
is ‖p‖₂/√d, and a sign has one bit there, so that an element that is always zero needs that mask, too. The paper also
chooses T by the change of ‖v‖₁. No weight decay.
Limits: before step T it is synchronous Adam. A weight whose gradients are rare has a small v, and its steps are as
large as those of m, which has one size for all of a slice. `advise` counts the bytes of the rounds after T. Workers
must make the same rounds: none may be started again.
Defaults: the paper's T is 15 to 20 % of the steps; the authors' tutorial says 15 to 25 %.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..common.contract import Barrier, Codec, Decay, Natural, Rate, ScaledSigns, Scheme, scaled_signs, sgd, tf
from ..common.contract.rounds import Kind, Rounds

EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class OneBitAdam(Scheme):
    """Adam on mean gradients at first, then steps of signs of its momentum with a fixed variance."""

    paper = "Tang et al. 2021"
    sync = Barrier()
    codec = ScaledSigns(), ScaledSigns()
    kinds: ClassVar = {"floats": Kind(codec=Codec()), "signs": Kind()}

    learning_rate: Rate = 0.004
    """Step size η."""
    warmup_steps: Natural = 30
    """Steps T before the variance is frozen, whose messages are not compressed."""
    beta_1: Decay = 0.9
    """Decay β₁ of the momentum m."""
    beta_2: Decay = 0.999
    """Decay β₂ of the variance v."""

    def rounds(self, steps, done=0, worker=0, seed=0):
        floats = min(max(0, self.warmup_steps - done), steps)
        return Rounds.even(floats, 1, "floats") + Rounds.even(steps - floats, 1, "signs")

    def local_variables(self, params):
        return dict.fromkeys(("first_moment", "second_moment", "error"), 0 * params) | {"adam_steps": 0 * params[0]}

    def global_variables(self, center):
        return self.local_variables(center)

    def message(self, worker):
        if worker.kind == "floats":
            return worker.gradient
        momentum = self.beta_1 * worker.first_moment + (1 - self.beta_1) * worker.gradient
        return self._signs(worker, momentum, worker.shapes)

    def server_update(self, server, message, staleness):
        early = server.adam_steps < self.warmup_steps
        reply = tf.where(early, message, self._signs(server, message, [message.shape], ~early))
        self._step(server.center, server, reply)
        return reply

    def on_reply(self, worker, reply):
        self._step(worker.params, worker, reply)

    def _signs(self, own, vector, shapes, are_sent=True):
        """Return the signs of a vector and of what earlier ones lacked; if they are sent, keep what they lack."""
        total = vector + own.error
        signs = scaled_signs(total, shapes)
        own.error.assign(tf.where(are_sent, total - signs, own.error))
        return signs

    def _step(self, params, own, reply):
        """Make a step of Adam with the mean gradient, or the momentum, that the server has sent."""
        steps = own.adam_steps.assign_add(1.0)
        changed = tf.minimum(steps, float(self.warmup_steps))  # steps in which the variance has changed
        early, beta_1, beta_2 = steps <= changed, tf.constant(self.beta_1), tf.constant(self.beta_2)
        m = tf.where(early, beta_1 * own.first_moment + (1 - beta_1) * reply, reply)
        v = tf.where(early, beta_2 * own.second_moment + (1 - beta_2) * reply**2, own.second_moment)
        own.first_moment.assign(m)
        own.second_moment.assign(v)
        sgd(params, self._direction(own, m / (1 - beta_1**steps), changed), self.learning_rate)

    def _direction(self, own, m, changed):
        """Return the direction of a step with momentum m, if the variance has changed so many times."""
        variance = own.second_moment / (1 - tf.constant(self.beta_2) ** changed)
        return tf.where(own.second_moment > 0, m / (tf.sqrt(variance) + EPSILON), 0.0)
