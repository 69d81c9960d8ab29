"""The pages that choose an algorithm and explain a run that does not converge: their outputs are real."""

import os
import re
import shlex
import time

import pytest

from distsgd.algorithms import SCHEMES
from distsgd.benchmarks import choosing
from distsgd.benchmarks.choosing import BLOCK, PAGES, blocks, commands, renewed
from distsgd.common.cli.main import dispatch
from distsgd.common.errors import UserError

CHOOSING = PAGES[0].read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", CHOOSING, re.MULTILINE | re.DOTALL))

ASKED = [
    (name, *found) for name, block in blocks().items() for found in commands(block["text"]) if "advise" in found[0]
]


def said_by_advise(section):
    """The algorithm in the committed output of `advise`; None in a section without it."""
    found = re.search(r"^Take (one worker: serial|\w+(?: --backup-workers \d+)?)", SECTIONS[section], re.MULTILINE)
    return found and found[1].removeprefix("one worker: ")


@pytest.mark.parametrize(
    ("block", "command", "shown"), ASKED, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(ASKED)]
)
@pytest.mark.rotating("others")
def test_advise_prints_what_the_page_shows(block, command, shown, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = shlex.split(command.replace("\\\n", " ").partition("|")[0].replace("2>/dev/null", ""))
    assert arguments[:3] == ["bash", "run.sh", "advise"]
    assert dispatch(arguments[2:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    lines = shown.splitlines()
    assert printed[-len(lines) :] == lines if "tail" in command else set(lines) <= set(printed)


@pytest.mark.parametrize("section", [name for name in SECTIONS if said_by_advise(name)])
def test_the_page_recommends_what_advise_does(section):
    """In the section, and in the table at the top."""
    said = said_by_advise(section)
    bold = re.search(r"\*\*Take (.*?)\*\*", SECTIONS[section])
    assert bold
    assert f"`{said}`" in SECTIONS[section].partition("<!--")[0]
    anchor = section.lower().replace(" ", "-")
    row = re.search(rf"^\| \[.*\]\(#{anchor}\) \|(.*)\|$", CHOOSING, re.MULTILINE | re.IGNORECASE)
    assert row
    assert f"`{said}`" in row[1].partition("|")[0]


def test_every_section_has_a_picture_a_limit_and_a_row_in_the_table():
    for section, text in SECTIONS.items():
        assert "Limit: " in text, section
        assert section == "Equal machines and fast links" or "](pictures/" in text, section
    assert CHOOSING.count("](#") >= len(SECTIONS)


def test_each_block_with_an_axis_has_its_picture_and_each_picture_a_block():
    drawn = {name for name, block in blocks().items() if block["axis"]}
    assert {path.stem for path in choosing.PICTURES.glob("*.png")} == drawn
    for page in PAGES:
        text = page.read_text()
        assert text.count("<!-- run: ") == len(BLOCK.findall(text))
        for alternative, name in re.findall(r"!\[(.*?)\]\(pictures/(.*?)\.png\)", text):
            assert alternative
            assert name in drawn


def test_the_pages_name_algorithms_of_the_catalogue():
    named = {word for block in blocks().values() for command, _ in commands(block["text"])
             for label in choosing.compared(command) for word in [label.partition(":")[0]]}  # fmt: skip
    assert named
    assert named <= set(SCHEMES)


def test_a_block_is_renewed_and_keeps_its_commands(monkeypatch, tmp_path):
    text = (
        "a\n<!-- run: one -->\n```console\n$ echo \\\n    new   \nold\n$ printf 'x: runs/y\\nz'\n```\n<!-- end -->\nb\n"
    )
    expected = text.replace("new   \nold\n", "new   \nnew\n").replace("z'\n", "z'\nz\n")
    assert renewed(text) == expected
    assert renewed(text, ["another"]) == text


def test_a_command_that_prints_nothing_and_an_unknown_block_are_errors():
    with pytest.raises(RuntimeError, match="has printed nothing, and 'why"):
        renewed("<!-- run: one -->\n```console\n$ echo why >&2\n```\n")
    with pytest.raises(UserError, match=r"unknown block 'slow-link'\. Did you mean slow-links"):
        choosing.Options(names=("slow-link",))


def test_an_installation_without_the_pages_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "PAGES", (tmp_path / "choosing.md",))
    with pytest.raises(UserError, match="part of the source checkout"):
        dispatch(["choosing"])


def test_curves_are_read_in_the_order_of_the_runs(tmp_path):
    """With labels that name what differs; on each axis."""
    row = '{"kind": "center", "seconds": 2, "version": 3, "examples": 4, "bytes_pushed": 5e6, "bytes_pulled": 1e6, '
    for at, workers in enumerate((1, 4)):
        folder = tmp_path / "runs" / "agn" / f"{9 - at}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(f'{{"workers": {workers}, "codec": "float32"}}')
        os.utime(folder / "config.json", (time.time() + at,) * 2)
        (folder / "metrics.jsonl").write_text(f'{row}"test_loss": 0.5}}\n{{"kind": "worker"}}\n')
    labels = choosing.compared("simulate --compare agn:learning_rate=1,ema=2,agn --workers 4")
    assert labels == ["agn:learning_rate=1,ema=2", "agn"]
    for axis, values in (("seconds", (2, 2)), ("bytes", (6, 1.5)), ("examples", (4, 4)), ("updates", (3, 3))):
        (first, x, loss), (second, y, _) = choosing.curves(tmp_path, labels, axis)
        assert (first, second) == ("agn, learning_rate=1, ema=2, workers=1", "agn, workers=4")
        assert (x, y, loss) == ([values[0]], [values[1]], [0.5])


@pytest.mark.rotating
def test_a_simulation_prints_what_the_page_shows(capsys, monkeypatch, tmp_path):
    """But for the digits of a loss, which depend on the machine's kernels."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    command, shown = commands(blocks()["staleness"]["text"])[0]
    assert dispatch(shlex.split(command.replace("\\\n", " "))[2:]) == 0
    printed = capsys.readouterr().out.splitlines()
    for line in shown.splitlines()[1:]:
        assert any(new.split()[:-1] == line.split()[:-1] for new in printed), line
