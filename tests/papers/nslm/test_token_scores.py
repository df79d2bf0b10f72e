"""Five tokens by hand, from contexts to the numbers of the record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_ctg.papers.nslm.class_heads import HeadScores
from lit_ctg.papers.nslm.construction import class_table, make_recogniser
from lit_ctg.papers.nslm.evaluation import NSLMEvaluation
from lit_ctg.papers.nslm.occurrence import ContextTracker, Evidence
from lit_ctg.papers.nslm.token_scores import TokenScores, score_batch

TOKENS = ("<eos>", "in", "1990", "1991", "1995")
INPUT = [0, 1, 2, 1, 4, 1]
TARGET = [1, 2, 1, 4, 1, 2]
# the last year stands in another document; the first target is not counted
DOCUMENT = [0, 0, 0, 0, 1, 1]
COUNTED = [False, True, True, True, True, True]
NNLM, TAG, MASS = [0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.2, 0.7, 0.4, 0.8], [0.3, 0.2, 0.5, 0.4, 0.6]
WITHIN = {1: [0.7, 0.2, 0.1], 3: [0.2, 0.3, 0.5], 5: [0.1, 0.8, 0.1]}
NEURAL = {1: [0.1, 0.6, 0.3], 3: [0.5, 0.3, 0.2], 5: [0.3, 0.3, 0.4]}
MICRO = {-1: [0.2, 0.5, 0.3], 0: [0.1, 0.2, 0.7]}


class Heads:
    """Says what the tables above say: a hidden state is its distributions, one behind the other."""

    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        assert target_N.tolist() == TARGET[1:]
        return HeadScores(*(torch.tensor(part, dtype=torch.float64).log() for part in (NNLM, TAG, NNLM, MASS)))

    def within_class(self, hidden_XD: Tensor, number: int) -> Tensor:
        return hidden_XD[:, :3].log()

    def conditional(self, hidden_XD: Tensor, number: int) -> Tensor:
        return hidden_XD[:, 3:].log()


class Micro:
    def log_prob(self, evidence: Evidence) -> np.ndarray:
        return np.log([MICRO[previous] for previous in evidence.previous_N.tolist()])


class Characters:
    def log_prob_of(self, hidden_XD: Tensor, index_X: Tensor, number: int) -> Tensor:
        return (0.05 * (1 + index_X.double())).log()


@pytest.fixture
def module() -> Any:
    grid = {"metrics": ["difference"], "densities": ["gaussian"], "unit": "years"}
    table = class_table(TOKENS, [make_recogniser("year", {"pattern": r"19\d\d", **grid})])
    return SimpleNamespace(
        table=table,
        heads=Heads(),
        micro_models=[Micro()],
        characters=Characters(),
        mixture_weight=torch.tensor(0.5, dtype=torch.float64),
        cache=SimpleNamespace(weight=0.25),
        vocabulary=TOKENS,
    )


@pytest.fixture
def scores(module: Any) -> TokenScores:
    contexts, _ = ContextTracker(module.table).read(np.array([INPUT]), np.array([DOCUMENT]))
    hidden = [WITHIN.get(place, [1.0] * 3) + NEURAL.get(place, [1.0] * 3) for place in range(6)]
    batch = {"target_ids_BT": torch.tensor([TARGET]), "mask_target_BT": torch.tensor([COUNTED])}
    cached_BT = torch.tensor([[0.9, 0.1, 0.2, 0.3, 0.4, torch.nan]], dtype=torch.float64).log()
    return score_batch(module, batch, torch.tensor([hidden], dtype=torch.float64), contexts, cached_BT, True)


def test_what_is_said_of_every_token(scores: TokenScores) -> None:
    assert scores.target_N.tolist() == TARGET[1:]
    assert scores.class_N.tolist() == [0, -1, 0, -1, 0]
    assert scores.first_N.tolist() == [True, False, False, False, True]
    for found_N, expected in (
        (scores.within_N, [0.7, 1, 0.5, 1, 0.1]),
        (scores.micro_N, [0.2, 1, 0.7, 1, 0.2]),
        (scores.characters_N, [0.05, 1, 0.15, 1, 0.05]),
        (scores.cache_N, [0.1, 0.2, 0.3, 0.4, np.nan]),
    ):
        np.testing.assert_allclose(np.exp(found_N), expected, rtol=1e-12)
    # likeliest members: NNLM 1991, 1990, 1995; HNLM 1990, 1995, 1991; Eq. 4 and mixture 1991, 1995, 1991
    nan = [np.nan] * 4
    np.testing.assert_array_equal(scores.error_NG, [[1, 0, 1, 1], nan, [5, 0, 0, 0], nan, [5, 1, 1, 1]])


def test_the_numbers_of_the_record(module: Any, scores: TokenScores) -> None:
    evaluation = NSLMEvaluation(total="numbers", rarity=[1, 3])
    # 1995 once in training text, 1990 three times; validation text has other counts
    texts = {"train": np.array([4, 2, 2, 2]), "val": np.array([2, 4, 4, 4, 4])}
    trainer: Any = SimpleNamespace(datamodule=SimpleNamespace(prepare=lambda: SimpleNamespace(ids=texts.get)))
    evaluation.evaluate(trainer, module, scores, "val")
    found = {name.removeprefix("val/"): entry["value"] for name, entry in evaluation.results.items()}
    expected = {
        "nnlm/numbers": (0.1, 0.3, 0.5),
        "nnlm/global": NNLM,
        "hnlm/year": (0.42, 0.35, 0.08),
        "crnn/year": (0.03, 0.105, 0.04),
        "nslm_alone/numbers": (0.12, 0.49, 0.16),
        "summed/numbers": (0.06, 0.35, 0.12),
        "nslm/numbers": (0.11, 0.395, 0.33),
        "nslm/global": (0.11, 0.2, 0.395, 0.4, 0.33),
        "nslm/first": (0.11, 0.33),
        "nslm/later": (0.395,),
        "nslm/rarity_1_2": (0.395,),
        "nslm/rarity_3_more": (0.11, 0.33),
        "nnlm_cache/numbers": (0.75 * 0.1 + 0.25 * 0.1, 0.75 * 0.3 + 0.25 * 0.3, 0.5),
        "nslm_cache/later": (0.75 * 0.395 + 0.25 * 0.3,),
    }
    for name, probabilities in expected.items():
        assert found[name] == pytest.approx(np.prod(probabilities) ** (-1 / len(probabilities)), rel=1e-12), name
    errors = {"nnlm": (5, 11 / 3), "hnlm": (0, 1 / 3), "nslm_alone": (1, 2 / 3), "nslm": (1, 2 / 3)}
    for name, (median, mean) in errors.items():
        assert found[f"{name}/year/median_error"] == median and found[f"{name}/year/mean_error"] == pytest.approx(mean)
    assert evaluation.results["val/nslm/year/mean_error"]["unit"] == "years"
