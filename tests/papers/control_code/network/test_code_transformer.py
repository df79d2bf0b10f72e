"""The feed-forward block against sec. 3.3 restated, torch's encoder where there is no code, steps, other modes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_ctg.papers.control_code.code_transformer import CodeTransformerBackbone


def stack(**options) -> CodeTransformerBackbone:
    torch.manual_seed(0)
    sizes = {"dim": 8, "layers": 3, "heads": 2, "feedforward_dim": 12, "dropout": 0.2, "identical_layers": False}
    return CodeTransformerBackbone(**{**sizes, **options}).double()


def restated(backbone: CodeTransformerBackbone, x_TD: torch.Tensor, code_C: torch.Tensor, coded: set[int]):
    """One sequence, loop by loop, with [x; c] written out."""
    for number, layer in enumerate(backbone.layers, start=1):
        weights = layer.self_attn
        attended = torch.zeros_like(x_TD)
        query, key, value = (x_TD @ weights.in_proj_weight.T + weights.in_proj_bias).chunk(3, dim=1)
        for head in (slice(0, 4), slice(4, 8)):
            for t in range(len(x_TD)):
                scores = torch.stack([query[t, head] @ key[s, head] for s in range(t + 1)]) / 2.0
                for s, weight in enumerate(scores.softmax(0)):
                    attended[t, head] = attended[t, head] + weight * value[s, head]
        x_TD = layer.norm1(x_TD + layer.self_attn.out_proj(attended))
        rows = []
        for x in x_TD:
            parts = [layer.linear1, layer.linear2]
            extra = code_C if number in coded else code_C[:0]
            matrices = [torch.cat((p.weight, p.code_weight), 1) if number in coded else p.weight for p in parts]
            inner = torch.clamp(matrices[0] @ torch.cat((x, extra)) + parts[0].bias, min=0)
            rows.append(matrices[1] @ torch.cat((inner, extra)) + parts[1].bias)
        x_TD = layer.norm2(x_TD + torch.stack(rows))
    return x_TD


@pytest.mark.parametrize("coded", [{1, 2, 3}, {2}, set()], ids=["all", "one", "none"])
def test_it_is_the_equation(coded):
    backbone = stack(code_dim=5, code_layers=coded).eval()
    x_BTD, code_BC = torch.randn(2, 6, 8).double(), torch.randn(2, 5).double()
    hidden_BTD = backbone(x_BTD, backbone.terms(code_BC))
    for row in range(2):
        assert torch.allclose(hidden_BTD[row], restated(backbone, x_BTD[row], code_BC[row], coded), atol=1e-12)


def test_without_code_it_is_torchs_encoder():
    backbone = stack().eval()
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.2, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double().eval()
    encoder.load_state_dict(backbone.state_dict())
    x_BTD = torch.randn(2, 6, 8).double()
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    assert torch.allclose(backbone(x_BTD, backbone.terms(None)), encoder(x_BTD, mask), atol=1e-12)
    seeing_all = backbone(x_BTD, backbone.terms(None), causal=False)
    assert torch.allclose(seeing_all, encoder(x_BTD), atol=1e-12)


def test_a_code_of_zeros_changes_nothing():
    backbone = stack(code_dim=5, code_layers={1, 2, 3}).eval()
    bare = stack().eval()
    state = {name: value for name, value in backbone.state_dict().items() if "code_weight" not in name}
    bare.load_state_dict(state)
    x_BTD = torch.randn(2, 6, 8).double()
    with_zeros = backbone(x_BTD, backbone.terms(torch.zeros(2, 5).double()))
    assert torch.allclose(with_zeros, bare(x_BTD, bare.terms(None)), atol=1e-14)
    other = backbone(x_BTD, backbone.terms(torch.ones(2, 5).double()))
    assert not torch.allclose(with_zeros, other)


def test_steps_are_the_columns_of_forward():
    backbone = stack(code_dim=5, code_layers={1, 3}).eval()
    x_BTD, terms, cache = torch.randn(2, 6, 8).double(), backbone.terms(torch.randn(2, 5).double()), None
    for column, expected_BD in enumerate(backbone(x_BTD, terms).unbind(1)):
        hidden_BD, cache = backbone.step(x_BTD[:, column], terms, cache)
        assert torch.allclose(hidden_BD, expected_BD, atol=1e-12)


def test_mixed_precision_takes_torchs_attention_and_agrees():
    backbone = stack(code_dim=5, code_layers={1, 2, 3}).float().eval()
    x_BTD, code_BC = torch.randn(2, 6, 8), torch.randn(2, 5)
    exact = backbone(x_BTD, backbone.terms(code_BC))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = backbone(x_BTD, backbone.terms(code_BC)).float()
    assert not torch.equal(rounded, exact)
    assert F.mse_loss(rounded, exact).sqrt() < 0.03


@pytest.mark.parametrize("identical", [True, False])
def test_identical_layers_start_alike(identical):
    backbone = stack(code_dim=5, code_layers={2, 3}, identical_layers=identical)
    second, third = backbone.layers[1].state_dict(), backbone.layers[2].state_dict()
    assert torch.equal(second["linear1.code_weight"], third["linear1.code_weight"]) is identical
    assert backbone.layers[1].linear1.weight is not backbone.layers[2].linear1.weight


def test_heads_must_divide():
    with pytest.raises(ValueError, match="multiple of heads"):
        stack(heads=3)
