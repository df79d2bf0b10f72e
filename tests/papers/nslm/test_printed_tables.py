"""Claims of docs/papers/nslm.md about the paper's printed numbers, from ``numbers.csv``."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

NUMBERS = Path(__file__).resolve().parents[3] / "experiments" / "nslm" / "numbers.csv"
CLASSES, MODELS = ("city", "state", "country"), ("nnlm", "hnlm", "crnn", "nslm")


@pytest.fixture(scope="module")
def log_perplexity() -> dict[tuple[str, str], float]:
    """Table 3 by (row, column), in nats."""
    with NUMBERS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "3" and row["unit"] == "perplexity"]
    return {(row["row"], row["column"]): math.log(float(row["value"])) for row in rows}


def shares(log_perplexity: dict[tuple[str, str], float], half: str) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the classes that fit all four columns best (they sum to 1), and the residual, in nats."""
    columns = [f"{half}_{model}" for model in MODELS]
    by_class = np.array([[log_perplexity[name, column] for name in CLASSES] for column in columns])
    pooled = np.array([log_perplexity["places", column] for column in columns])
    first_two, *_ = np.linalg.lstsq(by_class[:, :2] - by_class[:, 2:], pooled - by_class[:, 2], rcond=None)
    found = np.array([*first_two, 1 - first_two.sum()])
    return found, by_class @ found - pooled


def test_table_3_wikitext_103_pools_its_classes(log_perplexity: dict[tuple[str, str], float]) -> None:
    """The perplexity of all places is the mean over the classes' tokens, in nats: one weighting fits all models."""
    found, left = shares(log_perplexity, "wikitext103")
    assert found == pytest.approx([0.188, 0.412, 0.400], abs=1e-3) and np.abs(left).max() < 5e-4


def test_table_3_wikitext_2_contradicts_itself(log_perplexity: dict[tuple[str, str], float]) -> None:
    """Its CRNN lowers the perplexity of all places by more than that of any class."""
    change = {
        name: log_perplexity[name, "wikitext2_crnn"] - log_perplexity[name, "wikitext2_nnlm"]
        for name in (*CLASSES, "places")
    }
    assert change["places"] < min(change[name] for name in CLASSES) - 0.01
    assert np.abs(shares(log_perplexity, "wikitext2")[1]).max() > 0.04
