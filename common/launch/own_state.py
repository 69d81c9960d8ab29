"""The state of an optimizer of a script as arrays, without code: checkpoints have it beside the local state."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..messages.torch_tensors import is_torch, on_host

PREFIX = "script/"  # of the names of arrays of the script, beside those of the algorithm

FORM = f"{PREFIX}form"  # name of the structure of the state, JSON as bytes


class OwnState:
    """The state of an object of the script, which a checkpoint has and a worker gets back that resumes or restarts.

    Args:
        owner: an object with `state_dict()` and `load_state_dict(state)`, as optimizers and schedulers of PyTorch, or
            an optimizer of Keras.
        variables: the variables of the join, for which an optimizer of Keras is built.
    """

    def __init__(self, owner: Any, variables: list[Any]):
        if hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict"):
            self._read: Callable[[], Any] = owner.state_dict
            self._write: Callable[[Any], Any] = owner.load_state_dict
        elif hasattr(owner, "build") and hasattr(owner, "load_own_variables"):
            owner.build(variables)
            self._read = lambda: [np.array(variable) for variable in owner.variables]
            self._write = lambda state: [v.assign(x) for v, x in zip(owner.variables, state, strict=True)]
        else:
            raise UserError(
                "state must be an optimizer of PyTorch or Keras, or an object with state_dict() and load_state_dict(). "
                f"Received: {type(owner).__name__}"
            )
        self._restored: Mapping[str, np.ndarray] | None = None
        self.arrays()  # a state that cannot be kept is refused at once

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the present state as arrays by name."""
        found: list[np.ndarray] = []
        form = _form(self._read(), found)
        named = {f"{PREFIX}{i}": array for i, array in enumerate(found)}
        return {**named, FORM: np.frombuffer(json.dumps(form).encode(), np.uint8)}

    def restored(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Note a state from a copy, which `load` gives to the script in its own thread."""
        self._restored = arrays if FORM in arrays else None

    def load(self) -> None:
        """Give the object of the script the state that was restored since the last call, if one was."""
        arrays, self._restored = self._restored, None
        if arrays is not None:
            self._write(_state(json.loads(arrays[FORM].tobytes()), arrays))


def _form(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return the structure of a state as JSON has it; appends its arrays.

    Raises:
        UserError: it holds an object that is neither a number, a text nor an array of them.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"dict": [[_form(key, arrays), _form(part, arrays)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_form(part, arrays) for part in value]}
    if is_torch(value) or (isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject):
        arrays.append(np.array(on_host(value) if is_torch(value) else value))
        return {"tensor" if is_torch(value) else "array": len(arrays) - 1}
    kind = f"{type(value).__name__} {getattr(value, 'dtype', '')}".rstrip()
    raise UserError(f"state must hold numbers, texts and arrays alone. Received: {kind}")


def _state(form: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the state of this structure."""
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    if kind == "dict":
        return {_state(key, arrays): _state(part, arrays) for key, part in content}
    if kind in ("list", "tuple"):
        return (tuple if kind == "tuple" else list)(_state(part, arrays) for part in content)
    array = arrays[f"{PREFIX}{content}"].copy()
    return sys.modules["torch"].from_numpy(array) if kind == "tensor" else array
