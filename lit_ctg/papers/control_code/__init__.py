"""Neuron-level control codes (Orten and Fulda)."""

from lit_ctg.papers.control_code.decode import CodeDecoding, CodeGenerator
from lit_ctg.papers.control_code.model import CodeGRUBackbone, CodeTransformerBackbone, ControlCodeModule

__all__ = ["CodeDecoding", "CodeGRUBackbone", "CodeGenerator", "CodeTransformerBackbone", "ControlCodeModule"]
