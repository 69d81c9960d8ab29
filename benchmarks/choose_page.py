"""The sliders of docs/choose.md: Bokeh draws the answers of `advise` at the points of a grid (see `advice`).

Its scripts are copied from the package into the site, so that the page loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

from .advice import FILE, LINKS, PARAMETERS, STEPS, WORKERS, Point, points

SCRIPTS = "bokeh.min.js", "bokeh-widgets.min.js"
FOLDER = "bokeh"  # in the static files of the site

START = Point(workers=16, link=1, step=1, parameters="10M")

CHOSEN, OTHER, TEXT = "#d55e00", "#8ab4d8", "#7d8590"  # the text is to be read on a white and on a black page

SHOW = """
const key = sliders.map(slider => slider.categories.indexOf(slider.value)).join(" ")
const found = JSON.parse(answers)[key]
bars.data = found.bars
plot.y_range.factors = found.bars.name.slice().reverse()
plot.x_range.end = 2.2 * Math.max(...found.bars.gradients)
document.getElementById("choose-answer").textContent = found.answer
document.getElementById("choose-command").innerHTML = found.command
"""


def copy_scripts(static: Path) -> None:
    """Copy the scripts of Bokeh into the static files of the site."""
    from bokeh.util.paths import server_path

    (static / FOLDER).mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        shutil.copy(Path(server_path()) / "static" / "js" / name, static / FOLDER)


def shown(point: Point, found: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows at a point: the answer, the command, and the columns of the bars."""
    names, gradients, megabytes = (list(column) for column in zip(*found["rows"], strict=True))
    chosen = recommended(found["answer"], names)
    return {
        "answer": found["answer"],
        "command": re.sub(r"--[\w-]+", r'<span class="na">\g<0></span>', html.escape(point.command)),
        "bars": {
            "name": names,
            "gradients": gradients,
            "label": [f" {rate:,g}/s, {sent:,g} MB/s" for rate, sent in zip(gradients, megabytes, strict=True)],
            "colour": [CHOSEN if name == chosen else OTHER for name in names],
        },
    }


def recommended(answer: str, names: list[str]) -> str:
    """Return the name of the row that an answer recommends."""
    words = answer.partition(":")[0].removeprefix("Take ").split()
    if words[0] == "one":
        return "serial"
    backed = "--backup-workers" in words
    return next(name for name in names if name.split()[0] == words[0] and name.endswith(" -b") == backed)


def sliders() -> str:
    """Return the HTML of the sliders, the bars, the answer and the command."""
    from bokeh.embed import components
    from bokeh.layouts import column
    from bokeh.models import CategoricalSlider, CustomJS

    content = json.loads(FILE.read_text())
    answers = {_places(point): shown(point, content[point.key]) for point in points()}
    first = answers[_places(START)]
    controls = [
        CategoricalSlider(title=title, categories=values, value=values[place], sizing_mode="stretch_width")
        for (title, values), place in zip(_axes().items(), map(int, _places(START).split()), strict=True)
    ]
    bars, plot = _bars(first["bars"])
    show = CustomJS(args={"sliders": controls, "bars": bars, "plot": plot, "answers": json.dumps(answers)}, code=SHOW)
    for control in controls:
        control.js_on_change("value", show)
    script, holder = components(column(*controls, plot, sizing_mode="stretch_width"))
    scripts = "".join(f'<script src="../_static/{FOLDER}/{name}"></script>' for name in SCRIPTS)
    command = f'<pre><span id="choose-command">{first["command"]}</span></pre>'
    return (
        f'{scripts}{holder}<p id="choose-answer" aria-live="polite">{html.escape(first["answer"])}</p>'
        f'<div class="highlight-bash notranslate"><div class="highlight">{command}</div></div>'
        f"<noscript><p>The sliders need JavaScript; the command does not.</p></noscript>{script}"
    )


def _axes() -> dict[str, list[str]]:
    """Return the titles of the sliders and their values."""
    return {
        "Workers": [str(number) for number in WORKERS],
        "Link of each machine": [f"{rate.replace('bit', ' bit/s').replace(' b', 'b')}, {time}" for rate, time in LINKS],
        "Local step": [f"{time:g} ms" for time in STEPS],
        "Parameters": list(PARAMETERS),
    }


def _places(point: Point) -> str:
    """Return the places of a point on the sliders."""
    return f"{WORKERS.index(point.workers)} {point.link} {point.step} {PARAMETERS.index(point.parameters)}"


def _bars(columns: dict[str, Any]) -> tuple[Any, Any]:
    """Return the source of the bars, and their plot."""
    from bokeh.models import ColumnDataSource, LabelSet, Range1d
    from bokeh.plotting import figure

    bars = ColumnDataSource(columns)
    plot = figure(
        y_range=columns["name"][::-1],
        x_range=Range1d(start=0, end=2.2 * max(columns["gradients"])),
        height=340,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    plot.hbar(y="name", right="gradients", height=0.7, color="colour", source=bars)
    label = LabelSet(x="gradients", y="name", text="label", source=bars, text_font_size="12px", text_color=TEXT)
    label.text_baseline = "middle"
    plot.add_layout(label)
    names: Any = plot.yaxis
    names.axis_line_color = names.major_tick_line_color = None
    names.major_label_text_color, names.major_label_text_font_size = TEXT, "12px"
    plot.xaxis.visible = plot.grid.visible = False
    return bars, plot
