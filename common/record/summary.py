"""The summary that a run prints at its end."""

from __future__ import annotations

import base64
import contextlib
from html import escape
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.table import Table

from .metrics import others, shown
from .tables import figures, formatted

OF_DATA = ("test accuracy", "test loss", "examples/s")

UNEVEN = 0.001  # shares of workers that differ by less are not shown


def summary(result: dict[str, Any]) -> Table:
    """Return the result of a run as a table."""
    return figures(f"{result['algorithm']}: {result['outcome']}", summary_rows(result))


def summary_html(result: dict[str, Any], picture: Path) -> str:
    """Return the result of a run and its plot as HTML; without the plot if it cannot be read."""
    left = 'style="text-align:left"'
    rows = "".join(
        f"<tr><td {left}>{escape(name)}</td><td {left}>{escape(value)}</td></tr>"
        for name, value in summary_rows(result).items()
    )
    table = f"<table><caption {left}>{escape(result['algorithm'])}: {escape(result['outcome'])}</caption>{rows}</table>"
    with contextlib.suppress(OSError):
        content = base64.b64encode(picture.read_bytes()).decode()
        return f'{table}<img alt="loss and error" style="max-width:100%" src="data:image/png;base64,{content}">'
    return table


def summary_rows(result: dict[str, Any]) -> dict[str, str]:
    """Return the known figures of the result of a run, by name."""
    stale = result["staleness"]
    steady = "" if stale.get("steady") is None else f" ({stale['steady']:.2f} after the start-up)"
    rows = {
        "test accuracy": shown(result["test_accuracy"]),
        "test loss": shown(result["test_loss"]),
        **{name.replace("_", " "): shown(value) for name, value in others(result).items()},
        "examples/s": formatted(result["examples_per_second"], ",.0f"),
        "updates": formatted(result["updates"], ",d"),
        "staleness": f"mean {formatted(stale['mean'], '.2f')}{steady}, max {formatted(stale['max'], 'd')}",
        "dropped": formatted(result["dropped"], ",d") if result["dropped"] else None,
        "shares": _shares(result["share_of_updates"]),
        "a round": _round(result["round"]),
        "advice": result["advice"],
        "pushed / pulled": f"{decimal(result['bytes_pushed'])} / {decimal(result['bytes_pulled'])}",
        "seconds": _seconds(result),
        "run": result["run_dir"],
        "plot": f"{result['run_dir']}/plot.png",
    }
    if result["examples"] is None:  # of a script, whose data and batches are its own
        logged = {f"{name} (logged)": shown(value) for name, value in (result.get("figures") or {}).items()}
        rows = {"steps": f"{result['steps']:,}", **logged} | {k: row for k, row in rows.items() if k not in OF_DATA}
    return {name: value for name, value in rows.items() if value is not None}


def _seconds(result: dict[str, Any]) -> str:
    """Return the duration of a run in real time, and in virtual time if it was simulated."""
    total, trained = f"{formatted(result['seconds_total'], '.1f')} in all", result["seconds_training"]
    if "simulated" not in result:
        return f"{formatted(trained, '.1f')} training, {total}"
    order = formatted(result["simulated"].get("order_seconds"), ".1f")
    return f"{formatted(trained, ',.1f')} virtual; real: {order} for the order, {total}"


def _shares(shares: list[float] | None) -> str | None:
    """Return the range of the workers' shares of the updates; None if they are even."""
    if not shares or max(shares) - min(shares) < UNEVEN:
        return None
    return f"{min(shares):.1%} to {max(shares):.1%} of the updates for each worker"


def _round(spent: dict[str, Any] | None) -> str | None:
    """Return the mean duration of a round and its shares; None if they are unknown."""
    if spent is None:
        return None
    parts = [f"{spent[name]:.0%} {name}" for name in ("compute", "waiting", "communication") if spent[name] is not None]
    if spent.get("between"):  # in virtual time one round follows the other
        parts.append(f"{spent['between']:.0%} between rounds")
    return f"{1000 * spent['seconds']:.1f} ms: {', '.join(parts)}"
