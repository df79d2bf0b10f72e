"""The stack against Hugging Face's GPT2Model: outputs, gradients, initial values; cache against the full pass."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone

DIM, LAYERS, HEADS, CONTEXT = 16, 3, 4, 12


def backbone(dropout: float = 0.0, **changes) -> GPT2Backbone:
    return GPT2Backbone(
        **{"dim": DIM, "layers": LAYERS, "heads": HEADS, "context": CONTEXT, "dropout": dropout} | changes
    )


def hugging_face():
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": DIM, "n_layer": LAYERS, "n_head": HEADS, "n_positions": CONTEXT, "vocab_size": 5}
    model = GPT2Model(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    for parameter in model.parameters():  # biases and norms too, lest an error hides behind zeros and ones
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double()


def test_outputs_and_gradients_equal_those_of_hugging_faces_gpt2():
    torch.manual_seed(0)
    reference, ours = hugging_face(), backbone().double()
    ours.from_hugging_face(reference.state_dict())
    embedded = torch.randn(3, 7, DIM, dtype=torch.float64)
    theirs_in, ours_in = embedded.clone().requires_grad_(), embedded.clone().requires_grad_()
    expected, got = reference(inputs_embeds=theirs_in).last_hidden_state, ours(ours_in)
    assert torch.allclose(got, expected, atol=1e-10)
    weight = torch.randn_like(embedded)
    (expected * weight).sum().backward()
    (got * weight).sum().backward()
    assert torch.allclose(ours_in.grad, theirs_in.grad, atol=1e-9)
    assert torch.allclose(ours.h[0].attn.c_attn.weight.grad, reference.h[0].attn.c_attn.weight.grad.T, atol=1e-9)


def test_initial_values_are_gpt2s():
    ours = backbone(dim=64, layers=8)
    assert ours.h[3].mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert ours.h[3].mlp.c_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert torch.equal(ours.ln_f.weight, torch.ones(64))
    assert not ours.h[0].attn.c_attn.bias.any()


def test_cached_steps_equal_the_full_pass_and_leave_the_cache_alone():
    torch.manual_seed(1)
    ours = backbone(dropout=0.3).double().eval()
    ours.from_hugging_face(hugging_face().state_dict())
    embedded = torch.randn(4, CONTEXT, DIM, dtype=torch.float64)
    cache, columns = None, []
    for column in embedded.unbind(1):
        if cache:
            before = [key.clone() for key, _ in cache]
            ours.step(torch.ones_like(column), cache)
            assert all(torch.equal(a, key) for a, (key, _) in zip(before, cache, strict=True))
        newest, cache = ours.step(column, cache)
        columns.append(newest)
    assert torch.allclose(torch.stack(columns, 1), ours(embedded), atol=1e-10)


def test_a_position_sees_no_later_one():
    ours = backbone().eval()
    embedded = torch.randn(2, 9, DIM)
    changed = embedded.clone()
    changed[:, 5:] = torch.randn(2, 4, DIM)
    first, second = ours(embedded), ours(changed)
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5], second[:, 5])


def test_dropout_acts_in_training_only():
    torch.manual_seed(2)
    ours, embedded = backbone(dropout=0.5), torch.randn(2, 6, DIM)
    assert not torch.allclose(ours(embedded), ours(embedded))
    ours.eval()
    assert torch.equal(ours(embedded), ours(embedded))


def test_branches_may_have_a_dropout_of_their_own():
    x = torch.randn(2, 6, 8)
    sizes = {"dim": 8, "layers": 2, "heads": 2, "context": 8, "attention_dropout": 0.0}
    only_input = GPT2Backbone(dropout=0.3, branch_dropout=0.0, **sizes).train()
    torch.manual_seed(0)
    seen = []
    hooks = [block.register_forward_hook(lambda *call: seen.append(call)) for block in only_input.h]
    only_input(x)
    for hook in hooks:
        hook.remove()
    assert len(seen) == 2
    for block, (given,), output in seen:
        assert torch.equal(block.eval()(given), output), "a block dropped something"
    other = GPT2Backbone(dropout=0.0, branch_dropout=0.3, **sizes).train()
    assert not torch.equal(other(x), other.eval()(x))
    assert only_input.sizes()["resid_pdrop"] == 0.0 and only_input.sizes()["embd_pdrop"] == 0.3
    assert GPT2Backbone(dropout=0.3, **sizes).sizes()["resid_pdrop"] == 0.3


def test_a_text_longer_than_the_context_is_an_error():
    with pytest.raises(UserError, match=r"13 positions, but backbone\.context=12"):
        backbone()(torch.randn(1, 13, DIM))
    ours, cache = backbone().eval(), None
    for _ in range(CONTEXT):
        _, cache = ours.step(torch.randn(1, DIM), cache)
    with pytest.raises(UserError, match="13 positions"):
        ours.step(torch.randn(1, DIM), cache)


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="multiple"):
        backbone(heads=3)
