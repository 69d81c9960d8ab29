"""The README and docs/: what they name is there."""

import re
from pathlib import Path

import pytest
import yaml

from distsgd.algorithms import SCHEMES
from distsgd.benchmarks.site_index import site_index

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PARTS = [page for folder in ("claims", "exercises") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]


def named(page):
    return str(page.relative_to(ROOT))


# Code in backticks that looks like a file of the checkout; what a run leaves behind is not one.
FILE = re.compile(r"`((?:algorithms|benchmarks|common|deploy|docs|simulator|tests)/[\w/.-]*)`")


@pytest.mark.parametrize("page", [*PAGES, *PARTS], ids=named)
def test_every_file_and_link_that_a_page_names_is_there(page):
    text = page.read_text()
    links = {target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target}
    assert not [target for target in links if target and not (page.parent / target).exists()]
    if page.name != "CHANGELOG.md":  # which tells of what has gone, too
        assert not [name for name in FILE.findall(text) if not (ROOT / name).exists()]


def test_the_readme_takes_two_minutes_and_names_every_page_and_the_number_of_algorithms():
    text = (ROOT / "README.md").read_text()
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert len(shown.split()) <= 900
    assert not [page.name for page in PAGES if page.name != "README.md" and page.name not in text]
    named = text + (ROOT / "docs" / "index.md").read_text()
    assert re.findall(r"\b(\d+) (?:distributed SGD )?algorithms\b", named) == [str(len(SCHEMES))] * 3


def prose(page):
    """The lines of a page that its authors have written: no code, tables, comments, and what commands fill in."""
    text = re.sub(r"^<!-- [\w:, -]+ -->\n.*?^<!-- end -->$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(```+).*?^ *\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", [*(page for page in PAGES if page.name != "CHANGELOG.md"), *PARTS], ids=named)
def test_a_page_has_2000_words_and_its_lines_100_characters_at_most(page):
    lines = prose(page)
    assert len(" ".join(lines).split()) <= 2000
    free = "![", "<"
    assert not [line for line in lines if len(line) > 100 and not line.startswith(free)]


@pytest.mark.parametrize("page", [*PAGES, *PARTS], ids=named)
def test_a_comment_stands_above_its_command(page):
    """A trailing one is cut off beside a long command, and on a narrow screen."""
    blocks = re.findall(r"^( *)```(bash|console)\n(.*?)^\1```$", page.read_text(), re.DOTALL | re.MULTILINE)
    commands = [line for _, kind, text in blocks for line in text.splitlines() if kind == "bash" or "$ " in line]
    assert not [line for line in commands if re.search(r"\S +# ", line)]


def test_the_drawing_of_the_folders_has_all_of_them_in_their_order():
    """As import-linter has it from `pyproject.toml`."""
    drawing = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    drawn = re.findall(r"^(\w+)", drawing, re.MULTILINE)
    layers = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert layers
    folders = [name for name in re.findall(r'"(\w+)"', layers[1]) if name != "errors"]
    assert drawn[:-1] == folders
    assert drawn[-1] == "files"


def test_the_methods_that_the_page_on_architecture_names_exist():
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", (ROOT / "docs" / "architecture.md").read_text())
    sources = [path.read_text() for path in (ROOT / "common").rglob("*.py")]
    for owner, member in named:
        [found] = [source for source in sources if re.search(rf"^class {owner}\b", source, re.MULTILINE)]
        assert re.search(rf"^ +(def )?{member}\b", found, re.MULTILINE), f"{owner}.{member}"
    assert ("Journal", "record") in named


def test_the_networks_of_the_page_on_simulation_are_those_of_the_code():
    from distsgd.common.cluster.platform import NETWORKS

    rows = re.findall(r"^\| `(\w[\w-]*)` \|(.*)\|$", (ROOT / "docs" / "simulation.md").read_text(), re.MULTILINE)
    found = {}
    for name, cells in rows:
        *columns, more = (cell.strip() for cell in cells.split("|"))
        named = zip(("uplink", "downlink", "ps_link", "latency"), columns, strict=True)
        found[name] = {key: value for key, value in named if value} | dict(re.findall(r"`(\w+)`: ([^ ]*[^ ,])", more))
    assert found == {name: {key: str(value) for key, value in said.items()} for name, said in NETWORKS.items()}


@pytest.mark.parametrize(
    "command", re.findall(r"`bash run\.sh (.*)` \|", (ROOT / "docs" / "combinations.md").read_text())
)
def test_what_does_not_go_together_is_refused_in_one_line(command, run_main):
    code, out, error = run_main(*command.split(), "--dry-run")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ")


def test_the_gallery_has_each_example_with_its_command_and_each_notebook():
    text = (ROOT / "docs" / "gallery.md").read_text()
    sources = re.findall(r"{literalinclude} \.\./(\S+)", text)
    assert sorted(sources) == sorted(map(named, (ROOT / "examples").glob("*.py")))
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert not [name for name in sources if f" {name}\n" not in blocks]
    assert not [path.name for path in (ROOT / "tutorials").glob("*.ipynb") if f"../tutorials/{path.name})" not in text]


def test_the_cheat_sheet_has_five_doors_ten_commands_and_ten_flags_that_exist(run_main):
    text = (ROOT / "docs" / "cheat-sheet.md").read_text()
    doors, commands, flags = (part.split("\n## ")[0] for part in re.split(r"\n## (?:Five|Ten) ", text)[1:])
    lines = re.findall(r"^bash run\.sh (.*)$", commands, re.MULTILINE)
    given = re.findall(r"^\| `(--[\w-]+)(?: .*)?` \|", flags, re.MULTILINE)
    assert (doors.count("\n| ["), len(lines), len(given)) == (5, 10, 10)
    for line in [*lines, f"downpour {' '.join(given)}"]:
        command, *words = line.split()
        known = run_main(command, "--help-all" if command in SCHEMES else "--help")[1]
        assert not [word for word in words if word.startswith("--") and not re.search(rf"{word}\b", known)], line


def test_the_page_on_python_has_the_inner_optimizer_of_every_algorithm():
    text = " ".join((ROOT / "docs" / "python.md").read_text().split())
    text = text.split("It is `sgd` by default in ")[1].split(". The other ")[0]
    named = zip(("sgd", "adamw"), text.split("`adamw` in "), strict=True)
    found = {name: default for default, names in named for name in re.findall(r"`(\w+)`", names)}
    has = {name: getattr(scheme, "inner_optimizer", None) for name, scheme in SCHEMES.items()}
    assert found == {name: default for name, default in has.items() if default}


def test_the_index_for_programs_has_a_sentence_for_every_page_and_algorithm():
    found = re.findall(
        r"^- \[[^]]+\]\(docs/(?:algorithms/)?(\S+)\.html\): `?\w.{15,}", site_index(ROOT / "docs"), re.MULTILINE
    )
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert {*found} == {*SCHEMES, *pages, *(f"{page.parent.name}/{page.stem}" for page in PARTS)}


def test_the_steps_of_the_workflows_are_commands_of_this_checkout():
    """All but the actions and the upload, so that each can be run locally."""
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    jobs = [job for file in files for job in yaml.safe_load(file.read_text())["jobs"].values()]
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step and "twine" not in step["run"]]
    assert len(files) == 3
    assert all(job["timeout-minutes"] for job in jobs)
    assert all(command.startswith(("bash run.sh ", ".ci/run")) for command in commands)
    text = (ROOT / "docs" / "releasing.md").read_text()
    assert not [command for command in commands if command not in text and command != "bash run.sh list"]
