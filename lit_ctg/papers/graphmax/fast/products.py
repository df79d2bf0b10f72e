"""The product with M for one vector and for sixteen at a time: float32 in memory, every sum in float64.

Shape suffixes: B rows, V vocabulary, L lanes (vectors processed together).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from lit_ctg.papers.graphmax.fast import together
from lit_ctg.papers.graphmax.fast.jit import compiled

if TYPE_CHECKING:
    from lit_ctg.papers.graphmax.graph import Matrices

LANES = 16  # one cache line of float32
LONG = 32  # longer rows are summed separately, by gathers


class SlicedRows(NamedTuple):
    """A sparse matrix with rows sorted by length and stored 16 side by side (SELL), for products with one vector.

    ``order`` lists the rows of the slices, ``starts`` is where a slice begins in ``columns`` and ``values``; ``alone``
    lists the longer rows, each a slice of its own in ``pointers``, ``alone_columns`` and ``alone_values``. Columns are
    16-bit numbers if they fit.
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
        """Memory in bytes."""
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


@compiled
def residual(order, starts, columns, values, alone, pointers, alone_columns, alone_values, x_V, out_V):
    """Write ``x - W x`` into ``out_V``, W being the matrix of the first eight arguments (a SlicedRows)."""
    sums = np.zeros(LANES, np.float64)
    for part in range(len(starts) - 1):
        for lane in range(LANES):
            sums[lane] = 0
        for edge in range(starts[part], starts[part + 1], LANES):
            column, value = columns[edge : edge + LANES], values[edge : edge + LANES]
            for lane in range(LANES):
                sums[lane] += np.float64(value[lane]) * np.float64(x_V[column[lane]])
        for lane in range(LANES):
            row = order[part * LANES + lane]
            out_V[row] = x_V[row] - sums[lane]
    for place in range(len(alone)):
        row, first, last = alone[place], pointers[place], pointers[place + 1]
        out_V[row] = x_V[row] - _dot(alone_columns[first:last], alone_values[first:last], x_V)


@compiled
def _dot(columns, values, x_V):
    # a separate function: inside the loop over rows it would not be vectorised
    result = 0.0
    for edge in range(len(columns)):
        result += np.float64(values[edge]) * np.float64(x_V[columns[edge]])
    return result


@intrinsic
def _less_edges(typing, columns, values, first, last, x_VL, row, out_VL):
    """``out[row] = x[row] - sum_e values[e] x[columns[e]]`` for all lanes at once, in a vector register.

    numba does not vectorise a loop over lanes: it cannot know that ``out`` and ``x`` do not overlap.
    """
    signature = types.void(columns, values, types.intp, types.intp, x_VL, types.intp, out_VL)

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        column_p, value_p, x_p, out_p = (
            context.make_array(kinds[place])(context, builder, arguments[place]).data for place in (0, 1, 4, 6)
        )
        narrow, wide = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)
        index, nothing = ir.IntType(64), ir.Constant(wide, ir.Undefined)

        def lanes(pointer, place):
            start = builder.gep(pointer, [builder.mul(place, ir.Constant(index, LANES))])
            return builder.bitcast(start, narrow.as_pointer())

        def read(place):
            return builder.fpext(builder.load(lanes(x_p, place), align=4), wide)

        sums = cgutils.alloca_once(builder, wide)
        builder.store(read(arguments[5]), sums)
        with cgutils.for_range_slice(builder, arguments[2], arguments[3], ir.Constant(index, 1)) as (edge, _):
            column = builder.zext(builder.load(builder.gep(column_p, [edge])), index)
            value = builder.fpext(builder.load(builder.gep(value_p, [edge])), ir.DoubleType())
            single = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
            values_L = builder.shuffle_vector(
                single, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            )
            part = builder.fmul(values_L, read(column), flags=("contract",))
            builder.store(builder.fsub(builder.load(sums), part, flags=("contract",)), sums)
        builder.store(builder.fptrunc(builder.load(sums), narrow), lanes(out_p, arguments[5]), align=4)
        return context.get_dummy_value()

    return signature, generate


@compiled
def residuals(first, last, pointers, columns, values, x_VL, out_VL):
    """Write the rows ``first`` to ``last`` of ``x - W x`` for sixteen vectors, W a CSR matrix with int32 columns."""
    for row in range(first, last):
        _less_edges(columns, values, np.intp(pointers[row]), np.intp(pointers[row + 1]), x_VL, np.intp(row), out_VL)


def product(matrices: Matrices, x_BV: np.ndarray) -> np.ndarray:
    """Return ``M x`` of each row, rounded to float32 after ``(I - A~) x`` and at the end."""
    out_BV = np.empty_like(x_BV)
    if len(x_BV) == 1:
        middle_V = np.empty_like(x_BV[0])
        residual(*matrices.sliced[0], x_BV[0], middle_V)
        residual(*matrices.sliced[1], middle_V, out_BV[0])
        return out_BV
    for first in range(0, len(x_BV), LANES):
        part_BV = torch.from_numpy(x_BV[first : first + LANES])
        source_VL = part_BV.new_zeros(part_BV.shape[1], LANES)
        source_VL[:, : len(part_BV)] = part_BV.T
        image_VL = _less(matrices.backward, _less(matrices.forward, source_VL.numpy()))
        out_BV[first : first + LANES] = image_VL[:, : len(part_BV)].T
    return out_BV


def _less(matrix: sp.csr_array, x_VL: np.ndarray) -> np.ndarray:
    """Return ``x - W x``; all threads take equally many edges."""
    out_VL = np.empty_like(x_VL)
    inner = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, torch.get_num_threads() + 1)[1:-1])
    bounds = [0, *inner.tolist(), matrix.shape[0]]
    arrays = (matrix.indptr, matrix.indices, matrix.data, x_VL, out_VL)
    together(residuals, [(*pair, *arrays) for pair in itertools.pairwise(bounds)])
    return out_VL
