"""Sparse problems: logistic regression in which each example touches few coordinates, the setting of Hogwild.

Rows are padded to one length: `indices` and `values`, [examples, entries]. Padding repeats a coordinate of its own row
with the value 0, so that no example touches a coordinate that is not its own.

A scheme with `sparse = True` pushes a `tf.IndexedSlices`; its workers hold no copy of the parameters, but gather the
coordinates of a batch from the center. All other schemes train the same model with dense vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .recipes import Dataset

RHO_SAMPLE = 256  # examples whose collisions with all others are counted


def libsvm(*, path: str = "", test: str = "") -> Dataset:
    """Read a file in LIBSVM's format with two labels; without a `test` file, every fifth row is a test example."""
    if not path:
        raise UserError("data set libsvm needs a file: --dataset libsvm:path=train.svm or libsvm:path=a.svm,test=b.svm")
    files = [path, test] if test else [path]
    for file in files:
        if Path(file).exists() and not Path(file).is_file():  # reading a device or a pipe may not end
            raise UserError(f"cannot read {file} as LIBSVM: it is no regular file")
        if not Path(file).exists():
            raise UserError(f"cannot read {file} as LIBSVM: there is no such file")
    from scipy.sparse import vstack
    from sklearn.datasets import load_svmlight_files

    try:
        loaded = load_svmlight_files(files, dtype=np.float32)  # pyright: ignore[reportArgumentType]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {' and '.join(files)} as LIBSVM: {error}") from None
    rows, labels = vstack(loaded[::2]).tocsr(), np.concatenate(loaded[1::2])
    kinds = np.unique(labels)
    if len(kinds) != 2:
        raise UserError(
            f"logistic regression needs two different labels. Received: {len(kinds)} in {' and '.join(files)}"
        )
    is_test = np.arange(len(labels)) >= loaded[0].shape[0] if test else np.arange(len(labels)) % 5 == 4
    features = int(rows.indices.max(initial=0)) + 1
    x, y = padded(rows), (labels == kinds[1]).astype(np.int32)
    train, held_out = ((tuple(a[part] for a in x), y[part]) for part in (~is_test, is_test))
    return Dataset(train, held_out, classes=2, features=features)


def padded(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Convert a SciPy CSR matrix to padded `indices` and `values`, [examples, entries]."""
    lengths = np.diff(rows.indptr)
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    first = np.where(lengths > 0, rows.indices[np.minimum(rows.indptr[:-1], max(0, rows.nnz - 1))], 0)
    indices = np.broadcast_to(first[:, None], mask.shape).astype(np.int32)
    values = np.zeros(mask.shape, np.float32)
    indices[mask], values[mask] = rows.indices, rows.data
    return indices, values


def sparsity(x: tuple[np.ndarray, np.ndarray], features: int) -> dict[str, float]:
    """Return the sparsity figures of Niu et al., which measure how often examples collide.

    Omega: the most coordinates of an example. Delta: the largest share of examples that have one coordinate in common.
    rho: the largest share of examples that collide with one example (of a sample of them).
    """
    from scipy.sparse import csr_array

    (indices, values), examples = x, len(x[0])
    row = np.repeat(np.arange(examples), indices.shape[1])
    used = values.ravel() != 0
    touches = csr_array((np.ones(used.sum()), (row[used], indices.ravel()[used])), (examples, features))
    touches.data[:] = 1
    sample = np.random.default_rng(0).permutation(examples)[:RHO_SAMPLE]
    met = np.diff((touches[sample] @ touches.T).tocsr().indptr)
    return {
        "omega": int(np.diff(touches.indptr).max()),
        "delta": float(touches.sum(0).max() / examples),
        "rho": float(met.max() / examples),
    }
