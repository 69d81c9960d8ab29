"""Models and data of the user's files: `--model my_model.py:build --data my_data.py:load`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import nearest
from ..cards import keep_off
from ..cluster.fingerprint import model_digest
from ..data import models, named
from ..data.examples import arrays_of, read, yields_batches
from ..data.inputs import build_on, first_batches, sharding
from ..data.models import ModelRecipe, plain
from ..data.recipes import Dataset
from ..data.trial import try_out
from ..errors import UserError
from ..kernels import set_here
from ..lazy import keras
from ..messages.torch_tensors import seed_torch
from ..spec import parse
from ..tasks.options import RunOptions
from .flag_groups import Options
from .flags import in_file
from .imports import execute, import_tensorflow, where

USUAL = {"--model": "build", "--data": "load"}  # the function of each flag in the documentation


def find_problem(options: Options, only_tries: bool = False) -> tuple[Dataset, str, ModelRecipe, Any]:
    """Return data, the name of the model, its recipe, and the Keras model, None if data and model have names.

    Args:
        options: the options of the command.
        only_tries: True if this process does no more with the model than to try it: then it keeps off the GPUs.

    Raises:
        UserError: there are no such data or model, or they do not fit each other.
    """
    if options.model and not in_file(options.model):
        parse("model", options.model, models.MODELS)
    if options.data is None and not in_file(options.model):
        dataset = named.load(options.dataset or "")
        name = models.name_for(options.model, dataset.kind, dataset.model)
        return dataset, name, ModelRecipe.named(name, dataset.shape, dataset.classes, options.run.seed), None
    check_files(options.model, options.data)
    set_here(options.run.kernels)
    import_tensorflow()
    if only_tries:
        keep_off()
    keras.utils.set_random_seed(options.run.seed)  # weights and shuffled data are the same in each task and run
    model = own_model(options.model or "", options.run.seed) if in_file(options.model) else None
    dataset = named.load(options.dataset or "") if options.data is None else own_data(options, model)
    if model is not None:
        build_on(dataset.train, model, options.workers)
        return dataset, options.model or "", ModelRecipe.of(model), model
    if not dataset.classes:
        raise UserError(
            "the models by name need class numbers in y, and x as one array: give --model my_model.py:build. Received: "
            f"--data {options.data}"
        )
    name = models.name_for(options.model, dataset.kind, dataset.model)
    recipe = ModelRecipe.named(name, dataset.shape, dataset.classes, options.run.seed)
    return dataset, name, recipe, recipe.build()


def problem_of_run(
    run_dir: Path, model: str | None, data: str | None, config: Mapping[str, Any]
) -> tuple[Dataset, ModelRecipe]:
    """Return data and model of a recorded run. Functions in files are named by the user: a folder may be foreign.

    Args:
        run_dir: folder of the run.
        model: the function that returns the model; None for a model by name.
        data: the function that returns the data; None for data by name.
        config: configuration of the run.

    Raises:
        UserError: the run has a model or data of a file that is not given, or the functions do not return the same.
    """
    if "shapes" in config:
        raise UserError(f"evaluate does not measure runs of launch, whose scripts have the loss. Received: {run_dir}")
    for flag, recorded, argument in (("--model", config["model"], model), ("--data", config["dataset"], data)):
        if argument is None and in_file(recorded):
            raise UserError(
                f"the run in {run_dir} is of {recorded}, and a file cannot make this program execute code: add {flag} "
                f"{recorded}"
            )
    steps, workers, size = (config[name] for name in ("steps_per_worker", "workers", "batch_size"))
    names: dict[str, Any] = {"model": model or config["model"], "data": data}
    run = RunOptions(seed=config["seed"], batch_size=size, steps=steps)
    options = Options(**names, dataset=None if data else config["dataset"], workers=workers, run=run)
    try:
        dataset, _, recipe, model_of_user = find_problem(options)
    except UserError as error:
        if model or data:
            raise
        flags = "--model my_model.py:build --data my_data.py:load"
        raise UserError(f"the run in {run_dir} has a model or data of its own: add {flags} ({error})") from None
    if dataset.test is None:
        raise UserError(
            "--data: there are no validation data to evaluate the checkpoints on: return (train, validation) from "
            f"the function. Received: {data}"
        )
    if model_of_user is None:
        return dataset, recipe
    if (digest := model_digest(model_of_user)) != config["architecture"]:
        raise UserError(
            "--model: the function builds another model than that of the run: give the file with which the run was "
            f"trained. Received: {names['model']} with {digest}, where the run has {config['architecture']}"
        )
    train = sharding(dataset.train) if callable(dataset.train) else arrays_of(dataset.train, "data")
    batches = first_batches(train, dataset.test, size // config["devices_per_worker"], workers)
    return dataset, try_out(recipe, model_of_user, *batches)


def own_model(text: str, seed: int) -> Any:
    """Return the compiled Keras model that a function of the user's file returns."""
    model = _called("--model", text, seed)
    if not isinstance(model, keras.Model):
        raise UserError(f"--model: {text} must return a compiled Keras model. Received: {type(model).__name__}")
    return model


def own_data(options: Options, model: Any) -> Dataset:
    """Return the data that a function of the user's file returns, (x, y) or (train, validation) as `train` takes them.

    A pair of tuples, of data sets or of functions is (train, validation).
    """
    found = _called("--data", options.data or "", options.run.seed)
    steps = options.run.steps and options.run.steps * options.workers
    several = lambda part: isinstance(part, tuple) or callable(part) or yields_batches(part)  # noqa: E731
    pair = isinstance(found, tuple | list) and len(found) == 2 and several(found[0])
    train, test = found if pair and (found[1] is None or several(found[1])) else (found, None)
    train, _ = read(train, "data", model, options.run.batch_size, steps)
    if test is not None:
        test, _ = read(test, "validation_data", model)
    x, y = train[:2] if isinstance(train, tuple) and len(train) > 1 else (None, None)
    classes = 0
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and y.dtype.kind in "iu" and y.min() >= 0:
        classes = 1 + int(y.max())
    return Dataset(train, test, classes)


def check_files(model: str | None, data: str | None) -> None:
    """Check the names of files and functions, before TensorFlow is imported.

    Raises:
        UserError: there is no such file, or the function's name is nowhere in it.
    """
    for flag, text in (("--model", model if model and in_file(model) else None), ("--data", data)):
        if text is None:
            continue
        path, name = _place(flag, text)
        if not path.is_file():
            raise UserError(f"{flag}: there is no file {path}")
        try:
            words = path.read_text()
            tree = ast.parse(words)
        except (OSError, ValueError, SyntaxError):
            continue  # `execute` names the line
        if "import *" not in words and not re.search(rf"\b{re.escape(name)}\b", words):
            functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
            raise _no_function(flag, text, functions)


def _place(flag: str, text: str) -> tuple[Path, str]:
    """Return file and function of `my_file.py:name`."""
    file, _, name = text.rpartition(":")
    if not name or not file.endswith(".py"):
        raise UserError(
            f"{flag} needs a Python file and a function in it, as in my_file.py:{USUAL[flag]}. Received: {text}"
        )
    return Path(file).resolve(), name


def _no_function(flag: str, text: str, functions: list[str]) -> UserError:
    file, _, name = text.rpartition(":")
    return UserError(f"{flag}: {file} has no function {name!r}. {nearest(name, functions, 'Define it')}")


def _called(flag: str, text: str, seed: int) -> Any:
    """Return what the function `my_file.py:name` returns, called without arguments; PyTorch, if imported, has the seed.

    Raises:
        UserError: there is no such file or function, or it raises.
    """
    path, name = _place(flag, text)
    module = execute(path, flag)
    function = getattr(module, name, None)
    if not callable(function):
        raise _no_function(flag, text, [key for key, value in vars(module).items() if inspect.isfunction(value)])
    seed_torch(seed)
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise UserError(f"{flag}: {where(path, error)}{plain(error)}") from None
