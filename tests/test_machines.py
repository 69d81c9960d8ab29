"""One program started once for each task, on several machines: they meet, train, and end together."""

import json
import time

import pytest
from machines import Task, machines_with_servers

from distsgd.algorithms import Downpour
from distsgd.common.cluster import Addresses, Place

TOLERANCE = 1e-5
FOREVER = 10**7


@pytest.fixture(scope="module")
def machines():
    with machines_with_servers(4) as machines:
        yield machines


class Run:
    """A cluster of fresh addresses, 1 ps on the first machine and a worker on each of the others."""

    def __init__(self, machines, run_dir, *, ps=1, workers=2, separate_evaluator=False):
        self.machines, self.run_dir, self.evaluator = machines, run_dir, separate_evaluator
        places = [("ps", i) for i in range(ps)] + [("worker", k) for k in range(workers)]
        self.on = {task: machines[i % len(machines)] for i, task in enumerate(places)}
        addresses = {task: machine.address() for task, machine in self.on.items()}
        self.addresses = Addresses(
            ps=[addresses["ps", i] for i in range(ps)], worker=[addresses["worker", k] for k in range(workers)]
        )

    def start(self, scheme, job, index, *, machine=None, addresses=None, **options):
        place = Place(job, index, addresses or self.addresses, self.evaluator or job == "evaluator")
        return Task(machine or self.on.get((job, index)) or self.machines[-1], scheme, place, self.run_dir, **options)

    def start_all(self, scheme, **options):
        return {task: self.start(scheme, *task, **options) for task in self.on}


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value


def test_a_run_over_several_hosts_replays(machines, tmp_path):
    """Two ps, two workers: the last worker comes first, a ps last."""
    cluster = Run(machines, tmp_path, ps=2, workers=2)
    order = [("worker", 1), ("ps", 1), ("worker", 0), ("ps", 0)]
    tasks = {task: cluster.start(Downpour(), *task) for task in order}
    assert [task.end() for task in tasks.values()] == [None] * 4
    chief = tasks["worker", 0]
    assert chief.recorded().error() < TOLERANCE
    assert (chief.result["steps"], chief.result["outcome"]) == (240, "completed")
    assert chief.result["examples_per_second"] > 0
    assert chief.result["test_accuracy"] > 0.8
    assert (tmp_path / "model.keras").exists()
    for name in ("ps-0", "ps-1", "worker-1"):
        assert json.loads((tmp_path / name / "result.json").read_text())["outcome"] == "completed"
        assert (tmp_path / name / "logs" / f"{name}.log").exists()
