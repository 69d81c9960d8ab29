"""FedNova: workers make unequal numbers of local steps, and each counts by its mean step.

    worker k, each step     x ← x − η g_k(x),  H_k times
    every period            push d_k = (η/H_k) Σ g_k and H_k,  wait,  x ← θ
    server                  θ ← θ − ((1/W) Σ H_k) (1/W) Σ d_k,  then release all workers

H_k is a fraction of the period: `work` has the fractions, of one worker after the other, at least one step.

Use: if workers make different numbers of local steps; with equal numbers it is `local_sgd`.
Reference: Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization*, NeurIPS 2020, arXiv:2007.07481, with plain SGD on the workers, for which the normalizing factor ‖a_k‖₁ is
H_k, and with its default of the effective number of steps, the mean of H_k.
Departures: all workers take part in every round (`--participation` samples clients), with equal weights; the paper
weighs clients by their examples, and their H_k follow from epochs. Under a schedule of η, a message has the rate at the
beginning of its round.
Limits: with equal work it is `local_sgd`; with one worker that does all of its work serial SGD. On unequal shards the
mean of parameters would count each worker by H_k, and so come to rest at the minimum of another loss; here the rest is
near the minimum for small η H, as that of `local_sgd` is with equal H.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, FixedPeriod, Fraction, Rate, Rounds, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class FedNova(Scheme):
    """Unequal numbers of local steps, then the mean of the workers' mean steps."""

    paper = "Wang et al. 2020"
    sync = Barrier()
    sends = "gradient_sum"
    scalars = ("steps",)

    communication_period: FixedPeriod = 10
    """Local steps of a worker with all of its work between two rounds."""
    learning_rate: Rate = 0.2
    """Step size η."""
    work: tuple[Fraction, ...] = (1.0, 0.5)
    """Fractions of the period's steps that workers make, of one worker after the other."""

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even_share(steps, self.communication_period, self.work[worker % len(self.work)])

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return self.learning_rate * worker.gradient_sum / worker.steps, {"steps": worker.steps}

    def server_update(self, server, message, staleness):
        server.center.assign_sub(server.sent.steps * message)
        return server.center
