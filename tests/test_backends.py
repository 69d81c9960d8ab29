"""Back ends are objects: a third one is two entries, and nothing else has to know of it."""

import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common import Cluster
from distsgd.common.cluster.cluster import PLACEMENTS, Together
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import TaskFailed, UserError
from distsgd.common.launch.launcher import task_names
from distsgd.common.launch.run import HERE, run
from distsgd.common.tasks.job import describe, make_job
from distsgd.common.tasks.options import RunOptions
from runs import DIGITS


def test_a_third_back_end_is_two_entries(tmp_path, monkeypatch):
    ran = []

    def virtual(job, report, model):
        ran.append((job.scheme.name, job.run_dir, type(model).__name__))
        raise TaskFailed("no further")

    monkeypatch.setitem(PLACEMENTS, "virtual", Together("virtual"))
    monkeypatch.setitem(HERE, "virtual", virtual)
    recipe = ModelRecipe.named("softmax", (64,), 10, 0)
    cluster = Cluster.local(2, backend="virtual")
    job = make_job(AsyncSGD(), recipe, DIGITS.train, None, cluster, RunOptions(steps=4, run_dir=tmp_path))
    assert (task_names(job), cluster.placement.in_process) == ([("virtual", 0)], True)
    model = recipe.flat().model
    record, error = run(job, describe(job, "digits", "softmax"), verbose=False, model=model)
    assert record.finish(error, picture=False)["outcome"] == "failed"
    assert (type(error), str(error)) == (TaskFailed, "no further")
    assert ran == [("async_sgd", tmp_path, "FlatModel")]


def test_every_name_has_both_halves_and_no_other_is_known():
    assert PLACEMENTS.keys() == {"processes", *HERE}
    with pytest.raises(UserError, match=r"unknown backend 'thread'\. Did you mean threads"):
        Cluster.local(backend="thread")
