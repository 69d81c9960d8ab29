"""The tables of docs/benchmark.md, made from the JSON of the benchmark."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

from .goals import GOALS
from .leaderboard_page import leaderboard
from .outcome_files import RESULTS
from .plots import needed, of_part, reached

PAGE = Path(__file__).parent.parent / "docs" / "benchmark.md"
SIMULATION, THROUGHPUT = PAGE.with_name("simulation.md"), PAGE.with_name("throughput.md")


def update_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Put the tables into the page, if this is a source checkout."""
    if page.exists():
        page.write_text(with_tables(page.read_text(), results))


def with_tables(text: str, results: Path = RESULTS) -> str:
    """Return the text with each `<!-- table: name -->` ... `<!-- end -->` filled in, as far as results exist."""
    for name, make in TABLES.items():
        block = make(results)
        if block:
            pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
            text = re.sub(pattern, lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text, flags=re.DOTALL)
    return text


def _outcomes(results: Path) -> list[dict[str, Any]]:
    path = results / "convergence.json"
    return json.loads(path.read_text()) if path.exists() else []


def main_table(results: Path) -> str:
    """Return a table of the expense of each algorithm to the target: means over seeds."""
    columns = (
        "algorithm",
        "virtual seconds",
        "examples",
        "messages of a worker",
        "MB sent",
        "staleness",
        "loss at the end",
    )
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for outcome in of_part(_outcomes(results), "main"):
        runs = outcome["runs"]
        cells = [f"`{outcome['algorithm']}`", _with_spread(reached(outcome, "seconds"), len(runs))]
        sends = needed(outcome, "bytes") != 0  # else there are no messages
        for unit, scale, form in (("examples", 1, ",.0f"), ("rounds", sends, ",.0f"), ("bytes", 1e-6, ".2f")):
            value = needed(outcome, unit) * scale
            cells.append("-" if math.isnan(value) else format(value, form))
        cells.append(f"{mean(run['curve']['staleness'] for run in runs):.1f}")
        finals = [run["final"] for run in runs]
        cells.append("diverged" if None in finals else f"{mean(finals):.3f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _with_spread(values: Sequence[float], number: int) -> str:
    """Return mean and standard deviation; the number of runs that reached the target, if not all did."""
    if len(values) < number:
        return f"{len(values)} of {number}"
    return f"{mean(values):.1f} ± {pstdev(values):.1f}"


def tuning(results: Path) -> str:
    """Return a table of the chosen settings."""
    rows = ["| algorithm | chosen | tried |", "|---|---|---|"]
    for outcome in of_part(_outcomes(results), "main"):
        settings = {k: v for k, v in outcome["settings"].items() if k != "communication_period"}
        number = len(outcome["tried"][0]) if outcome["tried"] else 0
        rows.append(f"| `{outcome['algorithm']}` | {', '.join(f'{k} {v}' for k, v in settings.items())} | {number} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def sweep(part: str, setting: str) -> Any:
    """Return a table of virtual seconds to the target against a setting; or the last loss if it was not reached."""

    def make(results: Path) -> str:
        found = of_part(_outcomes(results), part)
        columns = sorted({row[setting] for row in found})
        rows = [f"| algorithm | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|"]
        for name in dict.fromkeys(row["algorithm"] for row in found):
            at = {row[setting]: row for row in found if row["algorithm"] == name}
            rows.append(f"| `{name}` | {' | '.join(_in_sweep(at[c]) if c in at else '' for c in columns)} |")
        return "\n".join(rows) if found else ""

    return make


def _in_sweep(outcome: dict[str, Any]) -> str:
    seconds = needed(outcome, "seconds")
    if not math.isnan(seconds):
        return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"
    finals = [run["final"] for run in outcome["runs"]]
    return "(diverged)" if None in finals else f"({mean(finals):.2f})"


def stragglers(results: Path) -> str:
    """Return a table of backup workers; with the time to a loss that every run has reached."""
    path = results / "stragglers.json"
    if not path.exists():
        return ""
    kinds = json.loads(path.read_text())["runs"]
    level = max(min(run["curve"]["loss"]) for repeats in kinds.values() for run in repeats)
    columns = (
        "backup workers",
        "ms for an update",
        "predicted",
        "dropped gradients",
        "predicted",
        "test loss at the end",
        f"seconds to {level:.3f}",
    )
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for kind, repeats in kinds.items():
        times, dropped, losses = ([run[key] for run in repeats] for key in ("milliseconds", "dropped", "loss"))
        predicted, dropped_late = _predicted(repeats)
        rows.append(
            f"| {kind if kind.isdigit() else f'`{kind}`'} | {mean(times):.1f} ± {pstdev(times):.1f} | {predicted} "
            f"| {mean(dropped):.0%} | {dropped_late} | {mean(losses):.3f} ± {pstdev(losses):.3f} "
            f"| {mean(seconds_to(level, run['curve']) for run in repeats):.1f} |"
        )
    return "\n".join(rows)


def _predicted(runs: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the predicted milliseconds for an update, and dropped gradients; dashes if they were not predicted."""
    predictions = [run["predicted"] for run in runs if "predicted" in run]
    if len(predictions) < len(runs):
        return "-", "-"
    milliseconds, dropped = (mean(run[key] for run in predictions) for key in ("milliseconds", "dropped"))
    wrong = milliseconds / mean(run["milliseconds"] for run in runs) - 1
    return f"{milliseconds:.1f} ({wrong:+.0%}){missed(abs(wrong) > RATE_AIM)}", f"{dropped:.0%}"


def seconds_to(level: float, curve: dict[str, list[float]]) -> float:
    """Return the seconds to a test loss."""
    return next(seconds for seconds, loss in zip(*curve.values(), strict=True) if loss <= level)


def validation(results: Path) -> str:
    """Return a table of real runs beside their simulations."""
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
        real, predicted = row["real"], row["predicted"]
        wrong = predicted["updates"] / real["updates"] - 1
        cells = [
            f"`{row['name']}`", f"`{row['fitted_to']}`",
            f"{real['updates']:.2f}", f"{predicted['updates']:.2f} ({wrong:+.0%}){missed(abs(wrong) > RATE_AIM)}",
            f"{real['staleness']:.2f}",
            f"{predicted['staleness']:.2f}{missed(abs(predicted['staleness'] - real['staleness']) > STALENESS_AIM)}",
            f"{real['slow']:.0%}", f"{predicted['slow']:.0%}", f"{real['waiting']:.0%}", f"{predicted['waiting']:.0%}",
            *(f"{run['seconds_to']:.1f}" if run["seconds_to"] is not None else "-" for run in (real, predicted)),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    errors = [abs(row["predicted"]["updates"] / row["real"]["updates"] - 1) for row in content["rows"]]
    differences = [abs(row["predicted"]["staleness"] - row["real"]["staleness"]) for row in content["rows"]]
    note = (
        f"Updates/s within {RATE_AIM:.0%} in {sum(e <= RATE_AIM for e in errors)} of {len(errors)} rows, worst "
        f"{max(errors):.0%}; mean staleness within {STALENESS_AIM} in {sum(e <= STALENESS_AIM for e in differences)}, "
        f"worst {max(differences):.2f}; **!** is what misses. {content['cores']} cores."
    )
    return "\n".join([*rows, "", note])


RATE_AIM, STALENESS_AIM = 0.1, 0.5  # of a prediction: part of updates per second, and staleness


def _measured(results: Path, name: str = "throughput") -> dict[str, Any]:
    path = results / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"columns": {}}


def throughput(results: Path, measured: str = "throughput") -> str:
    """Return a table of steps per second, and CPU milliseconds for one of them: medians."""
    content = _measured(results, measured)
    models = content["columns"]
    titles = {name: row["title"] for model in models.values() for name, row in model["systems"].items()}
    columns = [f"{model}: {what}" for model in models for what in ("steps/s", "CPU ms a step")]
    rows = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, title in titles.items():
        cells = []
        for model in models.values():
            row = model["systems"].get(name)
            if row and row["rates"]:
                cells += [three_digits(median(row["rates"])), three_digits(sum(row["cpu_ms"].values()))]
            else:
                cells += ["", ""]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    machine = f"{content.get('cores')} cores, {content.get('cpu')}, TensorFlow {content.get('tensorflow')}"
    torch = f", PyTorch {content['torch']}" if content.get("torch") else ""
    if content.get("gpu"):
        rows += ["", f"{content['gpu']}, {machine}{torch}."]
    else:
        why = "; ".join(f"{name} ({model['why']})" for name, model in models.items())
        rows += ["", f"{machine}{torch}: {why}."]
    return "\n".join(rows) if models else ""


def goals(results: Path, measured: str = "throughput") -> str:
    """Return a table of the ratios that were to be reached, with those measured."""
    models = _measured(results, measured)["columns"]
    rows = [f"| | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for goal in GOALS:
        cells = []
        for name, model in models.items():
            value = next((row["measured"] for row in model["goals"] if row["ratio"] == goal.name), None)
            least = goal.least.get(name.partition(",")[0])
            if value is None or least is None:
                cells.append("")
            else:
                cells.append(f"{value:.2f} (goal {least:g}){missed(value < least)}")
        if any(cells):
            rows.append(f"| {goal.name} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def startup(results: Path) -> str:
    """Return a table of start-up times, and of a worker's memory."""
    found = _measured(results).get("startup")
    if not found:
        return ""
    rows = ["| | measured | goal |", "|---|---|---|"]
    first = f"{found['command_to_first_update_seconds']:.1f} s"
    for what, value, goal in (
        ("cold `downpour`: from the command to its first update", first, ""),
        ("from the end of TensorFlow's import to it", f"{found['import_to_first_update_seconds']:.1f} s", "1.5 s"),
        ("private memory of a worker", f"{found['worker_private_mb'] or math.nan:.0f} MB", "80 MB"),
    ):
        rows.append(f"| {what} | {value} | {goal} |")
    return "\n".join(rows)


def many_workers(results: Path) -> str:
    """Return a table of the resources that many workers need."""
    found = (_measured(results).get("startup") or {}).get("many_workers", [])
    columns = "workers", "seconds", "CPU s", "bare TensorFlow: seconds", "CPU s", "threads", "descriptors", "MB"
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in found:
        times = row["seconds"] / found[0]["seconds"]
        bare_times = row["bare"]["seconds"] / found[0]["bare"]["seconds"]
        held = [", ".join(f"{n:g}" for n in row[kind] or []) for kind in ("threads", "descriptors", "megabytes")]
        seconds = f"{row['seconds']:.1f} ({times:.1f} times{missed(times > 3)})"
        bare = f"{row['bare']['seconds']:.1f} ({bare_times:.1f} times) | {row['bare']['cpu_seconds']:.1f}"
        rows.append(f"| {row['workers']} | {seconds} | {row['cpu_seconds']:.1f} | {bare} | {' | '.join(held)} |")
    return "\n".join(rows) if found else ""


def large(results: Path) -> str:
    """Return a table of large models from start to end: seconds, and the most private memory of a process."""
    path = results / "large.json"
    passages = json.loads(path.read_text())["passages"] if path.exists() else []
    columns = (
        "model, algorithm", "ps", "to the first update, s", "a step, s", "to the end, s",
        "resumed, to its first, s", "worker, MB (vectors)", "a ps", "shared", "evaluator", "launcher", "fork server",
    )  # fmt: skip
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for passage in passages:
        times = [f"{passage['seconds'][name]:.2g}" for name in ("start", "step", "end", "resume")]
        memory = [_memory(passage, kind) for kind in ("worker", "ps", "shared", "evaluator", "launcher", "fork server")]
        rows.append(
            f"| {passage['model']}, `{passage['scheme']}` | {passage['ps']} | {' | '.join([*times, *memory])} |"
        )
    return "\n".join(rows) if passages else ""


def _memory(passage: dict[str, Any], kind: str) -> str:
    """Return MB, and vectors of 4P bytes, of those allowed."""
    vectors, allowed = passage["vectors"][kind], passage["allowed"].get(kind)
    limit = "" if allowed is None else f" of {allowed}{missed(vectors > allowed)}"
    return f"{passage['megabytes'][kind]:.0f} ({vectors:.1f}{limit})"


def three_digits(value: float) -> str:
    """Format three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def missed(is_missed: bool) -> str:
    """Return a mark for a value that is farther off than it should be."""
    return " **!**" * is_missed


TABLES = {
    "tuning": tuning,
    "main": main_table,
    "period": sweep("period", "period"),
    "workers": sweep("workers", "workers"),
    "stragglers": stragglers,
    "validation": validation,
    "throughput": throughput,
    "goals": goals,
    "throughput_gpu": partial(throughput, measured="throughput-gpu"),
    "goals_gpu": partial(goals, measured="throughput-gpu"),
    "startup": startup,
    "many_workers": many_workers,
    "large": large,
    "leaderboard": leaderboard,
}
