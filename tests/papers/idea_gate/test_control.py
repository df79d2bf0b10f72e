"""The gate as a control; what all controls have in common is tested in ``tests/control``."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.papers.idea_gate.control import TURNED, IdeaGate, rows_logits
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaHead
from lit_ctg.papers.idea_gate.portable import IdeaGateConfig, IdeaGateForCausalLM


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, TURNED[0], TURNED[-1], 16])
def test_few_rows_have_the_heads_logits(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = IdeaHead(16, 501).to(dtype)
    torch.nn.init.normal_(head.outer.bias)
    torch.nn.init.normal_(head.outer.weight)
    hidden_ND = torch.randn(rows, 16, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(rows_logits(head, hidden_ND), head(hidden_ND))


def test_exported_gated_model_without_its_gate_takes_the_control() -> None:
    """docs/controls.md: with alpha = 0 the model leaves the steering to its run's bundle, and the two are the same."""
    torch.manual_seed(0)
    form = GateForm(clamp="after_scaling", epsilon=1e-8)
    gate = {"alpha": 1.0, "beta": -4.0, "clamp": form.clamp, "epsilon": form.epsilon}
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = IdeaGateForCausalLM(IdeaGateConfig(gate=gate, bos_token_id=0, eos_token_id=None, **sizes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    control = IdeaGate(model.idea_head, form=form, alpha=1.0, beta=-4.0)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    ids_BT = torch.randint(0, 40, (2, 5))

    gated = model.generate(ids_BT, **options)
    steered = Steered(model, [control]).generate(ids_BT, alpha=0, **options)
    plain = model.generate(ids_BT, alpha=0, **options)

    assert torch.equal(steered.sequences, gated.sequences)
    for ours, theirs in zip(steered.scores, gated.scores, strict=True):
        torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1))
    assert not torch.allclose(plain.scores[0].log_softmax(-1), gated.scores[0].log_softmax(-1), atol=0.1)
