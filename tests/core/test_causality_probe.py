"""The probe catches a missing mask and a leaking feature, alone, and passes what is causal."""

from __future__ import annotations

import math
from types import SimpleNamespace

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lit_ctg.core.causality_probe import CausalityProbe, probe
from lit_ctg.core.divergence import Diverged
from lit_ctg.core.model import LMOutput
from lit_ctg.errors import UserError

VOCABULARY, PAD, MARK = 12, 0, 7


class Toy(lightning.LightningModule):
    """Scores from the running mean of embeddings (causal) or the whole mean, plus an optional feature."""

    def __init__(self, causal: bool = True, looks_ahead: bool = False, feature: str = "none") -> None:
        super().__init__()
        self.causal, self.looks_ahead, self.feature = causal, looks_ahead, feature
        self.vocabulary = SimpleNamespace(pad_id=PAD)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(0.5)

    def corpus_transform(self, ids_NT, lengths_N):
        column_T = torch.arange(ids_NT.shape[1])
        mark_NT = (ids_NT == MARK).float()
        features = {
            "none": torch.zeros(ids_NT.shape),
            "marked so far": mark_NT.cummax(1).values,
            "marked anywhere": mark_NT.amax(1, keepdim=True).expand(ids_NT.shape),
            "length": (column_T < lengths_N[:, None]) * lengths_N[:, None] / 10.0,
        }
        return {"features_BT": features[self.feature]}

    def forward(self, batch):
        embedded = self.dropout(self.embedding(batch["input_ids_BT"])) * batch["mask_input_BT"][..., None]
        counts = torch.arange(1, embedded.shape[1] + 1)[:, None]
        hidden = embedded.mean(1, keepdim=True).expand_as(embedded) if self.looks_ahead else embedded.cumsum(1) / counts
        return LMOutput((hidden + batch["features_BT"][..., None]) @ self.embedding.weight.T, hidden)

    def training_step(self, batch, batch_idx):
        scores = self(batch).scores_BTV
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch["target_ids_BT"].flatten())

    def validation_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def sentences(count: int = 16) -> torch.Tensor:
    ids = torch.randint(1, VOCABULARY, (count, 9), generator=torch.Generator().manual_seed(0))
    ids[::2, 6:] = PAD
    return ids


def batch_for(model: Toy, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    made = model.corpus_transform(ids, (ids != PAD).sum(1))
    return {
        "input_ids_BT": ids[:, :-1],
        "target_ids_BT": ids[:, 1:],
        "mask_input_BT": ids[:, :-1] != PAD,
        "mask_target_BT": ids[:, 1:] != PAD,
        **{name: value[:, :-1] for name, value in made.items()},
    }


def run(model: Toy, **options):
    return probe(model.eval(), batch_for(model, sentences()), transform=model.corpus_transform, pad_id=PAD, **options)


@pytest.mark.parametrize("feature", ["none", "marked so far"])
def test_what_is_causal_passes(feature):
    found = run(Toy(feature=feature))
    assert found.is_causal
    assert found.max_change < 1e-5
    assert found.n > 0


def test_a_missing_mask_is_caught():
    found = run(Toy(looks_ahead=True))
    assert not found.is_causal
    assert found.max_change > 0.01


@pytest.mark.parametrize("feature", ["marked anywhere", "length"])
def test_a_leak_through_features_alone_is_caught(feature):
    assert not run(Toy(feature=feature)).is_causal


def test_without_the_transform_only_the_network_is_probed():
    model = Toy(feature="marked anywhere").eval()
    assert probe(model, batch_for(model, sentences()), pad_id=PAD).is_causal


def test_the_change_is_the_largest_difference_of_a_score_before_the_first_changed_token():
    class Shift(nn.Module):
        """Position t scores what comes right after it: as far as a look-ahead of one can see."""

        def forward(self, batch):
            ahead = batch["input_ids_BT"].roll(-1, 1).double()
            ahead[:, -1] = 0
            return ahead[..., None].expand(*ahead.shape, VOCABULARY)

    ids = torch.full((64, 6), 3)
    batch = {"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:]}
    found = probe(Shift(), batch, trials=8)
    assert found.max_change == VOCABULARY - 1 - 3  # 3 became 11 somewhere
    assert not found.is_causal


def test_tokens_up_to_the_last_unchanged_are_unchanged():
    class Spy(nn.Module):
        seen: list[torch.Tensor] = []

        def forward(self, batch):
            self.seen.append(batch["input_ids_BT"])
            return torch.zeros(*batch["input_ids_BT"].shape, VOCABULARY)

    ids = sentences()
    batch = batch_for(Toy(), ids)
    found = probe(spy := Spy(), batch, pad_id=PAD, trials=20)
    original, *changed = spy.seen
    assert len(changed) == 20
    assert all(torch.equal(new[:, 0], original[:, 0]) for new in changed)
    assert any((new != original).any() for new in changed)
    assert found.max_change == 0.0
    padding = original == PAD
    assert all((new[padding] == PAD).all() for new in changed)


def test_equal_infinities_are_no_change_and_nan_is():
    def forward(batch):
        scores = torch.zeros(*batch["input_ids_BT"].shape, VOCABULARY)
        scores[..., 0] = -torch.inf
        return SimpleNamespace(logits=scores)

    def broken(batch):
        changed = (batch["input_ids_BT"] != batch_for(Toy(), sentences())["input_ids_BT"]).any()
        return SimpleNamespace(logits=forward(batch).logits + (torch.nan if changed else 0.0))

    batch = batch_for(Toy(), sentences())
    assert probe(forward, batch).is_causal
    assert not probe(broken, batch).is_causal


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_scores_that_are_no_numbers_end_as_a_divergence_which_is_a_result(share):
    """All scores, or a few: the weights may be finite, so nothing else has noticed yet."""

    class Overflows(Toy):
        def forward(self, batch):
            scores = super().forward(batch).scores_BTV
            broken = torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)) >= share
            return SimpleNamespace(scores_BTV=scores.masked_fill(broken, torch.nan))

    callback = CausalityProbe()
    with pytest.raises(Diverged, match=r"^Overflows gives scores that are no numbers: lower the model's learning_rate"):
        callback.run(model := Overflows(causal=True), batch_for(model, sentences()))
    assert math.isnan(callback.results["probe/max_change"]["value"])


def test_random_state_is_left_alone_and_the_result_is_a_function_of_the_seed():
    torch.manual_seed(5)
    model = Toy(looks_ahead=True)
    before = torch.get_rng_state()
    first, again, other = run(model, seed=1), run(model, seed=1), run(model, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert first == again
    assert first.max_change != other.max_change


@pytest.fixture
def fit(trainer_of):
    """Return what trains a model for an epoch of one batch under the callback."""

    def train(model: Toy, callback: CausalityProbe) -> lightning.Trainer:
        loader = DataLoader([batch_for(model, sentences())], batch_size=None)
        trainer = trainer_of(callback)
        trainer.fit(model, loader, loader)
        return trainer

    return train


def test_callback_passes_and_records_a_causal_model(fit):
    callback = CausalityProbe()
    trainer = fit(model := Toy(), callback)
    assert callback.results["probe/causal"]["value"] == 1.0
    assert callback.results["probe/max_change"]["value"] < 1e-5
    assert float(trainer.callback_metrics["probe/causal"]) == 1.0
    assert "probe/max_change" in trainer.callback_metrics
    assert model.dropout.training


@pytest.mark.parametrize("leak", [{"looks_ahead": True}, {"feature": "marked anywhere"}])
def test_callback_stops_a_model_that_says_it_is_causal_before_its_first_step(fit, leak):
    model = Toy(causal=True, **leak)
    model.training_step = lambda batch, batch_idx: pytest.fail("trained")
    with pytest.raises(UserError, match="says causal=True, but changing later tokens"):
        fit(model, CausalityProbe())


def test_callback_records_a_model_that_does_not_claim_to_be_causal(fit):
    callback = CausalityProbe()
    fit(Toy(causal=False, looks_ahead=True), callback)
    assert callback.results["probe/causal"]["value"] == 0.0
    assert callback.results["probe/max_change"]["value"] > 0.01


def test_trained_weights_are_probed_again(fit):
    class Opens(Toy):
        """Learns to look ahead: the first step opens the leak."""

        def on_train_batch_end(self, *_):
            self.looks_ahead = True

    with pytest.raises(UserError, match="says causal=True"):
        fit(Opens(), CausalityProbe())
