"""HALoS: a server in each region, and one above them. No worker waits, and no region does.

    worker k of region r    H steps x ← AdamW(x, g_k(x)), or of another inner optimizer, from the θ_r that it pulled
                            push g = θ_r as pulled − x,  x ← reply
    server of region r      D_r ← D_r + g                                       n-th push of the region
        N divides n         m_r ← β m_r + D_r/N,  θ_r ← θ_r − ε (g + N β m_r),  D_r ← 0
        otherwise           θ_r ← θ_r − ε g
                            reply θ_r
        K pushes after the last merge       send p_r − θ_r to the global server
        D pushes after that                 θ_r ← (1 − α) θ_r + α Θ, where Θ is its reply,  p_r ← θ_r
    global server           the same step of Θ with a message of a region, and with ε', β' and N' of its own
                            reply Θ

where p_r is θ_r after the last merge, and worker k is in region k mod R. Whatever a push causes is one atomic event.
Workers hear their region alone: between regions one message takes the place of K messages of workers.

Use: for workers in regions with slow links between them; in one place `async_diloco` is simpler.
Reference: Kim, Li, Gandham, Baldonado, Gangidi, Balaji, Wang, Akella, *HALoS: Hierarchical Asynchronous Local SGD over
Slow Networks for Geo-Distributed Large Language Model Training*, ICML 2025, arXiv:2506.04531, Algorithm 1, with the
delayed Nesterov steps of the authors' experiments.
Departures: all models are on the ps tasks of the run, each of which has its slice of them: the arithmetic is that of
two levels, but a message of a worker travels as far as with one server. Between servers messages take no time, and the
region merges the reply after D further pushes, not after a time. All workers make equal numbers of local steps (in the
paper slow workers make fewer). A worker that restarts begins from Θ instead of θ_r.
Memory: the ps keeps five vectors for each region, and three for the global server.
Versions: the center is Θ. Its version counts all messages of workers, most of which change their region alone.
Limits: with one region, K = 1, D = 0, α = 1, ε' = N' = 1 and β' = 0 it is `async_diloco` with the outer rate ε W and
N = W. The moves of a region after its last message do not reach Θ: a run needs many times R K messages.
"""

from dataclasses import dataclass

from ..common.contract import Count, Fraction, InnerOptimizer, Natural, Period, Rate, Scheme, delayed_step, inner, tf

OF_REGIONS = "models", "velocities", "buffers", "counts", "merged", "replies", "since"


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
    """Number D of messages of the region's workers between its message to the global server and the merge."""

    def local_variables(self, params):
        return {"pulled": params, **inner(self.inner_optimizer).local_variables(params)}

    def global_variables(self, center):
        first = {"models": center, "merged": center, "replies": center, "velocities": 0 * center, "buffers": 0 * center}
        first |= {"counts": 0 * center[0], "since": 0 * center[0]}
        regions = {name: tf.stack([value] * self.regional_servers) for name, value in first.items()}
        return {"velocity": 0 * center, "buffer": 0 * center, "count": 0 * center[0], **regions}

    def local_step(self, worker, gradient):
        inner(self.inner_optimizer).step(worker, gradient, self.learning_rate)

    def message(self, worker):
        return worker.pulled - worker.params

    def server_update(self, server, message, staleness):
        region = server.sender % self.regional_servers
        *own, merged, reply, since = (tf.gather(getattr(server, name), region) for name in OF_REGIONS)
        model, *others = delayed_step(*own, moved=message, **self._rates("regional"))
        since = since + 1
        sends = tf.equal(since, self.moves_per_merge)
        merges = tf.equal(since, self.moves_per_merge + self.merge_delay)

        top = server.center, server.velocity, server.buffer, server.count
        for variable, value in zip(top, delayed_step(*top, merged - model, **self._rates("global")), strict=True):
            variable.assign(tf.where(sends, value, variable))
        reply = tf.where(sends, server.center, reply)

        after = tf.where(merges, (1 - self.merge_share) * model + self.merge_share * reply, model)
        state = after, *others, tf.where(merges, after, merged), reply, tf.where(merges, 0.0, since)
        for name, value in zip(OF_REGIONS, state, strict=True):
            getattr(server, name).scatter_update(tf.IndexedSlices(value, region))
        return model

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.pulled.assign(reply)

    def _rates(self, level):
        size = getattr(self, f"{level}_buffer")
        rate = size * getattr(self, f"{level}_learning_rate")  # the authors divide the momentum by N, and not the step
        return {"rate": rate, "momentum": getattr(self, f"{level}_momentum"), "size": size}
