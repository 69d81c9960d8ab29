"""Generated data for a simulation without --dataset: each of any number of workers gets new examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..contract.scheme import Scheme
from ..errors import UserError
from .flag_groups import RUN, Options

MOST_STEPS, STEPS_OF_ALL = 1000, 50_000  # of one worker, and of all workers together

LEAST_ROUNDS = 4

MOST_EXAMPLES = 4_000_000  # half a gigabyte

TEST_EXAMPLES = 2000


def with_data(options: Options, schemes: Iterable[Scheme]) -> tuple[Options, str]:
    """Choose data for a run without --dataset; return the options, and a line on the choice, "" if the user chose.

    A simulation gets generated data, and as many steps as take about a minute; each worker has at least a few rounds
    of each of the `schemes`, which all get the same data. Any other run gets digits.

    Raises:
        UserError: the number of epochs is given, but no data set.
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
