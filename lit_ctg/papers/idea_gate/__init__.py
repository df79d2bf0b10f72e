"""Idea-gated Transformer: a head that foretells the coming tokens gates the next one."""

from lit_ctg.papers.idea_gate.module import IdeaGateModule

__all__ = ["IdeaGateModule"]
