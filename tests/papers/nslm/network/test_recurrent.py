"""The LSTM against its equations, and its carried state."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.papers.nslm.recurrent import RecurrentBackbone, forget


def make(layers: int = 2, dropout: float = 0.0) -> RecurrentBackbone:
    torch.manual_seed(3)
    return RecurrentBackbone(dim=5, layers=layers, dropout=dropout, init_range=0.3).eval()


def slow(backbone: RecurrentBackbone, x_TD: torch.Tensor) -> torch.Tensor:
    """Zaremba et al., eq. 1 to 3 for one text, gate by gate in float64."""
    lstm = backbone.lstm
    for layer in range(lstm.num_layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, c = (getattr(lstm, f"{name}_l{layer}").double() for name in names)
        hidden = cell = torch.zeros(backbone.dim, dtype=torch.float64)
        rows = []
        for x in x_TD.double():
            i, f, g, o = (w @ x + b + u @ hidden + c).chunk(4)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            rows.append(hidden)
        x_TD = torch.stack(rows)
    return x_TD


def test_equals_the_equations() -> None:
    backbone, x = make(), torch.randn(3, 7, 5)
    expected = torch.stack([slow(backbone, row) for row in x])
    torch.testing.assert_close(backbone(x).double(), expected, atol=1e-6, rtol=0)


def test_state_is_carried_and_forgotten() -> None:
    backbone, x = make(), torch.randn(2, 9, 5)
    whole = backbone(x)
    first, state = backbone.run(x[:, :4], None)
    rest, _ = backbone.run(x[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, rest), 1), whole)
    mixed, _ = backbone.run(x[:, 4:], forget(state, torch.tensor([True, False])))
    torch.testing.assert_close(mixed[1], whole[1, 4:])
    torch.testing.assert_close(mixed[0], backbone(x[:1, 4:])[0])
    assert not torch.allclose(mixed[0], whole[0, 4:])


def test_step_is_the_last_column() -> None:
    backbone, x, cache = make(), torch.randn(2, 4, 5), None
    for t in range(4):
        hidden, cache = backbone.step(x[:, t], cache)
    torch.testing.assert_close(hidden, backbone(x)[:, -1])


def test_dropout_reaches_input_and_output_but_not_the_state() -> None:
    backbone = make(layers=1, dropout=0.5).train()
    hidden, (last, _) = backbone.run(torch.ones(1, 50, 5), None)
    assert (hidden == 0).float().mean() > 0.2
    assert (last != 0).all()


def test_weights_start_in_the_range_and_bad_sizes_are_refused() -> None:
    largest = max(float(p.abs().max()) for p in make().parameters())
    assert 0.25 < largest <= 0.3
    with pytest.raises(ValueError, match="at least 1"):
        RecurrentBackbone(dim=0, layers=1, dropout=0.0, init_range=0.1)
    with pytest.raises(ValueError, match="dropout"):
        RecurrentBackbone(dim=2, layers=1, dropout=1.0, init_range=0.1)
