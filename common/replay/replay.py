"""Replay of a run of the catalogue: its data and hyperparameters are checked and completed by the catalogue's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..arguments import nearest, with_tuples
from ..contract.checks import check_scheme, rounds_differ
from ..contract.rounds import ENDLESS
from ..contract.scheme import Scheme
from ..data import named
from ..data.models import MODELS
from ..data.recipes import Dataset
from ..errors import UserError, first_line
from ..record_format import read_config, read_result, read_trace, without_script
from ..spec import parse
from ..sync.topology import FILE, GRAPH
from .adapters import TRANSCRIPTIONS
from .comparison import NO_ROOM, Verdict, judge
from .order import departure_of
from .problem_runs import of_problem
from .recorded import RecordedRun, read_run
from .scripted import recorded_gradients
from .with_codec import compressed


def replay(run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> Verdict:
    """Execute the equations of a recorded run, and compare.

    Args:
        run_dir: folder of a run that has ended.
        schemes: the catalogue, by name.

    Raises:
        UserError: this run cannot be replayed; the message gives the reason.
    """
    try:
        run = read(run_dir, schemes)
    except MemoryError:
        raise UserError(NO_ROOM) from None
    departure = _departure(run_dir, schemes, run.trace, run.result)
    return Verdict(run, math.inf, departure) if departure else replace(judge(run), ordered=departure is not None)


def _departure(
    run_dir: Path, schemes: Mapping[str, type[Scheme]], trace: Mapping[str, Any], result: Mapping[str, Any]
) -> str | None:
    """Return the first event that the synchronization rule does not allow, "" if there is none, None if unknown."""
    config = read_config(run_dir)
    if (kind := schemes.get(config["algorithm"])) is None:
        return None
    scheme, _ = _scheme(run_dir, config, kind)
    return departure_of(scheme, config["workers"], trace, result, _may_be_sparse(config))


def _may_be_sparse(config: Mapping[str, Any]) -> bool:
    """Return True if workers may take single parameters from the center, when they need them."""
    return str(config.get("model")).startswith("logistic") or "shapes" in config


def read(run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> RecordedRun:
    """Read the recorded run of a folder; raises `UserError` if it cannot be replayed."""
    config = read_config(run_dir)
    name = config["algorithm"]
    if name == "hogwild":
        raise UserError(f"{name} has no reference in NumPy: it takes no lock, so that its events have no order")
    equations = dict(TRANSCRIPTIONS)
    if name in equations:
        equations[name] = compressed(name, equations[name], config["codec"])
    elif name in schemes and (run_dir / "result.json").is_file():
        departure = _departure(run_dir, schemes, read_trace(run_dir, config), read_result(run_dir))
        if departure is not None:
            order = departure or "all its events are those that its synchronization rule allows"
            raise UserError(
                f"{name} has no reference in NumPy: --import a file with its equations. Its order alone: {order}"
            )
    scheme_and_texts = _scheme(run_dir, config, schemes[name]) if name in schemes else None
    hyperparameters = _hyperparameters(*scheme_and_texts) if scheme_and_texts else None
    if config["record"] == "gradients":
        if scheme_and_texts and rounds_differ(scheme_and_texts[0], config["workers"], ENDLESS):
            raise UserError(
                f"replay needs equal rounds of all workers of a script. {name} gives its workers rounds of different "
                "lengths"
            )
        problem, are_moves = recorded_gradients(run_dir, config)
        if hyperparameters is not None and are_moves:
            hyperparameters["inner_optimizer"] = "own"
        return read_run(run_dir, equations, hyperparameters, problem=problem)
    if "shapes" in config:
        raise UserError(f"replay needs the gradients of the script of {run_dir}: run launch with --record gradients")

    def load(dataset: str) -> Dataset:
        try:
            return named.load(dataset)
        except UserError as error:
            if dataset.partition(":")[0] in named.DATASETS:  # it has a name, but cannot be loaded here
                raise
            raise _unnamed(run_dir, error) from None

    try:
        parse("model", config["model"], MODELS)
    except UserError as error:
        raise _unnamed(run_dir, error) from None
    jumps = name in equations and equations[name].jumps
    return read_run(run_dir, equations, hyperparameters, load, problem=of_problem(run_dir, config, jumps, load))


def _unnamed(run_dir: Path, error: UserError) -> UserError:
    """Return the error to raise for data or a model that have no known name."""
    return UserError(
        f"the run in {run_dir} has a model or data of its own, which only its script or file knows ({error})"
    )


def _hyperparameters(scheme: Scheme, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the hyperparameters of a run, with the defaults of the algorithm, and schedules in words."""
    return {field.name: getattr(scheme, field.name) for field in fields(scheme)} | dict(texts)


def _scheme(run_dir: Path, config: Mapping[str, Any], kind: type[Scheme]) -> tuple[Scheme, dict[str, str]]:
    """Return the algorithm of a run, with default rates in place of schedules, and those schedules in words."""
    name, values = kind.name, with_tuples(without_script(config["hyperparameters"]))
    if "topology" in values and (run_dir / GRAPH).exists():  # the file that the run had may have changed
        values["topology"] = f"{FILE}{run_dir / GRAPH}"
    names = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - names):
        raise UserError(f"{name} has no hyperparameter {unknown[0]!r}. {nearest(unknown[0], list(names))}")
    texts = {key: value for key, value in values.items() if key.endswith("rate") and isinstance(value, str)}
    try:
        scheme = kind(**{key: value for key, value in values.items() if key not in texts})  # a schedule, in words
        check_scheme(scheme, config["workers"])
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} cannot have the recorded hyperparameters: {first_line(error)}") from None
    return scheme, texts
