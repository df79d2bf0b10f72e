"""Graphmax: softmax pulled towards a scene graph, exact and certified (Liu and Yin, "Graphmax for Text Generation")."""

from lit_ctg import when_used

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

__getattr__ = when_used(
    __name__,
    {
        "equation": ["GraphmaxResult", "NotConverged", "certify", "graphmax"],
        "graph": ["CooccurrenceGraph"],
        "published": ["AlgorithmOne"],
        "variant": ["VariantRule", "softmax", "sparsemax", "variants"],
    },
)
