"""The experiment files: what the paper and the authors' code state, at size=paper, and where the regimes differ."""

from __future__ import annotations

import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_ctg.config import compose
from lit_ctg.run.build import build_datamodule

# constants of the paper and of the authors' code, at size=paper in both regimes
STATED = {
    "backbone.layers": 6,
    "backbone.heads": 6,
    "backbone.dim": 384,
    "backbone.context": 256,
    "backbone.dropout": 0.1,
    "data.length": 256,
    "data.batch_size": 8,
    "trainer.accumulate_grad_batches": 4,
    "model.learning_rate": 3e-4,
    "model.alpha": 0.5,
    "model.beta": -2.0,
    "model.epsilon": 1e-8,
    "model.window": 20,
    "model.window_start": 1,
    "model.positive_weight": 5.0,
    "model.idea_weight": 0.01,
    "decoding.temperature": 0.6,
    "decoding.repetition_penalty": 1.2,
    "decoding.max_new_tokens": 100,
    "callback.topic_trial.samples": 60,
    "callback.topic_trial.scored_tokens": 100,
}
# deviation -> as published, corrected
DEVIATIONS = {
    "model.clamp": ("before_scaling", "after_scaling"),  # 1
    "model.stopwords": ("authors", "frequent"),  # 2
    "model.idea_bias": ("zero", "base_rate"),  # 3
    "callback.topic_trial.prompts": (1, 5),  # 5
    "trainer.limit_val_batches": (5, 1.0),  # 7
    "data.batching": ("windows_everywhere", "windows"),  # 7
    "decoding.penalty_compounds": (True, None),  # 14
    "callback.topic_trial.decoding.penalty_compounds": (True, None),  # 14
    "backbone.attention_dropout": (0.0, 0.1),  # 15
    "backbone.branch_dropout": (0.0, None),  # 15
    "model.warmup_from_zero": (True, None),  # 15
    "trainer.precision": ("32-true", "bf16-mixed"),  # 15
    "trainer.gradient_clip_val": (None, 1.0),  # 15
}
REGIMES = ("as_published", "corrected")
STEPS, WARM_UP, RAMP, LAST_RATE = 50_000, 1_000, 2_000, 3e-5


def experiment(name: str = "main", regime: str = "corrected", size: str = "paper") -> Any:
    return compose([f"experiment=idea_gate/{name}", f"regime={regime}", f"size={size}"])


@pytest.mark.parametrize("regime", REGIMES)
def test_constants_are_the_stated_ones(regime) -> None:
    cfg = experiment(regime=regime)
    assert {key: OmegaConf.select(cfg, key) for key in STATED} == STATED
    batches = cfg.data.steps_per_epoch * cfg.trainer.max_epochs
    assert batches / cfg.trainer.accumulate_grad_batches == STEPS
    assert cfg.model.warmup_fraction * STEPS == pytest.approx(WARM_UP)
    assert cfg.model.alpha_ramp_fraction * STEPS == pytest.approx(RAMP)
    assert cfg.model.learning_rate * cfg.model.final_fraction == pytest.approx(LAST_RATE)
    assert len(cfg.callback.topic_trial.function_words) == 15


@pytest.mark.parametrize("regime", REGIMES)
def test_long_texts_are_drawn_as_the_others_are(regime) -> None:
    """Case study 2 has the run's own penalty, deviations 13 and 14 included."""
    for words in ([], ["+decoding.penalty_on=log_probabilities", "decoding.repetition_penalty=1.3"]):
        cfg = compose(["experiment=idea_gate/branch", f"regime={regime}", "size=small", *words])
        longer = OmegaConf.to_container(cfg.callback.topic_long.decoding, resolve=True)
        ours = OmegaConf.to_container(cfg.decoding, resolve=True) | {"max_new_tokens": 500, "slide": 128}
        assert {key: value for key, value in longer.items() if value is not None} == {
            key: value for key, value in ours.items() if value is not None
        }


def test_regimes_differ_where_a_deviation_says_so() -> None:
    published, corrected = (OmegaConf.to_container(experiment(regime=regime), resolve=True) for regime in REGIMES)
    found = dict(_differences(published, corrected))
    assert {regime.name for regime in found.pop("regime")} == set(REGIMES)
    assert found == DEVIATIONS


def _differences(one: Any, other: Any, path: str = "") -> list[tuple[str, tuple[Any, Any]]]:
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(key, one.get(key), other.get(key)) for key in one | other]
        return [found for key, a, b in pairs for found in _differences(a, b, f"{path}.{key}".lstrip("."))]
    return [] if one == other else [(path, (one, other))]


@pytest.mark.parametrize("size", ["smoke", "small", "paper"])
@pytest.mark.parametrize("regime", REGIMES)
def test_the_ablation_of_the_window_begins_a_token_later_and_changes_nothing_else(regime, size) -> None:
    branch, ablation = (
        OmegaConf.to_container(experiment(name, regime, size), resolve=True) for name in ("branch", "window2")
    )
    assert dict(_differences(branch, ablation)) == {"name": ("branch", "window2"), "model.window_start": (1, 2)}


@pytest.mark.parametrize("regime", REGIMES)
def test_the_trained_gate_takes_what_the_regime_lets_it(regime) -> None:
    """Deviation 1: at most alpha |beta| = 1 nat as published, |beta| = 2 nats by Eq. 4 and 5."""
    import torch

    from lit_ctg.papers.idea_gate import GateForm

    model = experiment(regime=regime).model
    form = GateForm(clamp=model.clamp, epsilon=model.epsilon)
    deepest = form(torch.tensor([-100.0]), model.alpha, model.beta).item()
    assert math.isclose(deepest, {"as_published": -1.0, "corrected": -2.0}[regime], rel_tol=1e-6)


@pytest.mark.long
def test_published_validation_is_five_random_batches_and_corrected_the_whole_split(tmp_path) -> None:
    def validation(regime: str, seed: int = 0) -> tuple[float, list[int]]:
        words = ["experiment=idea_gate/main", f"regime={regime}", f"seed={seed}", f"+data.cache_root={tmp_path}"]
        cfg = compose([*words, "size=smoke", "data.steps_per_epoch=5"])
        batches = list(build_datamodule(cfg).val_dataloader())
        return cfg.trainer.limit_val_batches, [int(batch["input_ids_BT"][0, 0]) for batch in batches]

    limit, published = validation("as_published")
    assert limit == 5 and len(published) == 5 and published != validation("as_published", seed=1)[1]
    limit, corrected = validation("corrected")
    assert limit == 1.0 and isinstance(limit, float) and corrected == validation("corrected", seed=1)[1]
    assert published != corrected[:5]
