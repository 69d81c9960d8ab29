"""The mean of curves over the seeds of runs, and a band around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from .sheet import Figure

Band = Literal["deviation", "range"]

IN_WORDS = {"deviation": "± standard deviation", "range": "from least to greatest"}

MOST_PLACES = 400  # of a mean


class Curve(NamedTuple):
    """A curve: places on the horizontal axis, in order, and values."""

    places: Any
    values: Any


def mean_and_band(curves: Sequence[Curve], band: Band) -> tuple[Any, Any, Any, Any]:
    """Return places, and for each the mean of the curves and the two ends of the band, each [N].

    The places are those of all curves, from where the last of them begins to where the first one ends. Between its
    own places, a curve is interpolated; the standard deviation is that of a sample.
    """
    import numpy as np

    finite = [_finite(curve) for curve in curves]
    finite = [curve for curve in finite if len(curve.places)] or [Curve([0.0], [np.nan])]
    first, last = max(curve.places[0] for curve in finite), min(curve.places[-1] for curve in finite)
    places = np.unique(np.concatenate([curve.places for curve in finite]))
    places = places[(places >= first) & (places <= last)] if first <= last else np.array([first])
    if len(places) > MOST_PLACES:
        places = places[np.linspace(0, len(places) - 1, MOST_PLACES).astype(int)]
    values = np.stack([np.interp(places, curve.places, curve.values) for curve in finite])  # [curve, place]
    mean = values.mean(0)
    if band == "range":
        return places, mean, values.min(0), values.max(0)
    deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    return places, mean, mean - deviation, mean + deviation


def _finite(curve: Curve) -> Curve:
    import numpy as np

    places, values = np.asarray(curve.places, float), np.asarray(curve.values, float)
    kept = np.isfinite(values)
    return Curve(places[kept], values[kept])


def spread(values: Sequence[float]) -> Figure:
    """Return mean and sample standard deviation of numbers."""
    finite = [value for value in values if math.isfinite(value)]
    return Figure(fmean(finite) if finite else math.nan, stdev(finite) if len(finite) > 1 else None)
