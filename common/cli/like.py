"""`--like RUN_DIR`: machines like those of a recorded run, for `simulate` and `advise`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from ...algorithms import SCHEMES
from ..errors import UserError
from ..record.latest import named
from ..simulation.fit import fit
from ..virtual_time.platform import Platform
from .options import Options


def with_machines(options: Options) -> Options:
    """The options of a run, with the machines that --like asks for."""
    if options.like is None or options.backend != "simulation":
        return options
    return replace(options, platform=like(options.like, options.platform), like=None)


def like(run_dir: Path | None, platform: Platform) -> Platform:
    """A platform like the machines of a run, but for what `platform` says; the same if there is no run.

    What was fitted is told on standard error, and written to the folder of the run.

    Raises:
        UserError: the run does not say what its machines are like, or a network is given, too.
        CannotWrite: its folder cannot be written to.
    """
    if run_dir is None:
        return platform
    if platform.network != "ideal":
        raise UserError(f"--like and --network exclude each other. Received: {run_dir} and {platform.network}")
    run_dir = named(run_dir)
    found = fit(run_dir, SCHEMES)
    path = found.write(run_dir)
    print("\n  ".join([f"like {run_dir}:", *found.in_words(), f"(--network {path})"]), file=sys.stderr)  # noqa: T201
    return replace(platform, network=str(path))
