"""Algorithms in virtual time with a reduction among their workers in place of a parameter server."""

from __future__ import annotations

from typing import Literal

from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.sync.collective import Collective

Over = Literal["collective", "as-here"]


def with_reduction(scheme: Scheme, workers: int) -> Scheme:
    """Return the algorithm with a reduction of its messages among the workers; one without a ps stays as it is.

    Only its order and its bytes are those of a run: without a ps, it cannot be executed.

    Raises:
        UserError: an update may have messages of some workers alone.
    """
    sync, kind = scheme.sync, type(scheme)
    if not sync.uses_ps or not sync.exchanges:
        return scheme
    if not sync.meets(workers):
        raise UserError(
            f"a reduction has a message of every worker, and an update of {scheme.name} may have fewer: simulate it "
            "with a parameter server (--over as-here)"
        )
    reduced = type(kind.__name__, (kind,), {"__module__": kind.__module__, "name": kind.name, "sync": Collective()})
    found = object.__new__(reduced)
    vars(found).update(vars(scheme))
    return found
