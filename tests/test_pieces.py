"""A large vector travels in pieces, and is looked at in pieces: nothing else is different."""

import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD, Downpour
from distsgd.common.contract import cut
from distsgd.common.contract.cut import pieces
from distsgd.common.run.job import Job

from .runs import Table


@pytest.fixture
def small_pieces(monkeypatch):
    """Vectors of more than 192 floats are large."""

    def use():
        monkeypatch.setattr(cut, "PIECE_FLOATS", 192)
        monkeypatch.setattr(Job, "slices", lambda job, size: pieces(size, job.cluster.ps))

    return use


def test_a_vector_is_cut_where_its_slices_are_aligned_and_a_small_one_as_before(monkeypatch):
    monkeypatch.setattr(cut, "PIECE_FLOATS", 32)
    assert pieces(64, 2) == [[32], [32]]
    assert pieces(63, 2) == [[32], [31]]
    assert pieces(100, 1) == [[32, 32, 32, 4]]
    assert pieces(100, 2) == [[32, 32], [32, 4]]  # and not 50: what begins there would have to be copied


@pytest.mark.parametrize("scheme", [AsyncSGD(), Downpour(communication_period=1)], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("ps", [1, 2])
def test_a_run_in_pieces_comes_to_the_same_center_and_saves_the_same(small_pieces, scheme, ps):
    def play():
        with Table(scheme, workers=2, ps=ps) as table:
            players = [table.player(0), table.player(1)]
            for k in (0, 1, 1, 0):
                players[k].round()
            saved = table.state_calls.values()
            seen = table.observer.snapshot()["center"]
            players[0].round()
            table.state_calls.restore(saved, restoration=2, events=4)
            return table.graph.ps.center.sizes, seen, table.observer.snapshot()["center"], saved

    whole = play()
    small_pieces()
    cut_up = play()
    assert (len(whole[0]), len(cut_up[0])) == (ps, 4)
    for mine, theirs in zip(whole[1:3], cut_up[1:3], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)  # the ends of slices are computed one by one
    assert whole[3].keys() == cut_up[3].keys()
    for name, value in whole[3].items():
        np.testing.assert_allclose(value, cut_up[3][name], rtol=1e-6, err_msg=name)


def test_a_look_shows_the_center_of_its_moment_and_is_gone_when_it_was_fetched(small_pieces):
    small_pieces()
    with Table(AsyncSGD(), workers=1) as table:
        player, look = table.player(0), table.graph.ps.look
        with table.graph.graph.as_default():
            now, forget, kept = table.graph.ps.center.read(), look.forget(), look.pieces()
        before = np.concatenate(table.session.run(now))
        table.run("at")
        player.round()
        assert not np.array_equal(np.concatenate(table.session.run(now)), before)
        np.testing.assert_array_equal(np.concatenate([piece["center"] for piece in table.session.run(kept)]), before)
        table.session.run(forget)
        assert all(not len(piece["center"]) for piece in table.session.run(kept))
