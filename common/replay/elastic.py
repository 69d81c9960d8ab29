"""The rounds of a recorded elastic run: one step, then whole periods. An earlier version had whole periods alone.

Then the exchange came before the steps of a round, and steps after the last exchange were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .recorded import Hyperparameters, RecordedRun
from .reference.federated_rules import by_turns
from .reference.gradients import Gradient

NAMES = "easgd", "aeasgd", "aeamsgd"


def exchanged_at_once(run: RecordedRun, scheme: Hyperparameters) -> bool:
    """Return True for a run of an earlier version: a worker that was started again exchanged before its next step.

    Its workers made steps after their last exchange, which its record counts.
    """
    period = scheme.communication_period
    return run.result.get("steps", 0) > run.workers * (1 + (run.steps - 1) // period * period)


def lengths_of_rounds(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the period and the steps of the first round of a run of any algorithm, given its config.json.

    An elastic run makes fewer steps than it was asked for, which config.json says, unless these end with an exchange.
    """
    period = config["hyperparameters"].get("communication_period", 1)
    leaves_out = "steps_of_workers" in config or (config["steps_per_worker"] - 1) % period == 0
    return period, 1 if config["algorithm"] in NAMES and leaves_out else period


def of_clients(config: Mapping[str, Any], gradient: Gradient, clients: int) -> Gradient:
    """Return the gradient of clients that take turns in the rounds of a run with this config.json, see `by_turns`."""
    hyperparameters = config["hyperparameters"]
    if hyperparameters.get("work") or isinstance(hyperparameters.get("communication_period"), str):
        raise UserError("the reference knows clients that take turns for rounds of equal length alone")
    return by_turns(gradient, clients, config["workers"], config["seed"], *lengths_of_rounds(config))


OPTIONS: dict[str, Any] = {"alpha": lambda run, s: s.beta / run.workers, "at_once": exchanged_at_once}
