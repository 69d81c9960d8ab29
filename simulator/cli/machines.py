"""What `simulate`, `advise` and `bandwidth` read and warn of: sizes of models in words, links without a limit."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from ...common.cli import flags
from ...common.cluster.platform import Machines, Platform
from ...common.errors import UserError

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}

MOST_PARAMETERS = 10**12


def free_links(platform: Platform, uses_ps: bool = True) -> list[str]:
    """Return a warning of each link that is not given, and so has no limit, if other links have one."""
    machines, set_fields = Machines(platform), platform.given()
    links = {"uplink": ("the links of the workers carry", machines.uplink)}
    if uses_ps:
        links["ps_link"] = ("the network card of a ps carries", machines.ps_link)
    rates = [*(rate for _, rate in links.values()), *(rate for _, rate in machines.regions)]
    free = links.keys() - set_fields if any(map(math.isfinite, rates)) else ()
    return [
        f"Warning: {links[name][0]} any number of messages in the time of one, as {flags.flag_of(name)} is not given."
        for name in sorted(free)
    ]


def number_of_parameters(text: str) -> int:
    """Parse the number of parameters of a model, such as 25M, 1.5B, 7b or 7e9; raises `UserError`."""
    found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d{1,2})?)([kmgbt]?)", text.strip().lower().replace("_", ""))
    size = Fraction(found[1]) * SUFFIXES[found[2]] if found else Fraction(0)
    if not (1 <= size <= MOST_PARAMETERS and size.denominator == 1):
        raise UserError(
            f"parameters takes a number, as in 25M or 7e9, with k, M, G, B or T, up to 1e12. Received: {text!r}"
        )
    return int(size)
