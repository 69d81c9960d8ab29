"""The learning rates at which algorithms diverge, by a formula, and on the algorithms themselves."""

import numpy as np
import pytest

from distsgd import Group
from distsgd.algorithms import AGN, SCHEMES, AllReduce, AsyncSGD, LocalSGD, Ringmaster, SyncSGD
from distsgd.common.contract.stability import AS_THEY_COME, AT_ONE_CENTER, SUMS, diverging_rate

CURVATURES = np.array([2.5, 0.4], np.float32)
ROTATING = pytest.mark.rotating
BELOW, ABOVE, FAR = 60, 160, 10  # rounds to see a distance fall below a limit, or rise above it; one far enough


def distance(scheme, workers, rounds):
    """Return the distance from the minimum of ½ Σ hᵢxᵢ² after rounds of workers that take turns."""
    group = Group(scheme, np.ones(2, np.float32), workers=workers)
    for _ in range(rounds):
        for k in range(workers):
            for _ in range(scheme.period):
                group.step(k, CURVATURES * np.asarray(group.point(k)))
        if np.abs(group.center[0]) > FAR:
            break
    return float(np.abs(group.center[0]))


# Of each line of the formula one algorithm; the others have the same limit, and rotate.
LINES = ("sync_sgd", "async_sgd", "ssp", *SUMS)
OTHERS = [pytest.param(name, marks=ROTATING) for name in (*AT_ONE_CENTER, *AS_THEY_COME) if name not in LINES]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=ROTATING), 4])
@pytest.mark.parametrize("name", [*LINES, *OTHERS])
@pytest.mark.rotating
def test_an_algorithm_diverges_right_above_its_limit(name, workers):
    kind = SCHEMES[name]
    if workers > 1 and kind().sync.label == "one process":
        return
    limit = diverging_rate(kind(), workers, CURVATURES.max())
    assert limit is not None
    assert distance(kind(learning_rate=0.96 * limit), workers, BELOW) < 0.5
    assert distance(kind(learning_rate=1.04 * limit), workers, ABOVE) > 2


@pytest.mark.parametrize("period", [pytest.param(1, marks=ROTATING), 3, pytest.param(4, marks=ROTATING)])
@pytest.mark.parametrize("name", [*SUMS, "local_sgd"])
@pytest.mark.rotating
def test_the_limit_of_local_steps_depends_on_their_number(name, period):
    kind = SCHEMES[name]
    limit = diverging_rate(kind(communication_period=period), 3, CURVATURES.max())
    assert distance(kind(communication_period=period, learning_rate=0.96 * limit), 3, BELOW) < 0.5
    assert distance(kind(communication_period=period, learning_rate=1.04 * limit), 3, ABOVE) > 2


def test_no_limit_is_named_where_it_is_not_known():
    assert diverging_rate(SCHEMES["downpour"](), 4, 1.0) is None
    assert diverging_rate(LocalSGD(inner_optimizer="adam"), 4, 1.0) is None
    assert diverging_rate(AGN(server_learning_rate=0.3), 4, 1.0) is None
    assert diverging_rate(Ringmaster(delay_threshold=3), 4, 1.0) is None
    assert diverging_rate(SyncSGD(), 4, 4.0) == diverging_rate(AllReduce(), 4, 4.0) == 0.5
    assert diverging_rate(AsyncSGD(), 2, 1.0) == pytest.approx(1)
