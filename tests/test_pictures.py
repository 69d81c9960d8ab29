"""The committed measured pictures show what is measured, in the colours and words of now."""

import pytest
from matplotlib.figure import Figure

from distsgd.benchmarks import choosing, pictures, stamps
from distsgd.common.record.plot import colour

MEND = "it shows something else than its results now: bash run.sh pictures"


def drawn(name="sync_sgd", title="Loss", data=(1.0, 0.5), scale="linear"):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], data, color=colour(name), label=name)
    axes.fill_between([0, 1], [0, 0], data, alpha=0.2)
    axes.set(title=title, yscale=scale)
    axes.legend()
    return figure


@pytest.mark.parametrize("many_panels", [False, True])
@pytest.mark.rotating
def test_a_measured_picture_shows_its_results(many_panels):
    for path, make in pictures.from_results().items():
        if path.stem.startswith("loss-") == many_panels:
            assert stamps.read(path) == stamps.of_figure(make()), f"{path.name}: {MEND}"


def test_a_picture_of_a_page_shows_the_runs_of_the_page():
    assert choosing.outdated() == [], MEND


@pytest.mark.parametrize(
    "other",
    [{"name": "async_sgd"}, {"title": "Test loss"}, {"data": (1.0, 0.51)}, {"scale": "log"}],
    ids=str,
)
def test_another_colour_title_axis_or_number_is_another_stamp(other, tmp_path):
    stamps.save(drawn(), tmp_path / "new" / "picture.png")
    assert (
        stamps.read(tmp_path / "new" / "picture.png") == stamps.of_figure(drawn()) != stamps.of_figure(drawn(**other))
    )


def test_the_last_digits_of_another_processor_leave_a_stamp_as_it_is():
    assert stamps.of([0.1 + 0.2, -0.0]) == stamps.of([0.3, 0.0]) != stamps.of([0.30001, 0.0])


def test_the_command_draws_what_is_outdated_and_no_other(monkeypatch, tmp_path, capsys):
    made = {tmp_path / "old.png": drawn, tmp_path / "new.png": lambda: drawn(title="New"), tmp_path / "none.png": drawn}
    stamps.save(drawn(data=(2.0, 1.0)), tmp_path / "old.png")
    stamps.save(drawn(title="New"), tmp_path / "new.png")
    monkeypatch.setattr(pictures, "from_results", lambda *folder: made)
    monkeypatch.setattr(choosing, "outdated", list)
    assert pictures.main([]) == 0
    assert capsys.readouterr().out.splitlines() == ["old.png: drawn", "none.png: drawn"]
    assert pictures.main([]) == 0
    assert capsys.readouterr().out == ""


def test_a_block_whose_output_or_title_changes_has_an_outdated_picture(monkeypatch):
    block = choosing.blocks()["period"]
    page = block.string.replace(block["text"], block["text"] + "one line more\n")
    monkeypatch.setattr(choosing, "blocks", lambda: {"period": choosing.BLOCK.search(page, block.start())})
    assert choosing.outdated() == ["period"]
