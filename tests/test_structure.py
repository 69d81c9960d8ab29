"""The house: folders that import downwards only, files and classes that fit their rooms."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = "algorithms", "benchmarks", "common"
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MOST_LINES, MOST_LINES_OF_A_CLASS = 300, 200


def name(path):
    return str(path.relative_to(ROOT))


def test_no_import_runs_back_up(tmp_path):
    """As pyproject.toml has it; import-linter wants the packages under their names."""
    shutil.copytree(ROOT / "common" / "toplevel", tmp_path / "distsgd")
    for folder in FOLDERS:
        (tmp_path / "distsgd" / folder).symlink_to(ROOT / folder)
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_and_its_classes_fit_their_rooms(path):
    text = path.read_text()
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    assert len(text.splitlines()) <= MOST_LINES
    for node in classes:
        assert (node.end_lineno or 0) - node.lineno + 1 <= MOST_LINES_OF_A_CLASS, node.name


def test_every_folder_says_what_lives_there_and_what_it_may_import():
    for folder in {path.parent for path in FILES}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_no_import_is_for_type_checkers_only():
    """Such an import hides one that runs back up."""
    assert [name(path) for path in FILES if "TYPE_CHECKING" in path.read_text()] == []
