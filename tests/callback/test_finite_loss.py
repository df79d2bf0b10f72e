from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lit_ctg.callback.finite_loss import FiniteLoss
from lit_ctg.core.divergence import Diverged


@pytest.mark.parametrize("every", [1, 1000])
def test_a_loss_that_is_no_number_ends_the_run(tiny, trainer_of, every: int) -> None:
    module, data = tiny()
    with torch.no_grad():
        module.embedding.weight.fill_(float("nan"))
    with pytest.raises(Diverged, match=r"loss is nan at step \d+.*learning_rate"):
        trainer_of(FiniteLoss(every=every)).fit(module, data)


def test_a_finite_loss_passes(tiny, trainer_of) -> None:
    module, data = tiny()
    trainer = trainer_of(FiniteLoss(every=1))
    trainer.fit(module, data)
    assert trainer.global_step == 4


@pytest.mark.parametrize("validated", [True, False])
def test_a_weight_that_is_no_number_ends_the_run_though_the_loss_is_one(tiny, trainer_of, validated: bool) -> None:
    """A row of a table that no batch of the epoch has read."""
    module, data = tiny()
    module.unread = torch.nn.Parameter(torch.full((2,), float("nan")))
    with pytest.raises(Diverged, match=r"weights unread are not finite at step 4"):
        trainer_of(FiniteLoss(), limit_val_batches=1.0 if validated else 0).fit(module, data)


def test_the_loss_is_looked_at_every_so_many_steps_and_at_the_end_of_the_epoch() -> None:
    trainer, module = SimpleNamespace(global_step=7), torch.nn.Linear(1, 1)
    nan, callback = torch.tensor(float("nan")), FiniteLoss(every=3)
    for step in (1, 2, 4):
        callback.on_train_batch_end(trainer, module, {"loss": nan}, None, step)
    with pytest.raises(Diverged, match="loss is nan at step 7"):
        callback.on_train_batch_end(trainer, module, nan, None, 6)
    for hook in (callback.on_train_epoch_end, callback.on_validation_start):
        with pytest.raises(Diverged, match="loss is nan at step 7"):
            hook(trainer, module)
    callback.on_train_batch_end(trainer, module, torch.tensor(1.0), None, 0)
    callback.on_train_epoch_end(trainer, module)
