"""`bash run.sh mutants`: a test suite is as good as the faults that it finds, so this makes some and looks.

Each mutation of `mutations.py` changes one place of the package in a copy of the checkout, and runs the tests that are
about it there. A mutation that they do not notice has survived: a test is missing. Not a part of CI: it takes a while.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mutations import EQUIVALENT, MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
PRELOADED = [
    "tensorflow",
    "keras",
    "pytest",
    "rich.live",
    "sklearn.datasets",
    "matplotlib.figure",
    "cloudpickle",
]
FOUND, MISSED, NOT_SOUND = "killed", "SURVIVED", "ERROR"
LATE = "killed (time-out)"


def mutated(mutation: Mutation, root: Path = ROOT) -> tuple[Path, str]:
    """The file that a mutation changes, relative to the root, and its new text.

    Raises:
        ValueError: the old text is not there exactly once: the list has to follow the code.
    """
    place = root / mutation.place
    texts = {path: path.read_text() for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))}
    counts = {path: text.count(mutation.old) for path, text in texts.items()}
    if sum(counts.values()) != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: its old text is {sum(counts.values())} times in {mutation.place}: "
            f"{mutation.old!r}"
        )
    path = max(counts, key=lambda path: counts[path])
    return path.relative_to(root), texts[path].replace(mutation.old, mutation.new)


def copy(folder: Path, mutation: Mutation | None) -> Path:
    """A copy of the checkout with the packages under their names, so that the folder can be put on a path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["package-dir"]
    for source in {Path(source).parts[0] for source in packages.values()}:
        shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("results", "__pycache__"))
    for package, source in sorted(packages.items()):  # what contains others comes first
        place = folder / package.replace(".", "/")
        if "." in package:
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(folder / source)
        else:
            shutil.copytree(folder / source, place)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if mutation is not None:
        path, text = mutated(mutation)
        (folder / path).write_text(text)
    return folder


def run_tests(folder: Path, tests: Sequence[str], log: Path) -> None:
    """The life of a forked process: pytest, in that copy. Its exit code says how it went."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    import distsgd.common  # noqa: I001  (the copy, from here on)
    import pytest

    assert Path(distsgd.common.__file__).is_relative_to(folder), distsgd.common.__file__
    options = ["-x", "-n", "0", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "--tb=short"]
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(code)  # threads of a run that was broken may be left


def judge(name: str, mutation: Mutation | None, tests: Sequence[str], seconds: float, logs: Path) -> tuple[str, float]:
    """Run the tests on a changed copy; returns the verdict, and how long it took."""
    began, log = time.monotonic(), logs / f"{name.replace(' ', '-').replace('/', '-')}.log"
    with tempfile.TemporaryDirectory(prefix="distsgd-mutant-") as folder:
        process: Any = CONTEXT.Process(target=run_tests, args=(copy(Path(folder), mutation), tests, log))
        process.start()
        process.join(seconds)
        late = process.is_alive()
        try:
            os.killpg(process.pid, 9)  # whatever it has started
        except ProcessLookupError:
            process.kill()
        process.join()
    code = process.exitcode
    verdict = {0: MISSED, 1: FOUND}.get(code, LATE if late else f"{NOT_SOUND} (pytest ended with {code}, see {log})")
    if verdict == FOUND and "+ Timeout +" in log.read_text():
        verdict = LATE
    return verdict, time.monotonic() - began


CONTEXT = multiprocessing.get_context("forkserver")


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if no mutation has survived."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(
        prog="run.sh mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="mutations whose names contain this; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="show the mutations, and why each matters; run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (default: 2)")
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds that the tests of a mutation may take (default: 180)"
    )
    parser.add_argument("--logs", type=Path, help="keep what pytest printed in this folder")
    options = parser.parse_args(arguments)
    chosen = [m for m in MUTATIONS if any(part in m.name for part in options.only or [""])]
    console = Console(highlight=False, soft_wrap=True)
    if options.list:
        table = Table("mutation", "file", "why it matters", "tests", box=None, pad_edge=False)
        for m in chosen:
            table.add_row(m.name, m.place, m.why, " ".join(m.tests))
        console.print(table)
        for name, reason in EQUIVALENT.items():
            console.print(f"not counted, no fault: {name}: {reason}")
        return 0
    logs = options.logs or Path(tempfile.mkdtemp(prefix="distsgd-mutants-"))
    logs.mkdir(parents=True, exist_ok=True)
    for mutation in chosen:
        mutated(mutation)  # before anything starts
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": "1"}
    CONTEXT.set_forkserver_preload(PRELOADED)  # each copy of the tests is forked from a process that has TensorFlow
    tests = sorted({test for mutation in chosen for test in mutation.tests})
    console.print(f"{len(chosen)} mutations; what pytest prints is in {logs}")
    verdict, seconds = judge("no mutation", None, tests, options.limit * 10, logs)
    console.print(f"{'without a mutation':<72}{'passed' if verdict == MISSED else 'FAILED'}  {seconds:5.0f} s")
    if verdict != MISSED:
        console.print(f"the tests fail without a mutation: see {logs / 'no-mutation.log'}")
        return 1
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(lambda m: judge(m.name, m, m.tests, options.limit, logs), chosen)
        for mutation, (verdict, seconds) in zip(chosen, verdicts, strict=True):
            console.print(f"{mutation.name:<72}{verdict}  {seconds:5.0f} s")
            bad += not verdict.startswith(FOUND)
    console.print(
        f"{len(chosen) - bad} of {len(chosen)} killed; {len(EQUIVALENT)} more are no faults (--list says why)"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
