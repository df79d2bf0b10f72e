"""Kernels for the CPU, compiled by numba: the product with one vector and the reduced problem of one context.

The same mathematics as in operator.py and reduced.py, which run where numba is not installed, on another device and in
batches (products). Arrays are numpy. Shape suffixes: B rows, V vocabulary, K hubs, X extras, N = K + X + 1.
"""

from lit_ctg.model.graphmax.compiled.reduced import solve_reduced
from lit_ctg.model.graphmax.compiled.sliced_rows import SlicedRows, product, sliced

__all__ = ["SlicedRows", "product", "sliced", "solve_reduced"]
