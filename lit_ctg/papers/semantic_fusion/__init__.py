"""Semantic fusion: fuzzy features fused into a Transformer, grammar-constrained control."""

from lit_ctg import when_used

__all__ = ["ClauseCoupledDataModule", "ClauseDataModule", "ClauseDecoding", "ClauseGenerator", "SemanticFusionModule"]

__getattr__ = when_used(
    __name__,
    {
        "corpus": ["ClauseCoupledDataModule", "ClauseDataModule"],
        "decode": ["ClauseDecoding", "ClauseGenerator"],
        "model": ["SemanticFusionModule"],
    },
)
