"""The tutorials: their form, and that they do in a fresh kernel what their readers see.

A cell with the tag `deterministic` must print, in each execution, what is committed.
"""

import json
import re

import nbformat
import pytest

from distsgd.common.cli import tutorials
from distsgd.common.cli.tutorials import FOLDER, execute, found, lab, main
from distsgd.common.errors import UserError

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_CELL = 25
TWICE = ("05", "06", "07")  # executed twice in one kernel: they leave servers behind; the others only train
PLOTS = re.compile(r"\.(plot|scatter|bar|hist|imshow|semilogy|loglog|errorbar|fill_between)\(")

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def first_line(cell):
    return cell.source.splitlines()[0] if cell.source else "an empty cell"


def printed(cell):
    """What a reader sees as text: streams joined, results and displays as plain text."""
    stream = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    shown = [output.data.get("text/plain", "") for output in cell.outputs if "data" in output]
    return stream, shown


def complaints(notebook):
    """What is wrong with the form of a notebook, a line for each."""
    for cell in code_cells(notebook):
        name = first_line(cell)
        if (length := len(cell.source.splitlines())) > LONGEST_CELL:
            yield f"{name!r}: the cell has {length} lines, {LONGEST_CELL} at most"
        if PLOTS.search(cell.source) and not {"xlabel", "ylabel"} <= set(re.findall(r"[xy]label", cell.source)):
            yield f"{name!r}: the cell plots, and does not label both axes (xlabel, ylabel)"
        if cell.execution_count is None:
            yield f"{name!r}: the cell has not been executed: bash run.sh tutorials --execute"
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                yield f"{name!r}: an error or a warning is among the outputs"
    last = notebook.cells[-1]
    if last.cell_type != "markdown" or not re.search(r"^## Exercise", last.source, re.MULTILINE):
        yield "the last cell is not a text with the heading '## Exercise'"
    if not re.search(r"<details>.*<summary>.*</summary>.*</details>", last.source, re.DOTALL):
        yield "the exercise has no answer in <details><summary>Answer</summary> ... </details>"
    if not notebook.cells[0].source.startswith("# "):
        yield "the first cell has no title"


def differences(committed, executed):
    """Where outputs that are to be the same are not, a line for each."""
    for before, after in zip(code_cells(committed), code_cells(executed), strict=True):
        if "deterministic" in before.metadata.get("tags", []) and printed(before) != printed(after):
            yield f"{first_line(before)!r}: committed is {printed(before)}, executed gives {printed(after)}"


@each
def test_the_form_of_a_tutorial(path):
    assert not list(complaints(nbformat.read(path, as_version=4)))


@pytest.mark.parametrize(
    ("path", "times"),
    [(path, 2 if path.name.startswith(TWICE) else 1) for path in NOTEBOOKS],
    ids=lambda value: getattr(value, "stem", f"{value} times"),
)
@pytest.mark.filterwarnings("ignore")  # of the client's
@pytest.mark.rotating
def test_a_tutorial_gives_its_committed_output_also_the_second_time(path, times):
    committed = nbformat.read(path, as_version=4)
    assert any("deterministic" in cell.metadata.get("tags", []) for cell in code_cells(committed))
    executed = execute(path, times=times)
    assert not list(differences(committed, executed))
    assert not list(complaints(executed))


# The command.


def test_which_notebooks_are_meant(monkeypatch, tmp_path):
    monkeypatch.setattr(tutorials, "FOLDER", tmp_path)
    for name in ("01-a", "02-b"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    assert [path.stem for path in found()] == ["01-a", "02-b"]
    assert [path.stem for path in found(("02", "tutorials/01-a.ipynb"))] == ["01-a", "02-b"]
    with pytest.raises(UserError, match="no notebook has a name that begins so"):
        found(("03",))


def test_without_a_screen_jupyter_prints_its_address():
    assert "--no-browser" in lab(has_screen=False)
    assert "--no-browser" not in lab(has_screen=True)


@pytest.mark.parametrize(("user", "told"), [(0, True), (1000, False)])
def test_root_can_start_jupyter_in_a_container(monkeypatch, user, told):
    monkeypatch.setattr(tutorials.os, "geteuid", lambda: user)
    assert ("--allow-root" in lab(has_screen=False)) == told


def test_missing_packages_are_installed_in_pinned_versions(monkeypatch):
    called = []
    monkeypatch.setattr(tutorials.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tutorials, "pip", lambda words: called.append(words))
    monkeypatch.setattr(tutorials, "requires", lambda name: ["numpy>=2", 'jupyterlab>=4.6; extra == "tutorials"'])
    monkeypatch.setattr(tutorials.subprocess, "call", lambda command: called.append(command) or 0)
    main([])
    install, start = called
    assert install == ["install", "--quiet", "jupyterlab>=4.6"]
    assert start[1:3] == ["-m", "jupyterlab"]


@pytest.mark.filterwarnings("ignore")  # of the client's
def test_the_kernel_of_an_execution_opens_no_port_and_warns_of_none(tmp_path, capfd):
    source = "import pathlib, sys; print('tcp' in pathlib.Path(sys.argv[2]).read_text())"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), tmp_path / "a.ipynb")
    (cell,) = code_cells(execute(tmp_path / "a.ipynb"))
    assert [output["text"] for output in cell.outputs] == ["False\n"]
    assert capfd.readouterr() == ("", "")


def test_a_notebook_is_saved_without_foreign_metadata(tmp_path):
    path = tmp_path / "01-a.ipynb"
    saved = nbformat.read(NOTEBOOKS[0], as_version=4)
    saved.metadata["widgets"] = {"of": "an editor"}
    tutorials.save(path, saved)
    assert json.loads(path.read_text())["metadata"].keys() == {"kernelspec", "language_info"}
