"""What is imported at its first use: TensorFlow, Keras, and the classes of a catalogue. So commands start quickly."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import UserError
from .packages import INSTALL

Kind = TypeVar("Kind")

WITHOUT = "list, explain, advise, replay, timeline, doctor"

IN_KERAS_FILE = {  # without these values Keras cannot be imported
    "floatx": "float16, float32, float64",
    "epsilon": "a number with a point",
    "image_data_format": "channels_last, channels_first",
}


class _Lazy:
    """A name for a module that is imported on first use.

    The object does not store the module: each access asks the import system, as an import statement inside a function
    does. So threads with the first access at the same time wait for one import, and a module that `sys.modules` forbids
    stays forbidden.
    """

    __slots__ = ("_module", "_name")

    def __init__(self, name: str, module: str):
        self._name, self._module = name, module

    def __getattr__(self, attribute: str) -> Any:
        return getattr(__import__(self._module), attribute)

    def __reduce__(self) -> str:
        """Pickle and copy the name in this file instead of the module."""
        return self._name


tf: Any = _Lazy("tf", "tensorflow")
keras: Any = _Lazy("keras", "keras")


class Catalogue(MutableMapping[str, Kind], Generic[Kind]):
    """Classes by the names of their modules in a package; reading one imports its module. Others can be added.

    Args:
        package: name of the package.
        names: name of the class in each module, by name of the module.
    """

    def __init__(self, package: str, names: Mapping[str, str]):
        self.package, self.names = package, names
        self._kinds: dict[str, Kind | None] = dict.fromkeys(names)

    def imported(self, name: str) -> Kind | None:
        """Return a class if it has been imported or added, else None."""
        return self._kinds[name]

    def __getitem__(self, name: str) -> Kind:
        if (kind := self._kinds[name]) is None:
            kind = self._kinds[name] = getattr(import_module(f"{self.package}.{name}"), self.names[name])
        return kind

    def __setitem__(self, name: str, kind: Kind) -> None:
        self._kinds[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds


def keras_file() -> Path:
    """Return the path of Keras' own file of settings, which Keras reads when it is imported."""
    home = Path("~").expanduser()
    home = home if os.access(home, os.W_OK) else Path("/tmp")
    return Path(os.environ.get("KERAS_HOME") or home / ".keras").expanduser() / "keras.json"


def _check_keras_file() -> None:
    """Raise `UserError` for a file of settings with which Keras cannot be imported."""
    try:
        content = json.loads(keras_file().read_text())
    except (OSError, ValueError):  # Keras ignores a file that it cannot read as JSON
        return
    if not isinstance(content, dict):
        raise UserError(f"Keras cannot read its settings in {keras_file()}: they must be an object")
    for name, wanted in IN_KERAS_FILE.items():
        value = content.get(name)
        if name in content and not (isinstance(value, float) if name == "epsilon" else value in wanted.split(", ")):
            raise UserError(
                f"Keras cannot read its settings in {keras_file()}: {name} must be {wanted}. Received: {value!r}"
            )


def require_tensorflow() -> None:
    """Check that this system can start a run, and that TensorFlow and Keras are installed, without importing them.

    Raises:
        UserError: the system is Windows, or one of them is not installed or cannot read its settings.
    """
    if sys.platform == "win32":
        raise UserError(
            "runs need Linux or macOS: on Windows use WSL2, or a container (deploy/Dockerfile). Commands that work "
            f"here: {WITHOUT}"
        )
    if missing := [name for name in ("tensorflow", "keras") if find_spec(name) is None]:
        raise UserError(
            f"not installed in this environment: {', '.join(missing)}. To install: {INSTALL} {' '.join(missing)}. "
            f"Commands that work without: {WITHOUT}"
        )
    if "keras" not in sys.modules:
        _check_keras_file()
