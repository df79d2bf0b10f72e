"""Neuron-level control codes (Orten and Fulda)."""

from lit_ctg.model.control_code.module import ControlCodeModule

__all__ = ["ControlCodeModule"]
