"""Rounds that follow from the losses of a run (AdaComm): what its messages have for that, and which runs may adapt.

    worker      pushes with its message the mean loss of the steps of its round
    server      keeps F₀, the mean of the first set, and F of each block of N sets
    worker      after each N rounds reads them, and makes rounds of the next period

All workers, the evaluator, a resumed run and `replay` find the same rounds from these losses, see `PeriodRule.periods`.
"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..sync.barrier import Barrier
from ..sync.mean_loss import MeanLoss
from .scheme import Scheme
from .weighed import extended

LOSS = "mean_loss"  # the scalar of a message


def adapts(scheme: Scheme) -> bool:
    """Return True if the rounds of a scheme follow from the losses of the run."""
    return scheme.period_rule is not None and scheme.period_rule.adapts


def adapting(scheme: Scheme, workers: int) -> Scheme:
    """Return a scheme whose messages and barrier keep the losses, if its rounds follow from them.

    Raises:
        UserError: its workers do not all meet after each round, or its learning rates have a schedule.
    """
    rule: Any = scheme.period_rule
    if not adapts(scheme):
        return scheme
    if type(scheme.sync) is not Barrier or not scheme.sync.meets(workers):
        raise UserError(
            "adacomm needs an algorithm with sync = Barrier(), whose workers all meet after each round, such as "
            f"local_sgd or diloco: take another rule for {scheme.name}. Received: communication_period={rule}"
        )
    check_rates(scheme)
    sync = MeanLoss(outliers=scheme.sync.outliers, block=int(rule.value))
    return extended(scheme, _Reporting, scalars=(*scheme.scalars, LOSS), sync=sync)


def check_rates(scheme: Scheme) -> None:
    """Raise `UserError` if the rounds follow from the losses while a learning rate has a schedule."""
    if adapts(scheme) and scheme.scheduled:
        rule = scheme.period_rule
        raise UserError(f"adacomm needs constant learning rates: with a schedule take qsr. Received: {rule}")


class _Reporting:
    def message(self, worker: Any) -> Any:
        message = super().message(worker)  # pyright: ignore[reportAttributeAccessIssue]
        vector, scalars = message if isinstance(message, tuple) else (message, {})
        return vector, {**scalars, LOSS: worker.loss}
