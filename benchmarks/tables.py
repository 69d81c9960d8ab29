"""The tables of docs/benchmark.md, made from the JSON of the benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from ..algorithms import SCHEMES
from .plots import accuracy_of, by_algorithm

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmark.md"
SIMULATION = PAGE.with_name("simulation.md")


def update_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Put the tables into the page, if this is a source checkout."""
    if page.exists():
        page.write_text(with_tables(page.read_text(), results))


def with_tables(text: str, results: Path = RESULTS) -> str:
    """The text with each `<!-- table: name -->` ... `<!-- end -->` filled in, as far as there are results."""
    for name, make in TABLES.items():
        block = make(results)
        if block:
            pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
            text = re.sub(pattern, lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text, flags=re.DOTALL)
    return text


def _outcomes(results: Path) -> list[dict[str, Any]]:
    path = results / "convergence.json"
    return json.loads(path.read_text()) if path.exists() else []


def convergence(results: Path) -> str:
    """How each algorithm ended: means over seeds."""
    rows = [
        "| algorithm | test accuracy | test loss | seconds | MB sent | mean staleness |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in by_algorithm(_outcomes(results), "convergence").items():
        accuracies = [accuracy_of(run) for run in runs]
        done = [run for run in runs if run["outcome"] == "completed"]
        cells = [f"`{name}`", f"{mean(accuracies):.3f} ± {pstdev(accuracies):.3f}"]
        if done:
            seconds = [run["seconds_training"] for run in done]
            cells += [
                f"{mean(run['test_loss'] for run in done):.3f}",
                "-" if None in seconds else f"{mean(seconds):.1f}",
                f"{mean(run['bytes_pushed'] + run['bytes_pulled'] for run in done) / 1e6:.1f}",
                f"{mean(run['staleness']['mean'] or 0 for run in done):.2f}",
            ]
        cells += ["-"] * (6 - len(cells))
        rows.append(
            f"| {' | '.join(cells)} |" + (f" {len(runs) - len(done)} diverged" if len(done) < len(runs) else "")
        )
    return "\n".join(rows) if len(rows) > 2 else ""


def tuning(results: Path) -> str:
    """The chosen settings."""
    path = results / "tuning.json"
    if not path.exists():
        return ""
    table = json.loads(path.read_text())
    rows = ["| algorithm | chosen | validation loss | tried |", "|---|---|---|---|"]
    for name, settings in ((name, table["settings"][name]) for name in SCHEMES if name in table["settings"]):
        tried = table["tried"][name]
        best = next(row["validation_loss"] for row in tried if row["settings"] == settings)
        chosen = ", ".join(f"{k} {v}" for k, v in settings.items())
        rows.append(f"| `{name}` | {chosen} | {best:.3f} | {len(tried)} |")
    return "\n".join(rows)


def sweep(part: str, setting: str) -> Any:
    """Final accuracy against a setting."""

    def make(results: Path) -> str:
        groups = by_algorithm(_outcomes(results), part)

        def value(outcome: dict[str, Any]) -> int:
            cell = outcome["cell"]
            return cell["workers"] if setting == "workers" else cell["settings"][setting]

        columns = sorted({value(o) for runs in groups.values() for o in runs})
        rows = [f"| algorithm | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|"]
        for name, runs in groups.items():
            cells = [[accuracy_of(o) for o in runs if value(o) == column] for column in columns]
            rows.append(f"| `{name}` | {' | '.join(f'{mean(c):.3f}' if c else '-' for c in cells)} |")
        return "\n".join(rows) if groups else ""

    return make


def throughput(results: Path) -> str:
    """Examples per second against workers."""
    groups = by_algorithm(_outcomes(results), "throughput")
    columns = sorted({o["cell"]["workers"] for runs in groups.values() for o in runs})
    rows = [f"| algorithm | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|"]
    for name, runs in groups.items():
        rates = {o["cell"]["workers"]: o["examples_per_second"] for o in runs if o["examples_per_second"]}
        rows.append(f"| `{name}` | {' | '.join(f'{rates[c]:.0f}' if c in rates else '-' for c in columns)} |")
    return "\n".join(rows) if groups else ""


def stragglers(results: Path) -> str:
    """What backup workers are worth; with the time to a loss that every run has come to."""
    path = results / "stragglers.json"
    if not path.exists():
        return ""
    kinds = json.loads(path.read_text())["runs"]
    level = max(min(one["curve"]["loss"]) for mine in kinds.values() for one in mine)
    columns = (
        "backup workers",
        "ms for an update",
        "dropped gradients",
        "test loss at the end",
        f"seconds to {level:.3f}",
    )
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for kind, mine in kinds.items():
        times, dropped, losses = ([one[key] for one in mine] for key in ("milliseconds", "dropped", "loss"))
        rows.append(
            f"| {kind if kind.isdigit() else f'`{kind}`'} | {mean(times):.1f} ± {pstdev(times):.1f} "
            f"| {mean(dropped):.0%} | {mean(losses):.3f} ± {pstdev(losses):.3f} "
            f"| {mean(seconds_to(level, one['curve']) for one in mine):.1f} |"
        )
    return "\n".join(rows)


def seconds_to(level: float, curve: dict[str, list[float]]) -> float:
    """When a test loss was reached first."""
    return next(seconds for seconds, loss in zip(*curve.values(), strict=True) if loss <= level)


def validation(results: Path) -> str:
    """Real runs, and what the simulation had predicted of them."""
    path = results / "validation.json"
    if not path.exists():
        return ""
    content = json.loads(path.read_text())
    columns = (
        "run", "fitted to", "updates/s", "predicted", "staleness", "predicted", "share of the slow", "predicted",
        "waiting", "predicted", "seconds to a loss", "predicted",
    )  # fmt: skip
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in content["rows"]:
        real, said = row["real"], row["predicted"]
        wrong = said["updates"] / real["updates"] - 1
        cells = [
            f"`{row['name']}`", f"`{row['fitted_to']}`",
            f"{real['updates']:.2f}", f"{said['updates']:.2f} ({wrong:+.0%}){missed(abs(wrong) > RATE_AIM)}",
            f"{real['staleness']:.2f}",
            f"{said['staleness']:.2f}{missed(abs(said['staleness'] - real['staleness']) > STALENESS_AIM)}",
            f"{real['slow']:.0%}", f"{said['slow']:.0%}", f"{real['waiting']:.0%}", f"{said['waiting']:.0%}",
            *(f"{one['seconds_to']:.1f}" if one["seconds_to"] is not None else "-" for one in (real, said)),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    errors = [abs(row["predicted"]["updates"] / row["real"]["updates"] - 1) for row in content["rows"]]
    late = [abs(row["predicted"]["staleness"] - row["real"]["staleness"]) for row in content["rows"]]
    told = (
        f"Updates/s within {RATE_AIM:.0%} in {sum(e <= RATE_AIM for e in errors)} of {len(errors)} rows, worst "
        f"{max(errors):.0%}; mean staleness within {STALENESS_AIM} in {sum(e <= STALENESS_AIM for e in late)}, worst "
        f"{max(late):.2f}; **!** is what misses. {content['cores']} cores."
    )
    return "\n".join([*rows, "", told])


RATE_AIM, STALENESS_AIM = 0.1, 0.5  # of a prediction: part of updates per second, and staleness


def missed(much: bool) -> str:
    """A mark on what is farther off than it should be."""
    return " **!**" * much


TABLES = {
    "tuning": tuning,
    "convergence": convergence,
    "throughput": throughput,
    "period": sweep("period", "communication_period"),
    "workers": sweep("workers", "workers"),
    "stragglers": stragglers,
    "validation": validation,
}
