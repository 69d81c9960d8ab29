"""A worker as its scheme sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from ..contract.views import MESSAGE_ONLY, not_here
from ..errors import UserError


class View(SimpleNamespace):
    """The implementation of `contract.views.Worker`."""

    def __getattr__(self, name: str) -> Any:
        if name in MESSAGE_ONLY:
            raise not_here(name)
        known = ", ".join(name for name in vars(self) if not name.startswith("_"))
        raise AttributeError(f"a worker of this scheme has no {name} here. It has: {known}", name=name, obj=self)


def show(views: Iterable[Any], **known: Any) -> None:
    """Set the same attributes on the view of each piece of a worker."""
    for view in views:
        vars(view).update(known)


def hide(views: Iterable[Any]) -> None:
    """Remove the attributes that only `Scheme.message` may read."""
    for view in views:
        for name in MESSAGE_ONLY:
            vars(view).pop(name, None)


def show_each(views: Iterable[Any], **vectors: Sequence[Any]) -> None:
    """Set attributes that differ between the views: for each name, one vector for each piece."""
    for name, parts in vectors.items():
        for view, part in zip(views, parts, strict=True):
            setattr(view, name, part)


def no_mean(why: str) -> Callable[[Any], Any]:
    """Return a `worker.mean` that raises `UserError`."""

    def mean(vector: Any) -> Any:
        del vector
        raise UserError(why)

    return mean
