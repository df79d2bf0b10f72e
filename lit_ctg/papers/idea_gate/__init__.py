"""Idea-gated Transformer: a head that predicts the tokens to come gates the next one."""

from lit_ctg.papers.idea_gate.control import IdeaGateRule, watch_idea_logits
from lit_ctg.papers.idea_gate.model import GateForm, IdeaGateModule, IdeaHead, idea_loss

__all__ = ["GateForm", "IdeaGateModule", "IdeaGateRule", "IdeaHead", "idea_loss", "watch_idea_logits"]
