"""TensorFlow and Keras, imported when one of their attributes is first read: commands without them start quickly."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from .errors import UserError

WITHOUT = "list, explain, advise, replay, timeline, doctor"


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


def require_tensorflow() -> None:
    """Check that TensorFlow and Keras are installed, without importing them.

    Raises:
        UserError: one of them is not.
    """
    if missing := [name for name in ("tensorflow", "keras") if find_spec(name) is None]:
        raise UserError(
            f"not installed in this environment: {', '.join(missing)}. To install: pip install {' '.join(missing)}. "
            f"Commands that work without: {WITHOUT}"
        )
