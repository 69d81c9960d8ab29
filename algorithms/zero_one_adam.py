"""0/1 Adam: Adam whose variance changes more and more rarely, and whose momentum travels in signs, later not each step.

    worker k, each step    m ← β₁ m + (1 − β₁) g_k,  x ← x − η m / (√v̂ + ε),  u ← u + η m
    rounds in T_v          push g_k,  wait,  ḡ = (1/W) Σ g_k,  m ← β₁ m' + (1 − β₁) ḡ,  u = η m,
                           v ← β₂ v + (1 − β₂) ḡ²,  v̂ = v / (1 − β₂ⁿ) after n of these rounds
    other rounds           p = u + e_k,  q_k = C(p),  e_k ← p − q_k,  push q_k,  wait,  u ← reply,  m ← u / Σ η
    and their server       p = (1/W) Σ q_k + e,  u = C(p),  e ← p − u,  reply u,  then release all workers
    after each round       θ ← θ − u / (√v̂ + ε),  x ← θ,  u ← 0,  on the server and, with copies, on each worker

where m' is the m after the last round, which all workers share, Σ η is over the steps of the round, and C(p) has the
sign of each element times the mean of |p|, see `one_bit_adam`. T_v has κ rounds one after the other, κ with a distance
of two, of four and so on, until v is frozen after T steps; until then a round is one step. Later it has 2, 4, ... up to
H local steps, S steps of each length. Messages and replies are floats in rounds of T_v, and else two bits an element.

Use: on slow links, for models that need Adam and very many steps; in shorter runs, `one_bit_adam`.
Reference: Lu, Li, Zhang, De Sa, He, *Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam*, ICLR
2023, arXiv:2202.06009, Algorithm 1, with the intervals of its experiments.
Departures: in a round of T_v the mean gradient alone is sent, which makes the momentum, too, as in the authors' code;
the paper sends u as well. v changes before the step, not after it, and is corrected for its start at zero; a weight
whose v is zero is not moved. The authors' code sends signs of gradients in place of u until T, resets e there, and has
the scale ‖p‖₂/√d; the paper's is that of C. After T, rounds of one step last for S more steps in that code; here the
next ones have two. No weight decay.
Limits: with κ ≥ T and H = 1 it is Adam on mean gradients for T steps, without the correction of m, then 1-bit Adam.
`advise` takes the longest rounds, and none for those of T_v. Workers must make the same rounds: none may be started
again.
Defaults: the paper's κ = 16 and H = 16; its T is where the rate begins to fall. S is 32,678 in the authors' code, and
1,000 in its tutorial.
"""

import itertools
from dataclasses import dataclass

from ..common.contract import FixedPeriod, Natural, Rounds, sgd, take, tf
from .one_bit_adam import OneBitAdam


@dataclass(frozen=True, kw_only=True)
class ZeroOneAdam(OneBitAdam):
    """Adam with a variance that changes more and more rarely, signs of the momentum, and later local steps."""

    paper = "Lu et al. 2023"
    scalars = ("rate", "floats")
    sends = "gradient_sum"

    communication_period: FixedPeriod = 4
    """Most local steps H of a round."""
    warmup_steps: Natural = 60
    """Steps T before the variance is frozen, a round each."""
    variance_repeats: Natural = 16
    """Changes κ of the variance before the distance between two of them doubles."""
    doubling_steps: Natural = 60
    """Steps S before the local steps of a round double, up to the most."""

    def rounds(self, steps, done=0, worker=0, seed=0):
        found, begin, length = Rounds(), 0, 1
        while begin < done + steps:
            lasts = self.doubling_steps if begin else self.warmup_steps
            is_last = begin > 0 and length == self.communication_period
            end = done + steps if is_last else min(begin + lasts, done + steps)
            found += Rounds.even(max(0, end - max(begin, done)), length, "signs") if begin else self._first(done, end)
            begin, length = end, min(2 * length, self.communication_period)
        return found

    def _first(self, begin, end):
        """Return the rounds before the variance is frozen, of a step each, from one step to another."""
        found, step, distance = Rounds(), 0, 1
        while step < self.warmup_steps:
            times = min(self.variance_repeats, -(-(self.warmup_steps - step) // distance))
            found += Rounds(((((1, "floats"), *[(1, "signs")] * (distance - 1)), times),))
            step, distance = step + times * distance, 2 * distance
        is_whole = begin == 0 and end == step
        return found if is_whole else Rounds(((tuple(itertools.islice(found.after(begin), max(0, end - begin))), 1),))

    def local_variables(self, params):
        own = super().local_variables(params) | dict.fromkeys(("moving", "total"), 0 * params)
        return own | {"copy": params, "rate": 0 * params[0]}

    def global_variables(self, center):
        return super().local_variables(center)

    def local_step(self, worker, gradient):
        moving = worker.moving.assign(self.beta_1 * worker.moving + (1 - self.beta_1) * gradient)
        worker.total.assign_add(self.learning_rate * moving)
        worker.rate.assign_add(self.learning_rate)
        sgd(worker.params, self._direction(worker, moving, worker.adam_steps), self.learning_rate)

    def message(self, worker):
        moved, floats = take(worker.total), worker.kind == "floats"
        sent = worker.gradient_sum if floats else self._signs(worker, moved, worker.shapes)
        return sent, {"rate": worker.rate.read_value(), "floats": float(floats)}

    def server_update(self, server, message, staleness):
        floats = server.sent.floats > 0.5
        reply = tf.where(floats, message, self._signs(server, message, [message.shape], ~floats))
        self._end_round(server.center, server, floats, reply, server.sent.rate)
        return reply

    def on_reply(self, worker, reply):
        self._end_round(worker.copy, worker, worker.kind == "floats", reply, take(worker.rate))
        worker.params.assign(worker.copy)
        worker.moving.assign(worker.first_moment)

    def _end_round(self, params, own, floats, reply, rate):
        """Make the step of a round on its first point; `adam_steps` counts the changes of the variance."""
        m = tf.where(floats, self.beta_1 * own.first_moment + (1 - self.beta_1) * reply, reply / rate)
        v = self.beta_2 * own.second_moment + (1 - self.beta_2) * reply**2
        own.first_moment.assign(m)
        own.second_moment.assign(tf.where(floats, v, own.second_moment))
        own.adam_steps.assign_add(tf.cast(floats, tf.float32))
        sgd(params, self._direction(own, m, own.adam_steps), rate)
