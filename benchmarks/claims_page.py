"""The tables of docs/claims.md, made from what was measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from .claims_catalogue import CLAIMS
from .claims_study import Found, Row
from .claims_verdict import Claim
from .outcome_files import RESULTS as FOLDER
from .outcome_files import locked

RESULTS = FOLDER / "claims.json"
PAGE = Path(__file__).parent.parent / "docs" / "claims.md"


def update_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Put the tables into the page, if this is a source checkout."""
    if page.exists():
        with locked(page):
            page.write_text(with_tables(page.read_text(), results))


def with_tables(text: str, results: Path = RESULTS) -> str:
    """Return the text with each `<!-- claims: ... -->` ... `<!-- end -->` filled in, as far as results exist."""
    content = json.loads(results.read_text()) if results.exists() else {}
    found = {claim: Found.of_json(content[claim.name]) for claim in CLAIMS if claim.name in content}
    blocks, shown = {"verdicts": verdicts(found)}, {}
    for claim, mine in found.items():
        first = shown.setdefault(claim.measure, claim.name)
        blocks[claim.name] = "\n".join(
            [about(claim, first), "", table(claim, mine)] if first == claim.name else [about(claim, first)]
        )
    for name, block in blocks.items():
        pattern = rf"(<!-- claims: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda place, block=block: f"{place[1]}{block}\n{place[2]}", text, flags=re.DOTALL)
    for claim, mine in found.items():
        pattern = rf"(<a id=\"{claim.name}\"></a>\n\n)?### {claim.name}(: .*)?\n"
        line = heading(claim, mine)
        text = re.sub(pattern, lambda _, line=line: line, text)
    return text


def slug(title: str) -> str:
    """Return the anchor of a heading on the site: GitHub's, but without what is said of a claim after its name."""
    from myst_parser.slugs import github_slugify

    return github_slugify(re.sub(r": not seen here \(.*", "", title))


def heading(claim: Claim, found: Found) -> str:
    """Return the heading of a claim: if the experiment does not show it, with what was too small to show it."""
    if claim.judge(found).word != "not seen here":
        return f"### {claim.name}\n"
    return f'<a id="{claim.name}"></a>\n\n### {claim.name}: not seen here ({claim.scale})\n'


def verdicts(found: dict[Claim, Found]) -> str:
    """Return a table with a row for each claim."""
    rows = ["| claim | | what was measured |", "|---|---|---|"]
    for claim, mine in found.items():
        verdict = claim.judge(mine)
        rows.append(
            f"| [{claim.name}](#{claim.name}): {claim.paper}: {claim.sentence} | **{verdict.word}** | {verdict.why} |"
        )
    return "\n".join(rows)


def about(claim: Claim, first: str) -> str:
    """Return the claim and its experiment; and where its table is, if that is not below."""
    where = "" if first == claim.name else f" The numbers are in the table of [{first}](#{first})."
    whose = f"The experiment is {claim.whose}."
    return f"*{claim.paper}: {claim.sentence}.* {claim.experiment} {whose}{where} `bash run.sh claims {claim.name}`"


def table(claim: Claim, found: Found) -> str:
    """Return the results of a claim: an algorithm in each row, with the chosen settings."""
    rows = [
        f"| {claim.unit}; {claim.column} | {' | '.join(found.places)} |".replace("; |", " |"),
        "|---" * (1 + len(found.places)) + "|",
    ]
    for arm in found.arms:
        cells = [cell(found.get(arm, place)) for place in found.places]
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    if sides := tried(found):
        rows += ["", sides]
    if any(row.edges for row in found.rows):
        rows += ["", "\\* chosen at the end of what was tried: a wider search might find something better."]
    return "\n".join(rows)


def tried(found: Found) -> str:
    """Return how many settings were tried for each arm, least and most of its places, and the number of seeds."""
    if not any(row.tried for row in found.rows):
        return ""
    counts = {arm: [max(1, row.tried + row.further) for row in found.rows if row.arm == arm] for arm in found.arms}
    sides = "; ".join(f"{arm} ({_span(numbers)})" for arm, numbers in counts.items())
    return f"Settings tried: {sides}. Shown on {len(found.rows[0].scores)} seeds."


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least} to {most}" if most > least else f"{most}"


def cell(row: Row | None) -> str:
    """Return mean, spread and the chosen settings."""
    if row is None:
        return "-"
    if math.isinf(row.mean):
        there = sum(map(math.isfinite, row.scores))
        value = f"{there} of {len(row.scores)} seeds" if there else "never"
    else:
        digits = 3 if row.mean < 10 else 1 if row.mean < 100 else 0
        value = f"{row.mean:.{digits}f}" + (f" ± {row.spread:.{digits}f}" if len(row.scores) > 1 else "")
    chosen = ", ".join(
        f"{short(name)} {value:g}{'*' if name in row.edges else ''}" for name, value in row.settings.items()
    )
    return f"{value} ({chosen})" if chosen else value


def short(name: str) -> str:
    """Return a letter for a hyperparameter that is tuned."""
    letters = {
        "learning_rate": "η", "server_learning_rate": "γ", "outer_learning_rate": "ε", "momentum": "μ",
        "distance_scale": "c", "slow_momentum": "β", "block_learning_rate": "ζ", "compensation": "λ",
        "delay_threshold": "R",
    }  # fmt: skip
    return letters.get(name, name)
