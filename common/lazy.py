"""TensorFlow and Keras, imported when an attribute of theirs is first read: commands without them start quickly."""

from __future__ import annotations

from typing import Any


class _Lazy:
    """A name for a module.

    It keeps no module: each access asks the import system, as an import statement inside the function would. So
    threads that come first at the same time wait for one import, and a module that `sys.modules` forbids stays so.
    """

    __slots__ = ("_module", "_name")

    def __init__(self, name: str, module: str):
        self._name, self._module = name, module

    def __getattr__(self, attribute: str) -> Any:
        return getattr(__import__(self._module), attribute)

    def __reduce__(self) -> str:
        """Pickle and copy the name in this file, and not the module."""
        return self._name


tf: Any = _Lazy("tf", "tensorflow")
keras: Any = _Lazy("keras", "keras")
