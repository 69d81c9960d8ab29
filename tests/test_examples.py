"""The examples in the docstrings of what the package offers do what they say."""

import ast
import doctest
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import distsgd
from distsgd.common import (
    Callback,
    Cluster,
    Group,
    Optimizer,
    Platform,
    Recovery,
    Result,
    Scheme,
    join,
    keep_warm,
    problem,
    sweep,
    train,
)
from distsgd.simulator import forecast

ROOT = Path(__file__).resolve().parent.parent
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "5", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b",
    "SLURM_TASKS_PER_NODE": "3,2", "SLURM_NODEID": "0",
}  # fmt: skip
HOW = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# In this order: the others use the model, the data and the result of the first.
OFFERED = (
    train, sweep, Result, Result.plot, Recovery, Callback, Platform, keep_warm, Group, Optimizer,
    Cluster.local, Cluster.at, Cluster.from_tf_config, Cluster.from_slurm, problem, forecast,
)  # fmt: skip


# The loggers' libraries are not installed here.
WITHOUT_EXAMPLE = Cluster, Scheme, join, distsgd.WandbLogger, distsgd.MLflowLogger


DEAR = sweep, Recovery, keep_warm  # each trains several times, which the other examples show once
MOST = [thing for thing in OFFERED if thing not in DEAR]


@pytest.mark.parametrize(
    "offered",
    [MOST, *(pytest.param([train, thing], marks=pytest.mark.rotating) for thing in DEAR)],
    ids=["most", *(thing.__qualname__ for thing in DEAR)],
)
@pytest.mark.gate
def test_the_examples_run(offered, warm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONFIG", "")  # an example sets it: what was there before comes back
    monkeypatch.delenv("TF_CONFIG")
    known = {name: getattr(distsgd, name) for name in ("Callback", "Platform", "Recovery", "keep_warm")}
    runner = doctest.DocTestRunner(optionflags=HOW)
    for thing in offered:
        test = doctest.DocTestParser().get_doctest(thing.__doc__, known, thing.__qualname__, None, 0)
        assert test.examples, thing.__qualname__
        if thing == Cluster.from_slurm:
            monkeypatch.delenv("TF_CONFIG")
            for name, value in SLURM.items():
                monkeypatch.setenv(name, value)
        runner.run(test, clear_globs=False)
        known = test.globs
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out


@pytest.mark.gate
def test_the_python_example_of_the_readme_runs_as_it_is_pasted(tmp_path):
    readme = (ROOT / "README.md").read_text()
    script = tmp_path / "pasted.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[0])
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=True
    )
    loss, accuracy = ast.literal_eval(done.stdout.splitlines()[-1])
    assert loss < 0.6
    assert accuracy > 0.8
    assert (tmp_path / "runs" / "downpour" / "latest" / "result.json").exists()


@pytest.mark.parametrize(
    ("name", "page", "call"),
    [("logistic_regression", "loops", "Group("), ("two_towers", "keras", "Optimizer(")],
)
@pytest.mark.rotating
def test_example_prints_the_output_in_the_docs(name, page, call, capsys):
    example, text = ROOT / "examples" / f"{name}.py", (ROOT / "docs" / f"{page}.md").read_text()
    runpy.run_path(str(example))
    assert f"```\n{capsys.readouterr().out}```" in text
    shown = [block for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if call in block]
    assert len(shown) == 1
    assert shown[0] in example.read_text()


def test_everything_that_is_offered_has_an_example():
    functions = {thing for thing in map(distsgd.__getattr__, distsgd.common.__all__) if thing not in WITHOUT_EXAMPLE}
    errors = {thing for thing in functions if isinstance(thing, type) and issubclass(thing, Exception)}
    assert functions - errors <= {*OFFERED}
