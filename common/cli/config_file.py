"""The settings of a file as flags: `--config FILE`, the config.json of a run or a TOML file of the user."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import nearest
from ..cluster.platform import Platform
from ..contract.periods import rule_of
from ..contract.schedules import schedule_of
from ..contract.scheme import Scheme
from ..errors import UserError
from ..record.latest import named
from ..record_format import read_config, read_text
from . import flags
from .catalogue import meant_by

FLAG = "--config"

# Values of config.json that follow from others.
DERIVED = ("algorithm", "hyperparameters", "platform", "architecture", "keras_settings", "sparsity", "label_distance",
           "steps_of_workers", "earlier_step_targets", "servers_apart", "arithmetic")  # fmt: skip

# A flag that the user gives replaces these values of a file, besides the one of its own name.
REPLACED = {"epochs": ["steps"], "steps": ["epochs"], "data": ["dataset"], "dataset": ["data"]}

OWN_DATA = "own data"  # of a run from Python


def expanded(scheme_type: type[Scheme], options: type, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the settings of `--config FILE` before them, as flags: so the others override them."""
    path, rest = split_config(arguments)
    return rest if path is None else with_settings(scheme_type, options, path, read_config_file(path), rest)


def with_settings(
    scheme_type: type[Scheme], options: type, path: Path, content: Mapping[str, Any], rest: Sequence[str]
) -> list[str]:
    """Return the arguments `rest` with the `content` of the file of settings before them, as flags."""
    if (algorithm := content.get("algorithm", scheme_type.name)) != scheme_type.name:
        raise UserError(f"{path} has settings of {algorithm}: use train {FLAG} {path}. Received: {scheme_type.name}")
    typed = {flags.field_of(word): word for word in rest if word.startswith("--")}
    values = settings(content)
    for name in typed:
        for other in REPLACED.get(name, ()):
            values.pop(other, None)
    if path.suffix == ".json":
        _refuse_own(path, values, typed)
    if (
        values.get("backend") == "simulation"
        and "backend" in typed
        and not any(word.endswith("simulation") for word in rest)
    ):
        values = {name: value for name, value in values.items() if name not in flags.names(Platform)}
    names = [*flags.names(scheme_type), *flags.names(options)]
    for name in values:
        if name not in names:
            raise UserError(f"{path}: {scheme_type.name} has no option {name!r}. {nearest(name, names, 'See --help')}")
    return [*(word for kind in (scheme_type, options) for word in flags.words_of(values, kind)), *rest]


def split_config(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file of `--config FILE`, that of a run if its folder is given, and the other arguments."""
    files, rest = flags.taken_out(FLAG, arguments, f"a file, as in {FLAG} runs/downpour/latest/config.json")
    if len(files) > 1:
        raise UserError(f"{FLAG} takes one file. Received: {files[0]} and {files[1]}")
    if not files:
        return None, rest
    folder = named(files[0])
    return (folder / "config.json" if folder.is_dir() else folder), rest


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the content of a file of settings; raises `UserError` if it cannot be read."""
    if not path.is_file():
        raise UserError(f"{FLAG}: there is no file {path}. Give config.json of a run, or a TOML file")
    if path.suffix == ".json":
        content = read_config(path.parent, path.name)
        if "shapes" in content:
            raise UserError(
                f"{path} is the configuration of a script: start it with launch, which takes its options as flags"
            )
        return content
    try:
        content = tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot read {path} as TOML: {getattr(error, 'strerror', None) or error}. Give the config.json of a run, "
            f"or a TOML file with lines such as learning_rate = 0.1"
        ) from None
    if "algorithm" not in content:
        return content
    name, *meant = meant_by(str(content["algorithm"]), f"{path}: ")
    return dict(zip(map(flags.field_of, meant[::2]), meant[1::2], strict=True)) | content | {"algorithm": name}


def settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a file by their names; those that are null, or follow from others, are left out."""
    parts = [content.get(name) for name in ("hyperparameters", "platform")]
    values = {name: value for name, value in content.items() if name not in DERIVED and value is not None}
    for part in parts:
        values |= part if isinstance(part, dict) else {}
    if "steps_per_worker" in values:
        values["steps"] = values.pop("steps_per_worker")
    if not values.get("ps", 1):  # an algorithm without parameter server
        del values["ps"]
    for name, value in list(values.items()):
        if (schedule := schedule_of(value)) is not None:
            values["lr_schedule"], values[name] = schedule.shape, schedule.initial
    if isinstance(rule := values.get("communication_period"), str):
        values["communication_period"] = rule_of(rule).period
        values["period_rule"] = rule
    if flags.in_file(str(values.get("dataset"))):
        values["data"] = values.pop("dataset")
    return values


def _refuse_own(path: Path, values: dict[str, Any], typed: Mapping[str, str]) -> None:
    """Raise `UserError` for data or a model of the user's code: a recorded file may be foreign, and executes none."""
    for name in ("data", "dataset", "model"):
        value = values.get(name)
        if isinstance(value, str) and (value == OWN_DATA or flags.in_file(value)) and name not in typed:
            flag = "model" if name == "model" else "data"
            place = value if flags.in_file(value) else f"my_{flag}.py:{'build' if flag == 'model' else 'load'}"
            raise UserError(
                f"the run of {path} has {value}, and a file cannot make this program execute code: add --{flag} {place}"
            )
