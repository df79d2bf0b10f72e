"""Kernels for the CPU, compiled by numba: the product with M, the model step and the certificate of each row.

The same mathematics as in operator.py, reduced.py and certificate.py, which run where numba is not installed, on
another device and in float64. Arrays are numpy. Shape suffixes: B rows, V vocabulary, K hubs, X extras, N = K + X + 1
(n of one row).
"""

from lit_ctg.papers.graphmax.compiled.judge import judged
from lit_ctg.papers.graphmax.compiled.products import SlicedRows, product, sliced
from lit_ctg.papers.graphmax.compiled.step import model_steps

__all__ = ["SlicedRows", "judged", "model_steps", "product", "sliced"]
