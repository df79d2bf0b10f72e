"""The last line of a training says what the trained control changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_ctg.core.model import LMOutput
from lit_ctg.run.effect import BATCHES, effect


class Shifted(torch.nn.Module):
    """Scores with a control that adds to token 1."""

    device = torch.device("cpu")

    def __init__(self, added: float | None) -> None:
        super().__init__()
        self.added, self.read = added, 0

    def contrast(self, batch: dict[str, torch.Tensor]) -> Any:
        if self.added is None:
            return None
        self.read += 1
        scores_BTV = torch.zeros(*batch["target_ids_BT"].shape, 4)
        shifted_BTV = scores_BTV.clone()
        shifted_BTV[..., 1] += self.added
        return LMOutput(shifted_BTV, scores_BTV).scores_BTV, scores_BTV


def batch(masked: int = 0) -> dict[str, torch.Tensor]:
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    mask_BT[0, 3 - masked :] = False
    return {"target_ids_BT": torch.ones(2, 3, dtype=torch.long), "mask_target_BT": mask_BT}


@pytest.mark.parametrize("loaders", [[batch(), batch(1)], [[batch(), batch(1)]]])
def test_a_control_against_its_formula(loaders: Any) -> None:
    found = effect(Shifted(1.0).train(), loaders if isinstance(loaders[0], list) else iter(loaders))  # type: ignore[arg-type]
    p_V = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64).softmax(0)
    assert found is not None and found.positions == 11
    assert found.divergence == pytest.approx(float((p_V * (p_V / 0.25).log()).sum()), abs=1e-6)
    assert found.saving == pytest.approx(float((p_V[1] / 0.25).log()), abs=1e-6)
    assert "next to nothing" not in found.line()


def test_a_control_that_changes_nothing_is_reported() -> None:
    module = Shifted(0.0).train()
    found = effect(module, [[batch()] * (BATCHES + 5)])  # type: ignore[arg-type]
    assert found is not None and found.divergence == 0 and module.read == BATCHES and module.training
    assert "next to nothing" in found.line() and "model.learning_rate" in found.line()


@pytest.mark.parametrize(
    ("module", "loaders"), [(Shifted(None), [[batch()]]), (Shifted(1.0), None), (Shifted(1.0), [])]
)
def test_nothing_to_compare(module: Any, loaders: Any) -> None:
    assert effect(module, loaders) is None


@pytest.mark.parametrize(
    ("words", "control"),
    [
        (["experiment=control_code/transformer", "model.injection=neuron"], True),
        (["experiment=control_code/transformer", "model.injection=none"], False),
        (["experiment=idea_gate/main"], True),
    ],
)
def test_a_training_ends_with_the_line(run_cli: Any, words: list[str], control: bool) -> None:
    code, out, err = run_cli(
        "train", *words, "size=smoke", "trainer.max_steps=2", "callback=[run_record,checkpoint,epoch_seed]"
    )
    assert code == 0, err
    assert ("control: it moves" in out) is control
    # the gate's own measures: at its bound, and against word frequency
    assert ("average precision" in out and "% of tokens" in out) is (words == ["experiment=idea_gate/main"])
