"""The fingerprint of a run: the properties that all its tasks must share, as comparable words and digests."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import inspect
import json
import platform
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.dataset import leaves
from .task_spec import TaskSpec

ADDRESS = r" at 0x[0-9a-f]+"  # in the text of an object without a name

OF_ONE_MACHINE = ("isolation", "kernels", "earlier_step_targets")  # configuration in which the tasks may differ

ROOT = Path(__file__).resolve().parent.parent.parent  # of the source: the installed package or the checkout


def identity(config: Mapping[str, Any], spec: TaskSpec, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the description of a task's run, in words that can be compared with those of another task."""
    versions = {name: importlib.metadata.version(name) for name in ("distsgd", "tensorflow", "keras", "numpy")}
    addresses = spec.addresses.as_dict()
    evaluator = "a task of its own" if spec.separate_evaluator else "with the chief"
    return {
        **{key: value for key, value in config.items() if key not in OF_ONE_MACHINE},
        **(more or {}),
        "addresses": {job: ",".join(hosts) for job, hosts in addresses.items()},
        "evaluator": evaluator,
        "versions": {**versions, "python": platform.python_version(), "source": source_digest()},
    }


def source_digest(root: Path = ROOT, within: Sequence[str] = ("algorithms", "common")) -> str:
    """Return a short digest of the source that runs a task, of all files in the folders and files `within`.

    Two checkouts of one version may differ.
    """
    digest = hashlib.sha256()
    for place in (root / name for name in within):
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def data_digest(data: Any) -> str:
    """Return a short digest of nested arrays; of a data function, the digest of its name only."""
    import numpy as np

    digest = hashlib.sha256()
    for leaf in leaves(data):
        if isinstance(leaf, np.ndarray):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
        else:
            digest.update(getattr(leaf, "__qualname__", str(leaf)).encode())
    return digest.hexdigest()[:12]


_parsing = threading.Lock()  # Python 3.11 parses source wrongly if several threads do so at once


def class_digest(kind: type) -> str:
    """Return a short digest of a class's source; empty for this package, whose modules are compared as a whole."""
    if kind.__module__.startswith("distsgd."):
        return ""
    try:
        with _parsing:
            text = inspect.getsource(kind)
    except (OSError, TypeError):  # a class typed at a prompt has no source file
        text = kind.__qualname__
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def model_digest(model: Any) -> str:
    """Return the size of a Keras model in words, and a short digest of its layers and variables without their names."""
    layers = list(model._flatten_layers())
    numbers = {layer.name: f"layer {i}" for i, layer in enumerate(layers)}  # configurations name other layers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lambdas
        described = [(type(layer).__name__, _nameless(layer.get_config(), numbers)) for layer in layers]
    variables = [(tuple(v.shape), str(v.dtype)) for v in model.variables]
    digest = hashlib.sha256(json.dumps([described, variables], default=_kind, sort_keys=True).encode())
    return f"{len(variables)} variables, {model.count_params()} parameters, {digest.hexdigest()[:12]}"


def given_name(model: Any) -> str:
    """Return the name of a Keras model, without the number of an automatic name, which a cell run again would change.

    Example: `sequential` for `sequential_7`.
    """
    automatic = keras_name(type(model).__name__)
    return automatic if re.fullmatch(rf"{automatic}(_\d+)?", model.name) else model.name


def keras_name(kind: str) -> str:
    """Return the name that Keras gives to the first layer or model of a class, `text_model` for `TextModel`."""
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", kind)))
    return words.lower()


def _nameless(config: Any, numbers: Mapping[str, str]) -> Any:
    """Return a configuration without layer names, which Keras counts up; references to layers become their numbers."""
    if isinstance(config, dict):
        kept = {key: value for key, value in config.items() if key not in ("name", "registered_name")}
        return {key: _nameless(value, numbers) for key, value in kept.items()}
    if isinstance(config, list | tuple):
        return [_nameless(value, numbers) for value in config]
    return numbers.get(config, config) if isinstance(config, str) else config


def _kind(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def in_words(function: Any) -> str:
    """Return a hyperparameter that is no number, such as a Keras schedule, as a text equal in all processes."""
    with contextlib.suppress(AttributeError, NotImplementedError):
        return f"{type(function).__name__}({function.get_config()})"
    return re.sub(ADDRESS, "", repr(function))


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested mappings as one mapping, with dotted names and JSON values."""
    found: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            text = json.dumps(value, default=str).strip('"')
            found[f"{prefix}{key}"] = re.sub(ADDRESS, "", text)
    return found


def differences(own_identity: Mapping[str, Any], other_identity: Mapping[str, Any], other: str) -> str:
    """Return the differences of two identities in words; empty if they are equal."""
    ours, its = flat(own_identity), flat(other_identity)
    return "; ".join(
        f"{name} is {ours.get(name, 'not given')} here and {its.get(name, 'not given')} at {other}"
        for name in sorted(ours.keys() | its.keys())
        if ours.get(name) != its.get(name)
    )
