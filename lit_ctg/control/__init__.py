"""Portable controls: saved, loaded, composed, and attached to any Hugging Face causal language model."""

from lit_ctg.control.base import NO_TOKEN, Control, Prefix, Stage, Values
from lit_ctg.control.bundle import Origin, fingerprint
from lit_ctg.control.steered import Steered

__all__ = ["NO_TOKEN", "Control", "Origin", "Prefix", "Stage", "Steered", "Values", "fingerprint"]
