"""The mutations of `mutants.py`: each changes one place, and the tests that are about it must turn red."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE, GATES, CONTRACT, RUN, PROBLEMS, PROOF, TIME = (
    f"common/{name}" for name in ("engine", "gates", "contract", "run", "problems", "proof", "virtual_time")
)


@dataclass(frozen=True)
class Mutation:
    """A single change: the old text must be in the files of that folder (or in that file) exactly once."""

    name: str
    place: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str


def server(name: str) -> tuple[str]:
    return (f"tests/test_server.py::test_{name}",)


def identity(name: str) -> tuple[str]:
    return (f"tests/test_identities.py::test_{name}",)


def transported(name: str) -> tuple[str]:
    return (f"tests/test_transport.py::test_{name}",)


def option(name: str) -> tuple[str]:
    return (f"tests/test_options.py::test_{name}",)


# Tests that several mutations have in common.
ATOMIC = "every_event_reads_and_writes_the_global_variables_under_the_lock_and_nowhere_else"
TAKEN = server("a_message_of_whoever_sat_there_before_is_refused_and_leaves_no_trace")
ABSENT = server("a_set_is_completed_without_those_who_have_left_or_were_evicted")
LATE = server("with_backup_workers_a_late_message_is_dropped_and_the_last_update_is_the_end_for_everybody")
RELEASED = server("nobody_is_released_from_the_barrier_before_all_slices_and_the_version_are_written")
JOINED = server("whoever_takes_a_slot_has_the_newest_center_and_owes_nothing_from_before")
NAN = server("a_message_that_is_not_finite_never_reaches_the_center_and_is_counted_when_it_is_given_up")
DROPOUT = server("no_two_workers_devices_or_rounds_drop_the_same_units")
STATISTICS = server("each_worker_has_its_own_running_statistics_and_the_center_has_their_mean")
RATES = server("each_worker_has_the_learning_rate_of_its_own")
ELASTIC = identity("a_synchronous_elastic_exchange_conserves_params_plus_center")
BLOCKWISE = identity("diloco_with_sgd_inside_is_blockwise_model_update_filtering")
AHEAD = identity("bmuf_shows_its_global_model_and_begins_blocks_at_the_center_of_diloco")
PERIODS = identity("push_and_pull_may_have_periods_of_their_own")
ADAMW = identity("adamw_is_that_of_keras_with_the_epsilon_of_the_paper")
STALENESS = identity("staleness_is_what_the_schedule_makes_it")
DROPPED = identity("the_late_gradient_is_dropped_and_its_worker_goes_on")
REDUCED = ("tests/test_collective.py::test_every_worker_has_the_same_mean_of_every_vector_in_every_call[3-False]",)
SPOILED = ("tests/test_collective.py::test_every_worker_sees_one_element_of_one_message_that_is_not_finite",)
SPARSE_RUN = ("tests/test_sparse.py::test_the_locked_twin_replays[threads-1]",)
PLAN = ("tests/test_rounds.py::test_the_plan_of_a_resumed_run_is_the_same_from_wherever_it_begins",)
L2 = option("l2_is_added_before_the_gradient_is_clipped_to_the_norm")


def mean_of(name: str) -> tuple[str]:
    return server(f"a_mean_of_gradients_is_over_the_steps_of_its_round_however_few[{name}]")


def scripted(name: str) -> tuple[str]:
    return identity(f"a_scripted_interleaving_replays[{name}]")


def replayed(name: str) -> tuple[str]:
    return (f"tests/test_replay.py::test_a_run_on_three_workers_and_two_ps_replays[{name}]",)


def limit(name: str) -> tuple[str]:
    return identity(f"two_schemes_are_one_in_a_limit[{name}]")


def atomic(kind: str) -> tuple[str]:
    return server(f"{ATOMIC}[{kind}]")


RULES = [
    Mutation(
        "agn: a short last round is divided by the period",
        "algorithms/agn.py",
        "worker.gradient_sum / worker.steps",
        "worker.gradient_sum / self.communication_period",
        mean_of("agn"),
        "the last message is too small",
    ),
    Mutation(
        "sagn: a short last round is divided by the period",
        "algorithms/sagn.py",
        "worker.gradient_sum / worker.steps",
        "worker.gradient_sum / self.communication_period",
        mean_of("sagn"),
        "the last message is too small",
    ),
    Mutation(
        "adag: a short last round is divided by the period",
        "algorithms/adag.py",
        "worker.gradient_sum / worker.steps",
        "worker.gradient_sum / self.communication_period",
        mean_of("adag"),
        "the last message is too small",
    ),
    Mutation(
        "agn: the worker's rate on the server",
        "algorithms/agn.py",
        "sgd(server.center, message, rate)",
        "sgd(server.center, message, self.learning_rate)",
        mean_of("agn"),
        "one of the two rates is ignored",
    ),
    Mutation(
        "sagn: the worker's rate on the server",
        "algorithms/sagn.py",
        "sgd(server.center, message, self.server_learning_rate)",
        "sgd(server.center, message, self.learning_rate)",
        mean_of("sagn"),
        "one of the two rates is ignored",
    ),
    Mutation(
        "adag: no damping",
        "algorithms/adag.py",
        "message / (moved * moved / self.distance_scale + 1)",
        "message + 0 * moved",
        scripted("adag"),
        "it is agn then",
    ),
    Mutation(
        "adag: the scale the other way round",
        "algorithms/adag.py",
        "moved * moved / self.distance_scale",
        "moved * moved * self.distance_scale",
        scripted("adag"),
        "it is agn, nearly",
    ),
    Mutation(
        "aeamsgd: no Nesterov point",
        "algorithms/aeamsgd.py",
        "return worker.params + self.momentum * worker.velocity",
        "return worker.params.read_value()",
        scripted("aeamsgd"),
        "ordinary momentum",
    ),
    Mutation(
        "aeamsgd: undamped velocity",
        "algorithms/aeamsgd.py",
        "self.momentum * worker.velocity - self.learning_rate",
        "worker.velocity - self.learning_rate",
        scripted("aeamsgd"),
        "the momentum is ignored",
    ),
    Mutation(
        "aeasgd: the worker is not pulled back",
        "algorithms/aeasgd.py",
        "worker.params.assign_sub(reply)",
        "worker.params.assign_sub(0 * reply)",
        scripted("aeasgd"),
        "the spring pulls at one end alone",
    ),
    Mutation(
        "aeasgd: elasticity not shared by the workers",
        "algorithms/aeasgd.py",
        "self.beta / server.num_workers",
        "self.beta",
        scripted("aeasgd"),
        "unstable with more workers",
    ),
    Mutation(
        "aeasgd: the exchange after the period",
        "algorithms/aeasgd.py",
        "exchange_first = True",
        "exchange_first = False",
        scripted("aeasgd"),
        "not the paper's order",
    ),
    Mutation(
        "easgd: workers are drawn to the new center",
        "algorithms/easgd.py",
        "return before",
        "return server.center",
        ELASTIC,
        "the paper's right-hand sides are all old",
    ),
    Mutation(
        "easgd: elasticity of one worker for the mean",
        "algorithms/easgd.py",
        "assign_add(self.beta * (message",
        "assign_add(self.beta / server.num_workers * (message",
        ELASTIC,
        "params plus center are not conserved",
    ),
    Mutation(
        "dynsgd: staleness ignored",
        "algorithms/dynsgd.py",
        "self.learning_rate / (staleness + 1)",
        "self.learning_rate",
        scripted("dynsgd"),
        "it is downpour_easy then",
    ),
    Mutation(
        "dynsgd: staleness counted from one",
        "algorithms/dynsgd.py",
        "(staleness + 1)",
        "(staleness + 2)",
        scripted("dynsgd"),
        "fresh messages count half",
    ),
    Mutation(
        "downpour: the initial accumulator ignored",
        "algorithms/downpour.py",
        "0 * center + self.initial_accumulator",
        "0 * center + 0.1",
        PERIODS,
        "a hyperparameter without effect",
    ),
    Mutation(
        "downpour: the worker's rate on the server",
        "algorithms/downpour.py",
        "adagrad(server.center, server.squares, message, self.server_learning_rate)",
        "adagrad(server.center, server.squares, message, self.learning_rate)",
        PERIODS,
        "a hyperparameter without effect",
    ),
    Mutation(
        "downpour: dean's phase is a window",
        "algorithms/downpour.py",
        '(t - (self.phase == "dean")) % self.period',
        "t % self.period",
        identity("dean_s_phase_pushes_one_gradient_first_and_forgets_its_newest_steps"),
        "a hyperparameter without effect",
    ),
    Mutation(
        "downpour: pull in the phase of the push",
        "algorithms/downpour.py",
        "pull = t % pull_period == 0",
        "pull = (t - 1) % pull_period == 0",
        PERIODS,
        "pulls one step late",
    ),
    Mutation(
        "downpour: no local steps",
        "algorithms/downpour.py",
        "sgd(worker.params, gradient, self.learning_rate)",
        "sgd(worker.params, gradient, 0.0)",
        PERIODS,
        "all gradients of a period at one place",
    ),
    Mutation(
        "the sum of gradients counts each twice",
        ENGINE,
        "[a + g for a, g in zip(sums",
        "[a + 2 * g for a, g in zip(sums",
        scripted("downpour_easy"),
        "gradients are folded twice",
    ),
    Mutation(
        "dc_asgd: no correction",
        "algorithms/dc_asgd.py",
        "message + strength * square * moved",
        "message + 0 * moved",
        scripted("dc_asgd-constant"),
        "it is async_sgd then",
    ),
    Mutation(
        "dc_asgd: the correction away from the center",
        "algorithms/dc_asgd.py",
        "server.center - server.anchor",
        "server.anchor - server.center",
        scripted("dc_asgd-constant"),
        "late gradients are made worse",
    ),
    Mutation(
        "dc_asgd: the adaptive form without the newest gradient",
        "algorithms/dc_asgd.py",
        "tf.sqrt(mean_square + 1e-7)",
        "tf.sqrt(mean_square - (1 - self.decay) * square + 1e-7)",
        scripted("dc_asgd-adaptive"),
        "the paper takes the mean square first",
    ),
    Mutation(
        "dc_asgd: the adaptive form forgets",
        "algorithms/dc_asgd.py",
        "self.decay * server.mean_square + ",
        "",
        scripted("dc_asgd-adaptive"),
        "the decay would have no effect but on the scale",
    ),
    Mutation(
        "async_diloco: the momentum at each message",
        "algorithms/async_diloco.py",
        "share = tf.where(last, 1 - c * workers + c, c)",
        "share = tf.where(last, 1.0, 1.0)",
        scripted("async_diloco"),
        "it is followed W times as far",
    ),
    Mutation(
        "async_diloco: the buffer is not emptied",
        "algorithms/async_diloco.py",
        "tf.where(last, 0.0, gathered)",
        "gathered",
        scripted("async_diloco"),
        "old messages go into the momentum for ever",
    ),
    Mutation(
        "ringmaster: one update too many",
        "algorithms/ringmaster.py",
        "staleness < self.delay_threshold",
        "staleness <= self.delay_threshold",
        identity("a_gradient_that_is_too_late_is_ignored_and_makes_no_other_later"),
        "gradients of staleness R are used",
    ),
    Mutation(
        "ssp: the whole rate for each message",
        "algorithms/ssp.py",
        "message / server.num_workers",
        "message",
        identity("without_a_bound_it_is_async_sgd_with_a_share_of_the_rate"),
        "W times the step",
    ),
    Mutation(
        "signsgd_mv: no vote",
        "algorithms/signsgd_mv.py",
        "self._step(server.center, vote)",
        "self._step(server.center, message)",
        replayed("signsgd_mv"),
        "the mean of the signs is no majority",
    ),
    Mutation(
        "signsgd_mv: the worker does not take the step",
        "algorithms/signsgd_mv.py",
        "self._step(worker.params, reply)",
        "self._step(worker.params, 0 * reply)",
        replayed("signsgd_mv"),
        "the reply is the vote, not the center",
    ),
    Mutation(
        "a codec that loses what is not finite",
        CONTRACT,
        "digits = tf.where(finite, tf.sign(tf.where(finite, vector, 0.0)) + 1, 3.0)",
        "digits = tf.where(finite, tf.sign(tf.where(finite, vector, 0.0)) + 1, 1.0)",
        ("tests/test_codec.py::test_what_is_not_finite_does_not_come_back_as_finite",),
        "NaN would reach the center as a zero",
    ),
    Mutation(
        "bytes as if there were no codec",
        ENGINE,
        "self.codec.bytes(self.sizes) + ",
        "FLOAT_BYTES * sum(self.sizes) + ",
        ("tests/test_codec.py::test_a_result_counts_the_bytes_that_travel",),
        "a codec's point would be invisible in the plots",
    ),
    Mutation(
        "what a codec keeps outlives its worker",
        ENGINE,
        "self.encoder.begin_again()",
        "self.encoder.variables",
        ("tests/test_codec.py::test_who_joins_again_remembers_nothing",),
        "a worker that comes back would send what another had left over",
    ),
    Mutation(
        "signsgd_mv: the momentum is the newest gradient's",
        "algorithms/signsgd_mv.py",
        "self.momentum * worker.velocity + (1 - self.momentum) * worker.gradient",
        "self.momentum * worker.gradient + (1 - self.momentum) * worker.velocity",
        identity("momentum_and_decay_of_the_vote_are_the_papers"),
        "another momentum than was asked for",
    ),
    Mutation(
        "signsgd_mv: the decay is not that of the weights",
        "algorithms/signsgd_mv.py",
        "vote + self.weight_decay * params if",
        "vote - self.weight_decay * params if",
        identity("momentum_and_decay_of_the_vote_are_the_papers"),
        "weights grow instead",
    ),
    Mutation(
        "ef_sgd: one scale for the whole vector",
        CONTRACT,
        "tf.split(vector, [math.prod(shape) for shape in shapes])",
        "[vector]",
        identity("scaled_signs_are_of_each_variable_and_nothing_of_a_step_is_lost"),
        "the paper compresses layer by layer",
    ),
    Mutation(
        "scaled signs: the size of the variable before",
        CONTRACT,
        'which = tf.searchsorted(begins, tf.range(size), side="right")',
        'which = tf.searchsorted(begins, tf.range(size), side="left")',
        ("tests/test_codec.py::test_scaled_signs_come_back_with_the_size_of_their_variable",),
        "the first element of each variable is wrong",
    ),
    Mutation(
        "ef_sgd: nothing is remembered",
        "algorithms/ef_sgd.py",
        "worker.memory.assign(step - sent)",
        "worker.memory.assign(0 * step)",
        replayed("ef_sgd"),
        "small elements are never sent",
    ),
    Mutation(
        "top_k: the smallest elements",
        CONTRACT,
        "tf.math.top_k(tf.abs(vector)",
        "tf.math.top_k(-tf.abs(vector)",
        replayed("ef_sgd"),
        "the largest are left out",
    ),
    Mutation(
        "slowmo: the velocity is not in units of the rate",
        "algorithms/slowmo.py",
        "(server.center - message) / self.learning_rate",
        "server.center - message",
        limit("bmuf-slowmo-"),
        "steps are shorter by the learning rate",
    ),
    Mutation(
        "bmuf: workers begin too far ahead",
        "algorithms/bmuf.py",
        "return server.center + momentum * server.block if",
        "return server.center + server.block if",
        AHEAD,
        "the momentum is not that of the block",
    ),
    Mutation(
        "bmuf: the center is where workers begin",
        "algorithms/bmuf.py",
        "server.center.assign_add(server.block)",
        "server.center.assign_add((1 + momentum) * server.block)",
        AHEAD,
        "what is evaluated and saved is not the paper's global model",
    ),
    Mutation(
        "diloco: the velocity is never damped",
        "algorithms/diloco.py",
        "self.momentum * server.velocity + moved)",
        "server.velocity + moved)",
        BLOCKWISE,
        "the momentum is ignored",
    ),
    Mutation(
        "diloco: no Nesterov",
        "algorithms/diloco.py",
        "(moved + self.momentum * server.velocity)",
        "server.velocity",
        BLOCKWISE,
        "heavy ball instead",
    ),
    Mutation(
        "diloco: the outer rate ignored",
        "algorithms/diloco.py",
        "self.outer_learning_rate * (moved",
        "1.0 * (moved",
        BLOCKWISE,
        "a hyperparameter without effect",
    ),
    Mutation(
        "local_sgd: synchronous steps again after resuming",
        "algorithms/local_sgd.py",
        "self.synchronous_steps - done",
        "self.synchronous_steps",
        identity("post_local_sgd_is_synchronous_once_also_if_the_run_is_resumed_meanwhile"),
        "a resumed run is another run",
    ),
    Mutation(
        "sync_sgd_lr: everybody has the first rate",
        "algorithms/sync_sgd_lr.py",
        "tf.gather(rates, worker.index)",
        "tf.gather(rates, 0 * worker.index)",
        RATES,
        "what the scheme is about",
    ),
    Mutation(
        "sync_sgd_lr: the sum is a mean",
        "algorithms/sync_sgd_lr.py",
        'float(server.num_workers) if self.reduction == "sum" else 1.0',
        "1.0",
        RATES,
        "a hyperparameter without effect",
    ),
]

OPTIMIZING = [
    Mutation(
        "adamw: epsilon as in the kernel",
        CONTRACT,
        "epsilon=epsilon * tf.sqrt(1 - power_2),",
        "epsilon=epsilon,",
        ADAMW,
        "thirty times the epsilon in the first steps",
    ),
    Mutation(
        "adamw: decay without the rate",
        CONTRACT,
        "rate * weight_decay * variable",
        "weight_decay * variable",
        ADAMW,
        "weights vanish",
    ),
    Mutation(
        "adamw: steps are not counted",
        CONTRACT,
        "steps.assign_add(1.0)",
        "steps + 1.0",
        ADAMW,
        "moments are corrected as at the start, for ever",
    ),
    Mutation(
        "take: the accumulator is not emptied",
        CONTRACT,
        "variable.assign(tf.zeros_like(value))",
        "variable.assign(value)",
        scripted("downpour"),
        "gradients are folded again and again",
    ),
    Mutation(
        "sgd: sparse coordinates are overwritten",
        CONTRACT,
        "tf.raw_ops.ResourceScatterSub(",
        "tf.raw_ops.ResourceScatterUpdate(",
        SPARSE_RUN,
        "not a step at all",
    ),
    Mutation(
        "logistic gradient: not divided by the batch",
        ENGINE,
        "(tf.sigmoid(logits) - y) / tf.cast(tf.shape(y)[0], x.dtype)",
        "(tf.sigmoid(logits) - y)",
        SPARSE_RUN,
        "a sum where all others have the mean",
    ),
]

BATCHES = [
    Mutation(
        "all workers take the batches of worker 0",
        RUN,
        "stream = batches(shard, size, worker, seed",
        "stream = batches(shard, size, 0, seed",
        scripted("async_sgd"),
        "workers go through their shards in the same order",
    ),
    Mutation(
        "the seed of the run does not reach the batches",
        RUN,
        "stream = batches(shard, size, worker, seed",
        "stream = batches(shard, size, worker, 0",
        scripted("async_sgd"),
        "runs with several seeds are not independent",
    ),
    Mutation(
        "the seed of the run does not reach the shards",
        RUN,
        "shard_rows(self.data, self.workers, self.options.seed, ",
        "shard_rows(self.data, self.workers, 0, ",
        scripted("async_sgd"),
        "runs with several seeds are not independent",
    ),
    Mutation(
        "every round starts the batches anew",
        RUN,
        "itertools.islice(stream, steps)",
        "itertools.islice(batches(shard, size, worker, seed), steps)",
        scripted("async_sgd"),
        "the first batches of the shard, for ever",
    ),
    Mutation(
        "whoever comes back counts rounds for steps",
        RUN,
        "seed, rounds.steps(done))",
        "seed, done)",
        PLAN,
        "some batches twice",
    ),
    Mutation(
        "every epoch has the same order",
        PROBLEMS,
        "[seed, 1 + worker, epoch]",
        "[seed, 1 + worker, 0]",
        ("tests/test_data.py::test_batches_are_a_function_of_seed_worker_and_step",),
        "batches are the same in every epoch",
    ),
    Mutation(
        "shards overlap",
        PROBLEMS,
        "order[: workers * size].reshape(workers, size)",
        "order[np.arange(workers)[:, None] * size // 2 + np.arange(size)]",
        ("tests/test_data.py::test_shards_are_disjoint_equal_and_shuffled",),
        "examples count twice, others never",
    ),
    Mutation(
        "skewed shards know nothing of how frequent labels are",
        PROBLEMS,
        "rng.dirichlet(alpha * share)",
        "rng.dirichlet(alpha * np.ones_like(share))",
        ("tests/test_data.py::test_the_reference_draws_the_same_skewed_shards_by_itself",),
        "rare labels are as wanted as frequent ones, and shards are less skewed than alpha says",
    ),
    Mutation(
        "skewed shards take the examples that others have",
        PROBLEMS,
        "first, left = first + taken, left - taken",
        "left = left - taken",
        ("tests/test_data.py::test_skewed_shards_are_disjoint_of_equal_size_and_the_same_each_time",),
        "examples count twice, others never",
    ),
]

WORKERS = [
    Mutation(
        "batches belong to a session",
        ENGINE,
        ', shared_name=f"{prefix}_batches"',
        "",
        ("tests/test_ends.py::test_a_worker_that_connects_anew_goes_on_with_its_next_batch",),
        "whoever comes back after the ps has no data any more",
    ),
    Mutation(
        "what several tasks say is nobody's own",
        ENGINE,
        "(NOT_FOUND: |FAILED_PRECONDITION: )?From /job:worker",
        "From /job:worker",
        ("tests/test_ends.py::test_what_is_missing_in_a_worker_s_own_data_is_not_a_lost_peer",),
        "a missing file is taken for a ps that is away",
    ),
    Mutation(
        "all workers drop the same units",
        ENGINE,
        "value + tf.cast(index, value.dtype)",
        "value + 0 * tf.cast(index, value.dtype)",
        DROPOUT,
        "less noise than dropout means",
    ),
    Mutation(
        "all devices drop the same units",
        ENGINE,
        "if i else seeds",
        "if False else seeds",
        DROPOUT,
        "less noise than dropout means",
    ),
    Mutation(
        "every step drops the same units",
        ENGINE,
        "variable.assign(value)",
        "variable.assign(variable.read_value())",
        DROPOUT,
        "a smaller model, for ever",
    ),
    Mutation(
        "the first device speaks for all",
        ENGINE,
        "tf.add_n(values) / len(values)",
        "values[0]",
        DROPOUT,
        "half of each batch is not used",
    ),
    Mutation(
        "whoever adds up a slice tells the others a sum",
        GATES,
        "tf.where(fine, float(number), math.nan)",
        "tf.where(fine, 1.0, math.nan)",
        REDUCED,
        "without a ps, means are W times as large",
    ),
    Mutation(
        "whoever adds up a slice passes on what is not finite, wherever it stands",
        GATES,
        "tf.math.is_finite(tf.reduce_sum(total)) if spoils else True",
        "True",
        SPOILED,
        "without a ps, workers look at one element of each slice and adopt the rest",
    ),
    Mutation(
        "whoever adds up a slice forgets its own",
        GATES,
        "[own if k == me else mail.receive(k, own.shape[0]) for k in range(number)]",
        "[mail.receive(k, own.shape[0]) for k in range(number) if k != me]",
        REDUCED,
        "a part of each gradient is lost",
    ),
    Mutation(
        "the slices of a mean change their places",
        GATES,
        "for k, part in slices.items()]",
        "for k, part in reversed(slices.items())]",
        REDUCED,
        "parameters get the gradients of others",
    ),
    Mutation(
        "without a ps, whoever has waited in vain does its round again",
        RUN,
        "self.coordination.uses_ps and self.coordination.sees_waiting",
        "self.coordination.sees_waiting",
        ("tests/test_means.py::test_whoever_has_waited_in_vain_for_a_mean_ends_the_run",),
        "means of two rounds are mixed, and nobody is told",
    ),
    Mutation(
        "statistics of a worker do not move on",
        ENGINE,
        "state.assign(scheme.gate.share_state(ps, self.slot, state.read_value()))",
        "scheme.gate.share_state(ps, self.slot, state.read_value() * 0.5)",
        STATISTICS,
        "batch normalisation has other statistics where it is used",
    ),
    Mutation(
        "the elastic step before the exchange",
        ENGINE,
        "            self._meet_server(scheme, event, stamps)\n            self._step(gradients)\n",
        "            self._step(gradients)\n            self._meet_server(scheme, event, stamps)\n",
        scripted("aeasgd"),
        "not the paper's order",
    ),
    Mutation(
        "a round counts the period for its steps",
        ENGINE,
        "steps = done = tf.cast(tf.shape(rows)[0], tf.float32)",
        "steps = done = tf.constant(float(scheme.period))",
        mean_of("agn"),
        "a short last round is divided by the period",
    ),
    Mutation(
        "whoever joins again keeps its gradients",
        ENGINE,
        "getattr(view, name).assign(value)",
        "getattr(view, name).assign_add(0 * value)",
        JOINED,
        "gradients of another center are folded",
    ),
    Mutation(
        "whoever joins keeps its parameters",
        ENGINE,
        "view.params.assign(part)",
        "view.params.assign_add(0 * part)",
        JOINED,
        "it is not a twin of the center",
    ),
    Mutation(
        "l2 after clipping",
        ENGINE,
        """            gradient += self.l2 * params
        if self.clip_norm is not None:
            gradient = tf.clip_by_norm(gradient, self.clip_norm)
""",
        """            if self.clip_norm is not None:
                gradient = tf.clip_by_norm(gradient, self.clip_norm)
            gradient += self.l2 * params
""",
        L2,
        "what is sent is longer than the limit",
    ),
    Mutation(
        "the clock of a schedule stands still",
        ENGINE,
        "            self.clock.assign_add(1)\n            return t + 1, total",
        "            return t + 1, total",
        option("a_schedule_of_keras_is_a_function_of_the_local_step[Serial-1]"),
        "the rate never falls",
    ),
    Mutation(
        "a round is short only if nobody else was at work",
        f"{RUN}/loop.py",
        "min(passed, busy) < LONG_ROUND_SECONDS",
        "passed < LONG_ROUND_SECONDS",
        ("tests/test_rounds.py::test_rounds_are_put_into_one_call_as_soon_as_one_has_been_short",),
        "many workers on few cores make a call for each round",
    ),
]

AT_THE_GATE = [
    Mutation(
        "old tokens",
        ENGINE,
        "return self.tokens.dequeue_many(self.tokens.size())",
        "return self.tokens.size()",
        server("a_token_for_whoever_sat_there_before_is_void"),
        "a worker that comes back goes through the barrier alone",
    ),
    Mutation(
        "token before the version is counted",
        GATES,
        "            with tf.control_dependencies([ps.count_updates(1)]):\n",
        "            ps.count_updates(1)\n            with tf.control_dependencies([]):\n",
        RELEASED,
        "the message of a fast worker is dropped, or all wait for ever",
    ),
    Mutation(
        "token before the arrivals are cleared",
        GATES,
        "with tf.control_dependencies([cleared]):",
        "with tf.control_dependencies([]):",
        RELEASED,
        "the arrival of a fast worker is forgotten",
    ),
    Mutation(
        "token before the update",
        GATES,
        "with tf.control_dependencies(folded), tf.device(ps.devices[0]):",
        "with tf.device(ps.devices[0]):",
        RELEASED,
        "a worker reads the center of before",
    ),
    Mutation(
        "the reply before the token",
        GATES,
        "else tf.control_dependencies([token]):",
        "else tf.control_dependencies([arrival.released]):",
        ELASTIC,
        "a worker reads the center of before",
    ),
    Mutation(
        "backup workers: the reply is read without the lock",
        GATES,
        "with ps.lock(after=[token]) if self.backup_workers else",
        "with ps.lock(after=[token]) if False else",
        atomic("backup workers"),
        "a reply of two updates",
    ),
    Mutation(
        "pulled version noted after the lock is released",
        GATES,
        """ps.fold(slot, parts))
            ps.note_pull(slot)
        return""",
        """ps.fold(slot, parts))
        ps.note_pull(slot)
        return""",
        atomic("asynchronous"),
        "the staleness of the next message is too small",
    ),
    Mutation(
        "pulled version not noted",
        GATES,
        """ps.fold(slot, parts))
            ps.note_pull(slot)
        return""",
        """ps.fold(slot, parts))
        return""",
        STALENESS,
        "staleness grows for ever",
    ),
    Mutation(
        "a push is not admitted, but folded",
        GATES,
        """        with ps.event(slot, parts):
            ps.fold(slot, parts, event="push")""",
        """        with ps.lock(after=parts):
            ps.fold(slot, parts, event="push")""",
        TAKEN,
        "what a predecessor has sent is folded",
    ),
    Mutation(
        "sparse gather without the lock",
        GATES,
        "return ps.gather(slot, indices, locked=True)",
        "return ps.gather(slot, indices, locked=False)",
        atomic("sparse"),
        "coordinates of two versions",
    ),
    Mutation(
        "updates are counted twice",
        ENGINE,
        "self.count_updates(completes)",
        "self.count_updates(2)",
        STALENESS,
        "the staleness is doubled",
    ),
    Mutation(
        "every message is fresh",
        GATES,
        "fresh = tf.equal(staleness, 0)",
        "fresh = tf.equal(staleness, staleness)",
        LATE,
        "backup workers' late gradients are folded",
    ),
    Mutation(
        "late messages are summed",
        GATES,
        "u = tf.where(fresh, u, tf.zeros_like(u))",
        "u = tf.where(fresh, u, u)",
        DROPPED,
        "backup workers' late gradients are folded",
    ),
    Mutation(
        "the mean over all workers, whoever is there",
        GATES,
        "part.inbox / messages",
        "part.inbox / (0 * messages + ps.num_workers)",
        ABSENT,
        "smaller steps once a worker is lost",
    ),
    Mutation(
        "backup workers are waited for",
        GATES,
        "max(active - self.backup_workers, 1)",
        "max(active, 1)",
        DROPPED,
        "what the scheme is about",
    ),
    Mutation(
        "messages stay in the inbox",
        GATES,
        "first = ~tf.reduce_any(ps.kept.arrived.read_value())",
        "first = tf.zeros([], tf.bool)",
        ELASTIC,
        "gradients are folded again and again",
    ),
    Mutation(
        "arrivals stay",
        GATES,
        "cleared = ps.kept.arrived.assign(tf.zeros([ps.num_workers], tf.bool))",
        "cleared = ps.kept.arrived.assign(ps.kept.arrived.read_value())",
        LATE,
        "the first message of the next set completes it",
    ),
    Mutation(
        "a slot never says that its message waits",
        GATES,
        "return ps.kept.arrived.read_value()[slot.index]",
        "return tf.zeros([], tf.bool)",
        server("a_slot_whose_message_waits_at_the_barrier_says_so_until_the_set_is_complete"),
        "its next message is folded in the place of another",
    ),
    Mutation(
        "a worker that does not wait evicts others",
        GATES,
        "evicted = self.awaited(ps) & ps.kept.arrived.read_value()[slot.index]",
        "evicted = self.awaited(ps)",
        server("a_worker_that_does_not_wait_itself_evicts_nobody"),
        "a wait that ends in the moment of the last message costs workers",
    ),
    Mutation(
        "virtual time: a crash leaves a worker joining",
        TIME,
        "        self.joining.discard(worker)\n",
        "",
        ("tests/test_network.py::test_who_crashes_while_its_message_waits_joins_once_more",),
        "it works while it is down",
    ),
    Mutation(
        "virtual time: a worker whose message waited never joins again",
        TIME,
        "            self.joining.remove(worker)\n            self.join(worker, now)",
        "            self.joining.remove(worker)",
        ("tests/test_network.py::test_who_crashes_while_its_message_waits_joins_once_more",),
        "it does none of its other rounds",
    ),
    Mutation(
        "evicted although too few are left",
        GATES,
        "evicted & enough",
        "evicted",
        ABSENT,
        "--min-workers without effect",
    ),
    Mutation(
        "the evicted are still admitted",
        ENGINE,
        "return [gone, self.transactions.void(flags)]",
        "return [gone]",
        ABSENT,
        "they send into sets that do not count them",
    ),
    Mutation(
        "whoever leaves completes no set",
        GATES,
        "self._close_set(ps, tf.constant(True), ps.read_version())",
        "self._close_set(ps, tf.constant(False), ps.read_version())",
        ABSENT,
        "the others wait for ever",
    ),
    Mutation(
        "the last update is not the end",
        GATES,
        "else ps.read_version() >= ps.last_version",
        "else ps.read_version() > ps.last_version",
        LATE,
        "late workers work off their rounds alone",
    ),
]

ON_THE_PS = [
    Mutation(
        "no incarnations",
        ENGINE,
        "right = tf.reduce_all(tf.equal(here, slot.incarnation))",
        "right = tf.constant(True)",
        TAKEN,
        "what a predecessor has sent is folded, although its rounds are done again",
    ),
    Mutation(
        "the incarnation of another state",
        ENGINE,
        "right = tf.reduce_all(tf.equal(here, slot.incarnation))",
        "right = tf.equal(here[0], slot.incarnation[0])",
        server("an_event_that_was_cut_in_the_middle_closes_the_ps_also_to_those_who_sit_there_rightly"),
        "half an update is trained on",
    ),
    Mutation(
        "nobody looks whether the state is clean",
        ENGINE,
        "condition=clean",
        "condition=tf.constant(True)",
        server("nobody_is_admitted_while_the_state_is_not_whole_nor_before_joining_again"),
        "half an update is saved",
    ),
    Mutation(
        "messages that are not finite are admitted",
        ENGINE,
        "lambda: [~self.scheme.gate.complete(self), *finite]",
        "lambda: [~self.scheme.gate.complete(self)]",
        NAN,
        "the center is NaN",
    ),
    Mutation(
        "messages after the last update are admitted",
        ENGINE,
        "lambda: [~self.scheme.gate.complete(self), *finite]",
        "lambda: finite",
        LATE,
        "late workers work off their rounds alone",
    ),
    Mutation(
        "the refused are not counted",
        ENGINE,
        "resource=self.refused.handle, indices=slot.index, updates=number",
        "resource=self.refused.handle, indices=slot.index, updates=0 * number",
        NAN,
        "the result does not say what was left out",
    ),
    Mutation(
        "pull without the lock",
        ENGINE,
        """        with self.event(slot):
            version = self.read_version()
            noted = self.record(version, slot.index, self.staleness(version, slot), accepted=False, event="pull")""",
        """        with nullcontext():
            version = self.read_version()
            noted = self.record(version, slot.index, self.staleness(version, slot), accepted=False, event="pull")""",
        atomic("asynchronous"),
        "a worker goes on from a center that never was",
    ),
    Mutation(
        "a pull is not admitted, but recorded",
        ENGINE,
        """        with self.event(slot):
            version = self.read_version()
            noted = self.record(version, slot.index, self.staleness(version, slot), accepted=False, event="pull")""",
        """        with self.lock([]):
            version = self.read_version()
            noted = self.record(version, slot.index, self.staleness(version, slot), accepted=False, event="pull")""",
        TAKEN,
        "a predecessor's rounds count as those of whoever holds the slot now",
    ),
    Mutation(
        "a snapshot without the lock",
        ENGINE,
        """        with self.transactions.clean():
            version, vectors = self.read_version(), self.look.take()""",
        """        with nullcontext():
            version, vectors = self.read_version(), self.look.take()""",
        atomic("asynchronous"),
        "a center that never was is measured",
    ),
    Mutation(
        "a checkpoint without the lock",
        ENGINE,
        """        with self.transactions.clean():
            for name, parts""",
        """        with nullcontext():
            for name, parts""",
        atomic("asynchronous"),
        "a run is resumed from a state that never was",
    ),
    Mutation(
        "a resumed worker begins anew",
        RUN,
        "if copied and self.keeping.keeps:",
        "if copied and not self.keeping.keeps:",
        ("tests/test_resume.py::test_an_interrupted_run_that_is_resumed_is_the_uninterrupted_one[ef_sgd]",),
        "the error memory of a resumed run is empty",
    ),
    Mutation(
        "a resumed worker has the newest center on the ps, and an older one itself",
        ENGINE,
        "self.note_pull(slot, unless=copied)",
        "self.note_pull(slot)",
        ("tests/test_resume.py::test_workers_of_an_asynchronous_run_go_on_from_the_centers_that_they_had",),
        "the first update of each after a resumption is wrong",
    ),
    Mutation(
        "workers that wait at the gate are asked to stand at the end of a call",
        RUN,
        '"rounds" if gate.lead is not None else ""',
        '""',
        ("tests/test_resume.py::test_workers_that_may_be_ahead_of_each_other_come_to_the_same_round_for_a_checkpoint",),
        "their state is in no checkpoint",
    ),
    Mutation(
        "a meeting counts once, even if it is undone",
        RUN,
        "        self.answered = NONE  # a restoration goes back to before a meeting that is asked for again\n",
        "",
        ("tests/test_resume.py::test_a_meeting_that_is_asked_for_again_after_a_restoration_is_kept",),
        "all wait for those that will not come",
    ),
    Mutation(
        "without a ps the center is read in the middle of a call",
        RUN,
        "self.stops = self.keeps or not job.uses_ps",
        "self.stops = self.keeps",
        ("tests/test_resume.py::test_a_checkpoint_of_a_worker_alone_is_that_of_its_version",),
        "steps are done twice after a resumption",
    ),
    Mutation(
        "the copy of a worker that finishes first is not laid down",
        RUN,
        "self.wanted_at_end = others_go_on or at_end",
        "self.wanted_at_end = at_end",
        ("tests/test_resume.py::test_checkpoints_have_the_states_of_workers_that_go_on_when_worker_0_has_finished",),
        "it begins anew when the run is resumed",
    ),
    Mutation(
        "no copies of the model's statistics",
        ENGINE,
        " | worker.replica.local",
        "",
        ("tests/test_resume.py::test_statistics_seeds_and_what_a_codec_sends_later_are_kept",),
        "a resumed run drops other units than the uninterrupted one",
    ),
    Mutation(
        "unlocked early",
        ENGINE,
        "with tf.control_dependencies([inside]):",
        "with tf.control_dependencies([]):",
        atomic("asynchronous"),
        "updates are torn and lost",
    ),
    Mutation(
        "locked late",
        ENGINE,
        "with tf.control_dependencies([entered]):",
        "with tf.control_dependencies([]):",
        atomic("asynchronous"),
        "updates are torn and lost",
    ),
    Mutation(
        "what somebody reads is written again",
        ENGINE,
        """        except BlockingIOError:  # somebody reads it
            return False
""",
        """        except BlockingIOError:  # somebody reads it
            pass
""",
        transported("a_segment_is_written_again_only_when_nobody_reads_it_any_more"),
        "a variable that is a message changes when the next one comes",
    ),
    Mutation(
        "what is on its way is written again",
        ENGINE,
        "if self.memory.find(ON_ITS_WAY, MARKS, HEADER) >= 0:",
        "if False:",
        transported("a_segment_on_its_way_is_not_written_again"),
        "whoever has the ticket finds another message",
    ),
    Mutation(
        "the first of several readers in a process unlocks a segment",
        ENGINE,
        "if not (self._readers or self.made_here):",
        "if not self.made_here:",
        transported("what_two_read_in_one_process_is_not_written_again_when_the_first_has_let_go"),
        "what the others read changes under their eyes",
    ),
    Mutation(
        "what its maker reads is written again",
        ENGINE,
        "if self._readers:  # a reader counts before it takes its mark away",
        "if False:",
        transported("what_two_read_in_one_process_is_not_written_again_when_the_first_has_let_go"),
        "a reply that is kept for several workers changes",
    ),
    Mutation(
        "segments stay open",
        ENGINE,
        "        os.close(self.descriptor)\n",
        "        pass\n",
        transported("descriptors_do_not_grow_with_vectors_of_many_sizes"),
        "a long run has no file descriptors left",
    ),
    Mutation(
        "segments of processes that have ended stay open",
        ENGINE,
        "for other in {*gone, *same[: -(SEEN - 1)]}:",
        "for other in same[: -(SEEN - 1)]:",
        transported("segments_of_a_process_that_has_ended_are_closed_with_the_next_that_is_opened"),
        "each restart costs descriptors and memory",
    ),
    Mutation(
        "segments that are not used stay open",
        ENGINE,
        "if now - self._looked < IDLE_SECONDS:",
        "if True:",
        transported("segments_that_are_not_used_any_more_are_closed_by_maker_and_reader"),
        "the most that was ever needed at once is held for good",
    ),
    Mutation(
        "the evaluator keeps segments",
        RUN,
        "self.path.keep(copied(self.moment(self.calls.snapshot())))",
        "self.path.keep(self.moment(self.calls.snapshot()))",
        transported("a_center_that_the_evaluator_keeps_holds_no_segment"),
        "the ps makes a segment for each center that is kept",
    ),
    Mutation(
        "without a lock a message that is not finite is folded",
        GATES,
        "with tf.control_dependencies([ps.check(parts)]):",
        "with tf.control_dependencies(tf.nest.flatten(parts, expand_composites=True)):",
        ("tests/test_ends.py::test_a_message_that_is_not_finite_is_dropped_without_a_lock_too",),
        "NaN reaches the center of hogwild",
    ),
    Mutation(
        "files are written through links",
        "common/files.py",
        "flags | os.O_NOFOLLOW",
        "flags",
        ("tests/test_security.py::test_a_log_that_is_a_link_is_not_written[events.bin]",),
        "a run directory from elsewhere destroys files of its user",
    ),
    Mutation(
        "what was in the place of a new file stays there",
        "common/files.py",
        """            part.unlink(missing_ok=True)
            with open_in_place(part, "xb") as file:""",
        """            with open(part, "wb") as file:""",
        ("tests/test_security.py::test_a_page_is_not_written_through_a_link",),
        "a link in its place leads to a file of the user",
    ),
    Mutation(
        "all readers of a segment have one mark",
        ENGINE,
        "self.memory[MARKS:HEADER].index(NOBODY)",
        "0",
        transported("what_many_read_is_laid_down_once_and_written_again_when_the_last_of_them_has_let_go"),
        "the first reader takes the mark away, and those who are late find the next reply",
    ),
    Mutation(
        "pieces of a reply are views of it",
        ENGINE,
        "part if parts_of(part) else tf.raw_ops.DeepCopy(x=part) for part in parts",
        "part for part in parts",
        transported("whoever_steps_on_pieces_of_a_reply_writes_nothing_where_others_read_it"),
        "a worker changes what another has been given",
    ),
    Mutation(
        "any segment of that number will do",
        ENGINE,
        "if segment.name != name:",
        "if segment.name == 0:",
        transported("a_descriptor_that_is_another_segments_by_now_is_not_read"),
        "a message is read from what is not one",
    ),
    Mutation(
        "whoever joins has an old version",
        ENGINE,
        "self.note_pull(slot, unless=copied)",
        "self.note_pull(slot, unless=~copied)",
        JOINED,
        "its first message counts as stale",
    ),
    Mutation(
        "a schedule of synchronous workers is slow",
        ENGINE,
        "steps / scheme.updates_per_round(self.num_workers)",
        "steps / self.num_workers",
        option("a_schedule_of_keras_is_a_function_of_the_local_step[SyncSGD-3]"),
        "the rate falls W times too slowly",
    ),
    Mutation(
        "a schedule of asynchronous workers is fast",
        ENGINE,
        "steps / scheme.updates_per_round(self.num_workers)",
        "steps",
        option("on_the_server_a_schedule_counts_the_local_steps_of_the_average_worker"),
        "the rate falls W times too fast",
    ),
    Mutation(
        "the average moves at another pace",
        ENGINE,
        "decay = tf.minimum(self.ema_decay, (1 + n) / (10 + n))",
        "decay = tf.minimum(self.ema_decay, (1 + n) / (12 + n))",
        option("the_average_follows_the_center_and_is_what_the_model_gets"),
        "not TensorFlow's average",
    ),
    Mutation(
        "the anchor of worker 0 for everybody",
        ENGINE,
        "seen.anchor = Row(self.anchors, slot.index)",
        "seen.anchor = Row(self.anchors, 0)",
        scripted("adag"),
        "distances from another's center",
    ),
    Mutation(
        "every worker writes its statistics into row 0",
        ENGINE,
        "self.write(self.states, slot, state)",
        "tf.raw_ops.ResourceScatterUpdate(resource=self.states.handle, indices=0, updates=state)",
        STATISTICS,
        "the mean over the workers is that of one and the start",
    ),
    Mutation(
        "an event counts for worker 0",
        ENGINE,
        "resource=self.folded.handle, indices=worker, updates=one",
        "resource=self.folded.handle, indices=0, updates=one",
        LATE,
        "whoever comes back does rounds again, or leaves some out",
    ),
    Mutation(
        "messages are folded however stale",
        ENGINE,
        "accepted = self.scheme.accepts(lateness)",
        "accepted = True",
        server("a_message_that_is_too_stale_for_its_scheme_counts_no_update_and_is_answered"),
        "what a threshold is for",
    ),
    Mutation(
        "all rows are those of worker 0",
        ENGINE,
        "name: Row(values, slot.index) for name, values in",
        "name: Row(values, 0) for name, values in",
        server("a_scheme_may_keep_a_row_of_each_worker_and_knows_whose_message_it_merges"),
        "statistics of several workers are mixed",
    ),
    Mutation(
        "messages count the same at a barrier",
        GATES,
        "u = ps.weigh(part, u, staleness, slot)",
        "ps.weigh(part, u, staleness, slot)",
        server("at_a_barrier_each_message_counts_as_its_scheme_has_weighed_it"),
        "what weights are for",
    ),
    Mutation(
        "everybody goes on whatever the slack",
        GATES,
        "rounds - self.lead <= slowest",
        "rounds - self.lead <= slowest + 9",
        server("nobody_begins_a_round_more_than_the_slack_ahead_of_the_slowest"),
        "what the gate is for",
    ),
    Mutation(
        "the record forgets what was handed out",
        ENGINE,
        "            self.unacknowledged.assign(events)\n",
        "",
        ("tests/test_replay.py::test_an_evaluator_that_is_lost_in_the_middle_of_its_work_leaves_the_record_whole",),
        "an evaluator that dies leaves a gap",
    ),
    Mutation(
        "the length of a center is taken in its own float32",
        PROOF,
        "apart / length",
        "apart / np.linalg.norm(center.astype(np.float32))",
        ("tests/test_proof.py::test_an_absurd_center_is_noticed",),
        "a norm that overflows makes any distance small",
    ),
]

SIMULATED = [
    Mutation(
        "a look in the middle of an update",
        "common/simulation",
        "until = int(np.searchsorted(versions, versions[until]))",
        "versions[until]",
        ("tests/test_simulation.py::test_no_look_is_in_the_middle_of_an_update_or_where_nothing_is_new",),
        "a run that is stopped there has messages on record that no update has",
    ),
    Mutation(
        "rounds after the end of a simulated run",
        "common/simulation",
        "there.rounds[there.rounds[:, NUMBER] < seen.rounds[there.rounds[:, 0]]]",
        "there.rounds",
        ("tests/test_simulation.py::test_a_run_that_has_its_accuracy_ends_there_and_so_does_its_record",),
        "the record has rounds that were never computed",
    ),
]

VIRTUAL_TIME = [
    Mutation(
        "a region whose link belongs to each of its workers in a reduction",
        TIME,
        "regions = (np.maximum(leaves, enters) / self.links).max()",
        "regions = (np.maximum(leaves, enters) / self.links / self.inside).max()",
        ("tests/test_reduction.py::test_workers_of_a_region_share_its_link_in_a_reduction_too",),
        "all_reduce between regions is as many times too fast as a region has workers",
    ),
    Mutation(
        "a gate that is simulated as the one that it is derived from",
        GATES,
        "            if any(callable(value)",
        "            if False and any(callable(value)",
        ("tests/test_own_gate.py::test_what_a_gate_has_of_its_own_is_refused_unless_it_says_that_it_is_simulated",),
        "gossip comes out as the mean of all",
    ),
    Mutation(
        "one latency for all messages of a reduction that come from a region",
        TIME,
        "np.exp(self.sigma * ndtri(u ** (1 / many))",
        "np.exp(self.sigma * ndtri(u)",
        ("tests/test_reduction.py::test_every_message_of_a_reduction_in_slices_draws_its_latency",),
        "no message of many is the last",
    ),
    Mutation(
        "virtual time: the level of a shared link counts everybody, also who cannot use its share",
        TIME,
        "left, number = left - cap * count, number - count",
        "pass",
        ("tests/test_network.py::test_links_are_shared_as_if_water_were_poured",),
        "bandwidth is left over where links are slow",
    ),
    Mutation(
        "virtual time: rates stay when somebody else begins",
        TIME,
        "if tight or self.tight:",
        "if False:",
        ("tests/test_network.py::test_who_comes_later_takes_its_share_from_all_who_are_there",),
        "a card that is full serves everybody at full speed",
    ),
    Mutation(
        "virtual time: what a worker sent before it crashed counts",
        TIME,
        "if life == lives[worker]:",
        "if True:",
        ("tests/test_network.py::test_who_crashes_comes_back_anew_and_all_do_their_rounds",),
        "a message counts that the ps refuses in a real run",
    ),
    Mutation(
        "virtual time: all workers draw the same numbers",
        TIME,
        "GAMMA * (np.asarray(workers, np.uint64)[:, None] + np.uint64(1))",
        "GAMMA * (0 * np.asarray(workers, np.uint64)[:, None] + np.uint64(1))",
        ("tests/test_closed_forms.py::test_a_barrier_takes_as_long_as_the_slowest_of_all",),
        "nobody is ever a straggler",
    ),
    Mutation(
        "virtual time: the lock of the ps is held by many",
        TIME,
        "begun = now if now > self.free else self.free",
        "begun = now",
        ("tests/test_network.py::test_the_lock_of_the_ps_takes_one_after_the_other",),
        "a ps that is never the bottleneck",
    ),
    Mutation(
        "virtual time: a dropped message waits at the barrier",
        TIME,
        "if staleness:  # dropped: the worker goes on at once",
        "if False:",
        (
            "tests/test_order.py::test_a_run_with_backup_workers_ends_with_its_last_update_and_late_messages_are_dropped_at_once",
        ),
        "backup workers that complete sets with messages that were dropped",
    ),
    Mutation(
        "virtual time: the lead is one more",
        TIME,
        "max(rounds - self.lead, self.slowest)",
        "max(rounds - self.lead - 1, self.slowest)",
        ("tests/test_order.py::test_nobody_begins_a_round_more_than_the_slack_ahead_of_the_slowest",),
        "another bound than in the real run",
    ),
    Mutation(
        "virtual time: phases change with each block of durations",
        TIME,
        "before = u[:, :1] < self.probability if before is None else before",
        "before = u[:, :1] < self.probability",
        ("tests/test_order.py::test_blocks_of_durations_are_seamless",),
        "durations that depend on the size of a block",
    ),
]

FORETOLD = [
    Mutation(
        "several workers for a few per cent more than one",
        "common/cli/advise.py",
        "if best < WORTH * alone:",
        "if best < 0.5 * alone:",
        ("tests/test_advise.py::test_several_workers_that_make_less_than_a_third_more_than_one_are_not_recommended",),
        "eight machines are recommended that are slower than one",
    ),
    Mutation(
        "what is shared goes before the thing that was named first",
        "common/virtual_time/clock.py",
        "if thing.next < now:",
        "if thing.next <= now:",
        ("tests/test_order.py::test_at_a_tie_what_is_shared_comes_last_and_the_first_thing_before_the_second",),
        "the order of events at a tie is another one",
    ),
    Mutation(
        "the bytes of a message whole on each ps",
        "common/virtual_time/course.py",
        "round(size / ps / machines.ps_rate)",
        "round(size / machines.ps_rate)",
        ("tests/test_network.py::test_several_ps_tasks_divide_the_bytes_of_a_message_and_not_its_time_under_the_lock",),
        "several ps are no faster than one",
    ),
    Mutation(
        "the card of the ps as it was first guessed from the record",
        "common/simulation/fit.py",
        "replace(found, card=card * by) if waits",
        "found if waits",
        ("tests/test_like.py::test_a_card_that_all_messages_share_is_not_taken_for_a_latency_of_each",),
        "a fit to four workers is too slow or too fast for 64",
    ),
    Mutation(
        "a card told from a lock without replies, which do not wait at a lock",
        "common/simulation/fit.py",
        "found += one * abs(",
        "found += 0 * abs(",
        ("tests/test_like.py::test_a_card_is_told_from_a_lock_and_from_latencies_that_vary",),
        "messages that leave a card one after the other have waited for a lock",
    ),
    Mutation(
        "a latency as it was before the card was corrected",
        "common/simulation/fit.py",
        "* (1 / by - 1)",
        "* 0",
        ("tests/test_like.py::test_a_card_is_told_from_a_lock_and_from_latencies_that_vary",),
        "corrections of card and latency swing against each other",
    ),
    Mutation(
        "the whole link for each message of a queue",
        "common/virtual_time/sharing.py",
        "left, left_in[region] = left - turn.rate, left_in[region] - turn.rate",
        "left, left_in[region] = left, left_in[region] - turn.rate",
        ("tests/test_network.py::test_who_comes_later_has_what_those_before_it_leave",),
        "messages go faster than the card of the ps",
    ),
    Mutation(
        "how workers of the record differ besides the factors that are given",
        "common/simulation/likeness.py",
        "np.repeat(self.steps / self._factors[:, None], self.period, 1)",
        "np.repeat(self.steps, self.period, 1)",
        ("tests/test_like.py::test_one_slow_machine_among_many_can_be_said_of_machines_like_those_of_a_run",),
        "one slow machine of the record is a third of all machines",
    ),
    Mutation(
        "the limit of a gradient that is one update later",
        "common/cli/limits.py",
        "(4 * staleness + 2)",
        "(4 * staleness + 6)",
        ("tests/test_advise.py::test_a_late_gradient_is_stable_up_to_the_limit_and_no_further",),
        "rates are called unstable that are not",
    ),
    Mutation(
        "a timeline whose rounds are counted from one",
        "common/timeline/lanes.py",
        "np.arange(len(worker)) - firsts",
        "np.arange(len(worker)) - firsts + 1",
        ("tests/test_timeline.py::test_each_event_is_joined_with_the_stamps_of_its_round",),
        "each message is drawn in the round after its own",
    ),
]

SHOWN = [
    Mutation(
        "curves go on to the end of the longest run",
        "benchmarks/plots.py",
        "end = min(course[x][-1]",
        "end = max(course[x][-1]",
        ("tests/test_benchmark.py::test_a_curve_is_the_mean_of_its_seeds_up_to_the_end_of_the_shortest",),
        "a mean of runs that have ended: it looks as if they had learned nothing more",
    ),
    Mutation(
        "a panel shows the quantity of the first",
        "benchmarks/plots.py",
        "(row[setting], needed(row, what) * scale)",
        "(row[setting], needed(row, shown[0]) * scale)",
        ("tests/test_benchmark.py::test_panels_show_what_their_labels_say_and_the_fastest_is_on_top",),
        "seconds under the label of examples",
    ),
    Mutation(
        "the slowest algorithm is on top",
        "benchmarks/plots.py",
        '(math.isnan(needed(o, "seconds")), needed(o',
        '(math.isnan(needed(o, "seconds")), -needed(o',
        ("tests/test_benchmark.py::test_panels_show_what_their_labels_say_and_the_fastest_is_on_top",),
        "the title says the fastest first",
    ),
    Mutation(
        "a picture of a run without its zero",
        "common/record/plot.py",
        '    seconds = [row["seconds"] - zero for row in centers]\n    if "test',
        '    seconds = [row["seconds"] for row in centers]\n    if "test',
        ("tests/test_plot.py::test_curves_are_losses_and_accuracies_over_the_seconds_since_the_first_row",),
        "the center beside its workers",
    ),
    Mutation(
        "a timeline whose rounds begin with any earlier reply",
        "common/timeline/lanes.py",
        " & (number[1:] == number[:-1] + 1)",
        "",
        (
            "tests/test_timeline.py::test_a_round_that_exchanges_first_begins_with_the_reply_of_the_round_before_and_of_no_other",
        ),
        "a lost round is drawn as computing",
    ),
    Mutation(
        "the limit of the sum of gradients is that of their mean",
        "common/cli/limits.py",
        'workers if scheme.reduction == "sum" else 1',
        "1",
        ("tests/test_advise.py::test_a_limit_falls_with_the_size_of_the_step_that_a_message_makes",),
        "rates are called stable that diverge",
    ),
    Mutation(
        "the last row of a series is lost when it is thinned out",
        "common/record/metrics.py",
        "self.last = self.last or [self.kept[-1]]",
        "pass",
        ("tests/test_metrics.py::test_the_first_and_the_last_row_stay_wherever_a_series_ends_and_all_are_in_order",),
        "a curve that ends before its run",
    ),
    Mutation(
        "another split of digits",
        "common/problems/data.py",
        "np.random.default_rng(0).permutation(len(x))",
        "np.random.default_rng(1).permutation(len(x))",
        ("tests/test_data.py::test_a_named_data_set_is_the_same_everywhere_and_each_time",),
        "figures of a page would be of other test data",
    ),
    Mutation(
        "an epoch has a batch that is not full",
        "common/problems/inputs.py",
        "epochs * (shard // batch_size)",
        "epochs * -(-shard // batch_size)",
        ("tests/test_data.py::test_an_epoch_has_no_batch_that_is_not_full",),
        "steps of the next epoch are counted to this one",
    ),
    Mutation(
        "of a small vector nothing is kept",
        "common/contract/optimizers.py",
        "max(1, int(share * vector.shape[0]))",
        "int(share * vector.shape[0])",
        ("tests/test_identities.py::test_of_a_vector_that_share_of_its_largest_elements_is_kept_one_at_least",),
        "messages without content, forever",
    ),
    Mutation(
        "a flag that cannot be turned off",
        "common/cli/flags.py",
        '"store_false" if default else "store_true"',
        '"store_true"',
        ("tests/test_cli.py::test_a_flag_of_each_kind_reaches_its_field_and_nothing_else",),
        "--no-x does nothing",
    ),
]


def keras_own(name: str) -> tuple[str]:
    return (f"tests/test_keras.py::test_{name}",)


def steps_of(usage: str) -> tuple[str]:
    return keras_own(f"a_run_takes_the_steps_that_keras_takes[{usage}]")


TOLD_ONCE = ("tests/test_history.py::test_a_version_is_told_once_however_often_it_is_looked_at",)

KERAS = [
    Mutation(
        "the trial gives regularizers no values",
        "common/problems/trial.py",
        "Watched(_values(model), collect_losses=True)",
        "Watched(collect_losses=True)",
        steps_of("regularizers"),
        "every model with a weight regularizer is refused",
    ),
    Mutation(
        "a graph meets the tensors that regularizers keep",
        "common/engine/flat_model.py",
        "            left += part.__dict__.values()\n",
        "",
        steps_of("regularizers"),
        "L1 and OrthogonalRegularizer end the run after its start",
    ),
    Mutation(
        "what layers add to the loss counts nothing",
        "common/engine/flat_model.py",
        "    return model._compute_loss(x, y, y_pred, weight[0] if weight else None, training=training)",
        "    return model._compile_loss(y, y_pred, weight[0] if weight else None)",
        steps_of("add_loss") + steps_of("activity_regularizer"),
        "another loss is minimised",
    ),
    Mutation(
        "masks do not reach the loss",
        "common/engine/flat_model.py",
        "    return model._compute_loss(x, y, y_pred,",
        "    y_pred = [p + 0 for p in y_pred] if isinstance(y_pred, list) else y_pred + 0\n"
        "    return model._compute_loss(x, y, y_pred,",
        steps_of("mask_zero") + steps_of("Masking"),
        "padding counts",
    ),
    Mutation(
        "weights of outputs are lost on the way to a task",
        "common/problems/models.py",
        "            for layer, trainable in zip(copy._flatten_layers(), frozen, strict=True):",
        "            copy._compile_loss._user_loss_weights = None\n"
        "            for layer, trainable in zip(copy._flatten_layers(), frozen, strict=True):",
        steps_of("loss_weights"),
        "another loss is minimised",
    ),
    Mutation(
        "a version counts as often as it is looked at",
        "common/run/observer.py",
        'if not last and int(snapshot["at"]) == self.told.get("version"):',
        "if False:",
        TOLD_ONCE,
        "looks at version 0 use up the points of a curve",
    ),
    Mutation(
        "a version is told again at the end",
        "common/run/observer.py",
        'if moment.version == self.told.get("version") and finite(measured)',
        "if False and finite(measured)",
        TOLD_ONCE,
        "early stopping takes it for a version without improvement",
    ),
    Mutation(
        "a version with an undefined metric is told again",
        "common/run/observer.py",
        "finite(measured).items() <= finite(self.told).items()",
        "measured.items() <= self.told.items()",
        TOLD_ONCE,
        "NaN is not equal to itself",
    ),
    Mutation(
        "every float16 layer passes",
        "common/problems/trial.py",
        "_before(gradients) - forward for",
        "set() for",
        keras_own("what_cannot_be_trained_is_refused_in_one_line_before_the_start"),
        "small gradients are lost",
    ),
]

MUTATIONS = [
    *RULES,
    *OPTIMIZING,
    *BATCHES,
    *WORKERS,
    *AT_THE_GATE,
    *ON_THE_PS,
    *SIMULATED,
    *VIRTUAL_TIME,
    *FORETOLD,
    *SHOWN,
    *KERAS,
]

# Changes that look like faults, and are none.
EQUIVALENT = {
    "the record enqueued outside the lock": "it depends on the version, which is read inside",
    "the version counted before the update, both under the lock": "nobody can look between the two",
    "adamw: decay of x - eta g instead of x": "differs by eta lambda times the step: far below float32's rounding of x",
    "the staleness of a barrier's update": "its schemes get the constant 0, and none of them reads it",
    "downpour: period one pulled in dean's phase": "with n_push = n_fetch = 1 both phases are the same loop",
}
