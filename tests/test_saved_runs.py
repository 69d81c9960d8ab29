"""The commands `runs`, `compare` and `plot`, on written folders."""

import io
import json
import os
import re
from pathlib import Path

import pytest
from matplotlib.text import Text

from distsgd.common import Result, UserError
from distsgd.common.record.bands import Curve, mean_and_band
from distsgd.common.record.latest import named
from distsgd.common.record.saved_runs import by_seed, labels, picture, picture_of_means, read_run
from distsgd.common.record.sheet import Figure, Sheet

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
        (
            "plot",
            "agn/c",
            "--output",
            "a.gif",
        ): "--output takes a name that ends in .png, .svg or .pdf. Received: a.gif",
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


@pytest.fixture
def seeds(write):
    """Five runs: three seeds of downpour, one of which has failed, and two of agn."""
    for seed, loss in ((0, 0.3), (1, 0.5), (2, None)):
        folder = write("downpour", f"d{seed}", rows=CENTERS[: 3 - (loss is None)], seed=seed)
        result = RESULT | {"test_loss": loss, "outcome": "completed" if loss else "lost"}
        (folder / "result.json").write_text(json.dumps(result | {"algorithm": "downpour", "run_dir": str(folder)}))
    for seed in (0, 1):
        write("agn", f"a{seed}", seed=seed)
    return [f"downpour/d{seed}" for seed in range(3)] + ["agn/a0", "agn/a1"]


@pytest.mark.rotating
def test_runs_that_differ_by_their_seeds_are_one_row_and_one_curve(seeds, run_main):
    command = ("compare", *seeds, "--group", "seed", "--x", "updates")
    code, out, err = run_main(*command, "--table", "md")
    assert code == 0
    assert out.splitlines()[2:] == [
        "| downpour | 2 of 3 | 0.40 ± 0.14 | 10 | 2 | 0.008 | lost |",
        "| agn | 2 | **0.3333** | 10 | 2 | 0.008 |  |",
        "",
        "Mean ± sample standard deviation over seeds; the best mean is bold.",
    ]
    assert err == "runs/downpour/d0/compare-updates.png\n"
    _, out, _ = run_main(*command, "--table", "csv")
    first = out.splitlines()[:2]
    assert first[0].startswith("algorithm,seeds,test loss,test loss deviation,updates,updates deviation,seconds,")
    assert first[1].startswith("downpour,2 of 3,0.4,0.1414213562")
    found = json.loads(run_main(*command, "--json", "--output", "a.pdf")[1])
    assert (found["plot"], found["rows"][0]["test loss"]) == ("a.pdf", 0.4)
    assert Path("a.pdf").read_bytes().startswith(b"%PDF")
    groups = by_seed([read_run(named(Path(name))) for name in seeds])
    for width, inches in (("column", 3.3), ("page", 6.9), (None, 4.8)):
        figure = picture_of_means(groups, "updates", "range", width)
        figure.savefig(io.BytesIO())
        assert figure.get_size_inches()[0] == pytest.approx(inches)
        assert [len(axes.collections) for axes in figure.axes] == [2]  # a band each
        labels = [text.get_text().partition(":")[0] for text in figure.legends[0].get_texts()]
        assert labels == ["downpour (2 of 3 seeds)", "agn (2 seeds)"]
        assert figure.legends[0].get_title().get_text() == "mean, band: from least to greatest"
        shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert min(text.get_fontsize() for text in shown) >= 7
    assert run_main("runs", "--group", "seed", "--table", "latex")[1].count(r" \\") == 3


def test_bytes_that_span_more_than_a_decade_are_on_a_logarithmic_axis(write):
    def rows(size):
        return [row | {"bytes_pushed": size * i, "bytes_pulled": 0} for i, row in enumerate(CENTERS)]

    runs = [read_run(write("downpour", str(i), rows=rows(size))) for i, size in enumerate((100, 900, 1100))]
    assert picture(runs[:2], "bytes").axes[0].get_xscale() == "linear"
    assert picture(runs, "bytes").axes[0].get_xscale() == "log"


def test_a_mean_is_where_all_curves_are():
    places, mean, low, high = mean_and_band([Curve([0, 2, 4], [0, 2, 4]), Curve([1, 3], [3, 5])], "deviation")
    assert places.tolist() == [1, 2, 3]
    assert mean.tolist() == [2, 3, 4]
    assert (high - low).tolist() == pytest.approx([2 * 2**0.5] * 3)


def test_a_table_escapes_what_its_format_takes_for_a_command():
    rows = [["a_b|c%", Figure(1234567.0, 89.0, best=True)], ["x", None]]
    made = Sheet(["algorithm", "bytes & more"], rows, "A note.")
    assert made.in_format("latex").splitlines()[-4:-1] == [
        r"a\_b|c\% & $\mathbf{1.23e+06 \pm 8.90e+01}$ \\", r"x & - \\", r"\bottomrule",
    ]  # fmt: skip
    assert r"| a_b\|c% | **1.23e+06 ± 8.90e+01** |" in made.in_format("md")
    assert made.in_format("csv").splitlines()[1] == "a_b|c%,1234567.0,89.0"
    assert made.records()[1] == {"algorithm": "x", "bytes & more": None, "bytes & more deviation": None}
