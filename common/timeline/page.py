"""The timeline as a page: one file for the browser, with all that it needs in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.trace import EVENTS
from .colours import SCALE, TRANSFER, UNKNOWN, WAIT, last_of_scale
from .lanes import PARTS, STAMPS, Lanes

SCRIPTS = ("run.js", "shapes.js", "panel.js", "page.js")  # each uses those before it


def page(runs: Sequence[Lanes]) -> str:
    """The page of one run, or of several above each other, as HTML."""
    parts = {
        "style": _text("page.css"),
        "script": "\n".join(map(_text, SCRIPTS)),
        "data": json.dumps(content(runs), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    html = _text("page.html")
    for name, text in parts.items():
        html = html.replace(f"{{{{{name}}}}}", text, 1)
    return html


def content(runs: Sequence[Lanes]) -> dict[str, Any]:
    """What the page is told, as JSON can hold it.

    Of each column of a run there are the differences from row to row: they are short.
    """
    return {
        "scale": {"colours": SCALE, "last": last_of_scale(runs), "unknown": UNKNOWN},
        "colours": {"transfer": TRANSFER, "wait": WAIT},
        "events": EVENTS,
        "parts": PARTS,
        "stamps": STAMPS,
        "runs": [_run(run) for run in runs],
    }


def _run(run: Lanes) -> dict[str, Any]:
    return {
        "name": run.name,
        "algorithm": run.algorithm,
        "about": run.about,
        "workers": run.workers,
        "notes": run.notes,
        "shares": None if run.shares is None else run.shares.as_dict(),
        "columns": {name: np.diff(column, prepend=0).tolist() for name, column in run.columns.items()},
    }


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
