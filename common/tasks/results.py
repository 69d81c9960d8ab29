"""The files with the results of a run, each of them usable without the others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..data.recipes import RECIPES
from ..errors import CannotWrite, Diverged, UserError
from ..files import PART, replacing, writing
from ..record.event_log import Tally
from ..record.keras_callbacks import EVALUATED
from ..record.round_log import TimeTotals
from ..record_format import DATA, INITIAL, PARTS
from ..reports import Report
from ..sync.topology import FILE, GRAPH, Topology
from ..waiting import POLL_SECONDS
from ..worker.flat_model import FlatModel

MOST_BYTES = 1 << 26  # of data in a run directory


def result_of(tally: Tally, spent: TimeTotals, missing: list[str], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a run, for its event.

    Args:
        tally: totals of its events.
        spent: the times of its rounds.
        missing: the reasons for which files could not be written.
        metrics: metrics at its end.
    """
    return {
        "updates": metrics["version"],
        "share_of_updates": tally.shares,
        "round": spent.shares.as_dict() if spent.shares else None,
        "training": spent.seconds,
        "first_rounds": {str(worker): begun for worker, (begun, _) in spent.spans.items()},
        "dropped": tally.dropped,
        "staleness_histogram": {str(t): n for t, n in sorted(tally.staleness.items())},
        "unwritten": missing,
        **metrics,
    }


def unwritten(writes: Iterable[Callable[[], object]]) -> list[str]:
    """Call all writes, also after one has failed; return the reasons of those that have failed."""
    reasons = []
    for write in writes:
        try:
            write()
        except CannotWrite as error:
            reasons.append(str(error))
    return reasons


def check_finite(center: np.ndarray, version: int) -> None:
    """Raise `Diverged` if the center at that version, [P], is not finite."""
    if not np.isfinite(center).all():
        raise Diverged(
            f"the center is not finite, at version {version}: a step was too long. Try a smaller learning rate or "
            "period, or fewer workers"
        )


def write_center(run_dir: Path, arrays: Mapping[str, Any], name: str = "center.npz") -> None:
    """Write the center, [P], its average if it has one, and the state, [S]; raises `CannotWrite`."""
    with replacing(run_dir / name) as file:
        np.savez(file, **arrays)


def hand_over(
    run_dir: Path | None, arrays: Mapping[str, Any], report: Report, interrupted: Callable[[], bool], **event: Any
) -> None:
    """Report an evaluation of the center; with a folder, wait until Keras' callbacks there were called with it.

    In a run that was interrupted these may be slow: nothing is awaited.
    """
    if run_dir is not None:
        write_center(run_dir, arrays, EVALUATED)
    report(**event)
    while run_dir is not None and (run_dir / EVALUATED).exists() and not interrupted():
        report(event="beat")  # raises the error of a callback that runs in this process, instead of waiting for ever
        time.sleep(POLL_SECONDS)


def write_initial(run_dir: Path, center: np.ndarray) -> None:
    """Write the center [P] before the first update, for a replay, unless the run that is resumed here has written it.

    Raises:
        CannotWrite: it cannot be written.
    """
    if not (path := run_dir / INITIAL).exists():
        with replacing(path) as file:
            np.savez(file, center=center)


def write_data(run_dir: Path, config: Mapping[str, Any], train: Any, test: Any) -> None:
    """Write data that a replay with NumPy alone needs: those that no recipe makes, of a model with a NumPy gradient.

    Raises:
        CannotWrite: they cannot be written.
    """
    data, model = (config[name].partition(":")[0] for name in ("dataset", "model"))
    if data in RECIPES or model not in ("softmax", "mlp") or config["record"] == "off":
        return
    arrays = [array for part in (train, test) if isinstance(part, tuple) for array in part]
    whole = len(arrays) == len(PARTS) and all(isinstance(array, np.ndarray) for array in arrays)
    if whole and sum(array.nbytes for array in arrays) <= MOST_BYTES:
        with replacing(run_dir / DATA) as file:
            np.savez(file, **dict(zip(PARTS, arrays, strict=True)))


def write_graph(run_dir: Path, graph: str, workers: int) -> None:
    """Write the mixing matrix of workers that gossip if it is from a file, which may change after the run.

    Raises:
        UserError: a run that is resumed here had another matrix.
        CannotWrite: it cannot be written.
    """
    if not graph.startswith(FILE):
        return
    path, weights = run_dir / GRAPH, Topology(graph).weights(workers)
    if not path.exists():
        with replacing(path) as file:
            np.savetxt(file, weights, fmt="%.17g")
    elif not np.array_equal(Topology(f"{FILE}{path}").weights(workers), weights):
        raise UserError(
            f"{run_dir} holds checkpoints of a run with another mixing matrix, which is in its {GRAPH}: resume with "
            f"that, or choose another run directory. Received: {graph}"
        )


def write_model(run_dir: Path, model: FlatModel, arrays: Mapping[str, Any]) -> None:
    """Write the Keras model with the center (or its average) as its weights; raises `CannotWrite`."""
    load(model, arrays)
    part = run_dir / f".model{PART}.keras"  # Keras derives the format from the end of the name
    with writing(run_dir / "model.keras"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns about lambdas, which a loader must allow explicitly
        part.unlink(missing_ok=True)
        try:
            model.model.save(part)
            part.replace(run_dir / "model.keras")
        finally:
            part.unlink(missing_ok=True)


def load(model: FlatModel, arrays: Mapping[str, Any]) -> None:
    """Load the center, or its average if it has one, and the state into the Keras model."""
    model.load(arrays.get("average", arrays["center"]), arrays["state"])
