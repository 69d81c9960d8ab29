"""A large center is fetched chunk by chunk: nothing else is different."""

from __future__ import annotations

import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common.server import snapshots
from runs import Harness


@pytest.fixture
def small_chunks(monkeypatch):
    """Vectors of more than 192 floats are large."""
    monkeypatch.setattr(snapshots, "CHUNK_FLOATS", 192)


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_snapshot_fetched_in_chunks_is_the_center(ps, decay, small_chunks):
    with Harness(AsyncSGD(), workers=1, ps=ps, ema_decay=decay) as harness:
        harness.worker(0).round()
        with harness.graph.graph.as_default():
            center = np.concatenate(harness.session.run(harness.graph.ps.center.read()))
        seen = harness.observer.snapshot()
        assert len(harness.graph.operations["_chunks"].fetches) > ps
    np.testing.assert_array_equal(seen["center"], center)
    assert ("average" in seen) == (decay is not None)
    assert all(len(seen[name]) == len(center) for name in {"center", "average"} & set(seen))


def test_a_snapshot_keeps_its_center_until_it_is_released(small_chunks):
    with Harness(AsyncSGD(), workers=1) as harness:
        worker, own = harness.worker(0), harness.graph.ps.center_reader
        with harness.graph.graph.as_default():
            now, release, kept = harness.graph.ps.center.read(), own.release(), own.chunks()
        before = np.concatenate(harness.session.run(now))
        harness.run("at")
        worker.round()
        assert not np.array_equal(np.concatenate(harness.session.run(now)), before)
        np.testing.assert_array_equal(np.concatenate([chunk["center"] for chunk in harness.session.run(kept)]), before)
        harness.session.run(release)
        assert all(not len(chunk["center"]) for chunk in harness.session.run(kept))
