"""The layout of the local state of a worker, and its copy as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from ..record.array_files import whole
from .feeds import feed_of


@dataclass(frozen=True)
class Layout:
    """The layout of a worker's local state: name, type and shape of each part, vectors whole."""

    parts: Mapping[str, tuple[Any, tuple[int, ...]]]

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Layout:
        """Return the layout of the local state that is fed at these placeholders, in buckets."""
        parts = {}
        for name, places in inputs.items():
            shapes = [tuple(place.shape.as_list()) for place in places]
            whole = (*shapes[0][:-1], sum(shape[-1] for shape in shapes)) if shapes[0] else ()
            parts[name] = np.dtype(places[0].dtype.as_numpy_dtype), whole
        return cls(parts)

    @property
    def bytes(self) -> int:
        """Size of the local state of one worker."""
        return sum(kind.itemsize * int(np.prod(shape)) for kind, shape in self.parts.values())

    def besides(self, name: str) -> Layout:
        """Return the layout without that part."""
        return Layout({other: part for other, part in self.parts.items() if other != name})

    @property
    def names(self) -> str:
        """Names of the parts, for messages."""
        return ", ".join(sorted(self.parts))

    def fits(self, state: Mapping[str, np.ndarray]) -> bool:
        """Return True if `state` has all parts, shapes and item sizes; without a ps worker 0 has no own parameters."""
        same = all(name in state and state[name].shape == shape for name, (_, shape) in self.parts.items())
        return same and all(state[name].dtype.itemsize == kind.itemsize for name, (kind, _) in self.parts.items())

    def typed(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the parts with their types, some of which a file does not preserve."""
        return {name: state[name].view(kind) for name, (kind, _) in self.parts.items()}


def as_bytes(state: Mapping[str, Any]) -> bytes:
    """Return a local state as bytes."""
    file = BytesIO()
    np.savez(file, **state)
    return file.getvalue()


def from_bytes(copy: bytes) -> dict[str, np.ndarray]:
    """Return the local state in a copy; no code in it is executed."""
    with np.load(BytesIO(copy), allow_pickle=False) as saved:
        return dict(saved)


def whole_vectors(parts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Join the buckets of a local state to whole vectors."""
    return whole({f"{name}/{i}": part for name, buckets in parts.items() for i, part in enumerate(buckets)})


def in_buckets(state: Mapping[str, np.ndarray], places: Mapping[str, Sequence[Any]]) -> dict[str, list[np.ndarray]]:
    """Split a local state into the buckets that are fed at these placeholders."""
    return {name: feed_of(buckets, state[name]) for name, buckets in places.items()}
