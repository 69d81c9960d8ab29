"""Machines fitted to a recorded run, for `simulate` and `advise`: `--like RUN_DIR`; sizes of models in words."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path

from ...algorithms import SCHEMES
from ..errors import UserError
from ..record.latest import named
from ..simulation.fit import FittedMachines, fit
from ..virtual_time.platform import Machines, Platform
from . import flags
from .flag_groups import Options

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}

MOST_PARAMETERS = 10**12


def with_machines(options: Options) -> Options:
    """Return the options of a run, with the machines of --like."""
    if options.like is None or options.backend != "simulation":
        return options
    return replace(options, platform=fitted(options.like, options.platform)[0], like=None)


def fitted(run_dir: Path | None, platform: Platform, parameters: int | None = None) -> tuple[Platform, int | None]:
    """Fit a platform to the machines of a run; the values that `platform` sets override the fit.

    Prints the fit on standard error, and writes it to the folder of the run.

    Args:
        run_dir: folder of the run; None returns `platform` unchanged.
        platform: values given by the user.
        parameters: size of the model to predict for; that of the run if not given.

    Returns:
        the platform, and the number of parameters.

    Raises:
        UserError: the run is not enough for a fit, or a network is given, too.
        CannotWrite: its folder cannot be written to.
    """
    if run_dir is None:
        return platform, parameters
    if platform.network != "ideal":
        raise UserError(f"--like and --network exclude each other. Received: {run_dir} and {platform.network}")
    run_dir = named(run_dir)
    found = fit(run_dir, SCHEMES)
    lines = found.in_words()
    if parameters is not None and platform.uplink is platform.downlink is None:
        lines += _of_other_size(found, parameters)
        found = found.with_parameters(parameters)
    path = found.write(run_dir)
    print("\n  ".join([f"like {run_dir}:", *lines, f"(--network {path})"]), file=sys.stderr)  # noqa: T201
    return replace(platform, network=str(path)), parameters or found.run.parameters


def _of_other_size(found: FittedMachines, parameters: int) -> list[str]:
    """Return a line on the time of messages of a model of another size, if the run leaves that time uncertain."""
    if not found.hides_bytes(parameters):
        return []
    if math.isinf(found.card):
        before = found.run.parameters
        how = (
            f"takes {parameters / before:.3g} times as long as the run's, as {parameters:,} parameters are to "
            f"{before:,}: all of its time counts as bytes"
        )
    else:
        how = f"takes longer at the card of the ps alone: its {1e3 * found.latency:.3g} ms each way are as in the run"
    return [f"other size       a message {how} (--uplink, --downlink, --latency say better)"]


def free_links(platform: Platform, uses_ps: bool = True) -> list[str]:
    """Return a warning of each link that is not given, and so has no limit, if other links have one."""
    machines, given = Machines(platform), platform.given()
    links = {"uplink": ("the links of the workers carry", machines.uplink)}
    if uses_ps:
        links["ps_link"] = ("the network card of a ps carries", machines.ps_link)
    rates = [*(rate for _, rate in links.values()), *(rate for _, rate in machines.regions)]
    free = links.keys() - given if any(map(math.isfinite, rates)) else ()
    return [
        f"Warning: {links[name][0]} any number of messages in the time of one, as {flags.flag_of(name)} is not given."
        for name in sorted(free)
    ]


def number_of_parameters(text: str) -> int:
    """Parse the number of parameters of a model, such as 25M, 1.5B, 7b or 7e9; raises `UserError`."""
    found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d{1,2})?)([kmgbt]?)", text.strip().lower().replace("_", ""))
    size = round(float(found[1]) * SUFFIXES[found[2]]) if found else 0
    if not 1 <= size <= MOST_PARAMETERS:
        raise UserError(
            f"parameters takes a number, as in 25M or 7e9, with k, M, G, B or T, up to 1e12. Received: {text!r}"
        )
    return size
