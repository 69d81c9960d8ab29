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

from .claims_cache import outcomes
from .claims_runs import ClaimRun
from .crossing import crossing
from .grids import following

TUNING_SEEDS, SHOWING_SEEDS = (100, 101, 102), (0, 1, 2)

NINE = tuple(range(9))  # showing seeds, where differences are small

FURTHER = 6  # times at most that a grid is made longer at the end at which the best setting stands

LAST = 5  # of the moments at which the center is measured: their mean is the loss at the end

GUESSING = math.log(8)  # the loss of a model that guesses among eight classes

Outcome = Mapping[str, Sequence[float]]
Score = Callable[[Outcome], float]


@dataclass(frozen=True)
class Arm:
    """What is compared: an algorithm, hyperparameters that are tuned, some that are fixed, and fields of `ClaimRun`."""

    name: str
    scheme: str
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> list[dict[str, Any]]:
        """Return all settings that are tried."""
        return [
            {**self.fixed, **dict(zip(self.grid, chosen, strict=True))}
            for chosen in itertools.product(*self.grid.values())
        ]

    def beyond(self, settings: Mapping[str, Any]) -> Arm:
        """Return this arm with one more number at the end of each grid at which these settings stand, if it exists."""
        grid = dict(self.grid)
        for name in self.edges(settings):
            tried, value = self.grid[name], settings[name]
            further = following(name, value, tried[1] if value == tried[0] else tried[-2])
            if further is not None:
                grid[name] = (further, *tried) if value == tried[0] else (*tried, further)
        return replace(self, grid=grid)

    def edges(self, settings: Mapping[str, Any]) -> list[str]:
        """Name the hyperparameters at an end of their grid, where a wider one might have something better."""
        return [name for name, tried in self.grid.items() if len(tried) > 1 and settings[name] in (tried[0], tried[-1])]


def geometric(first: float, ratio: float, count: int) -> tuple[float, ...]:
    """Return so many numbers, each `ratio` times the one before it."""
    return tuple(float(f"{first * ratio**i:.3g}") for i in range(count))


@dataclass(frozen=True)
class Row:
    """How one arm did at one place.

    Attributes:
        arm, place: their names.
        settings: what was chosen, of what was tuned.
        edges: what was chosen at the end of its grid.
        scores: of each showing seed; infinite if the run diverged or did not get there.
        tried: settings of the grid that it began with; 0 if nothing was tuned.
        further: settings beyond the ends of that grid that were tried, too.
    """

    arm: str
    place: str
    settings: Mapping[str, Any]
    edges: Sequence[str]
    scores: Sequence[float]
    tried: int = 0
    further: int = 0

    @property
    def mean(self) -> float:
        """Return the mean over seeds; infinite if one of them is."""
        return fmean(self.scores)

    @property
    def spread(self) -> float:
        """Return the standard deviation over seeds."""
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
        """Return a row; None if it was not measured."""
        return self._by_name.get((arm, place))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows for JSON: infinite scores become null."""
        return [
            asdict(row) | {"scores": [float(s) if math.isfinite(s) else None for s in row.scores]} for row in self.rows
        ]

    @classmethod
    def of_json(cls, rows: Iterable[Mapping[str, Any]]) -> Found:
        """Read the rows that `as_json` has written."""
        return cls(Row(**{**row, "scores": [math.inf if s is None else s for s in row["scores"]]}) for row in rows)


def clearly_less(one: Row, other: Row) -> bool:
    """Return True if the difference exceeds its noise: rows have the same seeds, so that differences are paired.

    The mean difference is more than three standard errors.
    """
    if not (math.isfinite(one.mean) and math.isfinite(other.mean)):
        return math.isfinite(one.mean)
    excess, error = difference(other, one)
    return excess > 3 * error


def difference(one: Row, other: Row) -> tuple[float, float]:
    """Return the mean over seeds of the first row's scores minus the second's, and its standard error."""
    differences = [a - b for a, b in zip(one.scores, other.scores, strict=True)]
    return fmean(differences), stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0


def places(workers: Sequence[int], gradients: int) -> dict[str, dict[str, Any]]:
    """Return places with so many gradients in all."""
    return {str(number): {"workers": number, "steps": gradients // number} for number in workers}


def mean_loss(row: Row, digits: int = 2) -> str:
    """Return the mean of a row, formatted for a sentence."""
    return f"{row.mean:.{digits}f}" if math.isfinite(row.mean) else "infinity"


def final_loss(outcome: Outcome) -> float:
    """Return the loss at the end of a run; infinite if it diverged."""
    return fmean(outcome["loss"][-LAST:]) if outcome["loss"] else math.inf


def final_error(outcome: Outcome) -> float:
    """Return the share of wrong answers at the end."""
    return 1 - fmean(outcome["accuracy"][-LAST:]) if outcome["accuracy"] else math.inf


def until(loss: float, column: str) -> Score:
    """Count updates, gradients or seconds to a loss, interpolated between measurements on a straight line."""

    def score(outcome: Outcome) -> float:
        point = crossing(outcome["loss"], loss)
        return point.of(outcome[column]) if point else math.inf

    return score


@dataclass
class Search:
    """The settings of an arm that were tried at a place, each with its rank: the less the better."""

    arm: Arm
    place: str
    ranks: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def missing(self) -> list[dict[str, Any]]:
        """Return the settings that are still to be tried; nothing if nothing is tuned."""
        tried, settings = [settings for _, settings in self.ranks], self.arm.settings()
        return [each for each in settings if each not in tried] if len(settings) > 1 else []

    @property
    def best(self) -> dict[str, Any]:
        """Return the settings whose rank is least."""
        return min(self.ranks, key=lambda pair: pair[0])[1] if self.ranks else self.arm.settings()[0]

    def widen(self) -> None:
        """Make grids longer where the best settings stand at their ends."""
        self.arm = self.arm.beyond(self.best)


def study(
    about: str,
    arms: Sequence[Arm],
    places: Mapping[str, Mapping[str, Any]],
    score: Score | Mapping[str, Score],
    *,
    tuned_at: str | None = None,
    tuning_seeds: Sequence[int] = TUNING_SEEDS,
    showing_seeds: Sequence[int] = SHOWING_SEEDS,
    kind: Any = ClaimRun,
) -> list[Row]:
    """Tune and show. A grid at whose end the best setting stands is made longer there.

    Args:
        about: the line that tells of progress.
        arms: what is compared.
        places: fields of `ClaimRun` by the name of the place. One named `settings` goes to the hyperparameters.
        score: of an outcome, less is better; or one for each place.
        tuned_at: the place whose settings all others keep; None: each is tuned by itself.
        tuning_seeds: on which settings are chosen.
        showing_seeds: on which they are shown.
        kind: of the runs.

    Raises:
        ValueError: arms that are tuned have not as many settings each.
    """
    numbers = {arm.name: count for arm in arms if (count := len(arm.settings())) > 1}
    if len({*numbers.values()}) > 1:
        raise ValueError(f"{about}: all arms that are tuned must have as many settings: {numbers}")
    score_at = score if isinstance(score, Mapping) else dict.fromkeys(places, score)

    def run(stage: str, trials: list[tuple[Arm, str, dict[str, Any]]], seeds: Sequence[int]) -> list[Sequence[Outcome]]:
        runs = [_run_of(kind, arm, places[place], settings, seed) for arm, place, settings in trials for seed in seeds]
        found = outcomes(runs, f"{about}: {stage}")
        return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]

    searches = {
        (arm.name, place): Search(arm, place) for arm in arms for place in places if place == (tuned_at or place)
    }
    for attempt in range(1 + FURTHER):
        for search in searches.values() if attempt else ():
            search.widen()
        tried = [(search, settings) for search in searches.values() for settings in search.missing()]
        found = run("tuning", [(search.arm, search.place, settings) for search, settings in tried], tuning_seeds)
        for (search, settings), outcomes_of_seeds in zip(tried, found, strict=True):
            search.ranks.append((_rank(outcomes_of_seeds, score_at[search.place]), settings))
    shown = [(arm, place, searches[arm.name, tuned_at or place]) for arm in arms for place in places]
    found = run("showing", [(arm, place, search.best) for arm, place, search in shown], showing_seeds)
    rows = []
    for (arm, place, search), outcomes_of_seeds in zip(shown, found, strict=True):
        settings, edges = {name: search.best[name] for name in arm.grid}, search.arm.edges(search.best)
        tried = numbers.get(arm.name, 0)
        scores = [score_at[place](outcome) for outcome in outcomes_of_seeds]
        rows.append(Row(arm.name, place, settings, edges, scores, tried, len(search.ranks) - tried))
    return rows


def _run_of(kind: Any, arm: Arm, place: Mapping[str, Any], settings: Mapping[str, Any], seed: int) -> Any:
    rest = {name: value for name, value in place.items() if name != "settings"} | dict(arm.run)
    return kind(scheme=arm.scheme, settings={**settings, **place.get("settings", {})}, seed=seed, **rest)


def _rank(found: Sequence[Outcome], score: Score) -> tuple[int, float, float]:
    """Rank outcomes, less is better: seeds that missed the target, the mean score of the others, the last losses."""
    scores = [score(outcome) for outcome in found]
    reached = [value for value in scores if math.isfinite(value)]
    return len(scores) - len(reached), fmean(reached) if reached else 0, fmean(final_loss(outcome) for outcome in found)
