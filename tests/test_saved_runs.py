"""The commands `runs`, `compare` and `plot`, on written folders."""

import json
import os
import re
from pathlib import Path

import pytest

from distsgd.common import Result, UserError
from distsgd.common.record.latest import named
from distsgd.common.record.saved_runs import labels, read_run

CENTERS = [
    {"kind": "center", "seconds": 1.0 + i, "version": 5 * i, "examples": 40 * i, "test_loss": 1 / (i + 1)}
    for i in range(3)
]  # fmt: skip

RESULT = {
    "outcome": "completed", "updates": 10, "steps": 10, "examples": 80, "examples_per_second": 40.0, "test_loss": 1 / 3,
    "test_accuracy": None, "staleness": {"mean": 0.5, "max": 1}, "dropped": 0, "share_of_updates": None, "round": None,
    "advice": None, "bytes_pushed": 4000, "bytes_pulled": 4000, "seconds_training": 2.0, "seconds_total": 5.0,
}  # fmt: skip


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the folder of a run in runs/ that is newer than those before; returns its path."""
    monkeypatch.chdir(tmp_path)
    written = []

    def one(algorithm, name, ended=True, rows=CENTERS, **settings):
        folder = Path("runs", algorithm, name)
        folder.mkdir(parents=True)
        config = {
            "algorithm": algorithm, "hyperparameters": {"learning_rate": settings.pop("learning_rate", 0.1)},
            "workers": 2, "ps": 1, "dataset": "digits", "model": "mlp", "seed": 0, "platform": {},
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config | settings))
        if ended:
            result = RESULT | {"algorithm": algorithm, "run_dir": str(folder)}
            (folder / "result.json").write_text(json.dumps(result))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        written.append(folder)
        os.utime(folder / "config.json", (len(written), len(written)))
        return folder

    return one


@pytest.fixture
def three(write):
    """Three runs, of two algorithms; the second has not ended."""
    return write("downpour", "b"), write("agn", "c", ended=False), write("downpour", "a", learning_rate=0.2)


def test_runs_are_listed_the_newest_last(three, run_main):
    Path("runs/latest").symlink_to("downpour/a")
    Path("runs/downpour/latest").symlink_to("a")
    code, out, err = run_main("runs")
    assert (code, err) == (0, "")
    assert [re.split("  +", line.strip())[:2] for line in out.splitlines()[1:]] == [
        ["downpour/b", "completed"],
        ["agn/c", "unfinished"],
        ["downpour/a", "completed"],
    ]
    row = "  ".join(out.splitlines()[1].split())
    assert row == "downpour/b  completed  2  10  0.3333  -  2.0  digits,  mlp"


def test_filters_compare_settings_and_results(three, run_main):
    def found(*conditions):
        code, out, _ = run_main("runs", "--json", "--filter", *conditions)
        assert code == 0
        return [Path(json.loads(line)["run_dir"]).name for line in out.splitlines()]

    assert found("algorithm=downpour") == ["b", "a"]
    assert found("algorithm=downpour", "learning-rate=0.10") == ["b"]
    assert found("outcome=unfinished") == ["c"]
    assert found("updates=10", "workers=3") == []


def test_faults_are_one_line(three, run_main):
    Path("runs/downpour/b/result.json").write_text("{")
    Path("runs/agn/c/result.json").write_text('{"outcome": "completed"}')
    code, out, err = run_main("runs")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == "warning: runs/downpour/b/result.json is damaged: it holds no JSON object. Put it right, or choose " \
        "another run directory\n"  # fmt: skip
    for command, fault in {
        ("runs", "nothing"): "there is no folder of runs. Received: nothing",
        ("runs", "--filter", "downpour"): "a filter is NAME=VALUE, such as algorithm=downpour. Received: 'downpour'",
        ("runs", "--filter", "worker=2"): "no run has a value named 'worker'. Did you mean workers?",
        ("compare", "agn/c"): "compare takes two runs or more. Received: agn/c",
        ("compare", "agn/c", "downpour/a"): "runs/agn/c/result.json is damaged, or of another version: its figures are "
        "not known",
        ("plot", "agn/c", "--output", "a.gif"): "--output takes a name that ends in .png or .svg. Received: a.gif",
        (
            "plot",
            "agn/c",
            "--x",
            "bytes",
        ): "no number of bytes is recorded in the run of agn: choose another horizontal axis",
    }.items():
        code, _, err = run_main(*command)
        assert (code, err) == (2, f"error: {fault}\n")


def test_compare_shows_what_differs_and_plots(three, run_main):
    code, out, err = run_main("compare", "downpour/b", "agn/c", "runs/downpour/a", "--x", "updates")
    assert (code, err) == (0, "")
    *table, path = out.splitlines()
    rows = {row[0]: row[1:] for line in table if len(row := re.split("  +", line.strip())) == 4}
    assert table[0].split() == ["downpour", "agn", "downpour"]
    assert rows["learning rate"] == ["0.1", "0.1", "0.2"]
    assert rows["outcome"] == ["completed", "unfinished", "completed"]
    assert rows["test loss"] == ["0.3333", "-", "0.3333"]
    assert "workers" not in rows
    assert path == "runs/downpour/b/compare-updates.png"
    assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_control_characters_of_a_foreign_folder_reach_no_terminal(three, write, run_main):
    write("agn", "d", **{"isolation": "\x1b[2J", "\x1b[31m": 1, "codec": "bf16"})
    _, out, _ = run_main("compare", "agn/c", "agn/d")
    assert "codec" in out
    assert "\x1b" not in out
    assert "\x1b" not in run_main("runs", "--filter", "isolatio=1")[2]


def test_plot_writes_the_curves_of_a_run(three, run_main):
    assert run_main("plot", "agn/c")[:2] == (0, "runs/agn/c/plot-seconds.png\n")
    assert run_main("plot", "agn/c", "--output", "mine.svg")[:2] == (0, "mine.svg\n")
    assert "<svg" in Path("mine.svg").read_text()


def test_a_run_without_curves_is_refused(write, run_main):
    write("agn", "c", rows=[])
    assert run_main("plot", "agn/c")[2] == (
        "error: the run in runs/agn/c has no evaluation of the center in metrics.jsonl: nothing to plot\n"
    )


def test_labels_are_algorithms_and_what_differs(three, write):
    again = write("downpour", "d", learning_rate=0.2)
    found = labels([read_run(folder) for folder in (*three, again)])
    assert found == [
        "downpour, learning rate 0.1",
        "agn",
        "downpour, learning rate 0.2 (a)",
        "downpour, learning rate 0.2 (d)",
    ]


def test_a_run_has_its_name_in_runs(three, monkeypatch):
    assert named(Path("agn/c")) == named(Path("runs/agn/c")) == Path("runs/agn/c")
    Path("agn/c").mkdir(parents=True)
    assert named(Path("agn/c")) == Path("agn/c")


def test_a_result_plots_itself_and_others(three):
    result = Result(None, {}, {}, three[0])
    assert len(result.plot(x="updates").axes[0].lines) == 1
    figure = result.plot(Result(None, {}, {}, three[1]), "downpour/a")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "downpour, learning rate 0.1: 0.3333", "agn: 0.3333", "downpour, learning rate 0.2: 0.3333",
    ]  # fmt: skip
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="x must be one of seconds, updates, examples, bytes"):
        result.plot(x="hours")


def test_a_notebook_shows_summary_and_plot_of_a_result(three):
    result = Result(None, {}, {**RESULT, "algorithm": "a<b", "run_dir": "runs/downpour/b"}, three[0])
    assert repr(result) == f"<{result.metrics['algorithm']}: completed, {result.run_dir}>"
    text = result._repr_html_()
    assert "a&lt;b: completed" in text
    assert ">0.3333</td>" in text
    assert "<img" not in text
    Path(three[0], "plot.png").write_bytes(result.plot()._repr_png_())
    assert 'src="data:image/png;base64,iVBOR' in result._repr_html_()
