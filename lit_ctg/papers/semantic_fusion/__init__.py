"""Semantic fusion: fuzzy features fused into a Transformer, grammar-constrained control."""

from lit_ctg.papers.semantic_fusion.corpus import ClauseCoupledDataModule, ClauseDataModule
from lit_ctg.papers.semantic_fusion.decode import ClauseDecoding, ClauseGenerator
from lit_ctg.papers.semantic_fusion.model import SemanticFusionModule

__all__ = [
    "ClauseCoupledDataModule",
    "ClauseDataModule",
    "ClauseDecoding",
    "ClauseGenerator",
    "SemanticFusionModule",
]
