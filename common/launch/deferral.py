"""The import of TensorFlow and Keras without the packages that both import only if they are installed.

TensorFlow and Keras import pandas, jax, Matplotlib and others in a `try` statement that expects an `ImportError`. Such
a package takes time, and may start a thread, after which a process cannot fork safely. So these statements receive a
`Deferred` module, whose content is imported when it is first used. Until a task uses it, the package is not in
`sys.modules`: an import statement of the user's code imports it as usual.
"""

from __future__ import annotations

import ast
import gc
import importlib
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

IMPORTERS = ("keras", "tensorflow")

# Parts of Keras that use such a package as soon as they are imported, and which no other part of Keras uses. They are
# deferred, too. This saves time only: a package that is used during the import is imported then.
AT_FIRST_USE = ("keras.wrappers", "keras.src.callbacks.orbax_checkpoint")

# Modules that the graph of a task needs, and which import TensorFlow. `transport` comes before any other module that
# registers Python functions: otherwise the tasks would have different tokens for the same `PyFunc`.
FOR_A_GRAPH = (
    "..messages.transport", "..messages.carried", "..messages.copies", "..server.parameter_server",
    "..server.snapshots", "..worker.fed_worker", "..worker.without_copy",
)  # fmt: skip

CATCHING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Deferred(ModuleType):
    """A stand-in for a module that is imported when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        if _finder is not None:
            asking = sys._getframe(1)
            if _is_importlib(asking) or (name.startswith("__") and name != "__version__"):
                raise AttributeError(name)  # it asks for a submodule, or for what a module need not have
            if _top(asking.f_globals.get("__name__")) in IMPORTERS:
                return DeferredName(self.__name__, name)
        return getattr(_imported(self.__name__), name)


class DeferredName:
    """A stand-in for a class or function of a deferred module."""

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def _value(self) -> Any:
        return getattr(_imported(self._module), self._name)

    def _is_loaded(self) -> bool:
        return not isinstance(sys.modules.get(self._module), Deferred | None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value(), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function or class."""
        return self._value()(*arguments, **named)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the class, for a class that is derived from it."""
        return (self._value(),)

    def __instancecheck__(self, instance: Any) -> bool:
        """Return whether this is the class of `instance`: a module that was never imported has no instances."""
        return self._is_loaded() and isinstance(instance, self._value())

    def __subclasscheck__(self, derived: Any) -> bool:
        """Return whether a class is derived from this one."""
        return self._is_loaded() and issubclass(derived, self._value())


class DeferringFinder(MetaPathFinder, Loader):
    """The finder of deferred modules, the first in `sys.meta_path` while TensorFlow and Keras are imported."""

    def __init__(self):
        self.needed: set[str] = set()  # modules that were used during the import

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the specification of a deferred module; None for all modules that are imported as usual."""
        if fullname in self.needed or not self._deferrable(fullname):
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if found is None:
            return None
        spec = ModuleSpec(fullname, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def _deferrable(self, name: str) -> bool:
        parent, _, _ = name.rpartition(".")
        if parent:
            return name in AT_FIRST_USE or isinstance(sys.modules.get(parent), Deferred)
        frame = sys._getframe(2)
        while frame.f_back is not None and _is_importlib(frame):
            frame = frame.f_back
        return name not in sys.stdlib_module_names and name not in IMPORTERS and _expects_absence(frame)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stand-in."""
        return Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing yet."""

    def need(self, name: str) -> None:
        """Import a module, and the package that it is in, as usual from now on."""
        top = name if name in AT_FIRST_USE else _top(name)
        for stand_in in [found for found in sys.modules.copy() if f"{found}.".startswith(f"{top}.")]:
            self.needed.add(stand_in)
            if isinstance(sys.modules[stand_in], Deferred):
                del sys.modules[stand_in]
        self.needed.add(top)


_finder: DeferringFinder | None = None  # while TensorFlow and Keras are imported


def _imported(name: str) -> ModuleType:
    if _finder is not None:
        _finder.need(name)
    return importlib.import_module(name)


def _top(name: Any) -> str:
    return str(name).partition(".")[0]


def _is_importlib(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_filename == importlib.__file__


def _expects_absence(frame: FrameType) -> bool:
    """Return True if TensorFlow or Keras executes this frame, in a `try` statement that expects an `ImportError`."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals)
    if _top(frame.f_globals.get("__name__")) not in IMPORTERS or not text[:1].isspace():
        return False
    for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
        if isinstance(node, ast.Try) and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0):
            caught = [ast.walk(handler.type) if handler.type else () for handler in node.handlers]
            names = [{part.id for part in parts if isinstance(part, ast.Name)} for parts in caught]
            if any(handler.type is None for handler in node.handlers) or any(found & CATCHING for found in names):
                return True
    return False


@contextmanager
def deferring() -> Iterator[None]:
    """Defer the packages that TensorFlow and Keras import inside this block only if they are installed."""
    global _finder
    _finder = DeferringFinder()
    sys.meta_path.insert(0, _finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_finder)
        _finder = None
        for name, module in sys.modules.copy().items():
            if isinstance(module, Deferred):
                del sys.modules[name]
        linecache.clearcache()


def import_tensorflow() -> None:
    """Import the modules that a task needs, in 60 % of the CPU time of all that TensorFlow and Keras import.

    The garbage collector is off meanwhile: otherwise it would scan the imported modules again and again.
    """
    gc.disable()
    try:  # not the lazy import: the tasks are forked with all modules loaded
        with deferring():
            import keras  # noqa: F401
            import tensorflow  # noqa: F401

            for module in FOR_A_GRAPH:
                importlib.import_module(module, __package__)
            from . import tasks  # noqa: F401
    finally:
        gc.enable()
