"""Idea-gated Transformer: a head that predicts the tokens to come gates the next one."""

from lit_ctg import when_used

__all__ = ["GateForm", "IdeaGateModule", "IdeaGateRule", "IdeaHead", "idea_loss", "watch_idea_logits"]

__getattr__ = when_used(
    __name__,
    {
        "control": ["IdeaGateRule", "watch_idea_logits"],
        "gate": ["GateForm", "IdeaHead", "idea_loss"],
        "model": ["IdeaGateModule"],
    },
)
