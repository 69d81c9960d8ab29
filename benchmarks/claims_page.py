"""The pages of the papers' claims: `docs/claims.md` with all verdicts, and a page in `docs/claims/` for each group."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .claims_catalogue import CLAIMS
from .claims_study import Found, Row
from .claims_verdict import Claim
from .outcome_files import RESULTS as FOLDER
from .outcome_files import locked

RESULTS = FOLDER / "claims.json"
PAGE = Path(__file__).parent.parent / "docs" / "claims.md"

Known = Mapping[Claim, Found]


@dataclass(frozen=True)
class Group:
    """A page of claims: its file in `docs/claims/`, its title, a word for its subject, and the names of its claims."""

    file: str
    title: str
    about: str
    names: Sequence[str]


GROUPS = [
    Group(
        "asynchronous",
        "Asynchronous algorithms",
        "workers that do not wait",
        ("agn", "adag", "dynsgd", "downpour", "easgd-momentum", "easgd-period", "hogwild", "dc-asgd"),
    ),
    Group(
        "rounds",
        "Batches, local steps and outer momentum",
        "how often workers exchange, and what follows",
        (
            *("per-update", "local-sgd", "diloco", "slow-momentum", "palsgd", "diloco-text", "text-bytes"),
            *("muon-bytes", "post-local"),
        ),
    ),
    Group(
        "messages",
        "Smaller and rarer messages",
        "compression and moments that are rarely sent",
        (
            *("ef-sgd", "signsgd", "powersgd", "des-loc", "sparseloco", "sparta", "demo", "one-bit-adam"),
            "zero-one-adam",
        ),
    ),
    Group(
        "clients",
        "Clients with data of their own",
        "federated training",
        ("participation", "fedopt", "fedbuff-unequal"),
    ),
    Group(
        "machines",
        "Time on unequal machines and slow links",
        "the time that algorithms need",
        ("asynchronous", "backups", "ssp", "ringmaster", "fedbuff", "bandwidth", "all-reduce", "failures"),
    ),
]


def update_pages(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Write the pages of the groups and the table of verdicts, if this is a source checkout."""
    if page.exists():
        with locked(page):
            verdicts = read(results)
            page.write_text(with_verdicts(page.read_text(), verdicts))
            for group in GROUPS:
                (page.parent / "claims" / f"{group.file}.md").write_text(page_of(group, verdicts))


def read(results: Path = RESULTS) -> Known:
    """Return what was measured, in the order of the catalogue."""
    content = json.loads(results.read_text()) if results.exists() else {}
    return {claim: Found.of_json(content[claim.name]) for claim in CLAIMS if claim.name in content}


def address(name: str) -> str:
    """Return the link to a claim, from the folder `docs`."""
    (file,) = [group.file for group in GROUPS if name in group.names]
    return f"claims/{file}.md#{name}"


def slug(title: str) -> str:
    """Return the anchor of a heading on the site: GitHub's, but without what is said of a claim after its name."""
    from myst_parser.slugs import github_slugify

    return github_slugify(re.sub(r": not seen here \(.*", "", title))


def with_verdicts(text: str, measured: Known) -> str:
    """Return the text of the first page with the table of all verdicts."""
    pattern = r"(<!-- claims: verdicts -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda place: f"{place[1]}{verdicts(measured)}\n{place[2]}", text, flags=re.DOTALL)


def verdicts(measured: Known) -> str:
    """Return a table with a row for each group and for each of its claims."""
    by_name = {claim.name: (claim, found) for claim, found in measured.items()}
    rows = ["| claim | paper | | verdict |", "|---|---|---|---|"]
    for group in GROUPS:
        rows.append(f"| **[{group.title}](claims/{group.file}.md)** | | | |")
        for claim, found in (by_name[name] for name in group.names if name in by_name):
            word = claim.judge(found).word
            rows.append(f"| [{claim.name}]({address(claim.name)}) | {claim.paper} | {claim.sentence} | {word} |")
    return "\n".join(rows)


def page_of(group: Group, measured: Known) -> str:
    """Return the page of a group: a section for each claim."""
    by_name = {claim.name: (claim, found) for claim, found in measured.items()}
    parts = [
        f"# {group.title}",
        f"Claims of papers on {group.about}, beside our measurements.\n"
        "[The papers' claims](../claims.md) has all verdicts, and says how they are measured.",
    ]
    shown: dict[object, str] = {}
    for claim, found in (by_name[name] for name in group.names if name in by_name):
        parts.append(section(claim, found, shown.setdefault(claim.measure, claim.name)))
    return "\n\n".join(parts) + "\n"


def section(claim: Claim, found: Found, first: str) -> str:
    """Return the section of a claim; the picture and the numbers are those of the first with the same runs."""
    verdict = claim.judge(found)
    line = f"| {claim.sentence} | {verdict.why} | **{verdict.word}** |"
    parts = [
        heading(claim, found),
        f"| {claim.paper} | measured here | |\n|---|---|---|\n{line}",
        about(claim, found, first),
    ]
    if first == claim.name:
        parts += [f"![{claim.name}](../../benchmarks/results/claims-{claim.name}.png)", table(claim, found)]
    if claim.remark:
        parts.append(_wrapped(claim.remark))
    return "\n\n".join(parts)


def heading(claim: Claim, found: Found) -> str:
    """Return the heading of a claim: if the experiment does not show it, with what was too small to show it."""
    if claim.judge(found).word != "not seen here":
        return f"## {claim.name}"
    return f'<a id="{claim.name}"></a>\n\n## {claim.name}: not seen here ({claim.scale})'


def about(claim: Claim, found: Found, first: str) -> str:
    """Return the experiment and its command; and where its table is, if that is not below."""
    where = "" if first == claim.name else f" Picture and numbers are those of [{first}](#{first})."
    origin = "" if claim.whose == "ours" else f" The experiment is {claim.whose}."
    seeds = f", on {len(found.rows[0].scores)} seeds" if any(row.tried for row in found.rows) else ""
    text = re.sub(
        r"\]\(#([\w-]+)\)", lambda link: f"](../{address(link[1])})".replace("../claims/", ""), claim.experiment
    )
    return f"{_wrapped(text + origin + where)}\nCommand: `bash run.sh claims {claim.name}`{seeds}."


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def table(claim: Claim, found: Found) -> str:
    """Return the results of a claim: an algorithm in each row, with the chosen settings and how many were tried.

    Settings that are the same in all columns stand once, beside the algorithm.
    """
    counts = tried(found)
    rows = [
        f"| {claim.unit}; {claim.column} | {' | '.join(found.places)} |".replace(";  |", " |")
        + " tried |" * bool(counts),
        "|---" * (1 + len(found.places) + bool(counts)) + "|",
    ]
    for arm in found.arms:
        measured = [found.get(arm, place) for place in found.places]
        chosen = [settings_of(row) for row in measured if row]
        same = len(chosen) > 1 and len({*chosen}) == 1
        cells = [cell(row, settings=not same) for row in measured] + ([counts[arm]] if counts else [])
        rows.append(f"| {arm}{chosen[0] if same else ''} | {' | '.join(cells)} |")
    if any(row.edges for row in found.rows):
        rows += ["", "\\* chosen at the end of what was tried: a wider search might find something better."]
    return "\n".join(rows)


def tried(found: Found) -> dict[str, str]:
    """Return how many settings were tried for each arm, least and most of its places; empty if none was."""
    if not any(row.tried for row in found.rows):
        return {}
    counts = {arm: [max(1, row.tried + row.further) for row in found.rows if row.arm == arm] for arm in found.arms}
    return {arm: _span(numbers) for arm, numbers in counts.items()}


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least} to {most}" if most > least else f"{most}"


def cell(row: Row | None, *, settings: bool) -> str:
    """Return mean, spread and, if asked for, the chosen settings."""
    if row is None:
        return "-"
    if math.isinf(row.mean):
        reached = sum(map(math.isfinite, row.scores))
        value = f"{reached} of {len(row.scores)} seeds" if reached else "never"
    else:
        digits = 3 if row.mean < 10 else 1 if row.mean < 100 else 0
        value = f"{row.mean:.{digits}f}" + (f" ± {row.spread:.{digits}f}" if len(row.scores) > 1 else "")
    return value + settings_of(row) * settings


def settings_of(row: Row) -> str:
    """Return the chosen settings in parentheses, after a space; empty if nothing was tuned."""
    chosen = ", ".join(
        f"{short(name)} {value:g}{'*' if name in row.edges else ''}" for name, value in row.settings.items()
    )
    return f" ({chosen})" if chosen else ""


def short(name: str) -> str:
    """Return a letter for a hyperparameter that is tuned."""
    letters = {
        "learning_rate": "η", "server_learning_rate": "γ", "outer_learning_rate": "ε", "momentum": "μ",
        "distance_scale": "c", "slow_momentum": "β", "block_learning_rate": "ζ", "compensation": "λ",
        "delay_threshold": "R",
    }  # fmt: skip
    return letters.get(name, name)
