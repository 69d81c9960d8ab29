"""Networks by name, and machines from files: values for the fields of `Platform`.

Bandwidths and latencies of `one-rack`, `internet` and `federated` are round numbers of their kind. The regions of
`cloud-regions` are four sites of a cloud seen from the first, where the ps is: bandwidths as in the example of HALoS
(Kim et al. 2025), latencies of continents.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..spec import nearest

IDEAL: dict[str, Any] = {
    "step_ms": 10.0,
    "compute": "constant",
    "step_factors": "1",
    "cores": None,
    "core_ms": 0.0,
    "uplink": "unlimited",
    "downlink": "unlimited",
    "link_sigma": 0.0,
    "latency": "0ms",
    "latency_sigma": 0.0,
    "regions": "none",
    "ps_link": "unlimited",
    "sharing": "fair",
    "service": "0us",
    "ps_rate": "unlimited",
    "collective": "slices",
    "failures": "none",
}

NETWORKS: dict[str, dict[str, Any]] = {
    "ideal": {},
    "one-rack": {"uplink": "25Gbit", "downlink": "25Gbit", "ps_link": "25Gbit", "latency": "50us"},
    "cloud-regions": {
        "uplink": "10Gbit",
        "downlink": "10Gbit",
        "ps_link": "25Gbit",
        "latency": "250us",
        "regions": "0ms/100Gbit,30ms/537Mbit,70ms/935Mbit,110ms/202Mbit",
    },
    "internet": {
        "uplink": "100Mbit",
        "downlink": "500Mbit",
        "ps_link": "10Gbit",
        "latency": "40ms",
        "latency_sigma": 0.5,
    },
    "federated": {
        "uplink": "10Mbit",
        "downlink": "50Mbit",
        "link_sigma": 0.6,
        "ps_link": "10Gbit",
        "latency": "50ms",
        "latency_sigma": 0.5,
        "step_factors": "lognormal:sigma=0.6",
    },
}


def machines(network: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machines of a preset name or a TOML file; values that it does not set are ideal.

    Args:
        network: the name or the path.
        kinds: the type of each field that a file may set.

    Raises:
        UserError: the network is unknown, or the file has a wrong key or value.
    """
    if not network.endswith(".toml"):
        if network not in NETWORKS:
            raise UserError(
                f"unknown network {network!r}. {nearest(network, NETWORKS)} Or give the path of a .toml file"
            )
        return IDEAL | NETWORKS[network]
    try:
        found = tomllib.loads(Path(network).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the network {network}: {getattr(error, 'strerror', None) or error}") from None
    for name, value in found.items():
        if name not in kinds:
            raise UserError(f"{network} has an unknown key {name!r}. {nearest(name, list(kinds))}")
        wanted = kinds[name]
        if not isinstance(value, wanted) or isinstance(value, bool):
            what = "a text in quotes" if wanted is str else "a number"
            raise UserError(f"{name} of {network} must be {what}. Received: {value!r}")
    return IDEAL | found
