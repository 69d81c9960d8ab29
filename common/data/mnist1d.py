"""MNIST-1D: ten strokes of twelve points, randomly deformed, as sequences of 40 numbers.

Greydanus, "Scaling down deep learning" (2020), arXiv:2011.14439. The shapes and the ranges of the deformations are the
paper's; the random numbers differ, so the examples are not those of the paper's file. A model trains on it in seconds,
and accuracies of models still differ. Test accuracy, all measured here on the default sizes: 32 % of logistic
regression and 60 % of a network with 256 hidden units (scikit-learn, the network with 60 epochs of Adam), 65 % of two
hidden layers and 90 % of three convolutions (Keras, 60 epochs of Adam). The paper has 32 %, 68 % and 94 % for linear,
fully connected and convolutional models.
"""

from __future__ import annotations

import numpy as np

from .recipes import Dataset, check_room

LENGTH = 40  # numbers of an example

TEMPORARY = 10  # times the numbers of an example are in memory while it is generated

PADDED = 72  # points of a stroke and its longest padding: the length at which examples are deformed

PADDING = (36, 60)  # least and most points behind a stroke: fewer make it wider

HEIGHT = 1 / 6  # standard deviation of a stroke

SHIFT, SCALE, SHEAR = 48, 0.4, 0.75  # most points of a shift; widths of the ranges of a factor and of a slope

WANDER, NOISE = 0.25, 0.02  # standard deviations: outside of the stroke, before smoothing; and everywhere

SMOOTHING = 2.0  # standard deviation of the filter, points

STROKES = np.array(
    [
        [5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5],
        [5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5],
        [5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5],
        [5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5],
        [5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5],
        [5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5],
        [5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5],
        [5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5],
    ]
)  # one for each digit


def mnist1d(*, examples: int = 4000, test: int = 1000) -> Dataset:
    """Generate MNIST-1D (Greydanus 2020): ten strokes in noise, deformed, 40 numbers each; classes are balanced."""
    check_room(examples + test, (examples + test) * LENGTH * TEMPORARY)
    rng = np.random.default_rng(0)
    digits = rng.permutation(np.arange(examples + test) % len(STROKES)).astype(np.int32)
    x = _resampled(_sheared(_noisy(*_placed(digits, rng), rng), rng), LENGTH).astype(np.float32)
    return Dataset((x[:examples], digits[:examples]), (x[examples:], digits[examples:]), classes=len(STROKES))


def _placed(digits: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return each digit's stroke, stretched, scaled and shifted, [n, PADDED]; and a mask of its points."""
    strokes = HEIGHT * (STROKES - STROKES[:, :1]) / STROKES.std(1, keepdims=True)  # strokes begin at zero
    padding = rng.integers(PADDING[0], PADDING[1] + 1, len(digits))
    scale = 1 + SCALE * (rng.random(len(digits)) - 0.5)
    shift = rng.integers(0, SHIFT, len(digits))
    points = strokes.shape[1]
    at = np.linspace(0, 1, PADDED) * (points + padding - 1)[:, None]  # position of each point before stretching
    is_stroke = at < points
    values = _between(strokes[digits], np.minimum(at, points - 1))  # strokes end at zero, too
    columns = (np.arange(PADDED) - shift[:, None]) % PADDED
    rows = np.arange(len(digits))[:, None]
    return (values * scale[:, None])[rows, columns], is_stroke[rows, columns]


def _noisy(x: np.ndarray, is_stroke: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Replace the zeros outside of the stroke by smoothed noise, and add white noise everywhere."""
    from scipy.ndimage import gaussian_filter1d

    wander = gaussian_filter1d(WANDER * rng.standard_normal(x.shape), SMOOTHING, axis=1)
    return np.where(is_stroke, x, wander) + NOISE * rng.standard_normal(x.shape)


def _sheared(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add a random slope to each example."""
    slope = SHEAR * (rng.random(len(x)) - 0.5)
    return x - slope[:, None] * np.linspace(-0.5, 0.5, x.shape[1])


def _resampled(x: np.ndarray, length: int) -> np.ndarray:
    return _between(x, np.broadcast_to(np.linspace(0, x.shape[1] - 1, length), (len(x), length)))


def _between(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Interpolate each row linearly; x [n, points], at [n, m] in 0 ... points - 1."""
    below = np.minimum(at.astype(int), x.shape[1] - 2)
    rows = np.arange(len(x))[:, None]
    return x[rows, below] + (at - below) * (x[rows, below + 1] - x[rows, below])
