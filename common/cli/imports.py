"""Import of schemes, codecs and their equations from a user's file: `bash run.sh --import my_scheme.py my_scheme`."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..contract.rounding import CODECS, Compressor
from ..contract.scheme import Scheme
from ..errors import UserError
from ..lazy import require_tensorflow
from ..libraries import LOG_LEVEL
from ..packages import remedy
from ..replay.adapters import TRANSCRIPTIONS
from ..replay.recorded import Transcription
from ..replay.reference import codecs
from ..settings import use_tensorflow

PREFIX = "distsgd_import_"  # of the name of an imported module


def import_file(path: Path, schemes: dict[str, type[Scheme]]) -> None:
    """Add the schemes of a file to `schemes`, and its codecs and equations to those of the package.

    Raises:
        UserError: the file does not exist, raises, or defines nothing of these, or a wrong one.
    """
    schemes.update(import_schemes(path, schemes))
    CODECS.update(import_codecs(path))
    for name, transcription in import_equations(path).items():
        (TRANSCRIPTIONS if isinstance(transcription, Transcription) else codecs.CODECS)[name] = transcription


def words_of_imports(*used: object) -> list[str]:
    """Return the words of a command that import the files of these schemes and codecs, `--import my_scheme.py`."""
    names = dict.fromkeys(type(item).__module__ for item in used if type(item).__module__.startswith(PREFIX))
    return [word for name in names for word in ("--import", str(sys.modules[name].__file__))]


def import_schemes(path: Path, catalogue: Mapping[str, type[Scheme]]) -> dict[str, type[Scheme]]:
    """Import the schemes that a file defines, by name; they are pickled by value for other processes.

    Raises:
        UserError: the file does not exist, raises, or defines no scheme or codec, or a wrong scheme.
    """
    module = execute(path, "--import")
    schemes: dict[str, type[Scheme]] = {}
    found = _classes(module, Scheme)
    _name_the_only([scheme for scheme in found if not _is_named(scheme)], path)
    for scheme in found:
        _check(scheme, path, {**catalogue, **schemes})
        schemes[scheme.name] = scheme
    if not schemes and not _classes(module, Compressor) and not hasattr(module, "TRANSCRIPTIONS"):
        raise UserError(
            f"{path} defines no scheme or codec: it needs a subclass of distsgd.Scheme, or of "
            "distsgd.common.contract.Compressor"
        )
    return schemes


def import_codecs(path: Path) -> dict[str, type[Compressor]]:
    """Return the codecs for `--codec` in an imported file, by the `name` of each class.

    In a file of codecs alone a single class without a name gets that of its file. Else a class without a name is no
    codec for `--codec`, but a base, or the own codec of a scheme.

    Raises:
        UserError: a codec has the name of another, or is no dataclass.
    """
    module = sys.modules[_module_name(path)]
    classes = _classes(module, Compressor)
    if not _classes(module, Scheme):
        _name_the_only(classes, path)
    found = {kind.name: kind for kind in classes if _is_named(kind)}
    for name, kind in found.items():
        _check_fields(kind, path, "options")
        if name == "float32" or CODECS.get(name, kind) is not kind:
            raise UserError(f"{path}: another codec has the name {name!r} already: choose another")
    return found


def _is_named(kind: type) -> bool:
    return isinstance(vars(kind).get("name"), str)


def _name_the_only(kinds: list[Any], path: Path) -> None:
    """Name a single class after its file, as the algorithms of the catalogue are, unless it has a name."""
    if len(kinds) == 1 and not _is_named(kinds[0]):
        kinds[0].name = re.sub(r"\W", "_", path.stem)


def _classes(module: ModuleType, base: type) -> list[Any]:
    """Return the classes of that kind that a module defines."""
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base))
    return [kind for kind in kinds if kind.__module__ == module.__name__]


def import_equations(path: Path) -> dict[str, Any]:
    """Return the equations in an imported file by which runs of its schemes are replayed: its `TRANSCRIPTIONS`.

    Those of a codec are a function of its options, as in the reference.

    Raises:
        UserError: they are of another kind, or of an algorithm or a codec of the package.
    """
    found = getattr(sys.modules[_module_name(path)], "TRANSCRIPTIONS", {})
    if not isinstance(found, dict) or not all(
        isinstance(transcription, Transcription) or _is_codec(transcription) for transcription in found.values()
    ):
        raise UserError(
            f"{path}: TRANSCRIPTIONS must be a dict of a Transcription for each algorithm, or of a function with the "
            f"argument memory for each codec. Received: {found!r}"
        )
    catalogued = {**codecs.CODECS, **TRANSCRIPTIONS}
    if taken := [
        name for name, transcription in found.items() if catalogued.get(name, transcription) is not transcription
    ]:
        raise UserError(f"{path}: TRANSCRIPTIONS has {taken[0]!r}, whose equations the catalogue has: choose another")
    return found


def _is_codec(equations: Any) -> bool:
    return callable(equations) and "memory" in inspect.signature(equations).parameters


def _module_name(path: Path) -> str:
    return f"{PREFIX}{path.stem}"


def execute(path: Path, flag: str) -> ModuleType:
    """Run the file of a flag as a module, once; an exception becomes a `UserError` that names the line."""
    path, name = path.resolve(), _module_name(path)
    if not path.is_file():
        raise UserError(f"{flag}: there is no file {path}")
    if (imported := sys.modules.get(name)) is not None and imported.__file__ == str(path):
        return imported
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag} takes a Python file, with a name that ends in .py. Received: {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # it may import modules of its folder, in every process
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{flag}: {where(path, error)}{type(error).__name__}: {error}{remedy(error)}") from None
    return module


def use_tensorflow_here() -> None:
    """Select Keras' TensorFlow back end and silence TensorFlow's log, for commands that build a model here."""
    use_tensorflow()
    os.environ.setdefault(LOG_LEVEL, "3")


def import_tensorflow() -> None:
    """Import Keras and TensorFlow silently, for commands that train here: their messages would disturb the output."""
    require_tensorflow()
    use_tensorflow_here()
    import keras  # noqa: F401
    import tensorflow  # noqa: F401


def where(path: Path, error: BaseException) -> str:
    """Return the place in the file where an exception arose, as far as it is known: 'file, line 3 (its text): '."""
    if isinstance(error, SyntaxError):
        number, text = error.lineno, error.text
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        number, text = (frames[-1].lineno, frames[-1].line) if frames else (None, None)
    return f"{path}, line {number} ({(text or '').strip()}): " if number else f"{path}: "


def _check(scheme: type[Scheme], path: Path, catalogue: Mapping[str, type[Scheme]]) -> None:
    """Check that a scheme has a unique name and defaults for all hyperparameters; set its paper if missing."""
    subject = f"class {scheme.__name__} in {path}"
    if not _is_named(scheme):
        raise UserError(f'{subject} has no name: give it one, as in name = "{path.stem}"')
    if scheme.name in catalogue:
        raise UserError(f"{subject} has the name {scheme.name!r}, which another algorithm has already: choose another")
    _check_fields(scheme, path, "hyperparameters")
    scheme.paper = vars(scheme).get("paper") or path.name


def _check_fields(kind: Any, path: Path, what: str) -> None:
    """Check that an imported class is a dataclass, if it has fields, and that each of them has a default."""
    subject = f"class {kind.__name__} in {path}"
    if "__dataclass_fields__" not in vars(kind) and inspect.get_annotations(kind):
        raise UserError(
            f"{subject} needs @dataclass(frozen=True, kw_only=True) above it: without it, its fields are no {what}"
        )
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{subject}: {what.removesuffix('s')} {field.name} needs a default")
