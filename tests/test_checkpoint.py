"""Checkpoints on a disk that damages them: what is not as it was written is passed over, and that is said."""

import json
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.common.errors import UserError, WaitTimeout
from distsgd.common.record import checkpoint
from distsgd.common.tasks.checkpointing import Saver
from distsgd.common.tasks.options import Recovery
from distsgd.common.tasks.state_manager import StateManager

ARRAYS = {"rounds_applied": np.array([3, 4]), "joins": np.int64(0), "center": np.arange(5, dtype=np.float32)}


def save(run_dir, version, keep=3, **arrays):
    state = checkpoint.Checkpoint({"version": np.int64(version), **ARRAYS, **arrays}, {"algorithm": "x", "seed": 0})
    return checkpoint.publish(checkpoint.write(run_dir, state), keep)


def versions(run_dir):
    return [int(path.name) for path in checkpoint.found(run_dir)]


def spoil(path):
    (path / "arrays.npz").write_bytes(b"x")


def test_every_flipped_bit_and_every_cut_is_found(tmp_path):
    place = save(tmp_path, 7)
    draw = random.Random(0)
    for name in ("arrays.npz", "checkpoint.json"):
        good = (place / name).read_bytes()
        # Bytes that JSON does not care about may change: then what is read is the same.
        for offset in range(0, len(good), 1 if name.endswith("json") else 3):
            bad = bytearray(good)
            bad[offset] ^= 1 << draw.randrange(8)
            (place / name).write_bytes(bad)
            problem = checkpoint.damage(place)
            if problem is None:
                assert name.endswith("json")
                assert checkpoint.read(place).about == {"format": 2, "algorithm": "x", "seed": 0}
            else:
                assert "\n" not in str(problem)
                assert "pickle" not in str(problem)
        for length in range(0, len(good) - 1, 7):
            (place / name).write_bytes(good[:length])
            with pytest.raises(checkpoint.Damaged):
                checkpoint.read(place)
        (place / name).write_bytes(good)
    assert checkpoint.read(place).version == 7


@pytest.mark.parametrize("about", ["[]", "null", "1", '"x"', "{}", "", "[" * 100_000, '{"format": 2}'])
def test_a_checkpoint_with_a_wrong_description_is_skipped(about, tmp_path):
    save(tmp_path, 1)
    (save(tmp_path, 2) / "checkpoint.json").write_text(about)
    passed = []
    assert checkpoint.newest(tmp_path, lambda path, problem: passed.append(str(problem))).version == 1
    assert len(passed) == 1
    assert "000000000002 cannot be read" in passed[0]


def test_a_checkpoint_with_missing_files_or_another_name_is_skipped(tmp_path):
    save(tmp_path, 1)
    (save(tmp_path, 2) / "checkpoint.json").unlink()
    (save(tmp_path, 3) / "arrays.npz").unlink()
    shutil.copytree(checkpoint.folder(tmp_path) / "000000000001", checkpoint.folder(tmp_path) / "000000000009")
    assert checkpoint.newest(tmp_path).version == 1


def test_a_file_that_is_no_archive_is_skipped_despite_its_checksum(tmp_path):
    save(tmp_path, 1)
    place = save(tmp_path, 2)
    about = {"format": 2}
    with (place / "arrays.npz").open("wb+") as file:
        np.save(file, np.arange(3))
        about["sha256"] = checkpoint._checksum({"format": 2}, file)
    (place / "checkpoint.json").write_text(json.dumps(about))
    with pytest.raises(checkpoint.Damaged, match="it is damaged"):
        checkpoint.read(place)
    assert checkpoint.newest(tmp_path).version == 1


def test_a_checkpoint_of_another_format_is_refused_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    save(tmp_path, 2)
    monkeypatch.undo()
    for look in (checkpoint.newest, checkpoint.tidy):
        with pytest.raises(UserError, match="has format 3, and this program reads 2: resume with the version"):
            look(tmp_path)
    assert versions(tmp_path) == [2]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_checkpoints_do_not_count_among_those_kept(keep, tmp_path):
    for version in (500, 600, 700):
        spoil(save(tmp_path, version))
    save(tmp_path, 10, keep)
    assert versions(tmp_path) == [10]
    save(tmp_path, 20, keep)
    save(tmp_path, 30, keep)
    assert versions(tmp_path) == [10, 20, 30][-keep:]
    assert checkpoint.newest(tmp_path).version == 30


def test_a_good_checkpoint_replaces_a_damaged_one_of_its_version(tmp_path):
    spoil(save(tmp_path, 5))
    save(tmp_path, 5)
    assert checkpoint.newest(tmp_path).version == 5
    again = save(tmp_path, 5, center=np.zeros(5, np.float32))  # the same version again: nothing has happened since
    np.testing.assert_array_equal(checkpoint.read(again).arrays["center"], np.arange(5))


def test_a_resumed_run_renames_damaged_checkpoints_and_deletes_parts(tmp_path):
    save(tmp_path, 1)
    spoil(save(tmp_path, 2))
    checkpoint.write(tmp_path, checkpoint.Checkpoint({"version": np.int64(3), **ARRAYS}, {}))
    (tmp_path / ".result.json.part").touch()
    (said,) = checkpoint.tidy(tmp_path)
    assert "000000000002 cannot be read: its checksum is wrong; it was passed over, and is now 000000000002.d" in said
    assert versions(tmp_path) == [1]
    assert sorted(path.name for path in checkpoint.folder(tmp_path).iterdir()) == [
        "000000000001",
        "000000000002.damaged",
    ]
    assert not list(tmp_path.glob(".*.part"))
    assert checkpoint.tidy(tmp_path) == []


def test_a_run_with_only_damaged_checkpoints_is_always_refused(tmp_path):
    for version in (1, 2):
        spoil(save(tmp_path, version))
    for _ in range(2):
        with pytest.raises(UserError, match=r"all checkpoints in .* are damaged .*To start over, choose another"):
            checkpoint.tidy(tmp_path)
    for path in checkpoint.found(tmp_path):  # as it is if they were damaged one after the other
        checkpoint.quarantine(path, checkpoint.Damaged("x"))
    with pytest.raises(UserError, match="are damaged"):
        checkpoint.tidy(tmp_path)


def test_a_resumption_elsewhere_skips_damaged_checkpoints_too(tmp_path):
    save(tmp_path / "a", 1)
    spoil(save(tmp_path / "a", 2))
    (said,) = checkpoint.take_over(tmp_path / "a", tmp_path / "b")
    assert "000000000002 cannot be read: its checksum is wrong; it was passed over" in said
    assert versions(tmp_path / "b") == [1]
    assert versions(tmp_path / "a") == [1, 2]  # which is not ours to tidy up
    spoil(checkpoint.folder(tmp_path / "a") / "000000000001")
    with pytest.raises(UserError, match="are damaged"):
        checkpoint.take_over(tmp_path / "a", tmp_path / "c")


def test_a_variable_of_any_name_is_kept_and_objects_are_not_written(tmp_path):
    odd = {"file": np.arange(2), "allow_pickle": np.arange(3), "arr_0": np.float32(1)}
    read = checkpoint.read(save(tmp_path, 1, **odd)).arrays
    assert {*odd, *ARRAYS, "version"} == set(read)
    with pytest.raises(ValueError, match="allow_pickle"):
        save(tmp_path, 2, thing=np.array([object()]))
    assert not list(checkpoint.folder(tmp_path).glob(".*"))


# The chief, which writes them.


@pytest.fixture
def chief(tmp_path):
    """What saves the state, without a ps, and what it has reported."""
    said = []
    saver = Saver(
        {},
        tmp_path,
        Recovery(),
        1.0,
        lambda **event: said.append(event),
        SimpleNamespace(bytes=0, without_checkpoints=False),
    )
    saver.await_record = lambda calls, events: True
    return saver, said


def state(version):
    return checkpoint.Checkpoint({"version": np.int64(version), **ARRAYS}, {})


def test_a_state_read_before_a_restoration_is_not_published_after_it(chief, tmp_path):
    saver, said = chief

    def restored_meanwhile(calls, events):
        saver.void()
        return True

    saver.await_record = restored_meanwhile
    saver.write(state(7), calls="any", restorations=saver.restorations)
    assert list(checkpoint.folder(tmp_path).iterdir()) == []
    assert said == []
    saver.await_record = lambda calls, events: True
    saver.write(state(8), calls="any", restorations=saver.restorations)
    assert versions(tmp_path) == [8]
    assert [event["event"] for event in said] == ["checkpoint"]


def test_failed_checkpoints_warn_once_until_one_succeeds_and_leave_nothing(chief, tmp_path):
    saver, said = chief

    def late(calls, events):
        raise WaitTimeout("the evaluator has not logged its events for 1 s")

    good, saver.await_record = saver.await_record, late
    saver.write(state(1), calls="any")
    saver.write(state(2), calls="any")
    assert list(checkpoint.folder(tmp_path).iterdir()) == []
    saver.await_record = good
    saver.write(state(3), calls="any")
    saver.await_record = late
    saver.write(state(4), calls="any")
    assert versions(tmp_path) == [3]
    late_again = "no checkpoint of version {}: the evaluator has not logged its events for 1 s"
    told = [event.get("message", event["event"]) for event in said]
    assert told == [late_again.format(1), "checkpoint", late_again.format(4)]


def manager_of(saver, recovers=False):
    """Return the manager of a state whose ps cannot be reached."""

    def connect(seconds):
        raise ConnectionError

    return StateManager(None, saver, SimpleNamespace(recovers=recovers, wait_seconds=1.0), connect, None, None)


def test_a_state_that_is_neither_restored_nor_saved_now_needs_no_session(chief):
    saver, _ = chief
    manager_of(saver)._keep_state()
    with pytest.raises(ConnectionError):
        manager_of(saver, recovers=True)._keep_state()
    saver.saved_at = -1000.0  # long ago
    with pytest.raises(ConnectionError):
        manager_of(saver)._keep_state()


def test_a_run_that_neither_restores_nor_saves_its_state_has_no_thread_for_it(chief):
    saver, _ = chief
    saver.keeping.without_checkpoints = True
    manager = manager_of(saver)
    manager.start()
    assert not manager._thread.is_alive()


@pytest.mark.parametrize(("endless", "signal"), [(True, "SIGTERM"), (True, ""), (False, "SIGTERM")])
def test_a_script_that_leaves_its_loop_after_a_signal_has_a_checkpoint(chief, endless, signal):
    saver, _ = chief
    manager, read = manager_of(saver), []
    manager.endless, manager.interrupted = endless, lambda: signal
    saver._begin_last = read.append
    manager.end()
    assert bool(read) == (endless and bool(signal))


def test_a_checkpoint_is_due_so_many_updates_after_the_last(chief):
    saver, _ = chief
    saver.recovery, saver.version = Recovery(checkpoint_steps=20), 40
    due = [saver.is_due(lambda now=now: SimpleNamespace(version=lambda: now)) for now in (40, 59, 60)]
    assert due == [False, False, True]


def test_a_state_that_cannot_be_read_ends_no_training(chief):
    saver, said = chief

    def values():
        raise RuntimeError("no memory for so much\nand more")

    calls = SimpleNamespace(version=lambda: 50, values=values)
    saver.saved_at, saver.version = -1000.0, 0  # long ago
    assert saver.is_due(lambda: calls)
    saver.save(calls)
    assert not saver.is_due(lambda: calls)
    assert [event["message"] for event in said] == ["no checkpoint of a version after 0: no memory for so much"]
