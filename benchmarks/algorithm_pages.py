"""A page for each algorithm, generated when the site is built: `bash run.sh docs`.

A page repeats the algorithm's own sources: the docstring of its module, its hyperparameters, what was measured
(`benchmarks/results/`) and what is tested (`tests/test_identities.py`). Only the exercises are written for the pages.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..algorithms import SCHEMES
from ..common.cli.catalogue import hyperparameters, timing
from ..common.contract.scheme import Scheme, idea_of
from ..common.sources import docstring
from . import reproduced, tables
from .algorithm_groups import pages
from .algorithm_icons import icon_alone
from .algorithm_pictures import WORKERS, curve, for_the_picture, timeline
from .claims_catalogue import CLAIMS
from .claims_page import address
from .claims_study import Found
from .equations import MATHS, markdown, rows_of
from .outcome_files import RESULTS
from .plots import of_part

CHECKOUT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"^(Reference|Departures|Limits|Defaults|Memory|Use): ", re.MULTILINE)


def write_pages(folder: Path) -> None:
    """Write `<algorithm>.md` and its pictures for each algorithm, and the pages of all and of each group."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {
        row["algorithm"]: row for row in of_part(json.loads((RESULTS / "convergence.json").read_text()), "main")
    }
    sources = {
        "outputs": read_results("outputs.json"),
        "identities": identities(),
        "claims": claims(),
        "exercises": exercises(),
    }
    rows = dict(re.findall(r"^\| `(\w+)` (\|.*)$", tables.main_table(RESULTS), re.MULTILINE))
    for name, kind in SCHEMES.items():
        drawn = drawing(kind, folder)
        if name in outcomes:
            curve(outcomes[name], outcomes["sync_sgd"], folder / f"{name}-curve.png")
        found = {key: source.get(name, "") for key, source in sources.items()}
        own_loop = f", in your own loop `join({kind.__name__}(), variables)`" if kind().sync.exchanges else ""
        sections = [
            f"# {name}",
            f"{idea_of(kind)}. *{timing(kind)}*",
            *other_names(kind),
            f"From {kind.paper}. [Source](../../algorithms/{name}.py) · `from distsgd import {kind.__name__}` · "
            f"`bash run.sh explain {name}`",
            *described(kind),
            *drawn,
            *_section("Run it", f"```console\n$ bash run.sh {name}\n{found['outputs']}\n```"),
            f"From Python: `train(model, data, {kind.__name__}())`{own_loop}, see [Python](../python.md). "
            "Compare: [Which algorithm?](../choosing.md) · [My run does not converge](../not-converging.md)",
            *_section("Hyperparameters", hyperparameter_table(kind)),
            *_section("In the benchmark", in_the_benchmark(name, rows)),
            *_section("Papers' experiments, and our results", "\n".join([*reproductions(name), *found["claims"]])),
            *_section("Identities that the tests check", "\n".join(found["identities"])),
            *_section("Exercise", found["exercises"]),
        ]
        _write(folder / f"{name}.md", "\n\n".join(sections) + "\n")
    for page, text in pages():
        _write(folder / f"{page}.md", text)


def _write(file: Path, text: str) -> None:
    """Write a file unless it has this text: Sphinx reads only changed files again."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def read_results(name: str) -> dict[str, Any]:
    """Return the content of a file of `benchmarks/results/`; empty if it is missing."""
    file = RESULTS / name
    return json.loads(file.read_text()) if file.exists() else {}


def _section(title: str, text: str) -> list[str]:
    return [f"## {title}", text] if text else []


def other_names(kind: type[Scheme]) -> Iterator[str]:
    """Yield the line with the other names of an algorithm, which a search of the site finds, and with its equal."""
    names = [text.partition(" ") for text in vars(kind).get("aliases", ())]
    if names:
        commands = ", ".join(f"`{name}`" + f" (`{options}`)" * bool(options) for name, _, options in names)
        yield f"Also called {commands}."
    if equal := vars(kind).get("equals", ""):
        command, comma, condition = equal.partition(",")
        yield f"It is `{command}`{comma}{condition}."


def described(kind: type[Scheme]) -> Iterator[str]:
    """Yield the sections of the docstring of the algorithm's module: equations as tables, the rest as it is."""
    about, _, rest = docstring(sys.modules[kind.__module__]).partition("\n")
    yield "## Equations"
    yield about
    for paragraph in re.split(r"\n\n+", rest.strip("\n")):
        if paragraph.startswith("    "):
            yield equation_table(paragraph)
        else:
            yield SECTION.sub(r"\n\n**\1.** ", paragraph).strip()


def equation_table(paragraph: str) -> str:
    """Return the equations as a table, between the words of the docstring."""
    rows = [
        f"| {first if first in MATHS else markdown(first)} | {'<br>'.join(map(markdown, lines))} |"
        for first, lines in rows_of(paragraph.splitlines())
    ]
    return "\n".join(["| | |", "|---|---|", *rows])


def drawing(kind: type[Scheme], folder: Path) -> list[str]:
    """Draw a few rounds; return the section with the picture, or nothing for an algorithm that exchanges nothing."""
    scheme = for_the_picture(kind)
    if not scheme.sync.exchanges:
        (folder / f"{scheme.name}-icon.svg").write_text(icon_alone(scheme))
        return []
    figures = timeline(scheme, folder / f"{scheme.name}.png")
    changed = {name: value for name, value in vars(scheme).items() if value != getattr(kind(), name)}
    settings = "".join(f", `{name}={value}`" for name, value in changed.items())
    return [
        "## A few rounds",
        f"![{scheme.name}: computing, sending and waiting]({scheme.name}.png)",
        f"Simulated: {WORKERS} workers{settings}; steps of 10 ms, of worker 3 25 ms; 100,000 parameters over 1 Gbit/s. "
        f"A worker computes {figures.compute:.0%} of the time, waits for others {figures.waiting:.0%} and communicates "
        f"{figures.communication:.0%}; {figures.updates:.0f} updates a second, with a mean staleness of "
        f"{figures.staleness:.1f}; each worker sends {figures.sent / 1e6:.2f} MB/s and receives "
        f"{figures.received / 1e6:.2f} MB/s.",
    ]


def hyperparameter_table(kind: type[Scheme]) -> str:
    """Return the hyperparameters of the command line, with their defaults."""
    rows = [
        f"| `--{name.replace('_', '-')}` | {default.replace('|', ', ')} | {meaning.replace('|', ', ')} |"
        for name, (default, meaning) in hyperparameters(kind).items()
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) if rows else ""


def in_the_benchmark(name: str, rows: dict[str, str]) -> str:
    """Return the row and the curve of the benchmark."""
    if name not in rows:
        return ""
    header = tables.main_table(RESULTS).splitlines()[:2]
    row = f"| `{name}` {rows[name]}"
    return (
        "[The benchmark](../benchmark.md) measures the expense of a test loss of 0.7, with tuned rates.\n\n"
        + "\n".join([*header, row])
        + f"\n\n![test loss of {name} and sync_sgd against virtual seconds and bytes]({name}-curve.png)"
    )


def reproductions(name: str) -> Iterator[str]:
    """Yield an item for each reproduced experiment that has the algorithm."""
    numbers = read_results("reproduced.json")
    for each in reproduced.EXPERIMENTS:
        if each.name in numbers and f"`{name}`" in each.schemes:
            measured = numbers[each.name]
            verdict = "reproduced" if each.agrees(measured) else "not reproduced"
            yield (
                f"* **{verdict}**: {each.source}. Expected: {each.expected}. Ours: {each.ours.format(**measured)}. "
                f"`bash run.sh reproduced {each.name}`"
            )


def claims() -> dict[str, list[str]]:
    """Return for each algorithm the claims whose experiments have it."""
    found: dict[str, list[str]] = {}
    content = read_results("claims.json")
    for claim in CLAIMS:
        if claim.name in content:
            result = Found.of_json(content[claim.name])
            verdict = claim.judge(result)
            for name in {arm.split(",")[0] for arm in result.arms} & set(SCHEMES):
                found.setdefault(name, []).append(
                    f"* **{verdict.word}**: {claim.paper}: {claim.sentence}. Measured: {verdict.why} "
                    f"([claim](../{address(claim.name)}))"
                )
    return found


def identities() -> dict[str, list[str]]:
    """Return for each algorithm the identities of `tests/test_identities.py`, as the tests have them."""
    file = CHECKOUT / "tests" / "test_identities.py"
    names = {kind.__name__: name for name, kind in SCHEMES.items()}
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(file.read_text())) if file.exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ONE_WORKER":
            for call in node.value.elts:  # pyright: ignore[reportAttributeAccessIssue]
                item = f"* With one worker `{ast.unparse(call)}` is `Serial`."
                found.setdefault(names[ast.unparse(call.func)], []).append(item)
        elif isinstance(node, ast.Tuple) and len(node.elts) == 3:
            pair = [call for call in node.elts[:2] if isinstance(call, ast.Call) and ast.unparse(call.func) in names]
            if len(pair) == 2:
                item = f"* `{ast.unparse(pair[0])}` is `{ast.unparse(pair[1])}`."
                for name in {names[ast.unparse(call.func)] for call in pair}:
                    found.setdefault(name, []).append(item)
    return found


def exercises() -> dict[str, str]:
    """Return the exercise of each algorithm, with a folded answer, from the pages in `docs/exercises/`."""
    text = "\n\n".join(page.read_text() for page in sorted((CHECKOUT / "docs" / "exercises").glob("*.md")))
    found = {
        name: f"{question}\n\n:::{{dropdown}} Answer\n{answer}\n:::"
        for name, question, answer in re.findall(
            r"^## (\w+)\n\n(.*?)\n\n\*Answer\.\* (.*?)(?=\n\n#|\n*\Z)", text, re.M | re.S
        )
    }
    return {name: found[name] for name in SCHEMES if name in found}
