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

from ..common.contract import Count, Fraction, InnerOptimizer, Natural, Period, Rate, Scheme, delayed_step, inner, tf


@dataclass(frozen=True, kw_only=True)
class HALoS(Scheme):
    """Many local AdamW steps, then a step of the region's center, which is merged with a global one at times."""

    paper = "Kim et al. 2025"
    region_variables = "models", "velocities", "buffers", "counts", "since", "merged", "transit"

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
        return {"pulled": params, **inner(self.inner_optimizer).local_variables(params)}

    def global_variables(self, center):
        zeros, zero = 0 * center, 0 * center[0]
        first = zip(self.region_variables, (center, zeros, zeros, zero, zero, center, zeros), strict=True)
        regions = {name: tf.stack([value] * self.regional_servers) for name, value in first}
        return {"velocity": zeros, "buffer": zeros, "count": zero, **regions}

    def local_step(self, worker, gradient):
        inner(self.inner_optimizer).step(worker, gradient, self.learning_rate)

    def message(self, worker):
        return worker.pulled - worker.params

    @property
    def regions(self):
        return self.regional_servers, self.moves_per_merge, self.merge_delay

    def server_update(self, server, message, staleness):
        *own, since, merged, transit = self._rows(server)
        delayed_step(own, message, **self._rates("regional"))
        model, sends = own[0].read_value(), tf.equal(since.assign_add(1.0), self.moves_per_merge)
        transit.assign(tf.where(sends, merged - model, transit))
        if not self.servers_apart:
            self.up(server, sends)
            self.down(server, tf.equal(since, self.moves_per_merge + self.merge_delay))
        return model

    def up(self, server, when=True):
        *_, transit = self._rows(server)
        top = server.center, server.velocity, server.buffer, server.count
        delayed_step(top, transit, **self._rates("global"), when=when)
        transit.assign(tf.where(when, server.center, transit))

    def down(self, server, when=True):
        model, *_, since, merged, transit = self._rows(server)
        model.assign(tf.where(when, (1 - self.merge_share) * model + self.merge_share * transit, model))
        merged.assign(tf.where(when, model, merged))
        since.assign(tf.where(when, 0.0, since))

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.pulled.assign(reply)

    def _rows(self, server):
        return [server.row(name, server.sender % self.regional_servers) for name in self.region_variables]

    def _rates(self, level):
        rate, beta, size = (getattr(self, f"{level}_{name}") for name in ("learning_rate", "momentum", "buffer"))
        return {"rate": size * rate, "momentum": beta, "size": size}  # the authors divide by N the momentum alone
