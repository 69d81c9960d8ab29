"""TensorFlow and Keras, imported when one of their attributes is first read: commands without them start quickly."""

from __future__ import annotations

from typing import Any


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
