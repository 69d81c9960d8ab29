"""The format of the record of a run, and its reader.

A run directory may be foreign or damaged. So each value is checked as it is read, reading never waits for a pipe or a
device, and no array takes more memory than its file has bytes. docs/record.md describes the files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import UserError, first_line

# One event on the ps: a row of trace.npz, which has a column for each name.
RECORD = ("version", "worker", "staleness", "accepted", "microseconds", "event")

# Recorded as the index. "join": a worker takes its slot again, and starts from the center. "up", "down": of a region.
EVENTS = ("exchange", "push", "pull", "join", "up", "down")
BETWEEN_SERVERS = EVENTS.index("up")  # the first of these that is no event of a worker

INITIAL, DATA, GRADIENTS = "initial.npz", "data.npz", "gradients-{}.bin"  # the first center; data; of worker k
PARTS = ("train_x", "train_y", "test_x", "test_y")  # the arrays in data.npz
# In config.json, of a script whose own optimizer makes the local steps: what is not that of the scheme.
OF_SCRIPT: Mapping[str, Any] = {"inner_optimizer": "of the script", "learning_rate": None}
ALONE_STEPS = 64  # most steps in an event of a scheme that exchanges nothing

MOST_TASKS, MOST_STEPS = 2**20, 10**12  # of a run: a table of its tasks still fits into memory
MOST_CHARACTERS = 4096  # long enough for the path of a file
MOST_TEXT, MOST_LINE = 1 << 26, 1 << 20  # bytes of a text that is read as a whole, and of a line in other texts

NUMBERS = "iuf"  # kinds of NumPy types
Array = Any  # of NumPy, which functions import: most commands read none, and it takes half of their time

Kind = tuple[str, Callable[[Any], bool]]  # description for errors, and a predicate on a value


def whole(least: int, most: int) -> Kind:
    """Return the kind of whole numbers in a range."""

    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return f"a whole number from {least} to {most}", fits


def or_null(kind: Kind) -> Kind:
    """Return the kind of values that may be missing."""
    return f"{kind[0]}, or null", lambda value: value is None or kind[1](value)


def list_of(kind: Kind) -> Kind:
    """Return the kind of lists of a kind."""
    return f"a list, each {kind[0]}", lambda value: isinstance(value, list) and all(map(kind[1], value))


TEXT: Kind = (
    f"a text of one line, of at most {MOST_CHARACTERS} characters",
    lambda value: isinstance(value, str) and len(value) <= MOST_CHARACTERS and value.isprintable(),
)
NUMBER: Kind = (
    "a finite number from 0",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf,
)
HYPERPARAMETERS: Kind = (
    f"an object, each text in it of one line and at most {MOST_CHARACTERS} characters",
    lambda value: (
        isinstance(value, dict) and all(TEXT[1](some) for some in (*value, *value.values()) if isinstance(some, str))
    ),
)
RECOVERY: Kind = (
    "an object with the evicted workers",
    lambda value: isinstance(value, dict) and list_of(whole(0, MOST_TASKS))[1](value.get("evicted")),
)
BOOLEAN: Kind = ("true or false", lambda value: isinstance(value, bool))
ARITHMETIC: Kind = (
    "an object with tf32 and bfloat16, each true or false",
    lambda value: isinstance(value, dict) and all(isinstance(value.get(key), bool) for key in ("tf32", "bfloat16")),
)
STEPS, TASKS = whole(1, MOST_STEPS), whole(1, MOST_TASKS)

CONFIG: Mapping[str, Kind] = {
    "algorithm": TEXT, "backend": TEXT, "dataset": TEXT, "model": TEXT, "record": TEXT, "codec": TEXT, "l2": NUMBER,
    "hyperparameters": HYPERPARAMETERS, "workers": TASKS, "devices_per_worker": TASKS, "ps": whole(0, MOST_TASKS),
    "batch_size": whole(1, 2**31), "steps_per_worker": STEPS, "steps_of_workers": list_of(whole(0, MOST_STEPS)),
    "earlier_step_targets": list_of(STEPS), "seed": whole(0, 2**32 - 1), "skew": or_null(TEXT),
    "participation": or_null(NUMBER), "hostile": or_null(TEXT), "clip_norm": or_null(NUMBER),
    "ema_decay": or_null(NUMBER), "kernels": or_null(TEXT), "servers_apart": BOOLEAN, "arithmetic": ARITHMETIC,
    "exclude_from_weight_decay": or_null(TEXT), "without_decay": list_of(whole(0, 2**31)),
}  # fmt: skip

RESULT: Mapping[str, Kind] = {"algorithm": TEXT, "updates": or_null(whole(0, 2**63 - 1)), "recovery": RECOVERY}


class Content(dict[str, Any]):
    """The values in a file of a run, by name; a missing one raises `UserError` when it is read."""

    def __init__(self, path: Path, values: Mapping[str, Any]):
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the files in {self.path.parent} are not those of a run: they have no {name!r} ({self.path.name}). Give "
            "the folder of a run of this version"
        )


def checked(path: Path, content: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Content:
    """Return the values in a file; raise `UserError` for one that is not of its kind. Values may be missing."""
    for name, (wanted, fits) in kinds.items():
        if name in content and not fits(content[name]):
            raise UserError(f"{path} is damaged: {name} must be {wanted}. Received: {short(content[name])}")
    return Content(path, content)


def short(value: Any, most: int = 40) -> str:
    """Return the `repr` of a value, cut after that many characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."


def with_script(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as config.json has them if an optimizer of the script makes the local steps."""
    return {name: OF_SCRIPT.get(name, value) for name, value in hyperparameters.items()}


def is_of_script(hyperparameters: Mapping[str, Any]) -> bool:
    """Return True if config.json says that an optimizer of the script made the local steps."""
    return hyperparameters.get("inner_optimizer") == OF_SCRIPT["inner_optimizer"]


def without_script(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of config.json without those in whose place a script has an optimizer of its own."""
    of_script = OF_SCRIPT if is_of_script(hyperparameters) else {}
    return {name: value for name, value in hyperparameters.items() if name not in of_script}


def read_config(run_dir: Path, name: str = "config.json") -> dict[str, Any]:
    """Return the content of config.json of any version; raise `UserError` if it is missing or damaged."""
    if not (path := run_dir / name).is_file():
        why = "it has no config.json" if run_dir.exists() else "there is no such folder; the command runs lists runs"
        raise UserError(f"not a run directory: {why}. Received: {run_dir}")
    config = checked(path, read_json(path), CONFIG)
    values = config.get("hyperparameters", {})  # of an older record
    if config.get("algorithm") == "local_sgd" and (steps := values.pop("synchronous_steps", 0)):
        values["communication_period"] = f"post-local:{steps},{values.get('communication_period', 10)}"
    return config


def read_result(run_dir: Path, more: Mapping[str, Kind] = {}) -> dict[str, Any]:
    """Return the content of result.json; raise `UserError` if it is missing or damaged. `more`: kinds of values."""
    path = run_dir / "result.json"
    return checked(path, read_json(path), {**RESULT, **more})


def read_trace(run_dir: Path, config: Mapping[str, Any]) -> dict[str, Array]:
    """Return the events of a run that has ended, by column; raise `UserError` if they are missing or damaged."""
    if config["record"] == "off":
        raise UserError(f"{run_dir} has no trace.npz, as the run was recorded with record=off: train with record=full")
    trace = read_arrays(run_dir, "trace.npz")
    if not whole_columns(trace, RECORD):
        raise UserError(f"trace.npz is damaged: it needs the columns {', '.join(RECORD)}, of one length")
    for name, end in (("worker", config["workers"]), ("event", len(EVENTS)), ("accepted", 2)):
        if not ((trace[name] >= 0) & (trace[name] < end)).all():
            raise UserError(f"trace.npz is damaged: {name} must be at least 0 and less than {end}")
    return trace


def read_center(run_dir: Path, name: str) -> Array:
    """Return the `center` [P] in a file of arrays; raise `UserError` if the file is missing or damaged."""
    center = read_arrays(run_dir, name)["center"]
    if center.dtype != "float32" or center.ndim != 1:
        raise UserError(f"{name} is damaged: center must be a vector of float32. Received: {center.dtype}")
    return center


def read_arrays(run_dir: Path, name: str) -> dict[str, Array]:
    """Return the arrays in a file of a run that has ended; raise `UserError` if it is missing or damaged."""
    if not (run_dir / name).is_file():  # reading a device would not end
        raise UserError(f"the run in {run_dir} has no {name}: it ended without a result, or is of another version")
    try:
        with open_to_read(run_dir / name) as file:
            return Content(run_dir / name, stored_arrays(file))
    except Exception as error:  # NumPy and zipfile raise many kinds of errors on damaged files
        raise UserError(f"cannot read {run_dir / name}, which is damaged: {first_line(error)}") from None


def stored_arrays(file: Any, kinds: str = NUMBERS, names: Collection[str] = ()) -> dict[str, Array]:
    """Read arrays from an open file, without allocating more memory than the file has bytes, whatever its headers say.

    Args:
        file: file of NumPy's format npz, not compressed.
        kinds: permitted kinds of types.
        names: of the arrays to read; all by default.

    Raises:
        ValueError: the file holds something else. A damaged file may raise other errors, too.
    """
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        return {name: _array(archive, entries[name], kinds) for name in names or entries}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, kinds: str) -> Array:
    import numpy as np

    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed: it may be of any size")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in headers:
            raise ValueError(f"no array of format {version} is read here")
        shape, fortran_order, dtype = headers[version](file)
        if dtype.kind not in kinds or dtype.hasobject or fortran_order:
            raise ValueError(f"{entry.filename} holds {first_line(dtype)[:40]}, no numbers")
        content = file.read()
    size = math.prod(map(int, shape))  # a Python integer, which cannot overflow
    if min(shape, default=1) < 0 or size * dtype.itemsize != len(content):
        raise ValueError(f"{entry.filename} is of shape {first_line(shape)[:40]}, which its size is not")
    return np.frombuffer(content, dtype).reshape(shape)


def whole_columns(columns: Mapping[str, Array], names: Sequence[str]) -> bool:
    """Return True if these arrays are exactly the columns of one table of integers, [n] each."""
    shapes = {column.shape for column in columns.values()}
    kinds = {column.dtype.kind for column in columns.values()}
    return set(columns) == set(names) and len(shapes) == 1 and len(*shapes) == 1 and kinds == {"i"}


def open_to_read(path: Path) -> Any:
    """Open a file to read its bytes; raises `OSError` for a pipe or a device, which may have no end."""
    return open(path, "rb", opener=regular)


def regular(path: str | Path, flags: int) -> int:
    """Return a descriptor of a file, for `open`; raises `OSError` if it is not a regular file."""
    found = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)  # without it, to open a pipe would block
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return found


def read_text(path: Path) -> str:
    """Return the content of a file; raises `OSError`, or `ValueError` if it is no text, or longer than any of a run."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_TEXT:
            raise ValueError(f"it has more than {MOST_TEXT} bytes")
        return file.read().decode()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file that has one on each line; skip other lines, such as one that was cut off."""
    with contextlib.suppress(OSError), open_to_read(path) as file:
        while (line := file.readline(MOST_LINE)).endswith(b"\n"):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(row := json.loads(line), dict):
                    yield row


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises `UserError` if the file holds none."""
    try:
        value = json.loads(read_text(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object. Put it right, or choose another run directory")
    return value
