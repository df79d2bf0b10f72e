"""Every experiment configuration is composed, built and run for two steps; one of each kind in both regimes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.config import compose, experiments, plain
from lit_ctg.run.train import train

QUICK = ("size=smoke", "logger=none", "trainer.limit_val_batches=1", "trainer.accelerator=cpu")
# they need a pretrained model: the tests of their papers run them on tiny ones
PRETRAINED = (
    "control_code/pretrained",
    "control_code/pretrained_smollm2",
    "control_code/pretrained_smollm2_attention",
    "control_code/pretrained_smollm2_lora",
    "graphmax/in_domain_controls",
    "graphmax/in_domain_pretrained",
    "graphmax/pretrained",
    "graphmax/pretrained_smollm2",
    "graphmax/pretrained_translation",
    "idea_gate/pretrained",
    "idea_gate/pretrained_baseline",
    "idea_gate/pretrained_frozen",
    "idea_gate/pretrained_frozen_short",
    "nslm/pretrained",
    "nslm/pretrained_places",
    "nslm/pretrained_younger",
    "semantic_fusion/pretrained",
    "semantic_fusion/pretrained_channel",
    "semantic_fusion/pretrained_channel_no_auxiliary",
    "semantic_fusion/pretrained_channel_no_hindsight",
)


# one of every set of classes that an experiment is built of, run at once; all in both regimes take minutes
FIRST = (
    "control_code/converged",
    "control_code/gru",
    "control_code/transformer",
    "graphmax/main",
    "graphmax/translation",
    "idea_gate/base",
    "idea_gate/branch",
    "idea_gate/main",
    "nslm/awd_lstm",
    "nslm/increment",
    "nslm/numbers",
    "nslm/numbers_transformer",
    "nslm/places",
    "semantic_fusion/baseline",
    "semantic_fusion/coupled",
    "semantic_fusion/coupled_baseline",
    "semantic_fusion/main",
    "semantic_fusion/memberships",
    "semantic_fusion/reviews",
    "semantic_fusion/reviews_baseline",
)


# the same of graphmax's trials, which take half a minute where their kernels are compiled first
TRIALS = ("graphmax/review", "graphmax/in_domain", "graphmax/decode_time")


def cases() -> Iterator[Any]:
    """Yield (experiment, regime): those above in both, others, which differ from them in values only, as published."""
    for name in experiments():
        if name not in PRETRAINED:
            yield pytest.param(name, "as_published", marks=pytest.mark.long)
        if name in (*FIRST, *TRIALS):
            yield pytest.param(name, "corrected", marks=[] if name in FIRST else pytest.mark.long)


def classes(node: Any) -> Iterator[str]:
    """Yield the names of the classes that a configuration is built of."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from [value] if key == "_target_" else classes(value)


@pytest.mark.long
def test_the_first_have_every_set_of_classes() -> None:
    sets = {
        name: frozenset(classes(plain(compose([f"experiment={name}", *QUICK]))))
        for name in experiments()
        if name not in PRETRAINED
    }
    assert set(FIRST) <= set(sets)
    known = [sets[name] for name in (*FIRST, *TRIALS)]
    missing = [name for name in sets if sets[name] not in known]
    assert not missing, f"built of classes that no experiment in FIRST or TRIALS is built of: {missing}"


@pytest.mark.parametrize(("name", "regime"), list(cases()))
def test_two_steps(name: str, regime: str, tmp_path: Path) -> None:
    words = [f"experiment={name}", f"regime={regime}", f"output_root={tmp_path}", *QUICK]
    # max_steps ends the run in the first epoch
    outcome = train(compose([*words, "trainer.max_steps=2"]))
    record = json.loads((outcome.folder / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "DONE"
    assert record["experiment"] == f"{record['paper']}/{record['name']}"
    assert record["paper"] == name.partition("/")[0]
    assert record["parameters"] > 0
    metrics = record["metrics"]
    perplexity = metrics.get("val/perplexity", metrics.get("val/gated/perplexity"))["value"]
    assert math.isfinite(perplexity) and perplexity > 1
