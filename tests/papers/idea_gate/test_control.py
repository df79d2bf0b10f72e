"""The gate as a control; what all controls have in common is tested in ``tests/control``."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.papers.idea_gate.control import TURNED_FROM, rows_logits
from lit_ctg.papers.idea_gate.model import IdeaHead


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, TURNED_FROM, 9])
def test_few_rows_have_the_heads_logits(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = IdeaHead(16, 501).to(dtype)
    torch.nn.init.normal_(head.outer.bias)
    torch.nn.init.normal_(head.outer.weight)
    hidden_ND = torch.randn(rows, 16, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(rows_logits(head, hidden_ND), head(hidden_ND))
