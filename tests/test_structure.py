"""The house: folders that import downwards only, files and classes that fit their rooms."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_files_and_classes_are_short():
    lengths = {name(path): len(path.read_text().splitlines()) for path in FILES}
    assert {file: lines for file, lines in lengths.items() if lines > MOST_LINES} == {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert (node.end_lineno or 0) - node.lineno < MOST_LINES_OF_A_CLASS, f"{name(path)}: {node.name}"


def test_every_folder_says_what_lives_there_and_what_it_may_import():
    for folder in {path.parent for path in FILES}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_no_import_is_for_type_checkers_only():
    """Such an import hides one that runs back up."""
    assert [name(path) for path in FILES if "TYPE_CHECKING" in path.read_text()] == []
