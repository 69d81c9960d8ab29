"""`bash run.sh timeline RUN_DIR [RUN_DIR2]`: who computed, waited and sent, and when, as a page for the browser."""

from __future__ import annotations

from pathlib import Path

from ...algorithms import SCHEMES
from ..errors import UserError, not_negative
from ..files import replacing
from ..record.latest import named
from ..timeline.lanes import read_lanes
from ..timeline.page import page
from ..timeline.picture import FORMATS, draw
from .flags import Parser, plain


def main(arguments: list[str]) -> int:
    """Write the page, and the picture if it is wanted; prints where they are."""
    about = "The timeline of a run, or of two above each other: one HTML file, which needs nothing else."
    parser = Parser("run.sh timeline", about, usage="run.sh timeline run_dir [run_dir] [options]")
    parser.add_argument(
        "run_dir", nargs="+", type=plain(Path), help="of a run that has ended, or latest; it is only read"
    )
    parser.add_argument(
        "--output", type=plain(Path), metavar="FILE", help="the page (default: timeline.html in the first folder)"
    )
    parser.add_argument(
        "--picture", type=plain(Path), metavar="FILE", help="the same without a browser, as .png or .svg"
    )
    parser.add_argument("--begin", type=plain(float), default=0.0, metavar="SECONDS", help="show what comes later")
    parser.add_argument("--end", type=plain(float), metavar="SECONDS", help="show what comes earlier")
    options = parser.values(arguments)
    if len(options.run_dir) > 2:
        raise UserError(f"timeline shows one run, or two above each other. Received: {len(options.run_dir)} folders")
    not_negative(begin=options.begin)
    if options.end is not None and not options.end > options.begin:
        raise UserError(f"--end must be later than --begin. Received: {options.begin:g} and {options.end:g} seconds")
    if options.picture and options.picture.suffix not in FORMATS:
        raise UserError(f"--picture takes a name that ends in {' or '.join(FORMATS)}. Received: {options.picture}")

    folders = [named(folder) for folder in options.run_dir]
    first = {name for name, scheme in SCHEMES.items() if scheme.exchange_first}
    runs = [read_lanes(folder, options.begin, options.end, exchange_first=first) for folder in folders]
    output = options.output or folders[0] / "timeline.html"
    with replacing(output) as file:
        file.write(page(runs).encode())
    print(output)  # noqa: T201
    if options.picture:
        with replacing(options.picture) as file:
            draw(runs, file, options.picture.suffix, options.begin, options.end)
        print(options.picture)  # noqa: T201
    return 0
