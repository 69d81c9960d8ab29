"""All claims, in the order of the page."""

from __future__ import annotations

from . import (
    claims_of_asynchrony,
    claims_of_bytes,
    claims_of_clients,
    claims_of_delay,
    claims_of_language,
    claims_of_machines,
    claims_of_rounds,
)
from .claims_verdict import Claim

CLAIMS: list[Claim] = [
    *claims_of_asynchrony.CLAIMS,
    *claims_of_delay.CLAIMS,
    *claims_of_rounds.CLAIMS,
    *claims_of_bytes.CLAIMS,
    *claims_of_language.CLAIMS,
    *claims_of_clients.CLAIMS,
    *claims_of_machines.CLAIMS,
]


def pictured() -> list[Claim]:
    """Return the claims with a picture: of those that share their runs, the first."""
    first: dict[object, Claim] = {}
    for claim in CLAIMS:
        first.setdefault(claim.measure, claim)
    return list(first.values())
