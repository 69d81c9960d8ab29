"""Back ends are objects: another one is an entry that names its module, and nothing else has to know of it."""

import sys
from types import SimpleNamespace

import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common import Cluster
from distsgd.common.cluster.cluster import PLACEMENTS, Placement
from distsgd.common.errors import TaskFailed, UserError
from distsgd.common.launch.launcher import task_names
from distsgd.common.launch.run import run
from distsgd.common.tasks.job import describe
from runs import job_of


def test_another_back_end_is_one_entry(tmp_path, monkeypatch):
    ran = []

    def virtual(job, report, model):
        ran.append((job.scheme.name, job.run_dir, type(model).__name__))
        raise TaskFailed("no further")

    another = SimpleNamespace(simulate=virtual, refuse=lambda *job: None, refuse_loops=lambda model: None)
    monkeypatch.setitem(sys.modules, "distsgd.another", another)
    monkeypatch.setitem(PLACEMENTS, "virtual", Placement("virtual", module="another"))
    job = job_of(AsyncSGD(), backend="virtual", steps=4, run_dir=tmp_path)
    assert (task_names(job), job.cluster.placement.in_process) == ([("virtual", 0)], True)
    model = job.recipe.flat().model
    record, error = run(job, describe(job, "digits", "softmax"), verbose=False, model=model)
    assert record.finish(error, picture=False)["outcome"] == "failed"
    assert (type(error), str(error)) == (TaskFailed, "no further")
    assert ran == [("async_sgd", tmp_path, "FlatModel")]


def test_no_other_name_is_known():
    with pytest.raises(UserError, match=r"unknown backend 'thread'\. Did you mean threads"):
        Cluster.local(backend="thread")
