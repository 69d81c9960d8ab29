"""Mutation testing: make one fault at a time in a copy of the checkout, and check that the tests it names fail.

The faults are `tests/mutations/*.diff`. The name of a file says what is wrong, its first lines what follows from that
and which tests must fail. If these tests pass, the mutation has survived: a test is missing.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MUTATIONS = sorted((ROOT / "tests" / "mutations").glob("*.diff"))
FOLDERS = "algorithms", "benchmarks", "common", "simulator"
PRELOADED = ["tensorflow", "keras", "pytest", "sklearn.datasets", "cloudpickle"]
KILLED, SURVIVED = "killed", "SURVIVED"


def named_tests(diff: Path) -> list[str]:
    """Return the tests that a mutation must turn red, as pytest names them."""
    lines = (line.split(":", 1) for line in diff.read_text().splitlines() if line.startswith("Tests:"))
    return [test for _, tests in lines for test in shlex.split(tests)]


def apply(diff: Path, folder: Path) -> None:
    """Make a fault in the files in `folder`, which need not be a repository.

    Raises:
        ValueError: the lines that it changes are not there.
    """
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    command = ["git", "apply", "--unidiff-zero", str(diff)]  # most have no context, so that they survive edits around
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    if done.returncode:
        reason = "; ".join(done.stderr.splitlines())
        raise ValueError(f"{diff.name} does not apply: {reason}: make it anew, see docs/contributing.md")


def copy(folder: Path) -> Path:
    """Copy what tests need, with the packages under their names, so that the folder can be put on a path."""
    for name in (*FOLDERS, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(folder / "common" / "toplevel", folder / "distsgd")
    for name in FOLDERS:
        (folder / "distsgd" / name).symlink_to(folder / name)
    return folder


def run_tests(folder: str, tests: Sequence[str], log: str) -> None:
    """Run pytest in a copy, in a process of its own, whose exit code is pytest's."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder
    sys.path.insert(0, folder)
    pytest, common = importlib.import_module("pytest"), importlib.import_module("distsgd.common")
    assert Path(common.__file__).is_relative_to(folder), common.__file__
    options = ["-x", "-n", "0", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "--tb=short"]
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(code)  # a run that was broken may have left threads, for which an exit would wait


def verdict_on(diff: Path | None, tests: Sequence[str], seconds: float, log: Path) -> str:
    """Run the tests on a copy with that fault, or with none, for some seconds at most."""
    with tempfile.TemporaryDirectory(prefix="distsgd-mutant-") as name:
        folder = copy(Path(name).resolve())
        if diff:
            apply(diff, folder)
        process: Any = CONTEXT.Process(target=run_tests, args=(str(folder), tests, str(log)))
        process.start()
        process.join(seconds)
        is_late = process.is_alive()
        try:
            os.killpg(process.pid, 9)  # a test that was broken may have left processes
        except ProcessLookupError:
            process.kill()
        process.join()
    if is_late:
        return f"{KILLED} (time-out)"
    code = process.exitcode
    return {0: SURVIVED, 1: KILLED}.get(code, f"ERROR (pytest ended with {code})")


def told(diff: Path | None, tests: Sequence[str], seconds: float, logs: Path) -> str:
    """Print the verdict on a mutation, or on the code without one, and return it."""
    began, name = time.monotonic(), diff.stem if diff else "no-fault"
    try:
        verdict = verdict_on(diff, tests, seconds, logs / f"{name}.log")
    except ValueError as error:
        verdict = f"ERROR ({error})"
    shown = "passed" if not diff and verdict == SURVIVED else verdict
    print(f"{name:<52} {shown}  {time.monotonic() - began:.0f} s", flush=True)
    return verdict


CONTEXT = multiprocessing.get_context("forkserver")


def main(arguments: Sequence[str]) -> int:
    """Return 0 if each mutation was killed, else 1."""
    # Not above: the process of a mutation imports this file, and must find the package in its copy.
    from distsgd.common.cli.flags import Parser

    parser = Parser("run.sh mutants", (__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations whose names contain this (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests; run nothing")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for the tests of a mutation (default: 180)")
    parser.add_argument("--logs", type=Path, help="folder for the output of pytest (default: a temporary one)")
    options = parser.values(arguments)
    chosen = [diff for diff in MUTATIONS if not options.names or any(part in diff.stem for part in options.names)]
    if not chosen:
        print(f"error: no mutation has such a name. Received: {' '.join(options.names)}. See --list", file=sys.stderr)
        return 2
    if options.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--list | head` is no error
        for diff in chosen:
            print(diff.read_text().partition("diff --git")[0].replace("Tests:", f"{diff.stem}:"))
        return 0
    logs = options.logs or Path(tempfile.mkdtemp(prefix="distsgd-mutants-"))
    logs.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": "1"}
    CONTEXT.set_forkserver_preload(PRELOADED)  # each copy of the tests is forked from a process that has TensorFlow
    print(f"{len(chosen)} mutations; the output of pytest is in {logs}", flush=True)
    tests = sorted({test for diff in chosen for test in named_tests(diff)})
    if told(None, tests, 10 * options.limit, logs) != SURVIVED:
        print("without a fault these tests must pass: see no-fault.log")
        return 1
    verdicts = [told(diff, named_tests(diff), options.limit, logs) for diff in chosen]
    killed = sum(verdict.startswith(KILLED) for verdict in verdicts)
    print(f"{killed} of {len(chosen)} killed")
    return int(killed < len(chosen))


if __name__ == "__main__":
    from distsgd.common.errors import UserError

    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
