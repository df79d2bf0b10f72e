"""Kernels for the CPU, compiled by numba: the product with M, the model step and the certificate of each row.

The mathematics is that of graph.py, model_step.py and certificate.py, which run instead if numba is not installed, with
``fast=off``, on other devices, and (products and certificates) in float64. Arrays are numpy. Shape suffixes: B rows, V
vocabulary, K hubs, X extras, N = K + X + 1 (n of one row).
"""

from lit_ctg.papers.graphmax.fast.judge import judged
from lit_ctg.papers.graphmax.fast.products import SlicedRows, product, sliced
from lit_ctg.papers.graphmax.fast.step import model_steps

__all__ = ["SlicedRows", "judged", "model_steps", "product", "sliced"]
