"""Stamps of measured pictures: a digest of what a picture shows, in its file, to be compared without drawing it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

STAMP = "Shows"  # name of the text in a PNG file


def save(figure: Any, path: Path, dpi: int = 110, shows: str | None = None) -> None:
    """Write a figure, into a folder that may not exist yet, with the stamp `shows`; by default that of the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, metadata={STAMP: shows or of_figure(figure)})


def read(path: Path) -> str:
    """Return the stamp of a picture; empty if it has none, or does not exist."""
    from PIL import Image

    if not path.exists():
        return ""
    with Image.open(path) as image:
        return str(image.info.get(STAMP, ""))


def of_figure(figure: Any) -> str:
    """Return the stamp of a figure that has not been drawn: its size, texts, colours, data and axes."""
    found: list[Any] = [figure.get_size_inches(), [_text(text) for text in figure.texts]]
    found += [[_text(text) for text in legend.get_texts()] for legend in figure.legends]
    for axes in figure.axes:
        found.append([_text(axes.get_title(place)) for place in ("left", "center", "right")])
        for axis in (axes.xaxis, axes.yaxis):
            ticks = getattr(axis.get_major_formatter(), "seq", ())
            found.append([axis.get_label_text(), axis.get_scale(), axis.get_view_interval(), *map(str, ticks)])
        found += [_line(line) for line in axes.lines]
        found += [_area(area) for area in (*axes.collections, *axes.patches)]
        found += [[_text(text), text.get_position()] for text in axes.texts]
        found += [_text(text) for text in (axes.get_legend() and axes.get_legend().get_texts()) or ()]
    return of(found)


def of(value: Any) -> str:
    """Return the stamp of numbers, to five digits, texts and arrays, in lists and dicts."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:16]


def _text(text: Any) -> list[str]:
    return [text] if isinstance(text, str) else [text.get_text(), str(text.get_color())]


def _line(line: Any) -> list[Any]:
    look = line.get_color(), line.get_linestyle(), line.get_marker(), line.get_linewidth(), line.get_markersize()
    return [line.get_label(), look, line.get_xydata()]


def _area(area: Any) -> list[Any]:
    if hasattr(area, "get_paths"):  # a collection
        paths = area.get_paths()
    else:
        paths = [area.get_path().transformed(area.get_patch_transform())]
    return [area.get_label(), area.get_facecolor(), area.get_edgecolor(), *(path.vertices for path in paths)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(part) for part in value]
    if isinstance(value, int | float | np.number):
        return f"{float(value) + 0.0:.5g}"  # another CPU may differ in the last digits
    return str(value)
