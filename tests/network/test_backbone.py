"""A model says which backbone it cannot run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.run.build import build, build_datamodule, build_model

FOREIGN = [
    ("semantic_fusion/main", "gpt2", "GPT2Backbone (no forward_packed)"),
    ("semantic_fusion/main", "code_gru", "CodeGRUBackbone (no causal)"),
    ("idea_gate/main", "code_transformer", "CodeTransformerBackbone (no dim)"),
    ("graphmax/review", "code_gru", "CodeGRUBackbone (no dim)"),
    ("nslm/numbers", "code_gru", "CodeGRUBackbone (no dim)"),
    ("control_code/transformer", "gpt2 +backbone.feedforward_dim=64", "GPT2Backbone (no func)"),
]


@pytest.mark.parametrize(("experiment", "backbone", "said"), FOREIGN, ids=lambda word: word.partition(" ")[0])
def test_the_backbone_of_another_paper_is_refused(experiment: str, backbone: str, said: str) -> None:
    cfg = compose([f"experiment={experiment}", *f"backbone={backbone}".split(), "size=smoke"])
    with pytest.raises(UserError, match="leave backbone= out") as caught:
        build_model(cfg, build_datamodule(cfg))
    assert said in str(caught.value)


def test_settings_of_a_part_that_is_not_chosen_are_refused(tmp_path: Path) -> None:
    cfg = compose(["experiment=idea_gate/branch_aux", "callback=[default]", "size=smoke"])
    with pytest.raises(UserError, match=r"callback.topic_trial=.* leave it out with ~callback.topic_trial"):
        build(cfg, tmp_path, loggers=False)
