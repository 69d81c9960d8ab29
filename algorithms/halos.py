"""HALoS: a server in each region, and one above them. No worker waits, and no region does.

    worker k of region r    H steps x ← AdamW(x, g_k(x)), or of another inner optimizer, from the θ_r that it pulled
                            push g = θ_r as pulled − x,  x ← reply
    server of region r      D_r ← D_r + g                                       n-th push of the region
        N divides n         m_r ← β m_r + D_r/N,  θ_r ← θ_r − ε (g + N β m_r),  D_r ← 0
        otherwise           θ_r ← θ_r − ε g
                            reply θ_r
        K pushes after the last merge       send p_r − θ_r to the global server
        D pushes after that, or later       θ_r ← (1 − α) θ_r + α Θ, where Θ is its reply,  p_r ← θ_r
    global server           the same step of Θ with a message of a region, and with ε', β' and N' of its own
                            reply Θ

where p_r is θ_r after the last merge, and worker k is in region k mod R. Workers hear their region alone: between
regions one message takes the place of K messages of workers.

Use: for workers in regions with slow links between them; in one place `async_diloco` is simpler.
Reference: Kim, Li, Gandham, Baldonado, Gangidi, Balaji, Wang, Akella, *HALoS: Hierarchical Asynchronous Local SGD over
Slow Networks for Geo-Distributed Large Language Model Training*, ICML 2025, arXiv:2506.04531, Algorithm 1, with the
delayed Nesterov steps of the authors' experiments.
Departures: with R + 1 ps tasks (`--ps 3` for two regions), and in virtual time (`simulate`), each server is at a place
of its own: messages of workers travel inside their region, those between servers over the links of the regions, and a
region merges the reply when it arrives. The first ps is the global server, the others are those of the regions. With
another number of ps tasks, and in `model.fit` and `Group`, each ps has a slice of all models. There a message of a
worker travels as far as with one server, and messages between servers take no time: whatever a push causes is one
atomic event. All workers make equal numbers of local steps (in the paper slow workers make fewer). A worker that
restarts begins from Θ instead of θ_r.
Memory: the ps keeps five vectors for each region, and three for the global server.
Versions: the center is Θ. Its version counts all messages of workers, most of which change their region alone; with
servers apart it counts those that the global server knows of, and staleness those of the worker's region.
Limits: with one region, K = 1, D = 0, α = 1, ε' = N' = 1 and β' = 0 it is `async_diloco` with the outer rate ε W and
N = W. The moves of a region after its last message do not reach Θ: a run needs many times R K messages. Servers apart
have no checkpoints, no average and no model with state, and all tasks have to live.
Defaults: the authors' rates and momenta. They have K = 32 and H = 8; here K = 4 and H = 10.
"""

from dataclasses import dataclass
from typing import Any

from ..common.contract import Count, Fraction, Natural, Period, Rate, Regions, Scheme, delayed_step
from ..common.contract.inner import InnerOptimizer


@dataclass(frozen=True, kw_only=True)
class HALoS(Scheme):
    """Many local AdamW steps, then a step of the region's center, which is merged with a global one at times."""

    paper = "Kim et al. 2025"

    communication_period: Period = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.005
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    regional_servers: Natural = 2
    """Number R of regions; worker k is in region k mod R."""
    regional_learning_rate: Rate = 0.2
    """Step size ε of the regional servers."""
    regional_momentum: Fraction = 0.9
    """Momentum β of the regional servers."""
    regional_buffer: Natural = 16
    """Number N of messages of workers for each use of a region's momentum."""
    global_learning_rate: Rate = 0.15
    """Step size ε' of the global server."""
    global_momentum: Fraction = 0.5
    """Momentum β' of the global server."""
    global_buffer: Natural = 2
    """Number N' of messages of regions for each use of the global momentum."""
    moves_per_merge: Natural = 4
    """Number K of messages of workers after which a region sends its news to the global server."""
    merge_share: Fraction = 0.25
    """Weight α of the global model in a merge."""
    merge_delay: Count = 0
    """Number D of messages of the region's workers between its message to the global server and the merge; in virtual
    time the least number."""

    def local_variables(self, params):
        return {"pulled": params}

    def global_variables(self, center):
        return _delayed(center)

    def message(self, worker):
        return worker.pulled - worker.params

    def server_update(self, server, message, staleness):
        _step(server, message, self.regional_learning_rate, self.regional_momentum, self.regional_buffer)
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.pulled.assign(reply)

    @property
    def regions(self):
        every, delay = self.moves_per_merge, self.merge_delay
        return Regions(number=self.regional_servers, every=every, delay=delay, above=_Above(of=self))


@dataclass(frozen=True, kw_only=True)
class _Above(Scheme):
    """The global server, whose workers are the regions."""

    of: Any

    def local_variables(self, params):
        return {"merged": params}

    def global_variables(self, center):
        return _delayed(center)

    def message(self, worker):
        return worker.merged - worker.params

    def server_update(self, server, message, staleness):
        _step(server, message, self.of.global_learning_rate, self.of.global_momentum, self.of.global_buffer)
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign((1 - self.of.merge_share) * worker.params + self.of.merge_share * reply)
        worker.merged.assign(worker.params)


def _delayed(center):
    return {"velocity": 0 * center, "buffer": 0 * center, "count": 0 * center[0]}


def _step(server, message, rate, momentum, size):
    state = server.center, server.velocity, server.buffer, server.count
    how = {"rate": size * rate, "momentum": momentum, "size": size}  # the authors divide the momentum alone by N
    delayed_step(state, message, **how)
