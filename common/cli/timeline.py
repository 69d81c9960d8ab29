"""A trace of one or two runs for Perfetto or chrome://tracing: `bash run.sh timeline RUN_DIR [RUN_DIR2]`."""

from __future__ import annotations

import gzip
from contextlib import nullcontext
from pathlib import Path

from ...algorithms import SCHEMES
from ..errors import UserError, not_negative
from ..files import replacing
from ..record.latest import named
from ..timeline.lanes import read_lanes
from ..timeline.picture import FORMATS, draw
from ..timeline.trace_export import write_trace
from .flags import Parser, plain

VIEWERS = "Open it in Perfetto (https://ui.perfetto.dev; the file stays on your machine) or in chrome://tracing."


def main(arguments: list[str]) -> int:
    """Write the trace, and with --picture an image; print their paths and notes on missing data."""
    about = "Write a trace of when workers computed, waited, pushed and pulled, for Perfetto or chrome://tracing."
    parser = Parser("run.sh timeline", about, usage="run.sh timeline run_dir [run_dir] [options]")
    parser.add_argument("run_dir", nargs="+", type=plain(Path), help="folder of a run that has ended, or latest")
    parser.add_argument(
        "--output",
        type=plain(Path),
        metavar="FILE",
        help="path of the trace (default: trace.json in the first folder); compressed if it ends in .json.gz",
    )
    parser.add_argument("--picture", type=plain(Path), metavar="FILE", help="also draw an image: .png or .svg")
    parser.add_argument("--begin", type=plain(float), default=0.0, metavar="SECONDS", help="leave out earlier rounds")
    parser.add_argument("--end", type=plain(float), metavar="SECONDS", help="leave out later rounds")
    options = parser.values(arguments)
    if len(options.run_dir) > 2:
        raise UserError(f"timeline takes one run, or two to compare. Received: {len(options.run_dir)} folders")
    not_negative(begin=options.begin)
    if options.end is not None and not options.end > options.begin:
        raise UserError(f"--end must be later than --begin. Received: {options.begin:g} and {options.end:g} seconds")
    if options.picture and options.picture.suffix not in FORMATS:
        raise UserError(f"--picture takes a name that ends in {' or '.join(FORMATS)}. Received: {options.picture}")

    folders = [named(folder) for folder in options.run_dir]
    first = {name for name, scheme in SCHEMES.items() if scheme.exchange_first}
    runs = [read_lanes(folder, options.begin, options.end, exchange_first=first) for folder in folders]
    output = options.output or folders[0] / "trace.json"
    small = output.name.endswith(".json.gz")
    with replacing(output) as file, gzip.open(file, "wb") if small else nullcontext(file) as target:
        write_trace(runs, target)
    print(output, VIEWERS, *(f"{run.name}: {note}" for run in runs for note in run.notes), sep="\n")  # noqa: T201
    if options.picture:
        with replacing(options.picture) as file:
            draw(runs, file, options.picture.suffix, options.begin, options.end)
        print(options.picture)  # noqa: T201
    return 0
