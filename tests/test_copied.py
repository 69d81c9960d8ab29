"""The graph of several workers in one process: built for one of them, and copied for the others."""

import pytest

from distsgd import Downpour, SyncSGD
from distsgd.common.lazy import tf
from distsgd.common.tasks.graph import TaskGraph
from runs import job_of


def resources(operation):
    """Return the names of the variables and queues that an operation uses."""
    left = [each if isinstance(each, tf.Operation) else each.op for each in tf.nest.flatten(operation)]
    seen = set()
    while left:
        op = left.pop()
        if op not in seen:
            seen.add(op)
            left += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    made = (op for op in seen if not op.inputs and any(tensor.dtype == tf.resource for tensor in op.outputs))
    return {op.get_attr("shared_name").decode() or op.name for op in made}


@pytest.mark.parametrize("scheme", [Downpour(communication_period=2), SyncSGD()], ids=["local variables", "tokens"])
def test_each_worker_has_resources_of_its_own_and_shares_those_of_the_server(scheme):
    graph = TaskGraph(job_of(scheme, workers=3, backend="threads"), range(3))
    used = [set().union(*(resources(own[name]) for name in own)) for own in graph.of_workers.values()]
    of_server = set().union(*(resources(graph.operations[name]) for name in graph.operations))
    own = [names - of_server for names in used]
    assert all(len(names) == len(own[0]) > 0 for names in own)
    assert not own[0] & own[1] | own[1] & own[2] | own[0] & own[2]
    if scheme.sync.waits:
        assert [{f"token_{k}"} <= names for k, names in enumerate(used)] == [True] * 3


def test_the_rules_of_a_scheme_are_traced_once_for_all_workers_of_a_process(monkeypatch):
    message, times = Downpour.message, []

    def traced(scheme, worker):
        times[-1] += 1
        return message(scheme, worker)

    monkeypatch.setattr(Downpour, "message", traced)
    for workers in (1, 3):
        times.append(0)
        TaskGraph(job_of(Downpour(), workers=workers, backend="threads"), range(workers))
    assert times[0] == times[1] > 0
