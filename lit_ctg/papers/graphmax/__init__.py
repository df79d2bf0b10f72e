"""Graphmax: softmax pulled towards a scene graph, exact and certified (Liu & Yin, "Graphmax for Text Generation")."""

from lit_ctg.papers.graphmax.baseline import softmax, sparsemax
from lit_ctg.papers.graphmax.function import GraphmaxResult, NotConverged, certify, graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.rule import GraphmaxRule
from lit_ctg.papers.graphmax.variant import VariantRule, variants

__all__ = [
    "AlgorithmOne",
    "CooccurrenceGraph",
    "GraphmaxResult",
    "GraphmaxRule",
    "NotConverged",
    "VariantRule",
    "certify",
    "graphmax",
    "softmax",
    "sparsemax",
    "variants",
]
