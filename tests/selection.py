"""Which tests a call of pytest runs: see *Which tests run* in docs/contributing.md."""

from __future__ import annotations

import ast
import re
import subprocess
import time
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from mutants import MUTATIONS, named_tests

ROOT = Path(__file__).resolve().parent.parent
LANDING = "tests/landing.txt"  # the number of landings, which each advances by one
SHARES = 32  # of the rotating tests, one for each gate
BASE = re.compile(r"^from \.(\w+) import", re.MULTILINE)  # a scheme imports no other one but that which it extends
IMPORT = re.compile(r"^\s*from (distsgd[\w.]*) import ([\w, ]*)", re.MULTILINE)
FEW = 6  # files of tests that import a module which is theirs; what more of them import, all tests need
SECONDS = 25.0  # `--changed` starts no test later; with the start of pytest these are about 30


def add_options(parser: pytest.Parser) -> None:
    """Add the options of this project to pytest's."""
    group = parser.getgroup("distsgd")
    group.addoption("--gate", action="store_true", help="also the tests that a gate alone has, and rotating ones")
    group.addoption("--all", action="store_true", help="all tests")
    group.addoption("--changed", action="store_true", help="what the last changes touch, for about 30 seconds")
    group.addoption("--share", type=int, help=f"with --gate, this share of the rotating tests: 0 to {SHARES - 1}")
    group.addoption("--times", action="store_true", help="print the seconds of all functions and files")


class Git:
    """What this checkout knows of its history; nothing if it is none, or git is not installed."""

    def lines(self, *command: str) -> list[str]:
        """Return the lines that a command of git prints; none if it fails."""
        try:
            done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return []
        return done.stdout.splitlines()

    @cached_property
    def landed(self) -> str:
        """The commit of the last landing: the last that changed the file with their number; empty if unknown."""
        return next(iter(self.lines("log", "-1", "--format=%H", "--", LANDING)), "")

    def changed_since(self, commit: str) -> set[str]:
        """Return the files that differ from a commit, those that git does not know yet included."""
        return {*self.lines("diff", "--name-only", commit), *self.lines("ls-files", "--others", "--exclude-standard")}

    def tests_changed_since(self, commit: str) -> set[str]:
        """Return the tests whose own lines differ from those of a commit, new ones included."""
        found = set()
        for file in self.changed_since(commit):
            if file.startswith("tests/test_") and (ROOT / file).exists():
                before = functions("\n".join(self.lines("show", f"{commit}:{file}")))
                found |= {
                    f"{file}::{name}" for name, _ in functions((ROOT / file).read_text()).items() - before.items()
                }
        return found

    def last_changes(self) -> set[str]:
        """Return the files that are not committed, or else those of the last commit."""
        return self.changed_since("HEAD") or {*self.lines("diff", "--name-only", "HEAD~1", "HEAD")}


def functions(text: str) -> dict[str, str]:
    """Return the lines of each function of a file by its name, without its marks and parameters."""
    lines = text.splitlines()
    found = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}


def schemes_of(files: Iterable[str]) -> set[str]:
    """Return the schemes that these files define, and those that derive from them."""
    found = {Path(file).stem for file in files if file.startswith("algorithms/")}
    bases = {path.stem: {*BASE.findall(path.read_text())} for path in (ROOT / "algorithms").glob("*.py")}
    while derived := {name for name, named in bases.items() if named & found} - found - {"__init__"}:
        found |= derived
    return found


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file of tests imports, and the names that it imports from them."""
    found = IMPORT.findall(path.read_text())
    return {module for module, _ in found} | {
        f"{module}.{name.split()[0]}" for module, names in found for name in re.findall(r"\w+(?: as \w+)?", names)
    }


def modules_of(files: Iterable[str]) -> set[str]:
    """Return the names under which tests import these files."""
    paths = [Path(file) for file in files if file.endswith(".py")]
    return {f"distsgd.{path.with_suffix('').as_posix().replace('/', '.')}" for path in paths}


def files_near(files: Iterable[str]) -> set[Path]:
    """Return the files of tests that have the name of one of these files, or import it as only few do."""
    tests = {path: imported(path) for path in (ROOT / "tests").glob("test_*.py")}
    found = {path for path in tests if path.stem.removeprefix("test_") in {Path(file).stem for file in files}}
    for module in modules_of(files):
        importing = {path for path, modules in tests.items() if module in modules}
        found |= importing if len(importing) <= FEW else set()
    return found


def has_mark(item: pytest.Item, name: str) -> bool:
    """Return True if a test has a mark: one with `"others"` is not that of the first case."""
    return any(not (mark.args and is_first(item)) for mark in item.iter_markers(name))


def is_rotating(item: pytest.Item) -> bool:
    """Return True if not each gate runs a test."""
    return has_mark(item, "rotating")


def is_first(item: pytest.Item) -> bool:
    """Return True for a test without parameters, and for the first case of one with parameters."""
    return not hasattr(item, "callspec") or not any(item.callspec.indices.values())


def is_of_gate(item: pytest.Item) -> bool:
    """Return True if only a gate runs a test."""
    return has_mark(item, "gate")


def needs_packages(item: pytest.Item) -> bool:
    """Return True if a test runs only in an environment of its own, where it is chosen by `-m packages`."""
    return any(item.iter_markers("packages"))


def words_of(item: pytest.Item) -> set[str]:
    """Return the words in the name of a test and in its parameters."""
    name, _, parameters = item.name.partition("[")
    return {*re.findall(r"\w+", parameters), name}


class Rotation:
    """The rotating tests of a gate.

    These are those of its share, those whose algorithm has changed since the last landing, and those that mutations
    name. A changed test adds its first case, and a changed module those of the tests near it: `--changed` runs all of
    them, at the change.
    """

    def __init__(self, share: int | None, git: Git):
        try:
            number = int((ROOT / LANDING).read_text())
        except (OSError, ValueError):
            number = 0
        self.share = (number if share is None else share) % SHARES
        self.landed = git.landed
        files = git.changed_since(self.landed) if self.landed else set()
        self.changed = git.tests_changed_since(self.landed) if self.landed else set()
        self.schemes = schemes_of(files)
        self.near = files_near(files)
        self.notebooks = {Path(file).stem for file in files if file.endswith(".ipynb")}
        self.named = {test for diff in MUTATIONS for test in named_tests(diff)}

    def has(self, item: pytest.Item) -> bool:
        """Return True if this gate runs a rotating test."""
        return bool(
            zlib.crc32(item.nodeid.encode()) % SHARES == self.share
            or item.nodeid in self.named
            or (is_first(item) and (item.nodeid.partition("[")[0] in self.changed or item.path in self.near))
            or words_of(item) & self.schemes
            or any(notebook in item.name for notebook in self.notebooks)
        )

    @property
    def always(self) -> str:
        """Say which of the rotating tests the gate runs, whatever has changed."""
        return f"share {self.share} of {SHARES}"

    def __str__(self) -> str:
        since = f"since the landing {self.landed[:9]}" if self.landed else "as git knows no landing here"
        return f"rotating tests: {self.always}; changed {since}: {', '.join(sorted(self.schemes)) or 'none'}"


class Near:
    """The tests that a change touches.

    These are, in this order: those that mutations of a changed file name, and those of changed files of tests; those
    with a changed algorithm in their name; those of the files that import a changed module or have its name, those
    that a gate alone runs last.
    """

    def __init__(self, files: set[str]):
        self.files, self.schemes = files, schemes_of(files)
        touched = (diff for diff in MUTATIONS if any(f"--- a/{file}\n" in diff.read_text() for file in files))
        self.named = {test.partition("[")[0] for diff in touched for test in named_tests(diff)}
        self.modules = modules_of(files) | {Path(file).stem for file in files}

    def reads(self, path: Path) -> bool:
        """Return True if a file may have such tests."""
        file = path.relative_to(ROOT).as_posix()
        names = {test.partition("::")[0] for test in self.named}
        text = path.read_text()
        return file in self.files | names or self._is_near(path) or (bool(self.schemes) and "SCHEMES" in text)

    def _is_near(self, path: Path) -> bool:
        return path.stem.removeprefix("test_") in self.modules or bool(imported(path) & self.modules)

    def rank(self, item: pytest.Item) -> int | None:
        """Return the place of a test in the order, None if the change does not touch it."""
        name = item.nodeid.partition("[")[0]
        if name in self.named or name.partition("::")[0] in self.files:
            return 0
        if is_rotating(item):
            return None
        if words_of(item) & self.schemes:
            return 1
        return 2 + is_of_gate(item) if self._is_near(item.path) else None


class Selection:
    """Chooses the tests, in each process that reads them; files and names that the caller gives are all run."""

    def __init__(self, config: pytest.Config):
        self.options, git = config.option, Git()
        self.named = (
            config.args_source is pytest.Config.ArgsSource.ARGS or self.options.keyword or self.options.markexpr
        )
        self.rotation = Rotation(self.options.share, git)
        self.near = Near(git.last_changes()) if self.options.changed else None
        self.began = time.monotonic()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if self.near and collection_path.name.startswith("test_") and not self.near.reads(collection_path):
            return True
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.near:
            ranked = {item: rank for item in items if (rank := self.near.rank(item)) is not None}
            chosen = sorted(ranked, key=ranked.__getitem__)
            processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
            kept = [
                item for first in range(processes) for item in chosen[first::processes]
            ]  # each begins with the near
        elif self.named:
            kept = items if self.options.markexpr else [item for item in items if not needs_packages(item)]
        else:
            kept = [item for item in items if self._is_chosen(item)]
        config.hook.pytest_deselected(items=[*{*items} - {*kept}])
        items[:] = kept
        self.began = time.monotonic()

    def _is_chosen(self, item: pytest.Item) -> bool:
        if needs_packages(item):
            return False
        if self.options.all:
            return True
        if is_rotating(item):
            return self.options.gate and self.rotation.has(item)
        return self.options.gate or not is_of_gate(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self.near and time.monotonic() > self.began + SECONDS:
            pytest.skip(f"{SECONDS:.0f} s are over")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.options.gate:
            terminalreporter.write_line(str(self.rotation))
        elif not (self.options.all or self.named or self.near):
            terminalreporter.write_line(
                f"no rotating tests: a gate, `bash run.sh test --gate`, runs {self.rotation.always}"
            )
        if self.near:
            skipped = terminalreporter.stats.get("skipped", ())
            late = sum("s are over" in report.longreprtext for report in skipped)
            files = ", ".join(sorted(self.near.files)) or "no files"
            terminalreporter.write_line(f"touched by {files}; {late} tests were left out after {SECONDS:.0f} s")
