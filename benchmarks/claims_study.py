"""A study: algorithms at several places, each tuned there on seeds that are not shown, and shown on others.

Nothing here knows what is claimed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, pstdev, stdev
from typing import Any

from .claims_kept import outcomes
from .claims_runs import Cell
from .crossing import crossing

TUNING_SEEDS, SHOWING_SEEDS = (100, 101, 102), (0, 1, 2)

NINE = tuple(range(9))  # showing seeds, where differences are small

FURTHER = 4  # times that a grid is extended beyond the end at which the best setting stands

LAST = 5  # of the moments at which the center is measured: their mean is the loss at the end

GUESSING = math.log(8)  # the loss of who knows nothing of eight classes

Outcome = Mapping[str, Sequence[float]]
Score = Callable[[Outcome], float]


@dataclass(frozen=True)
class Arm:
    """What is compared: an algorithm, hyperparameters that are tuned, some that are fixed, and fields of `Cell`."""

    name: str
    scheme: str
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> list[dict[str, Any]]:
        """All that are tried."""
        return [
            {**self.fixed, **dict(zip(self.grid, chosen, strict=True))}
            for chosen in itertools.product(*self.grid.values())
        ]

    def beyond(self, settings: Mapping[str, Any]) -> Arm | None:
        """This arm with the grids in which these settings stand at the end longer by a number; None if none does."""
        further = {}
        for name in self.edges(settings):
            tried, value = self.grid[name], settings[name]
            if not isinstance(value, int | float) or "momentum" in name or value <= 0:
                continue
            neighbour = tried[1] if value == tried[0] else tried[-2]
            following = type(value)(float(f"{value * value / neighbour:.6g}"))
            if following >= 1 or isinstance(value, float):
                further[name] = (following, *tried) if value == tried[0] else (*tried, following)
        further = {name: grid for name, grid in further.items() if len(set(grid)) == len(grid)}
        return replace(self, grid={**self.grid, **further}) if further else None

    def edges(self, settings: Mapping[str, Any]) -> list[str]:
        """What was chosen at the end of its grid, where a wider one might have something better."""
        return [name for name, tried in self.grid.items() if settings[name] in (tried[0], tried[-1]) and len(tried) > 2]


@dataclass(frozen=True)
class Row:
    """How one arm did at one place.

    Attributes:
        arm, place: their names.
        settings: what was chosen, of what was tuned.
        edges: what was chosen at the end of its grid.
        scores: of each showing seed; infinite if the run diverged or did not get there.
        tried: settings of its first grid; 0 if that is not on record.
    """

    arm: str
    place: str
    settings: Mapping[str, Any]
    edges: Sequence[str]
    scores: Sequence[float]
    tried: int = 0

    @property
    def mean(self) -> float:
        """Over seeds; infinite if one of them is."""
        return fmean(self.scores)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds."""
        return pstdev(self.scores) if math.isfinite(self.mean) else math.nan


class Found:
    """The rows of a claim, by arm and place."""

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)
        self.arms = list(dict.fromkeys(row.arm for row in self.rows))
        self.places = list(dict.fromkeys(row.place for row in self.rows))
        self._by_name = {(row.arm, row.place): row for row in self.rows}

    def __getitem__(self, name: tuple[str, str]) -> Row:
        return self._by_name[name]

    def get(self, arm: str, place: str) -> Row | None:
        """None if this was not measured."""
        return self._by_name.get((arm, place))

    def as_json(self) -> list[dict[str, Any]]:
        """What is infinite has no number."""
        return [
            asdict(row) | {"scores": [float(s) if math.isfinite(s) else None for s in row.scores]} for row in self.rows
        ]

    @classmethod
    def of_json(cls, rows: Iterable[Mapping[str, Any]]) -> Found:
        """What `as_json` has written."""
        return cls(Row(**{**row, "scores": [math.inf if s is None else s for s in row["scores"]]}) for row in rows)


def clearly_less(one: Row, other: Row) -> bool:
    """By more than what seeds make of the difference: rows have the same seeds, so that differences are paired.

    The mean difference is more than three standard errors.
    """
    if not (math.isfinite(one.mean) and math.isfinite(other.mean)):
        return math.isfinite(one.mean)
    excess, error = difference(other, one)
    return excess > 3 * error


def difference(one: Row, other: Row) -> tuple[float, float]:
    """By how much the scores of the one are more, in the mean over seeds, and its standard error."""
    differences = [a - b for a, b in zip(one.scores, other.scores, strict=True)]
    return fmean(differences), stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0


def places(workers: Sequence[int], gradients: int) -> dict[str, dict[str, Any]]:
    """So many gradients in all."""
    return {str(number): {"workers": number, "steps": gradients // number} for number in workers}


def mean_loss(row: Row, digits: int = 2) -> str:
    """The mean of a row, as a sentence has it."""
    return f"{row.mean:.{digits}f}" if math.isfinite(row.mean) else "infinity"


def final_loss(outcome: Outcome) -> float:
    """At the end of a run; infinite if it diverged."""
    return fmean(outcome["loss"][-LAST:]) if outcome["loss"] else math.inf


def final_error(outcome: Outcome) -> float:
    """The share of wrong answers at the end."""
    return 1 - fmean(outcome["accuracy"][-LAST:]) if outcome["accuracy"] else math.inf


def until(loss: float, column: str) -> Score:
    """How many updates, gradients or seconds it took to a loss, between measurements on a straight line."""

    def score(outcome: Outcome) -> float:
        there = crossing(outcome["loss"], loss)
        return there.of(outcome[column]) if there else math.inf

    return score


def study(
    about: str,
    arms: Sequence[Arm],
    places: Mapping[str, Mapping[str, Any]],
    score: Score | Mapping[str, Score],
    *,
    tuned_at: str | None = None,
    tuning_seeds: Sequence[int] = TUNING_SEEDS,
    showing_seeds: Sequence[int] = SHOWING_SEEDS,
    fair: bool = False,
    kind: Any = Cell,
) -> list[Row]:
    """Tune and show.

    Args:
        about: the line that tells of progress.
        arms: what is compared.
        places: fields of `Cell` by the name of the place. One named `settings` goes to the hyperparameters.
        score: of an outcome, less is better; or one for each place.
        tuned_at: the place whose settings all others keep; None: each is tuned by itself.
        tuning_seeds: on which settings are chosen.
        showing_seeds: on which they are shown.
        fair: all arms must have as many settings; a grid at whose end the best setting stands is extended.
        kind: of the cells.

    Raises:
        ValueError: it is not fair.
    """
    numbers = {arm.name: len(arm.settings()) for arm in arms}
    if fair and len(set(numbers.values())) > 1:
        raise ValueError(f"{about}: all arms must have as many settings: {numbers}")
    score_at = score if isinstance(score, Mapping) else dict.fromkeys(places, score)
    pairs = list(itertools.product(arms, places))
    ends = {(arm.name, place): arm for arm, place in pairs}
    ranks: dict[tuple[str, str], list[tuple[Any, dict[str, Any]]]] = {}
    for again in range(1 + FURTHER * fair):
        for at, known in ranks.items() if again else ():
            ends[at] = ends[at].beyond(min(known, key=lambda pair: pair[0])[1]) or ends[at]
        tried = [
            (arm, place, settings)
            for (name, place), arm in ends.items()
            if place == (tuned_at or place) and len(arm.settings()) > 1
            for settings in arm.settings()
            if settings not in [known for _, known in ranks.get((name, place), [])]
        ]
        if not tried:
            break
        cells = [_cell(kind, a, places[place], settings, seed) for a, place, settings in tried for seed in tuning_seeds]
        found = outcomes(cells, f"{about}: tuning")
        for i, (arm, place, settings) in enumerate(tried):
            mine = found[i * len(tuning_seeds) : (i + 1) * len(tuning_seeds)]
            ranks.setdefault((arm.name, place), []).append((_rank(mine, score_at[place]), settings))
    chosen = {
        (arm.name, place): min(ranks[arm.name, tuned_at or place], key=lambda pair: pair[0])[1]
        if (arm.name, tuned_at or place) in ranks
        else arm.settings()[0]
        for arm, place in pairs
    }
    cells = [_cell(kind, a, places[place], chosen[a.name, place], seed) for a, place in pairs for seed in showing_seeds]
    found = outcomes(cells, f"{about}: showing")
    rows = []
    for i, (arm, place) in enumerate(pairs):
        mine, settings = found[i * len(showing_seeds) : (i + 1) * len(showing_seeds)], chosen[arm.name, place]
        of_grid, edges = {name: settings[name] for name in arm.grid}, ends[arm.name, tuned_at or place].edges(settings)
        scores = [score_at[place](outcome) for outcome in mine]
        rows.append(Row(arm.name, place, of_grid, edges, scores, numbers[arm.name]))
    return rows


def _cell(kind: Any, arm: Arm, place: Mapping[str, Any], settings: Mapping[str, Any], seed: int) -> Any:
    rest = {name: value for name, value in place.items() if name != "settings"} | dict(arm.run)
    return kind(scheme=arm.scheme, settings={**settings, **place.get("settings", {})}, seed=seed, **rest)


def _rank(found: Sequence[Outcome], score: Score) -> tuple[int, float, float]:
    """The less the better: seeds that did not get there, the mean score of those that did, and the last losses."""
    scores = [score(outcome) for outcome in found]
    there = [value for value in scores if math.isfinite(value)]
    return len(scores) - len(there), fmean(there) if there else 0, fmean(final_loss(outcome) for outcome in found)
