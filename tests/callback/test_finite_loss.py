from __future__ import annotations

import pytest
import torch

from lit_ctg.callback.finite_loss import FiniteLoss
from lit_ctg.errors import UserError


@pytest.mark.parametrize("every", [1, 1000])
def test_a_loss_that_is_no_number_ends_the_run(tiny, trainer_of, every: int) -> None:
    module, data = tiny()
    with torch.no_grad():
        module.embedding.weight.fill_(float("nan"))
    with pytest.raises(UserError, match=r"loss is nan at step \d+.*learning_rate"):
        trainer_of(FiniteLoss(every=every)).fit(module, data)


def test_a_finite_loss_passes(tiny, trainer_of) -> None:
    module, data = tiny()
    trainer = trainer_of(FiniteLoss(every=1))
    trainer.fit(module, data)
    assert trainer.global_step == 4
