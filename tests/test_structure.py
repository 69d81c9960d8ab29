"""The house: folders that import downwards only, files and classes that fit their rooms."""

import ast
import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from distsgd.algorithms import SCHEMES
from distsgd.common import Scheme

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = "algorithms", "benchmarks", "common", "simulator"
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MOST_LINES, MOST_LINES_OF_A_CLASS = 500, 300
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def name(path):
    return str(path.relative_to(ROOT))


def linted(folder):
    """What import-linter says, as pyproject.toml has it; it wants the packages under their names."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_no_import_runs_back_up(tmp_path):
    shutil.copytree(ROOT / "common" / "toplevel", tmp_path / "distsgd")
    for folder in FOLDERS:
        (tmp_path / "distsgd" / folder).symlink_to(ROOT / folder)
    done = linted(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 kept, 0 broken" in done.stdout


def test_contracts_notice_forbidden_tensorflow_even_by_a_lazy_import(tmp_path):
    """A contract could not fail: import-linter left out what is not of the package."""
    shutil.copytree(ROOT / "common" / "toplevel", tmp_path / "distsgd")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / "distsgd" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    common = tmp_path / "distsgd" / "common"
    with (common / "replay" / "reference" / "gradients.py").open("a") as file:
        file.write(
            "\nimport scipy.special\nimport tensorflow\nfrom ....algorithms import AsyncSGD\nfrom ...lazy import tf\n"
        )
    with (tmp_path / "distsgd" / "simulator" / "virtual_time" / "schedule.py").open("a") as file:
        file.write("\nimport keras\nfrom ...common.lazy import tf\n")
    done = linted(tmp_path)
    assert done.returncode != 0
    assert "the reference imports NumPy alone BROKEN" in done.stdout
    assert "virtual time does without TensorFlow BROKEN" in done.stdout
    for package in ("scipy", "tensorflow", "distsgd.algorithms", "distsgd.common.lazy"):
        assert f"distsgd.common.replay.reference.gradients -> {package}" in done.stdout
    for package in ("keras", "distsgd.common.lazy"):
        assert f"distsgd.simulator.virtual_time.schedule -> {package}" in done.stdout


def test_common_names_the_simulator_in_two_tables_alone():
    """That of the back ends and that of the commands: it imports them by name, which no contract sees."""
    naming = [
        name(path)
        for path in FILES
        if path.is_relative_to(ROOT / "common") and path.parent.name != "toplevel"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and re.match(r"[\w.]*\bsimulator\.", str(node.value))
    ]
    assert {*naming} == {"common/cli/main.py", "common/cluster/cluster.py"}


def test_files_and_classes_are_short():
    lengths = {name(path): len(path.read_text().splitlines()) for path in FILES}
    assert {file: lines for file, lines in lengths.items() if lines > MOST_LINES} == {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert (node.end_lineno or 0) - node.lineno < MOST_LINES_OF_A_CLASS, f"{name(path)}: {node.name}"


def lines_of(source):
    """Return the number of lines that hold a token other than a comment or a docstring."""
    lines, begins = set(), True  # a string at the beginning of a statement is a docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in NO_CODE:
            begins = begins or (token.type != tokenize.COMMENT and token.type != tokenize.NL)
        elif token.type == tokenize.STRING and begins:
            begins = False
        else:
            begins = False
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def test_distributed_sgd_stays_on_one_page():
    files = ROOT / "common" / "group.py", ROOT / "common" / "group_variables.py"
    assert sum(lines_of(file.read_text()) for file in files) <= 320


@pytest.mark.gate
def test_no_two_modules_and_no_two_classes_of_the_package_share_a_name():
    """Except for those of `benchmarks`, each of which is a program."""
    paths = [path for path in FILES if not path.is_relative_to(ROOT / "benchmarks")]
    modules = [path.stem for path in paths if path.stem != "__init__"]
    nodes = [node for path in paths for node in ast.parse(path.read_text()).body]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert [name for name, times in Counter(modules).items() if times > 1] == []
    assert [name for name, times in Counter(classes).items() if times > 1] == []


ENGINE_SETS = "scheme.but", "extended"  # functions whose keywords are members of a scheme


def of_authors():
    """What an author of a scheme can set: the public members of `Scheme` that are not final."""
    declared = {name: getattr(Scheme, name, None) for name in (*vars(Scheme), *Scheme.__annotations__)}
    kept = {name for name, member in declared.items() if getattr(getattr(member, "fget", member), "__final__", False)}
    return {name for name in declared if not name.startswith("_")} - kept


def test_each_member_that_an_author_of_a_scheme_can_set_is_set():
    """By an algorithm, by a hyperparameter of a declared type, or by the engine."""
    own = [kind.__mro__[: kind.__mro__.index(Scheme)] for kind in SCHEMES.values()]
    used = {name for kinds in own for kind in kinds for name in vars(kind)}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                used |= {keyword.arg for keyword in node.keywords if ast.unparse(node.func) in ENGINE_SETS}
    source = ast.parse((ROOT / "common" / "contract" / "scheme.py").read_text())
    for function in (node for node in ast.walk(source) if isinstance(node, ast.FunctionDef)):
        calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        if any(isinstance(called, ast.Name) and called.id == "declared" for called in calls):
            used.add(function.name)
    assert of_authors() - used == set()
    assert len(of_authors()) <= 8 + 20  # the functions of a round, and what may be declared
    assert {"message", "sync", "scalars"} < of_authors()
    assert not {"at", "takes_means"} & of_authors()


def test_the_parameter_server_repeats_no_function_of_its_parts():
    """Synchronization rules call a part by its name, as in `ps.journal.record`."""
    folder = ROOT / "common" / "server"
    parts = [ast.parse((folder / f"{name}.py").read_text()) for name in ("transaction", "center", "journal", "slots")]
    functions = {node.name for part in parts for node in ast.walk(part) if isinstance(node, ast.FunctionDef)}
    server = ast.walk(ast.parse((folder / "parameter_server.py").read_text()))
    own = {node.attr for node in server if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    assert {"record", "receive", "write", "exclusive"} < functions
    assert {"journal", "center", "slots"} < own
    assert own & functions == set()


def test_no_field_of_a_scheme_is_read_by_its_name_as_a_string():
    """A field of any name that is not declared is the author's own."""
    names = of_authors() | {field.name for kind in SCHEMES.values() for field in dataclasses.fields(kind)}
    found = [
        f"{name(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        if not path.is_relative_to(ROOT / "benchmarks")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if "scheme" in ast.unparse(node.args[0]) and getattr(node.args[1], "value", None) in names
    ]
    assert found == []


def test_every_folder_says_what_lives_there_and_what_it_may_import():
    for folder in {path.parent for path in FILES}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_no_import_is_for_type_checkers_only():
    """Such an import hides one that runs back up."""
    assert [name(path) for path in FILES if "TYPE_CHECKING" in path.read_text()] == []


def test_the_reference_imports_numpy_alone():
    """And the standard library: of other packages, a contract can only forbid those that it names."""
    for path in (ROOT / "common" / "replay" / "reference").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for found in names:
                assert found.split(".")[0] in {"numpy", *sys.stdlib_module_names}, (path, found)
            assert getattr(node, "level", 0) in (0, 1, None), path


def test_lines_of_code_leave_out_comments_and_docstrings():
    source = (
        '"""Doc.\n\nMore."""\nx = 1  # one\n\n\ndef f(\n    a,\n):\n    """Doc."""\n    # no code\n    return "text"\n'
    )
    assert lines_of(source) == 5
