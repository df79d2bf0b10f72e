"""The product with one vector."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from lit_ctg.papers.graphmax.compiled.jit import compiled

LANES = 16  # rows of a graph that are summed side by side
LONG = 32  # longer rows are summed on their own, by gathers


class SlicedRows(NamedTuple):
    """A sparse matrix, rows sorted by length and stored 16 side by side (SELL); 16-bit columns where they fit.

    ``order`` are the rows of the slices, ``starts`` where a slice begins in ``columns`` and ``values``; ``alone`` are
    the other rows, slices of one of ``pointers``, ``alone_columns`` and ``alone_values``.
    """

    order: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    alone: np.ndarray
    pointers: np.ndarray
    alone_columns: np.ndarray
    alone_values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(part.nbytes for part in self)


def sliced(matrix: sp.csr_array) -> SlicedRows:
    """Lay out a CSR matrix for :func:`residual`."""
    kind = np.uint16 if matrix.shape[1] <= 2**16 else np.int32
    lengths = np.diff(matrix.indptr)
    order = np.argsort(lengths, kind="stable")
    short = order[: np.searchsorted(lengths[order], LONG, side="right") // LANES * LANES]
    alone = order[len(short) :]
    widths = lengths[short].reshape(-1, LANES).max(axis=1, initial=0)
    starts = np.concatenate([[0], np.cumsum(widths)]) * LANES
    columns = np.zeros(starts[-1], dtype=kind)
    values = np.zeros(starts[-1], dtype=matrix.data.dtype)
    # the e-th edge of the row in lane l of slice s lies at starts[s] + 16 e + l
    counts = lengths[short]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(matrix.indptr[short], counts) + within
    place = np.repeat(np.repeat(starts[:-1], LANES) + np.tile(np.arange(LANES), len(widths)), counts) + LANES * within
    columns[place], values[place] = matrix.indices[source], matrix.data[source]
    rest = matrix[alone]
    return SlicedRows(
        short.astype(np.int32),
        starts.astype(np.int64),
        columns,
        values,
        alone.astype(np.int32),
        rest.indptr.astype(np.int64),
        rest.indices.astype(kind),
        rest.data,
    )


def product(forward: SlicedRows, backward: SlicedRows, x_V: np.ndarray) -> np.ndarray:
    """Return ``(I - A~)^T (I - A~) x``."""
    middle_V, image_V = np.empty_like(x_V), np.empty_like(x_V)
    residual(*forward, x_V, middle_V)
    residual(*backward, middle_V, image_V)
    return image_V


@compiled
def residual(order, starts, columns, values, alone, pointers, alone_columns, alone_values, x_V, out_V):
    """Write ``x - W x`` into ``out_V``, W being the matrix of the first eight arguments (a SlicedRows)."""
    sums = np.zeros(LANES, x_V.dtype)
    for part in range(len(starts) - 1):
        for lane in range(LANES):
            sums[lane] = 0
        for edge in range(starts[part], starts[part + 1], LANES):
            column, value = columns[edge : edge + LANES], values[edge : edge + LANES]
            for lane in range(LANES):
                sums[lane] += value[lane] * x_V[column[lane]]
        for lane in range(LANES):
            row = order[part * LANES + lane]
            out_V[row] = x_V[row] - sums[lane]
    for place in range(len(alone)):
        row, first, last = alone[place], pointers[place], pointers[place + 1]
        out_V[row] = x_V[row] - _dot(alone_columns[first:last], alone_values[first:last], x_V)


@compiled
def _dot(columns, values, x_V):
    # a function of its own: inside the loop over rows it would not be vectorised
    result = x_V.dtype.type(0)
    for edge in range(len(columns)):
        result += values[edge] * x_V[columns[edge]]
    return result
