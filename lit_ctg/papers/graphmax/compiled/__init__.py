"""Kernels for the CPU, compiled by numba: the product with one vector, the model step and the gap of each row.

The same mathematics as in operator.py, reduced.py and certificate.py, which run where numba is not installed, on
another device and in batches (products). Arrays are numpy. Shape suffixes: B rows, V vocabulary, K hubs, X extras,
N = K + X + 1 (n of one row).
"""

from lit_ctg.papers.graphmax.compiled.cache import kept_by_digest

with kept_by_digest():
    from lit_ctg.papers.graphmax.compiled.gap import centred_gaps
    from lit_ctg.papers.graphmax.compiled.sliced_rows import SlicedRows, product, sliced
    from lit_ctg.papers.graphmax.compiled.step import model_steps

__all__ = ["SlicedRows", "centred_gaps", "model_steps", "product", "sliced"]
