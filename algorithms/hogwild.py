"""Hogwild!: SGD on one shared vector without any lock.

    worker      read x_v for v in the batch (values may be of different ages),  g = g_k(x)
    shared      x_v ← x_v − η g_v    for v in the batch, in place, without a lock

Use: for sparse data, where updates seldom meet; for dense models it has no advantage over `async_sgd`.
Reference: Niu, Recht, Ré, Wright, *HOGWILD!: A Lock-Free Approach to Parallelizing SGD*, NIPS 2011,
arXiv:1106.5730.
Departures: the paper's setting is a sparse problem (`--dataset sparse`, `--dataset libsvm:path=...`): there a worker
gathers the coordinates of its batch and scatters its gradient into them, as above. The paper adds to a coordinate
atomically; TensorFlow's scatter does not: with collisions of all examples, up to five additions in a thousand were lost
(tests/test_sparse.py counts them). On any other problem gradients are dense: all coordinates collide, the paper's
guarantee does not apply, and the kernel holds the lock of the variable while it writes, so no addition is lost. No lock
spans read, update and version, so recorded versions are approximate. Workers that are threads take their gradients of a
large model at the shared vector itself, otherwise at a copy.
Limits: with one worker it is serial SGD, and without collisions also in any interleaving. With a lock it is
`async_sgd`.
"""

from dataclasses import dataclass

from ..common.contract import Rate, Scheme, Unlocked, sgd


@dataclass(frozen=True, kw_only=True)
class Hogwild(Scheme):
    """Updates in place, with no lock at all."""

    paper = "Niu et al. 2011"
    sync = Unlocked()
    sparse = True

    learning_rate: Rate = 0.1
    """Step size η."""

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
