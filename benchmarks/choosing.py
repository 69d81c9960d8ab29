"""`bash run.sh choosing [NAME ...]`: execute the commands of two pages, and draw their pictures.

The pages are docs/choosing.md and docs/not-converging.md. A block of commands with their output has a name, and with
an axis it has a picture: the test loss of each simulated run over that axis.

    <!-- run: slow-links, seconds -->
    ```console
    $ bash run.sh simulate --compare sync_sgd,local_sgd --uplink 2Mbit
    ...
    ```

The commands stay as they are, and each output is replaced by the present one. Another block needs no code here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.arguments import check_known
from ..common.cli import flags
from ..common.errors import UserError
from . import stamps
from .plots import bare, colour, decades

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "choosing.md", ROOT / "docs" / "not-converging.md"
PICTURES = ROOT / "docs" / "pictures"

BLOCK = re.compile(
    r"(?P<mark><!-- run: (?P<name>[\w-]+)(?:, (?P<axis>\w+))? -->\n)```console\n(?P<text>.*?)```", re.DOTALL
)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)  # a backslash continues it in the next line
OWN_FOLDER = re.compile(r"(\w+: )?runs/")  # has the time of the run in its name

AXES = {
    "seconds": "virtual seconds",
    "bytes": "MB that each worker sends and receives",
    "examples": "examples of all workers",
    "updates": "updates of the center",
}

STYLES = ".-", "s--", "^:"  # of several runs of an algorithm

HIGHEST = 3  # end of the picture's axis, in multiples of the first loss
WIDE = 5  # ratio of the longest and the shortest run, above which the axis is logarithmic

Curve = tuple[str, Sequence[float], Sequence[float]]  # label, which begins with the algorithm; x; test loss


@dataclass(frozen=True, kw_only=True)
class Options:
    """Selection of blocks."""

    names: tuple[str, ...] = ()
    """Names of blocks; all of them if none is given."""

    def __post_init__(self):
        check_known("block", *self.names, known=blocks())


def blocks() -> dict[str, re.Match[str]]:
    """Return the blocks of both pages by their names."""
    if not all(page.exists() for page in PAGES):
        raise UserError("the pages are part of the source checkout, which this installation is not")
    return {block["name"]: block for page in PAGES for block in BLOCK.finditer(page.read_text())}


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with its output."""
    _, *parts = COMMAND.split(text)
    return list(zip(parts[::2], parts[1::2], strict=True))


def renewed(text: str, names: Sequence[str] = ()) -> str:
    """Return the text of a page with the present outputs of the blocks with these names; draw their pictures."""
    return BLOCK.sub(partial(_renewed, text=text, names=names), text)


def _renewed(block: re.Match[str], text: str, names: Sequence[str]) -> str:
    if names and block["name"] not in names:
        return block[0]
    with tempfile.TemporaryDirectory() as folder:
        found = [(command, _output(command, Path(folder))) for command, _ in commands(block["text"])]
        if block["axis"]:
            labels = [label for command, _ in found for label in compared(command)]
            title = _title(block)
            picture = _drawn(curves(Path(folder), labels, block["axis"]), title, AXES[block["axis"]])
            PICTURES.mkdir(exist_ok=True)
            shows = _shown(title, block["axis"], found)
            stamps.save(picture, PICTURES / f"{block['name']}.png", dpi=100, shows=shows)
    shown = "".join(f"$ {command}\n{output}" for command, output in found)
    return f"{block['mark']}```console\n{shown}```"


def _title(block: re.Match[str]) -> str:
    """Return the title of a block's picture, the heading of its section."""
    return re.findall(r"^## (.*)", block.string[: block.start()], re.MULTILINE)[-1]


def _shown(title: str, axis: str, found: Sequence[tuple[str, str]]) -> str:
    """Return the stamp of a block's picture: of title, axis, commands with their outputs, and colours and styles."""
    labels = [label for command, _ in found for label in compared(command)]
    colours = [colour(re.split(r"\W", label)[0]) for label in labels]
    return stamps.of([title, AXES[axis], list(found), colours, STYLES, HIGHEST, WIDE])


def outdated() -> list[str]:
    """Return the names of the blocks whose picture shows other runs, or in another way, than the page says now."""
    return [
        name
        for name, block in blocks().items()
        if block["axis"]
        and stamps.read(PICTURES / f"{name}.png") != _shown(_title(block), block["axis"], commands(block["text"]))
    ]


def _output(command: str, folder: Path) -> str:
    """Execute a command in a folder; return what it prints, without progress and the names of run folders."""
    line = command.replace("bash run.sh", f"bash {ROOT / 'run.sh'}")
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=os.environ | {"COLUMNS": "80"}, capture_output=True, text=True
    )
    if not done.stdout.strip():
        raise RuntimeError(f"{command!r} has printed nothing, and {done.stderr!r} on standard error")
    return "".join(f"{kept.rstrip()}\n" for kept in done.stdout.splitlines() if not OWN_FOLDER.match(kept))


def compared(command: str) -> list[str]:
    """Return a label for each run of `simulate --compare`, in their order."""
    found = re.search(r"--compare (\S+)", command)
    return flags.listed(found[1]) if found else []


def curves(folder: Path, labels: Sequence[str], axis: str) -> list[Curve]:
    """Return the test loss of each run over an axis."""
    configs = [path for path in folder.glob("runs/*/*/config.json") if not path.parent.is_symlink()]
    configs.sort(key=lambda path: path.stat().st_mtime_ns)
    settings = [json.loads(path.read_text()) for path in configs]
    differ = [name for name in ("workers", "codec") if len({config[name] for config in settings}) > 1]
    curves = []
    for label, config, path in zip(labels, settings, configs, strict=True):
        rows = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["kind"] == "center" and row["test_loss"] is not None]
        x = {
            "seconds": [row["seconds"] for row in rows],
            "bytes": [(row["bytes_pushed"] + row["bytes_pulled"]) / config["workers"] / 1e6 for row in rows],
            "examples": [row["examples"] for row in rows],
            "updates": [row["version"] for row in rows],
        }[axis]
        words = [*re.split("[:,]", label), *(f"{name}={config[name]}" for name in differ)]
        curves.append((", ".join(words), x, [row["test_loss"] for row in rows]))
    return curves


def _drawn(curves: Sequence[Curve], title: str, xlabel: str) -> Any:
    """Draw a curve for each run, with its label."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.9), layout="constrained")
    axes = figure.subplots()
    drawn: list[str] = []
    for label, x, loss in curves:
        name = re.split(r"\W", label)[0]
        axes.plot(x, loss, STYLES[drawn.count(name)], color=colour(name), lw=1.5, ms=3, label=label)
        drawn.append(name)
    lengths = [x[-1] for _, x, _ in curves]
    wide = max(lengths) > WIDE * min(lengths) > 0
    axes.set(xlabel=xlabel, ylabel="test loss", yscale="log")
    if wide:
        axes.set_xscale("log", nonpositive="mask")  # a start at 0 would be drawn as a horizontal line
    axes.set_ylim(top=min(axes.get_ylim()[1], HIGHEST * curves[0][2][0]))
    axes.xaxis.set_major_formatter("{x:,g}")
    decades(axes.yaxis)
    axes.set_title(title, loc="left", fontsize=10)
    bare(axes)
    axes.legend(fontsize=8, loc="upper right" if wide else "best", framealpha=0.85, edgecolor="none")
    return figure


def main(arguments: list[str]) -> int:
    """Renew the blocks in both pages; return the exit code."""
    options: Options = flags.read(
        "run.sh choosing",
        "Execute the commands of docs/choosing.md and docs/not-converging.md, and write their outputs and pictures. "
        f"Names: {', '.join(blocks())}",
        arguments,
        {"options": Options},
        positional="names",
    )[0]
    console = Console(highlight=False)
    for page in PAGES:
        page.write_text(renewed(page.read_text(), options.names))
        console.print(f"{page.relative_to(ROOT)}: written")
    return 0
