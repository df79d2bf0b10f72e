"""Semantic fusion: fuzzy features fused into a Transformer, grammar-constrained control."""

from lit_ctg.papers.semantic_fusion.module import SemanticFusionModule

__all__ = ["SemanticFusionModule"]
