"""The attributes of a worker that its scheme sees for some time only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..contract.views import MESSAGE_ONLY


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
