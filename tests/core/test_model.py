"""The shared base: schedule, optimiser, training step."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from lit_ctg.core.model import LitLanguageModel, LMOutput, adamw_warmup_cosine, warmup_cosine


class Bigram(LitLanguageModel):
    """The smallest language model: a table of next-token logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 7)

    def forward(self, batch):
        scores = self.table(batch["input_ids_BT"])
        return LMOutput(scores, scores)

    def losses(self, batch):
        scores = self(batch).scores_BTV
        token = nn.functional.cross_entropy(scores.flatten(0, 1), batch["target_ids_BT"].flatten())
        return {"loss": 2 * token, "token_loss": token}

    def configure_optimizers(self):
        return adamw_warmup_cosine(
            self.parameters(),
            learning_rate=0.1,
            weight_decay=0.0,
            warmup_fraction=0.1,
            total_steps=int(self.trainer.estimated_stepping_batches),
        )


def loader() -> DataLoader:
    ids = torch.arange(5).repeat(16, 1)
    masks = dict.fromkeys(("mask_input_BT", "mask_target_BT"), torch.ones(5, dtype=torch.bool))
    rows = [{"input_ids_BT": row, "target_ids_BT": row + 1, **masks} for row in ids]
    return DataLoader(rows, batch_size=4)


def test_the_base_cannot_be_used_without_forward_and_losses():
    with pytest.raises(TypeError, match="abstract"):
        LitLanguageModel()


def test_schedule_warms_up_and_falls_to_zero():
    factors = [warmup_cosine(step, 750, 0.1, start_at_zero=False) for step in range(751)]
    assert factors[0] == pytest.approx(1 / 75)
    assert factors[74] == pytest.approx(1.0)
    assert max(factors) == pytest.approx(1.0)
    assert factors[75 + 338] == pytest.approx(0.5 * (1 + math.cos(math.pi * 338 / 675)))
    assert factors[750] == pytest.approx(0.0, abs=1e-12)


def test_published_schedule_starts_at_rate_zero():
    assert warmup_cosine(0, 750, 0.1, start_at_zero=True) == 0.0
    assert warmup_cosine(75, 750, 0.1, start_at_zero=True) == 1.0


def test_schedule_without_warmup():
    assert warmup_cosine(0, 10, 0.0, start_at_zero=True) == 1.0
    # idea gate: 3e-4 falls to 3e-5
    assert warmup_cosine(10, 10, 0.0, start_at_zero=False, final_fraction=0.1) == pytest.approx(0.1)
    assert warmup_cosine(5, 10, 0.0, start_at_zero=False, final_fraction=0.1) == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("given", "weight", "bias"),
    [({}, 0.95, 1.0), ({"decay_matrices_only": False}, 0.95, 0.95), ({"warmup_from_zero": True}, 1.0, 1.0)],
)
def test_decay_spares_vectors_and_the_first_step_changes_something_unless_asked(given, weight, bias):
    layer = nn.Linear(3, 2)
    nn.init.ones_(layer.weight)
    nn.init.ones_(layer.bias)
    made = adamw_warmup_cosine(
        layer.parameters(),
        learning_rate=0.5,
        weight_decay=0.2,
        warmup_fraction=0.2,
        total_steps=10,
        **given,
    )
    layer.weight.grad = torch.zeros_like(layer.weight)
    layer.bias.grad = torch.zeros_like(layer.bias)
    made["optimizer"].step()
    assert torch.allclose(layer.weight, torch.full((2, 3), weight))
    assert torch.allclose(layer.bias, torch.full((2,), bias))


def test_training_learns_logs_the_parts_and_validation_returns_the_output(trainer_of):
    lightning.seed_everything(0, verbose=False)
    model = Bigram()
    seen: list[LMOutput] = []

    class Watch(lightning.Callback):
        def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
            seen.append(outputs)

    trainer = trainer_of(Watch(), max_epochs=20)
    trainer.fit(model, loader(), loader())
    logged = trainer.callback_metrics
    assert logged["train/loss"] == pytest.approx(2 * float(logged["train/token_loss"]), rel=1e-6)
    assert float(logged["train/token_loss"]) < 0.1 and float(logged["val/loss"]) < 0.1
    assert isinstance(seen[0], LMOutput)
    assert seen[0].scores_BTV.shape == (4, 5, 7)


@pytest.mark.parametrize(
    ("steps", "every", "max_steps", "written"), [(3, 2, -1, [2, 4, 6]), (3, 100, -1, []), (3, 0, 5, [])]
)
def test_parts_of_the_loss_reach_callbacks_each_step_and_loggers_as_often_as_asked(
    trainer_of, tmp_path, steps, every, max_steps, written
):
    lightning.seed_everything(0, verbose=False)
    parts: list[dict] = []
    last: list[tuple[float, float]] = []
    calls: list[int] = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            assert not any(value.requires_grad for value in outputs.values())
            parts.append({name: float(value) for name, value in outputs.items()})

        def on_train_epoch_end(self, trainer, pl_module):
            last.append((float(trainer.callback_metrics["train/token_loss"]), parts[-1]["token_loss"]))

    class Counted(Bigram):
        def log_dict(self, *args, **kwargs):
            calls.append(self.global_step + 1)
            super().log_dict(*args, **kwargs)

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    options = {"limit_train_batches": steps, "log_every_n_steps": every, "logger": logger}
    trainer = trainer_of(Watch(), max_epochs=2 if max_steps < 0 else None, max_steps=max_steps, **options)
    trainer.fit(Counted(), loader())
    total = 6 if max_steps < 0 else max_steps
    assert len(parts) == total
    assert all(part["loss"] == pytest.approx(2 * part["token_loss"], rel=1e-6) for part in parts)
    assert last and all(logged == own for logged, own in last), "the last step of an epoch, and of the run"
    assert set(calls) == {*written, 3, total} and len(calls) == len(set(calls))
    file = Path(logger.log_dir, "metrics.csv")
    rows = list(csv.DictReader(file.open())) if written else []
    assert [(int(row["step"]) + 1, float(row["train/token_loss"])) for row in rows] == [
        (step, pytest.approx(parts[step - 1]["token_loss"])) for step in written
    ]
    assert written or not file.exists()


def test_gradients_are_clipped_in_mixed_precision_too(trainer_of):
    trainer = trainer_of(max_epochs=None, max_steps=2, precision="bf16-mixed", gradient_clip_val=0.1)
    module = Bigram()
    before = module.table.weight.detach().clone()
    trainer.fit(module, loader())
    assert trainer.global_step == 2 and not torch.equal(module.table.weight, before)
