"""Neuron-level control codes (Orten and Fulda)."""

from lit_ctg import when_used

__all__ = ["CodeDecoding", "CodeGRUBackbone", "CodeGenerator", "CodeTransformerBackbone", "ControlCodeModule"]

__getattr__ = when_used(
    __name__,
    {
        "decode": ["CodeDecoding", "CodeGenerator"],
        "model": ["CodeGRUBackbone", "CodeTransformerBackbone", "ControlCodeModule"],
    },
)
