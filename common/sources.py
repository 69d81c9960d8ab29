"""The source of modules, as syntax trees: docstrings, and values in class statements, of modules that are not imported.

`python -OO` removes docstrings from a running program, but not from its source.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, TypeGuard

METHOD = re.compile(r"^    (?:@|def )", re.MULTILINE)


def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module, which is not executed; an empty one if there is no source."""
    return _parsed(text_of(module))


def text_of(module: str) -> str:
    """Return the source of a module, which is not executed; an empty text if there is none."""
    with contextlib.suppress(OSError, TypeError, ImportError, AttributeError):
        return inspect.getsource(sys.modules[module]) if module in sys.modules else _text_on_disk(module)
    return ""


@functools.cache
def _text_on_disk(module: str) -> str:
    spec: Any = _spec(module)
    return spec.loader.get_source(module)


def _head(module: str) -> ast.Module:
    """Return the syntax tree of a module up to the first method of a class: to parse it takes a third of the time."""
    text = text_of(module)
    method = METHOD.search(text)
    return _parsed(text[: method.start()] if method else text)


@functools.cache
def _spec(module: str) -> Any:
    """Return the spec of a module without importing the packages that it is in, as `importlib.util.find_spec` does."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    package = module.rpartition(".")[0]
    return PathFinder.find_spec(module, _spec(package).submodule_search_locations if package else None)


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def docstring(thing: type | ModuleType) -> str:
    """Return the docstring of a class or module without indentation, under `python -OO` too; "" if it has none."""
    if sys.flags.optimize < 2:
        return inspect.cleandoc(thing.__doc__ or "")
    node = class_of(thing) if isinstance(thing, type) else tree(thing.__name__)
    return (node and ast.get_docstring(node)) or ""


def headline(text: str) -> str:
    """Return the first line of a docstring, without its period."""
    return text.partition("\n")[0].rstrip(".")


def class_of(kind: type) -> ast.ClassDef | None:
    """Return the statement of a class; None if there is no source."""
    node: ast.AST | None = tree(kind.__module__)
    for name in kind.__qualname__.replace("<locals>.", "").split("."):
        inside = ast.walk(node) if node else ()
        node = next((candidate for candidate in inside if getattr(candidate, "name", None) == name), None)
    return node if isinstance(node, ast.ClassDef) else None


@functools.cache  # a sweep reads the flags of the same classes many times
def meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field of a dataclass: the string below it, in its class or in a base class."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        node = class_of(owner) if dataclasses.is_dataclass(owner) else None
        for lines in itertools.pairwise(node.body if node else ()):
            match lines:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                    found[name] = " ".join(text.split())
    return found


def _origin(node: ast.ImportFrom, module: str) -> str:
    """Return the module from which another one imports with this statement."""
    package = module if _spec(module).submodule_search_locations else module.rpartition(".")[0]
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise LookupError(ast.unparse(value)) from None


def _is_text(value: ast.expr) -> TypeGuard[Any]:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _target(statement: ast.stmt) -> str:
    """Return the name that an assignment sets; an empty text for another statement."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


@dataclasses.dataclass(frozen=True)
class ClassSource:
    """A class statement, which may lack its methods, and the module that has it."""

    module: str
    node: ast.ClassDef

    @classmethod
    def find(cls, module: str, name: str) -> ClassSource:
        """Return a class by its name in a module, which may import it from another one.

        Raises:
            LookupError: there is no such class, or no source.
        """
        found = cls._find(_head(module), module, name) or cls._find(tree(module), module, name)
        if found is None:
            raise LookupError(f"{module}.{name}")
        return found

    @classmethod
    def _find(cls, tree: ast.Module, module: str, name: str) -> ClassSource | None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return cls(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return cls.find(_origin(node, module), alias.name)
        return None

    def _body(self, attribute: str) -> list[ast.stmt]:
        """Return the statements of the class, its methods included if the attribute is one, or not a plain value."""
        plain = any(_target(statement) == attribute for statement in self.node.body)
        if plain or not re.search(rf"^ +(def )?{attribute}\b", text_of(self.module), re.MULTILINE):
            return self.node.body
        whole = self._find(tree(self.module), self.module, self.node.name)
        return whole.node.body if whole else []

    @property
    def headline(self) -> str:
        """The first line of its docstring."""
        return headline(ast.get_docstring(self.node) or "")

    def lineage(self) -> Iterator[ClassSource]:
        """Yield this class, then those that it inherits from, as far as there is source."""
        yield self
        for base in self.node.bases:
            with contextlib.suppress(LookupError):
                yield from self.find(self.module, ast.unparse(base)).lineage()

    def value(self, attribute: str) -> Any:
        """Return the value of an attribute: a literal, or a `ClassSource` for a class, and for a call of one.

        That of a property is what its last line returns.

        Raises:
            LookupError: the attribute has another kind of value, or none.
        """
        for owner in self.lineage():
            for statement in owner._body(attribute):
                match statement:
                    case (
                        ast.Assign(targets=[ast.Name(id=name)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                        | ast.FunctionDef(name=name, body=[*_, ast.Return(value=ast.expr() as value)])
                    ) if name == attribute:
                        return self._value(value, owner.module)
        raise LookupError(attribute)

    def statements(self) -> dict[str, tuple[str, ast.AnnAssign, str]]:
        """Return for each field of a dataclass and its bases the module, the statement, and the meaning below it."""
        found: dict[str, tuple[str, ast.AnnAssign, str]] = {}
        for owner in reversed(list(self.lineage())):
            if not any("dataclass" in ast.unparse(decorator) for decorator in owner.node.decorator_list):
                continue
            for lines in itertools.pairwise([*owner.node.body, ast.Pass()]):
                match lines:
                    case (ast.AnnAssign(target=ast.Name(id=name)) as field, below):
                        if ast.unparse(field.annotation).startswith("ClassVar"):
                            continue
                        text = below.value.value if isinstance(below, ast.Expr) and _is_text(below.value) else ""
                        before = found[name][2] if name in found else ""
                        found[name] = owner.module, field, " ".join(text.split()) or before
        return found

    def fields(self) -> dict[str, tuple[Any, str]]:
        """Return default and meaning of each field of a dataclass and its bases, as `meanings` finds them.

        Raises:
            LookupError: a default is no literal.
        """
        statements = self.statements().items()
        return {name: (_literal(field.value), text) for name, (_, field, text) in statements if field.value is not None}

    def _value(self, value: ast.expr, module: str) -> Any:
        match value:
            case ast.Call(func=function):
                return self._value(function, module)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.value(name)
            case ast.Name(id=name):
                return self.find(module, name)
        return _literal(value)


def _named(name: str) -> Any:
    """Return a function of this name that does nothing."""

    def function(**_: Any) -> None: ...

    function.__name__ = name
    return function


class Names(dict[str, Any]):
    """The names of a module as values, for the expressions in its source; the module is not executed.

    A class of this package is a `ClassSource`, and a function of it has nothing but its name. Only the standard library
    is imported.
    """

    def __init__(self, module: str):
        super().__init__()
        self.module = module

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        Raises:
            LookupError: it cannot be found without executing the module.
        """
        try:
            return eval(compile(ast.Expression(node), self.module, "eval"), {"__builtins__": {}}, self)
        except (TypeError, AttributeError, NameError) as error:
            raise LookupError(f"{self.module}: {ast.unparse(node)} ({error})") from None

    def __missing__(self, name: str) -> Any:
        self[name] = found = self._found(name)
        return found

    def _found(self, name: str) -> Any:
        for node in tree(self.module).body:
            match node:
                case ast.ClassDef(name=own) if own == name:
                    return ClassSource(self.module, node)
                case ast.FunctionDef(name=own) if own == name:
                    return _named(own)
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if _target(node) == name:
                    return self.value(value)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    for alias in names:
                        if name == (alias.asname or alias.name):
                            return self._imported(node, alias.name)
        return vars(builtins)[name]

    def _imported(self, node: ast.Import | ast.ImportFrom, name: str) -> Any:
        """Return what a module of this package has under a name, or what the standard library has."""
        if isinstance(node, ast.ImportFrom) and node.level:
            return Names(_origin(node, self.module))[name]
        origin = node.module if isinstance(node, ast.ImportFrom) else name
        if str(origin).partition(".")[0] not in sys.stdlib_module_names:
            raise LookupError(f"{origin}.{name}")
        found = importlib.import_module(str(origin))
        return getattr(found, name) if isinstance(node, ast.ImportFrom) else found
