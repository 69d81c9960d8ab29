"""Checks of every scheme before a run starts, besides the scheme's own (`Scheme.check`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np

from ..arguments import at_least, one_of
from ..errors import UserError
from ..messages.codec import Codec, both
from ..record_format import EVENTS
from ..sync.asynchronous import Unlocked
from ..sync.synchronization import Synchronization
from .adapting import adapts
from .hyperparameters import feature, kinds_of, rates_of, undeclared
from .kept import FEW, Kept, kept, unmarked
from .on_graph import OnGraph
from .regions import Regions
from .rounding import can_encode, rounded
from .rounds import Kind
from .scheme import Scheme
from .views import check_names

# Members that a scheme had, with the arguments of a synchronization rule that replace them.
MOVED = {
    "messages_per_update": "messages_per_update",
    "accepts": "drop_after",
    "warmup_updates": "warm_start",
    "cancels_late": "cancel_late",
}


# Members that a scheme had, and what replaces them: an old class would train by another rule without a word.
OF_KINDS = (
    'follows from the kinds of its rounds: declare these instead, as in kinds = {"push": Kind(answered=False), "pull": '
    "Kind(sends=False)}"
)
OF_EACH = "is no longer there: return such variables from global_variables, as in "
REMOVED = {
    **dict.fromkeys(("worker_rows", "worker_numbers"), f'{OF_EACH}{{"rows": EachWorker(0 * center)}}'),
    **dict.fromkeys(
        ("up", "down", "region_variables", "servers_apart"),
        "is no longer there: return the rules of the global server as a scheme, as in regions = Regions(number=2, "
        "every=4, delay=0, above=GlobalServer())",
    ),
    "keeps_pulled_centers": f'{OF_EACH}{{"pulled_center": PulledCenter()}}',
    **dict.fromkeys(("events", "sent_as_floats", "sends_in_turn"), OF_KINDS),
    "sums": "is no longer there: return such variables from local_variables, as in "
    '{"tracker": ClearedOnLoss(0 * params)}',
    "describes_data": "is no longer there: return what describes the worker's own data from local_variables, as in "
    '{"own": OfShard(0 * params)}',
    "reply_codec": "is no longer there: return both from codec, as in codec = Signs(), Signs()",
    "idea": "is no longer there: write the line of the catalogue as the first of the docstring of your class",
    "most_hostile": "is no longer there: declare the share of the messages that the rule of the server leaves out, as "
    "in sync = Barrier(outliers=0.25)",
    "uses_gradient_sum": 'is no longer there: declare sends = "gradient_sum"',
    "sends_params": 'is no longer there: declare sends = "params"',
    "warnings": "is no longer there: return the warnings from check",
    "in_place": "is no longer there: with sync = Unlocked() it follows from overriding server_update alone",
    "plain_inner_steps": "is no longer there: leave out local_step where a local step is that of inner_optimizer alone",
    "exchange_first": "is no longer there: keep the point of the last step in a local variable, return it from message,"
    " and Rounds.ending_at(period, steps, done) from rounds, as easgd does",
}


def check_kind(scheme: Any, usage: str) -> None:
    """Raise `UserError` for a scheme that is no instance of a named class; `usage` is the call as it should be."""
    if isinstance(scheme, type) and issubclass(scheme, Scheme):
        raise UserError(f"scheme must be an algorithm, not its class: write {scheme.__name__}(). Received: {scheme}")
    kind = type(scheme).__name__
    if not isinstance(scheme, Scheme):
        received = repr(scheme) if isinstance(scheme, str) else kind
        raise UserError(f"scheme must be an algorithm such as Downpour(), as in {usage}. Received: {received}")
    if not (scheme.name and isinstance(scheme.name, str)):
        raise UserError(f'class {kind} has no name: give it one, as in name = "{kind.lower()}"')
    if not isinstance(scheme.sync, Synchronization):
        received = repr(scheme.sync)
        raise UserError(f"{scheme.name}: sync must be a rule, as in sync = Barrier(). Received: sync={received}")


def fitted(scheme: Scheme, workers: int, ps: int, codec: str) -> Scheme:
    """Return the scheme with this codec; `UserError` if it cannot work with so many workers and parameter servers."""
    check_scheme(scheme, workers)
    if ps > 1 and not scheme.sync.uses_ps:
        raise UserError(f"{scheme.name} has no parameter server: leave ps out. Received: ps={ps}")
    if ps > 1 and scheme.whole_center:
        raise UserError(f"{scheme.name} needs the whole vectors on one ps: leave ps out. Received: ps={ps}")
    return rounded(scheme, codec)


def fitted_in_process(scheme: Scheme, workers: int, ps: int, codec: str, usage: str) -> Scheme:
    """Return the scheme with this codec; `UserError` if the arguments do not fit, with the call as it should be."""
    check_kind(scheme, usage)
    at_least(1, workers=workers, ps=ps)
    scheme = fitted(scheme, workers, ps, codec)
    if adapts(scheme):
        raise UserError(
            f"{scheme.name}: adacomm needs a run whose server keeps the losses, as `train` starts one: take another "
            f"rule here. Received: communication_period={scheme.period_rule}"
        )
    if scheme.sync.grace:
        raise UserError(
            f"{scheme.name}: grace needs processes, whose clock ends it: leave it out. Received: "
            f"grace={scheme.sync.grace:g}"
        )
    check_update(scheme, in_process=True)
    return scheme


def check_scheme(scheme: Scheme, workers: int) -> None:
    """Check synchronization rule, codecs, scalars and variables of a scheme, then call its own `Scheme.check`.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.

    Raises:
        UserError: the scheme cannot work with that number of workers, or its parts do not fit together.
    """
    scheme.sync.check(workers)
    _check_declared(scheme)
    _check_moved(scheme)
    one_of(("gradient", "gradient_sum", "params"), sends=scheme.sends)
    if scheme.makes_inner_steps and "learning_rate" not in rates_of(scheme):
        raise UserError(f"{scheme.name}: inner_optimizer needs its step size: declare learning_rate: Rate = 0.1")
    _check_kinds(scheme, workers)
    _check_messages(scheme)
    kept_by(scheme)
    _check_regions(scheme)
    _checked(scheme, workers)


def _checked(scheme: Scheme, workers: int) -> list[str]:
    """Return the warnings of the scheme's own check: of one that yields them, or returns a single one, too."""
    lines = scheme.check(workers)  # a generator raises only when it is read
    return [lines] if isinstance(lines, str) else [*(lines or ())]


def warnings_of(scheme: Scheme, workers: int) -> list[str]:
    """Return the warnings of a scheme with that number of workers, a line each."""
    return [*undeclared(scheme), *_checked(scheme, workers)]


def _check_declared(scheme: Scheme) -> None:
    """Refuse a field that has one of the types that the engine reads, but another name: the engine would not read it.

    Records name hyperparameters by their fields, so that the name has one meaning in all records.
    """
    for name, kind in kinds_of(type(scheme)).items():
        if (needed := feature(kind)) not in (None, name):
            raise UserError(
                f"{scheme.name}: the field of this type must be called {needed}: rename {name}, or give it a type that "
                "the engine does not read, such as Natural"
            )


def _check_moved(scheme: Scheme) -> None:
    """Refuse members that a scheme had: what is removed, and what the engine now reads of the synchronization rule."""
    for name, instead in REMOVED.items():
        if getattr(type(scheme), name, None) is not getattr(Scheme, name, None):
            raise UserError(f"{scheme.name}: {name} {instead}")
    for name, member in vars(Scheme).items():
        final = getattr(getattr(member, "fget", member), "__final__", False)
        if final and getattr(type(scheme), name) is not member:
            raise UserError(f"{scheme.name}: {name} is a member that the engine reads: give your own another name")
    for name, now in MOVED.items():
        value = getattr(scheme, name, None)
        if value is not None and value != getattr(scheme.sync, now, None):
            received = type(value).__name__ if callable(value) else repr(value)
            raise UserError(
                f"{scheme.name}: {name} belongs to the synchronization rule: return it from sync, as in sync = "
                f"Async({now}=...). Received: {name}={received}, sync={type(scheme.sync).__name__}()"
            )


def _check_kinds(scheme: Scheme, workers: int) -> None:
    """Refuse kinds of rounds that are none, and codecs with memory."""
    if "seed" not in signature(scheme.rounds).parameters:
        usage = "def rounds(self, steps, done=0, worker=0, seed=0)"
        raise UserError(f"{scheme.name}: rounds needs an argument for the run's seed: write {usage}")
    kinds = scheme.kinds.values() if isinstance(scheme.kinds, Mapping) else ()
    if not kinds or not all(isinstance(kind, Kind) for kind in kinds):
        raise UserError(
            f'{scheme.name}: kinds must be a mapping of names to Kind, as in {{"push": Kind(answered=False)}}. '
            f"Received: {scheme.kinds}"
        )
    for name, kind in scheme.kinds.items():
        if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
            raise UserError(f"{scheme.name}: the name of a kind of rounds must be an identifier. Received: {name!r}")
        if name in EVENTS and kind.event != name:
            raise UserError(
                f"{scheme.name}: the kind of rounds {name} must be that event, or have another name: a push is "
                f"not answered, and a pull sends nothing. Received: {name}: {kind}"
            )
        if not (kind.sends or kind.answered):
            raise UserError(
                f"{scheme.name}: a kind of rounds must send a message, be answered, or both. Received: {name}: {kind}"
            )
        codecs = both(kind.codec or Codec())
        if codecs[0].remembers:
            raise UserError(
                f"{scheme.name}: the codec of one kind of rounds cannot keep variables: return it from codec, for "
                f"all kinds. Received: {name}: codec={type(codecs[0]).__name__}"
            )
        for direction, codec, travels in zip(("message", "reply"), codecs, (kind.sends, kind.answered), strict=True):
            if not travels and type(codec) is not Codec:
                raise UserError(
                    f"{scheme.name}: a kind of rounds without a {direction} takes no codec for it: leave that codec "
                    f"out. Received: {name}: {kind}"
                )
    if scheme.events != {"exchange"} and type(scheme.sync).push is Synchronization.push:
        raise UserError(
            f"{scheme.name}: rounds without a message or a reply need an asynchronous rule, as in sync = Async(). "
            f"Received: sync = {type(scheme.sync).__name__}(), events {', '.join(sorted(scheme.events))}"
        )
    if scheme.sends_in_turn and scheme.sync.set_size(workers) is not None and not scheme.sync.meets(workers):
        raise UserError(
            f"{scheme.name}: several kinds of rounds need a rule that waits for all workers, as in sync = "
            "Barrier(): a worker that is left out of a set would send another kind than the others. Received: "
            f"sync={scheme.sync}, kinds {', '.join(scheme.kinds)}"
        )


def check_together(scheme: Scheme, kinds: Iterable[str]) -> None:
    """Raise `UserError` if messages of rounds of these kinds cannot make one update together."""
    if len(several := sorted({*kinds})) > 1:
        raise UserError(
            f"{scheme.name}: messages of different kinds of rounds cannot make one update: return rounds of the same "
            f"kinds, in the same order, for all workers. Received: kinds {', '.join(several)} in one round"
        )


def rounds_differ(scheme: Scheme, workers: int, steps: int) -> bool:
    """Return True if the workers of a run of so many steps have rounds of different lengths or kinds."""
    first = scheme.rounds(steps)
    return any(scheme.rounds(steps, 0, worker) != first for worker in range(1, workers))


def _check_messages(scheme: Scheme) -> None:
    """Check the codecs and scalars of messages and replies, and the number of messages per update."""
    name, sync = scheme.name, scheme.sync
    codecs = [codec for kind in scheme.kinds for codec in scheme.codecs(kind)]
    for kind in scheme.kinds:
        if (reply := scheme.codecs(kind)[1]).remembers:
            raise UserError(
                f"{name}: the codec of replies cannot keep variables, as several workers read one reply: choose "
                f"one without memory. Received: {type(reply).__name__}"
            )
    if scheme.scalars and (not sync.uses_ps or scheme.sparse):
        why = "without a ps" if not sync.uses_ps else "of a scheme with sparse = True"
        raise UserError(
            f"{name}: messages {why} are vectors alone: leave scalars out. Received: scalars={scheme.scalars}"
        )
    if scheme.declares_sizes and (sync.uses_ps or scheme.in_coordinates):
        raise UserError(
            f"{name}: message_sizes needs rules of the worker that are not elementwise, and no parameter server: send "
            "numbers beside the vector (scalars), or use sync = Collective(). Received: elementwise="
            f"{scheme.in_coordinates}, sync = {type(sync).__name__}()"
        )
    _check_period_rule(scheme)
    _check_overlap(scheme)
    _check_cancel(scheme)
    overridden = {
        rule for rule in ("gradient_point", "local_step") if getattr(type(scheme), rule) is not getattr(Scheme, rule)
    } | ({"local_step"} if scheme.inner else set())
    if sync.in_pairs and (scheme.period > 1 or overridden != {"gradient_point"}):
        raise UserError(
            f"{name}: with Pairs(), override gradient_point (return a local variable) and on_reply (make the step), "
            "leave local_step out, and use a period of 1: other workers change worker.params while this one computes. "
            f"Received: period={scheme.period}, and of these functions {', '.join(sorted(overridden)) or 'none'}"
        )
    plain = {*map(type, codecs)} == {Codec}
    if not plain and not can_encode(scheme):
        raise UserError(
            f"{name}: without a ps only messages to neighbours, of all parameters, have a codec: leave it out. "
            f"Received: codecs {', '.join(sorted({type(codec).__name__ for codec in codecs}))}"
        )
    if sync.gossips and any(type(scheme.codecs(kind)[1]) is not Codec for kind in scheme.kinds):
        raise UserError(f"{name}: the replies of gossip are not sent: return one codec, that of the messages")
    count = sync.messages_per_update
    if count > 1 and (sync.waits or isinstance(sync, Unlocked) or scheme.sparse):
        raise UserError(
            f"{name}: messages_per_update above 1 needs an asynchronous rule with a lock, as in sync = "
            f"Async(messages_per_update=2), and sparse = False. Received: messages_per_update={count}, "
            f"sync={type(sync).__name__}()"
        )


def _check_overlap(scheme: Scheme) -> None:
    """Check the number of local steps that a worker makes while its message travels."""
    overlap, period, name = scheme.overlap, scheme.period, scheme.name
    if not overlap:
        return
    if not 0 < overlap <= period:
        raise UserError(
            f"{name}: delay must be at most the period, as a worker uses a reply before the round of its message ends. "
            f"Received: delay={overlap}, period={period}"
        )
    plain = scheme.events == {"exchange"} and not (scheme.regions or scheme.sparse)
    if not (scheme.sync.overlaps and plain) or scheme.sends == "gradient_sum":
        raise UserError(
            f"{name}: a delay needs a message of parameters or local variables, and a barrier without backup workers, "
            "a quorum whose late messages count, no ps, or asynchronous exchanges with one server. Received: "
            f"delay={overlap}, sync={scheme.sync}, sends={scheme.sends!r}"
        )
    if scheme.takes_means or scheme.sync.buckets > 1:
        raise UserError(
            f"{name}: a delay needs messages that leave whole, and take no mean over the workers: use one bucket, "
            f"and leave message_sizes out. Received: delay={overlap}, buckets={scheme.sync.buckets}, and "
            f"{'' if scheme.takes_means else 'no '}message_sizes"
        )


def _check_period_rule(scheme: Scheme) -> None:
    """Check that rounds can have the lengths of a rule, in words, of the period."""
    rule, name = scheme.period_rule, scheme.name
    if rule is None:
        return
    if type(scheme).rounds is not Scheme.rounds or type(scheme).period is not Scheme.period or scheme.overlap:
        raise UserError(
            f"{name} has rounds of its own, whose lengths no rule can change: leave the rule out. "
            f"Received: communication_period={rule}"
        )
    if rule.kind == "qsr" and "learning_rate" not in rates_of(scheme):
        raise UserError(f"{name} has no learning_rate that qsr could follow: take post-local. Received: {rule}")


def _check_cancel(scheme: Scheme) -> None:
    """Check that a scheme which stops late computations drops late messages, each of one local step."""
    sync = scheme.sync
    plain = scheme.period == 1 and scheme.events == {"exchange"} and not sync.warm_start
    if sync.cancel_late and not (sync.uses_ps and not sync.accepts(sys.maxsize) and plain):
        raise UserError(
            f"{scheme.name}: cancel_late needs a parameter server that drops late messages, and rounds of one "
            f"step: leave it out. Received: period={scheme.period}, sync={sync}"
        )


def check_update(scheme: Scheme, in_process: bool) -> None:
    """Check that the scheme has a `server_update` if the run calls it.

    Args:
        scheme: the algorithm.
        in_process: True if all workers are in one process, which then merges their mean message even without a ps.

    Raises:
        UserError: the scheme has no `server_update`.
    """
    uses_ps = scheme.sync.uses_ps
    if scheme.sync.gossips:  # its center is the mean of the workers
        return
    if scheme.sync.exchanges and (uses_ps or in_process) and type(scheme).server_update is Scheme.server_update:
        why = "" if uses_ps else " (without a ps, threads and the simulation merge the mean message with it: return it)"
        raise UserError(f"{scheme.name} has no server_update(self, server, message, staleness): write one{why}")


def check_variables(scheme: str, local: Iterable[str], global_variables: Iterable[str] = ()) -> None:
    """Raise `UserError` if a local or a global variable of that scheme has a name that cannot be used."""
    check_names(scheme, "local variable", local)
    check_names(scheme, "global variable", global_variables)


def kept_by(scheme: Scheme) -> Kept:
    """Return the variables that a ps keeps for a scheme, of a small model; `UserError` if it or a worker cannot."""
    local, global_variables = _declared(scheme.worker_variables), _declared(scheme.global_variables)
    check_variables(scheme.name, local, global_variables)
    try:
        for name, value in local.items():
            unmarked(name, value)
        return kept(lambda _: global_variables, np.zeros(FEW, np.float32))
    except UserError as error:
        raise UserError(f"{scheme.name}: {error}") from None


def _check_regions(scheme: Scheme) -> None:
    """Refuse a global server that is no scheme, has no rule, or keeps what its workers, the regions, do not pull."""
    if (regions := scheme.regions) is None:
        return
    usage = "regions = Regions(number=2, every=4, delay=0, above=GlobalServer())"
    if not isinstance(regions, Regions):
        raise UserError(f"{scheme.name}: return the servers of regions as {usage}. Received: {regions!r}")
    above = regions.above
    if not isinstance(above, Scheme):
        raise UserError(f"{scheme.name}: above must be a scheme, as in {usage}. Received: above={above!r}")
    if type(above).server_update is Scheme.server_update:
        raise UserError(f"{scheme.name}: {type(above).__name__} has no server_update: write that of the global server")
    if kept_by(above).pulled:
        raise UserError(
            f"{scheme.name}: regions pull no center: leave PulledCenter out of the global_variables of "
            f"{type(above).__name__}"
        )


def limits_of(scheme: Scheme, workers: int) -> Iterable[str]:
    """Return limits that are not exceeded, those of a graph, a line each; the run prints them."""
    return scheme.limits(workers) if isinstance(scheme, OnGraph) else []


def _declared(build: Callable[[Any], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the variables that a scheme declares; none if building them needs more than arithmetic on an array.

    This does not import TensorFlow, and if the user has imported it, only builds a graph: running an operation before
    the start would take threads, and a GPU. The engine checks again when it builds its graph, and finds the rest.
    """
    try:
        with _without_operations():
            return dict(build(np.zeros(FEW, np.float32)))
    except Exception:  # an error in the scheme is raised again when the engine builds the variables at full size
        return {}


@contextmanager
def _without_operations() -> Iterator[None]:
    name, tensorflow = "tensorflow", sys.modules.get("tensorflow")
    if tensorflow is not None:
        with tensorflow.Graph().as_default():
            yield
        return
    sys.modules[name] = None  # type: ignore[assignment] # makes `import tensorflow` raise ImportError
    try:
        yield
    finally:
        del sys.modules[name]
