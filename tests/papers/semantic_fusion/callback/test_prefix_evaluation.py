"""Perplexity from prefixes: equal to the ordinary one for a causal model, not so for one that looks ahead."""

from __future__ import annotations

import math

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lit_ctg.core.model import LMOutput
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.prefix_evaluation import NAME, PrefixEvaluation, prefix_scores

VOCABULARY, PAD = 9, 0


class Toy(lightning.LightningModule):
    """Scores from the mean embedding of the prefix, or of the whole input where it looks ahead."""

    def __init__(self, looks_ahead: bool) -> None:
        super().__init__()
        self.looks_ahead = looks_ahead
        self.embedding = nn.Embedding(VOCABULARY, 6)

    def scores(self, ids_BT):
        embedded = self.embedding(ids_BT)
        counts = torch.arange(1, ids_BT.shape[1] + 1)[:, None]
        hidden = embedded.mean(1, keepdim=True).expand_as(embedded) if self.looks_ahead else embedded.cumsum(1) / counts
        return 3.0 * hidden @ self.embedding.weight.T

    def forward(self, batch):
        scores = self.scores(batch["input_ids_BT"])
        return LMOutput(scores, scores)

    def start(self, batch_size, controls):
        assert controls is None
        return torch.zeros(batch_size, 0, dtype=torch.long)

    def step(self, ids_B1, state):
        prefix = torch.cat((state, ids_B1), 1)
        return self.scores(prefix)[:, -1], prefix

    def training_step(self, batch, batch_idx):
        return self(batch).scores_BTV.sum() * 0.0

    def validation_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    made = []
    for _ in range(3):
        ids = torch.randint(1, VOCABULARY, (4, 8))
        ids[1, 5:] = PAD
        made.append({"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_target_BT": ids[:, 1:] != PAD})
    return made


def trainer_with(callback: PrefixEvaluation, **options) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        **options,
    )


@torch.no_grad()
def by_hand(model: Toy) -> tuple[float, int]:
    """exp of the mean cross-entropy, one prefix at a time."""
    nats, count = 0.0, 0
    for batch in batches():
        for ids, targets in zip(batch["input_ids_BT"], batch["target_ids_BT"], strict=True):
            for t, target in enumerate(targets):
                if target != PAD:
                    scores = model.double().scores(ids[None, : t + 1])[0, -1]
                    nats -= float(scores.log_softmax(-1)[target])
                    count += 1
    return math.exp(nats / count), count


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_equals_one_prefix_at_a_time(looks_ahead):
    model, callback = Toy(looks_ahead), PrefixEvaluation()
    trainer_with(callback).validate(model, DataLoader(batches(), batch_size=None), verbose=False)
    expected, count = by_hand(model)
    assert callback.results[NAME]["value"] == pytest.approx(expected, rel=1e-5)
    assert callback.results[NAME]["n"] == count


def test_for_a_causal_model_it_is_the_ordinary_perplexity_and_for_the_other_it_is_not():
    for looks_ahead in (False, True):
        model = Toy(looks_ahead)
        ids = batches()[0]["input_ids_BT"]
        same = torch.allclose(prefix_scores(model, ids), model.scores(ids), atol=1e-5)
        assert same != looks_ahead


@pytest.mark.parametrize("options", [{"max_epochs": 3}, {"max_steps": 9, "max_epochs": -1}])
def test_runs_on_the_last_validation_of_a_training_run_only(options, monkeypatch):
    epochs = []
    plain = Toy.start
    monkeypatch.setattr(Toy, "start", lambda self, *a: (epochs.append(self.current_epoch), plain(self, *a))[1])
    callback = PrefixEvaluation()
    loader = DataLoader(batches(), batch_size=None)
    trainer = trainer_with(callback, **options)
    trainer.fit(Toy(False), loader, loader)
    assert epochs == [2, 2, 2]
    assert float(trainer.callback_metrics[NAME]) == pytest.approx(callback.results[NAME]["value"], rel=1e-6)


def test_a_module_that_cannot_generate_is_named():
    class Mute(Toy):
        start = step = property(lambda self: (_ for _ in ()).throw(AttributeError()))

    with pytest.raises(UserError, match="Mute has no start and step"):
        trainer_with(PrefixEvaluation()).validate(Mute(False), DataLoader(batches(), batch_size=None), verbose=False)
