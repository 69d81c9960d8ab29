"""The summary that a run prints at its end."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .metrics import others, shown

UNEVEN = 0.001  # shares of workers that differ by less are not shown


def summary(result: dict[str, Any]) -> Table:
    """Return the result of a run as a table."""
    table = Table(title=f"{result['algorithm']}: {result['outcome']}", show_header=False, title_justify="left")
    for name, value in summary_rows(result).items():
        table.add_row(name, value)
    return table


def summary_rows(result: dict[str, Any]) -> dict[str, str]:
    """Return the known figures of the result of a run, by name."""
    stale = result["staleness"]
    steady = "" if stale.get("steady") is None else f" ({stale['steady']:.2f} after the start-up)"
    rows = {
        "test accuracy": shown(result["test_accuracy"]),
        "test loss": shown(result["test_loss"]),
        **{name.replace("_", " "): shown(value) for name, value in others(result).items()},
        "examples/s": _format(result["examples_per_second"], ",.0f"),
        "updates": _format(result["updates"], ",d"),
        "staleness": f"mean {_format(stale['mean'], '.2f')}{steady}, max {_format(stale['max'], 'd')}",
        "dropped": _format(result["dropped"], ",d") if result["dropped"] else None,
        "shares": _shares(result["share_of_updates"]),
        "a round": _round(result["round"]),
        "advice": result["advice"],
        "pushed / pulled": f"{size_in_bytes(result['bytes_pushed'])} / {size_in_bytes(result['bytes_pulled'])}",
        "seconds": _seconds(result),
        "run": result["run_dir"],
        "plot": f"{result['run_dir']}/plot.png",
    }
    return {name: value for name, value in rows.items() if value is not None}


def _seconds(result: dict[str, Any]) -> str:
    """Return the duration of a run in real time, and in virtual time if it was simulated."""
    total = f"{_format(result['seconds_total'], '.1f')} in all"
    if "simulated" not in result:
        return f"{_format(result['seconds_training'], '.1f')} training, {total}"
    order = result["simulated"].get("order_seconds")
    return (
        f"{_format(result['seconds_training'], ',.1f')} virtual; real: {_format(order, '.1f')} for the order, {total}"
    )


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
    return f"{1000 * spent['seconds']:.1f} ms: {', '.join(parts)}"


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def size_in_bytes(count: float) -> str:
    """Format a number of bytes with a fitting unit: 6.8 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
