"""The algorithms in groups, with a card and an icon for each: a page of all, and one of each group for the sidebar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..algorithms import SCHEMES
from ..common.contract.scheme import Scheme, idea_of

GROUPS = {
    "one process": "The baselines, without messages.",
    "asynchronous": "The server applies each message when it arrives. Only with `ssp` may a worker wait.",
    "asynchronous with local steps": "Workers make several steps between two messages, and do not wait for each other.",
    "synchronous": "Workers wait for each other in each step, all of them or the first few.",
    "synchronous with local steps": "Workers make several steps, then wait for each other.",
    "synchronous with an inner optimizer": "Workers make steps of an optimizer that you choose, then wait.",
    "gossip": "Workers exchange parameters with their neighbours, without a center.",
}

LEGEND = (
    "Each icon has three rounds of four workers in virtual time, the last of which is slow. A bar is a local step, a "
    "thin line a wait for other workers. The line above is the server: a diamond is an update of the center, a cross a "
    "message that is dropped. Thinner messages are compressed."
)


def groups() -> dict[str, list[str]]:
    """Return the names of each group, in the order of the catalogue."""
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name, kind in SCHEMES.items():
        found[_group(kind())].append(name)
    return found


def _group(scheme: Scheme) -> str:
    if not scheme.sync.exchanges:
        return "one process"
    if scheme.sync.kind in ("gossip", "pairs"):
        return "gossip"
    label = "synchronous" if scheme.sync.label == "synchronous" else "asynchronous"
    if label == "synchronous" and scheme.inner:
        return f"{label} with an inner optimizer"
    return label if scheme.period == 1 else f"{label} with local steps"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the page of all algorithms, then of the page of each group."""
    found = groups()
    parts = ["# All algorithms", f"{len(SCHEMES)} algorithms. {LEGEND}"]
    for group, names in found.items():
        parts += [f"## {group.capitalize()}", GROUPS[group], _cards(names)]
    yield "index", "\n\n".join([*parts, _tree(map(_page, found))]) + "\n"
    for group, names in found.items():
        yield _page(group), "\n\n".join([f"# {group.capitalize()}", GROUPS[group], _cards(names), _tree(names)]) + "\n"


def _page(group: str) -> str:
    return f"group-{group.replace(' ', '-')}"


def _cards(names: Sequence[str]) -> str:
    """Return a grid with a card for each algorithm."""
    cards = [
        f":::{{grid-item-card}} {name}\n:link: {name}\n:link-type: doc\n:img-top: {name}-icon.svg\n"
        f":img-alt: three rounds of {name}\n:class-img-top: icon\n\n{idea_of(SCHEMES[name])}\n:::"
        for name in names
    ]
    return "::::{grid} 2 2 3 3\n:gutter: 2\n\n" + "\n\n".join(cards) + "\n::::"


def _tree(names: Iterable[str]) -> str:
    return "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```"
