"""Machines fitted to a recorded run, as `--like RUN_DIR` asks for."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from ...algorithms import SCHEMES
from ...common.cluster.platform import Platform
from ...common.errors import UserError
from ...common.record.latest import named
from .fit import FittedMachines, fit


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
        text = (
            f"takes {parameters / before:.3g} times as long as the run's, as {parameters:,} parameters are to "
            f"{before:,}: all of its time counts as bytes"
        )
    else:
        text = f"takes longer at the card of the ps alone: its {1e3 * found.latency:.3g} ms each way are as in the run"
    return [f"other size       a message {text} (--uplink, --downlink, --latency say better)"]
