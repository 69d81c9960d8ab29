"""What is known of the rounds of a run, and what it adds up to."""

import numpy as np
import pytest

from distsgd.common.engine.trace import ROUND
from distsgd.common.errors import UserError
from distsgd.common.record.round_log import RoundLog, Shares


def log(*rows):
    return RoundLog(np.array(rows, np.int64).reshape(-1, len(ROUND)))


def test_rounds_are_read_back_as_they_were_written(tmp_path):
    rounds = log([0, 0, 1, 2, 3, 4, 5], [1, 0, 1, -1, 3, -1, -1])
    rounds.save(tmp_path / "rounds.npz")
    assert np.array_equal(RoundLog.load(tmp_path).rows, rounds.rows)
    with np.load(tmp_path / "rounds.npz") as saved:
        assert tuple(saved) == ROUND


def test_a_folder_without_rounds_says_so_in_one_line(tmp_path):
    with pytest.raises(UserError, match="has no rounds"):
        RoundLog.load(tmp_path)
    (tmp_path / "rounds.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match="damaged") as error:
        RoundLog.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_round_is_compute_waiting_and_communication():
    # Two rounds of 10 s and 30 s: 3 + 13 s compute, 2 + 6 s waiting; the clock of the second worker is far ahead.
    second = 10**6
    rounds = log(
        [0, 0, 0, 3 * second, 5 * second, 7 * second, 10 * second],
        [1, 0, 900 * second, 913 * second, 5 * second, 11 * second, 930 * second],
        [1, 1, 930 * second, -1, -1, -1, -1],
    )
    shares = rounds.shares()
    assert shares == Shares(2, 20.0, 16 / 40, 8 / 40, 16 / 40)
    assert rounds.shares(0) == Shares(1, 10.0, 0.3, 0.2, 0.5)
    assert log([0, 0, 0, 3, -1, -1, 4]).shares().waiting is None
    assert log([0, 0, 0, -1, -1, -1, -1]).shares() is None


def test_the_sentence_says_what_a_round_is_spent_on_and_what_would_help():
    def says(rounds, waiting, communication, *knobs):
        return Shares(rounds, 1.0, 0.1, waiting, communication).in_words(knobs)

    assert says(1000, 0.0, 0.93, "period") == "93% of a round is communication: a longer period would help"
    assert "larger batches" in says(1000, 0.0, 0.93)
    assert "61% of a round is waiting for the slowest worker: backup workers" in says(1000, 0.61, 0.2, "backup_workers")
    assert says(1000, 0.3, 0.3, "period") is None
    assert says(10, 0.0, 0.93, "period") is None
    assert says(1000, None, 0.93, "period") is None
