"""Graphmax: softmax pulled towards a scene graph, exact and certified (Liu and Yin, "Graphmax for Text Generation")."""

from lit_ctg.papers.graphmax.equation import GraphmaxResult, NotConverged, certify, graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.variant import VariantRule, softmax, sparsemax, variants

__all__ = [
    "AlgorithmOne",
    "CooccurrenceGraph",
    "GraphmaxResult",
    "NotConverged",
    "VariantRule",
    "certify",
    "graphmax",
    "softmax",
    "sparsemax",
    "variants",
]
