"""Data of a simulation that names none: generated, so that however many workers there are, each sees new examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..contract.scheme import Scheme
from ..errors import UserError
from .flag_groups import RUN, Options

MOST_STEPS, STEPS_OF_ALL = 1000, 50_000  # of a worker, and of all of them

LEAST_ROUNDS = 4

MOST_EXAMPLES = 4_000_000  # half a gigabyte

TEST_EXAMPLES = 2000


def with_data(options: Options, schemes: Iterable[Scheme]) -> tuple[Options, str]:
    """The options of a run that names no data set, with data, and what to tell about the choice; "" if there was none.

    A simulation has generated data, and as many steps as it can do in a minute or so; each worker has at least a few
    rounds of each of the `schemes`, which all have the same data. Any other run has digits.

    Raises:
        UserError: it says how often to pass over data that it does not name.
    """
    if options.dataset is not None or options.backend != "simulation":
        return replace(options, dataset=options.dataset or "digits"), ""
    if options.run.epochs != RUN.epochs:
        raise UserError(
            "a simulation without --dataset generates new examples for each step: give --steps, not --epochs"
        )
    workers, batch = max(1, options.workers), options.run.batch_size
    least = LEAST_ROUNDS * max(scheme.period for scheme in schemes)
    steps = options.run.steps or max(least, min(MOST_STEPS, STEPS_OF_ALL // workers))
    wanted = workers * batch * steps
    examples = max(min(wanted, MOST_EXAMPLES), workers * batch)
    often = "none of them twice" if examples == wanted else f"each of them about {wanted / examples:.1f} times"
    chosen = replace(
        options,
        dataset=f"synthetic:examples={examples},test={TEST_EXAMPLES}",
        run=replace(options.run, steps=steps),
    )
    return chosen, f"no --dataset: {steps} steps of each worker on {examples:,} generated examples, {often}"
