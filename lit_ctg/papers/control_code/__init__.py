"""Neuron-level control codes (Orten and Fulda)."""

from lit_ctg.papers.control_code.module import ControlCodeModule

__all__ = ["ControlCodeModule"]
