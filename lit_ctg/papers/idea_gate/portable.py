"""Idea-gated models as Hugging Face models, plain ones as a stock GPT-2 (`lit-ctg export-model`).

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2Model, GPT2PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.portable import (
    Portable,
    RowGenerationMixin,
    check_gpt2,
    gpt2_settings,
    gpt2_state,
    plain_batch,
    stock_of,
)
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaHead, gated_scores
from lit_ctg.papers.idea_gate.model import IdeaGateModule


class IdeaGateConfig(GPT2Config):
    """GPT-2's configuration, and ``gate``: strength alpha, bound beta, clamp, epsilon, and which variants of ours."""

    model_type = "lit_ctg_idea_gate"

    gate = None


class IdeaGateForCausalLM(GPT2PreTrainedModel, RowGenerationMixin):
    """GPT-2 with idea head and gate (Eq. 1 to 6).

    ``forward`` and ``generate`` take ``alpha`` and ``beta``, one for all rows or one per row, instead of the
    configuration's; alpha = 0 is the model without its gate.
    """

    config_class = IdeaGateConfig
    row_arguments = {"alpha": 0, "beta": 0}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = GPT2Model(config)
        self.idea_head = IdeaHead(config.n_embd, config.vocab_size)
        if config.gate.get("lift"):
            self.register_buffer("base_V", torch.zeros(config.vocab_size))
        if config.gate.get("neutral_stopwords"):
            self.register_buffer("stopword_mask_V", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        alpha: float | Tensor | None = None,
        beta: float | Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return gated logits [B, T, V]."""
        output = self.transformer(
            input_ids,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
            return_dict=True,
        )
        hidden_BTD = output.last_hidden_state
        token_BTV = F.linear(hidden_BTD, self.transformer.wte.weight)
        gate = self.config.gate
        strength, bound = (_column(gate[name] if own is None else own, token_BTV)
                           for name, own in (("alpha", alpha), ("beta", beta)))  # fmt: skip
        form = GateForm(clamp=gate["clamp"], epsilon=gate["epsilon"])
        gate_BTV = form(self.idea_head(hidden_BTD), strength, bound, getattr(self, "base_V", None))
        logits_BTV = gated_scores(token_BTV, gate_BTV, getattr(self, "stopword_mask_V", None))
        logits_BTV = torch.where(strength == 0, token_BTV, logits_BTV)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=output.past_key_values)


def _column(value: float | Tensor, like: Tensor) -> Tensor:
    """Return one number, or one per row, as [B or 1, 1, 1]."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(-1, 1, 1)


def portable(module: Any, datamodule: Any) -> Portable:
    """Return a run's model; one without a gate, or on a pretrained model, is of a stock architecture.

    Raises:
        UserError: a frozen pretrained backbone.
    """
    assert isinstance(module, IdeaGateModule)
    backbone, vocabulary = module.backbone, module.vocabulary

    def ours(ids_BT: Tensor) -> Tensor:
        return module(plain_batch(ids_BT)).scores_BTV

    def generation(decoding: Mapping[str, Any]) -> dict[str, Any]:
        return {"eos_token_id": None}  # a run's texts end by their length alone

    if not module.gated:
        return Portable(stock_of(backbone, module.embedding, vocabulary), ours, generation=generation)
    if module.embedding is None:
        about = "These are the logits without the gate: that one is a control (lit-ctg export)."
        model = stock_of(backbone, None, vocabulary)
        return Portable(model, lambda ids_BT: module(plain_batch(ids_BT)).token_BTV, {}, about, generation=generation)
    check_gpt2(backbone, module.embedding)
    gate = {
        "alpha": module.alpha,
        "beta": module.beta,
        "clamp": module.form.clamp,
        "epsilon": module.form.epsilon,
        "lift": module.lift,
        "neutral_stopwords": module.neutral_stopwords,
    }
    sizes = gpt2_settings(cast(GPT2Backbone, backbone), vocabulary)
    model = IdeaGateForCausalLM(IdeaGateConfig(gate=gate, **sizes)).eval()
    state = gpt2_state(cast(GPT2Backbone, backbone), module.embedding)
    state |= {f"idea_head.{name}": value for name, value in module.idea_head.state_dict().items()}
    for name in ("base_V", "stopword_mask_V"):
        if hasattr(model, name):
            state[name] = getattr(module, name)
    model.load_state_dict(state)
    about = "`model.generate(ids, alpha=0.3)` (or one strength a row); alpha = 0 is the model without its gate."
    return Portable(model, ours, {}, about, generation=generation)
