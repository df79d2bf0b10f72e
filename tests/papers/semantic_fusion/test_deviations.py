"""What docs/papers/semantic_fusion.md says of the published set-up, on the real configurations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.run.build import build_datamodule, build_model, instantiate

MAIN = "experiment=semantic_fusion/main"
POSITIVE = {"pos_high": 0.95, "str_high": 0.9}
NEGATIVE_QUESTION = {"neg_high": 0.95, "is_question": 1.0, "str_med": 0.6}


def parts(*words: str) -> tuple[Any, Any, Any]:
    """Return (cfg, datamodule, untrained module)."""
    cfg = compose([*words, "size=smoke"])
    datamodule = build_datamodule(cfg)
    return cfg, datamodule, build_model(cfg, datamodule)


@pytest.mark.parametrize("regime", ["as_published", "corrected"])
def test_an_untrained_model_is_perfect_under_hard_control(regime: str) -> None:
    cfg, datamodule, module = parts(MAIN, f"regime={regime}")
    decoding = instantiate(cfg.decoding, "decoding")
    generator = decoding.generator(module, datamodule)
    hard = ("hard", "soft")
    positive = generator.generate(200, control=POSITIVE, routes=hard, seed=1)
    assert {(text.polarity, text.punctuation) for text in positive} == {("positive", "!")}
    negative = generator.generate(200, control=NEGATIVE_QUESTION, routes=hard, seed=1)
    assert {(text.polarity, text.punctuation) for text in negative} == {("negative", "?")}
    off = generator.generate(200, control={}, routes=(), seed=1)
    # without the masks the same model does neither
    assert sum((text.polarity, text.punctuation) == ("positive", "!") for text in off) < 180
    assert sum((text.polarity, text.punctuation) == ("negative", "?") for text in off) < 180


def test_a_constant_predictor_has_a_low_mse() -> None:
    _, datamodule, _ = parts(MAIN, "regime=as_published", "data.val_size=1200")
    datamodule.setup("validate")
    features, valid = [], []
    for batch in datamodule.val_dataloader():
        features.append(batch["features_BTF"][batch["mask_input_BT"]])
        valid.append(batch["mask_input_BT"].sum())
    features_NF = torch.cat(features).double()
    constant = float((features_NF - features_NF.mean(0)).square().mean())
    # .0455 against a printed .0087
    assert constant == pytest.approx(0.0455, abs=0.001)
    graded = features_NF[:, 10:16]
    assert float(graded.min()) >= 0.74 and float(graded.max()) <= 1.0


def test_published_embeddings_start_far_off() -> None:
    costs = {}
    for regime in ("as_published", "corrected"):
        _, datamodule, module = parts(MAIN, f"regime={regime}")
        datamodule.setup("validate")
        batch = next(iter(datamodule.val_dataloader()))
        module.eval()
        scores_BTV, mask_BT = module(batch).scores_BTV.detach(), batch["mask_target_BT"]
        costs[regime] = float(torch.nn.functional.cross_entropy(scores_BTV[mask_BT], batch["target_ids_BT"][mask_BT]))
    assert costs["as_published"] > 30
    assert costs["corrected"] == pytest.approx(torch.tensor(41.0).log().item(), abs=0.3)


@pytest.mark.parametrize("suffix", ["", "coupled_", "long_"])
def test_the_corrected_baseline_has_as_many_parameters(suffix: str) -> None:
    def count(name: str, regime: str) -> int:
        return sum(p.numel() for p in parts(f"experiment=semantic_fusion/{name}", f"regime={regime}")[2].parameters())

    fusion = {"": "main", "coupled_": "coupled", "long_": "long"}[suffix]
    corrected = count(f"{suffix}baseline", "corrected") / count(fusion, "corrected")
    assert abs(corrected - 1) < 0.01
    assert count(f"{suffix}baseline", "as_published") / count(fusion, "as_published") < 0.96


@pytest.mark.parametrize(("regime", "paired"), [("as_published", False), ("corrected", True)])
def test_the_two_models_of_a_seed_are_paired_only_in_the_corrected_regime(regime: str, paired: bool) -> None:
    """Initial values, dropout's draws and the order of training; the corpus is the same in both."""
    built = [parts(f"experiment=semantic_fusion/{name}", f"regime={regime}") for name in ("main", "baseline")]
    (cfgs, data, modules) = zip(*built, strict=True)
    assert torch.equal(*(torch.from_numpy(each.corpus("train")[0]) for each in data))
    assert torch.equal(*(module.embedding.weight for module in modules)) == paired
    attention = [next(p for n, p in module.backbone.named_parameters() if "in_proj_weight" in n) for module in modules]
    assert torch.equal(*attention) == paired
    orders = [torch.cat([batch["input_ids_BT"][:, 1] for batch in each.train_dataloader()]).tolist() for each in data]
    assert (orders[0] == orders[1]) == paired
    dropout = {cfg.callback.epoch_seed.seed for cfg in cfgs}
    assert len(dropout) == (1 if paired else 2)
