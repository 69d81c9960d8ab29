"""Where the time of the tests goes: CPU seconds and waiting, by function, by file, and by what the tests did."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
DOCUMENTS = (
    "test_choosing.py",
    "test_docs.py",
    "test_examples.py",
    "test_notebook.py",
    "test_site.py",
    "test_tutorials.py",
)

# Functions whose CPU time in this process counts as a kind: a module, a class there, and the name. If one calls
# another, the inner one counts. What other processes use counts as "processes", the rest as "other".
KINDS = (
    ("tracing", "distsgd.common.tasks.graph", "TaskGraph", "__init__"),
    ("threads", "distsgd.common.launch.here", "", "run_threads"),
    ("virtual time", "distsgd.simulator.back_end", "", "simulate"),
    ("groups", "distsgd.common.group", "Group", "__init__"),
    ("groups", "distsgd.common.group", "Group", "step"),
    ("groups", "distsgd.common.group", "Group", "point"),
)


def descendants() -> Iterator[int]:
    """Yield the running processes that this one and its children have started."""
    left = [os.getpid()]
    while left:
        tasks = f"/proc/{left.pop()}/task"
        with suppress(OSError):  # it has ended
            for task in os.listdir(tasks):
                with suppress(OSError), open(f"{tasks}/{task}/children") as file:
                    children = [int(pid) for pid in file.read().split()]
                    left += children
                    yield from children


def cpu_of_processes() -> float:
    """Return the CPU seconds of all processes that this one has started, those that have ended included."""
    times = os.times()
    total = times.children_user + times.children_system
    for pid in descendants():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / TICKS
    return total


class Stopwatch:
    """Measures each test, in the process that runs it, and adds the seconds of its kinds to the test's properties."""

    def __init__(self) -> None:
        self.kinds: defaultdict[str, float] = defaultdict(float)
        self.now = ["other"]  # what this process does, the innermost last
        self.since, self.of_processes = time.process_time(), cpu_of_processes()

    def turn(self, kind: str | None) -> None:
        """Count the CPU time since the last turn, and begin with a kind; None returns to the one before."""
        now = time.process_time()
        self.kinds[self.now[-1]] += now - self.since
        self.since = now
        if kind is None:
            self.now.pop()
        else:
            self.now.append(kind)

    def counted(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time in the main thread counts as that kind."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **options)
            self.turn(kind)
            try:
                return function(*arguments, **options)
            finally:
                self.turn(None)

        return call

    def pytest_collection_finish(self) -> None:
        """Replace the functions of `KINDS` of those modules that the tests have imported."""
        for kind, module, owner, name in KINDS:
            if module in sys.modules:
                held = getattr(sys.modules[module], owner) if owner else sys.modules[module]
                setattr(held, name, self.counted(kind, getattr(held, name)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self.turn("other")
        self.kinds.clear()
        self.began = time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self.turn(None)
            before, self.of_processes = self.of_processes, cpu_of_processes()  # once in a test: it reads many files
            found = dict(self.kinds) | {"processes": self.of_processes - before}
            if item.path.name in DOCUMENTS:
                found = {"documents": sum(found.values())}
            waited = max(0.0, time.monotonic() - self.began - sum(found.values()))
            item.user_properties.append(("seconds", found | {"waiting": waited}))


class Report:
    """Adds up the seconds of all tests, in the process that reports them, and prints them.

    With `everything` all functions and files; else the ten dearest functions, unless the caller has named tests.
    """

    def __init__(self, everything: bool) -> None:
        self.everything = everything
        self.tests: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, found in report.user_properties:
            if name == "seconds":
                self.tests[report.nodeid] = found

    def table(self, title: str, key: Callable[[str], str]) -> Iterator[str]:
        """Yield the lines of a table: CPU seconds, seconds of waiting and number of tests of each key."""
        rows: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for test, found in self.tests.items():
            waited = found["waiting"]
            row = rows[key(test)]
            row[:] = row[0] + sum(found.values()) - waited, row[1] + waited, row[2] + 1
        total = sum(row[0] for row in rows.values()) or 1.0
        yield f"   CPU s   share  waiting s  tests  {title}"
        for name, (cpu, waited, number) in sorted(rows.items(), key=lambda row: -row[1][0]):
            yield f"{cpu:8.1f}  {cpu / total:6.1%}  {waited:9.1f}  {number:5d}  {name}"

    def kinds(self) -> Iterator[str]:
        """Yield the line with the sum of each kind."""
        sums: defaultdict[str, float] = defaultdict(float)
        for found in self.tests.values():
            for kind, seconds in found.items():
                sums[kind] += seconds
        waited = sums.pop("waiting", 0.0)
        parts = [f"{kind} {seconds:.0f}" for kind, seconds in sorted(sums.items(), key=lambda row: -row[1])]
        yield f"CPU seconds: {sum(sums.values()):.0f} ({', '.join(parts)}); waiting {waited:.0f}, summed over tests"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = list(self.table("function", lambda test: test.partition("[")[0]))
        if self.everything:
            lines += ["", *self.table("file", lambda test: test.partition("::")[0])]
        elif terminalreporter.config.args_source is pytest.Config.ArgsSource.ARGS:
            return
        else:
            del lines[11:]
        terminalreporter.section("where the time went")
        for line in [*lines, "", *self.kinds()]:
            terminalreporter.write_line(line)
