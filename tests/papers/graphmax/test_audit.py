"""The paper's own numbers, audited (experiments/graphmax/numbers.csv; docs/papers/graphmax.md, faults 6 to 9)."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

import lit_ctg.papers.graphmax as package

ROOT = Path(package.__file__).resolve().parents[3]
FOLDER = ROOT / "experiments" / "graphmax"
METHODS, ORDERS = ("gpt2", "ctrl", "pplm", "opt", "llama2"), (2, 3, 4, 5)
ROWS = [f"{method}{suffix}" for method in METHODS for suffix in ("", "_graphmax")]
CATEGORIES = ("text_style", "word_choice", "word_order_variation", "story_line")


@pytest.fixture(scope="module")
def printed() -> dict[tuple[str, str, str], float]:
    with open(FOLDER / "numbers.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["table"], row["row"], row["column"]): float(row["value"]) for row in rows}


def largest_deviation(mean: float, low: float, high: float, n: int) -> float:
    """Return the largest sample standard deviation of n numbers in [low, high] with this mean (Bhatia & Davis 2000)."""
    return math.sqrt((high - mean) * (mean - low) * n / (n - 1))


def test_the_bound_on_a_deviation_holds_and_is_reached():
    rng = np.random.default_rng(0)
    for n in (2, 5, 32):
        for _ in range(200):
            values = 1 + 4 * rng.beta(*rng.uniform(0.05, 2, 2), size=n)
            assert values.std(ddof=1) <= largest_deviation(values.mean(), 1, 5, n) + 1e-12
    extreme = np.array([1.0, 5.0, 5.0, 1.0, 5.0])
    assert extreme.std(ddof=1) == pytest.approx(largest_deviation(extreme.mean(), 1, 5, 5))


def test_deviations_of_tables_5_and_9_are_impossible(printed):
    impossible = [
        (model, category)
        for model in ("gpt2", "gpt2_graphmax")
        for category in CATEGORIES
        # 0.005: the printed mean is rounded; n = 5: the fewest participants the paper names
        if printed["9", model, f"{category}_sd"] - 0.005
        > max(largest_deviation(printed["9", model, category] + e, 1, 5, 5) for e in (-0.005, 0.005))
    ]
    assert impossible == [("gpt2", category) for category in CATEGORIES] + [("gpt2_graphmax", "word_order_variation")]
    impossible = [
        (table, row, order)
        for table, row, order in itertools.product(("2", "5"), ROWS, ORDERS)
        if printed[table, row, f"bleu_{order}_sd"]
        > largest_deviation(printed[table, row, f"bleu_{order}"] - 5e-4, 0, 1, 5)
    ]
    assert impossible == [("5", "pplm", 2)]


def test_the_ceilings_of_the_tables_are_that_bound(printed):
    found = 0
    for path, n, low, high in (
        (FOLDER / "tables" / "table_9.yaml", 5, 1, 5),
        (FOLDER / "tables" / "table_5.yaml", 5, 0, 1),
    ):
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        for row in spec["rows"]:
            if "ceiling" in row.get("bounds", {}):
                key = (spec["table"], row["printed"]["row"], row["printed"]["column"].removesuffix("_sd"))
                bound = largest_deviation(printed[key], low, high, n)
                assert row["bounds"]["ceiling"]["number"] == pytest.approx(bound, abs=5e-4), key
                found += 1
    assert found == 9


def test_tables_2_5_8_and_9_against_each_other_and_the_text(printed):
    # rows on other corpora, with other graphs, are identical; their deviations differ
    tables = [{row: [printed[table, row, f"bleu_{n}"] for n in ORDERS] for row in ROWS} for table in ("2", "5")]
    same = {row for row in ROWS if tables[0][row] == tables[1][row]}
    assert same == {"ctrl_graphmax", "pplm_graphmax"}
    assert printed["2", "ctrl_graphmax", "bleu_2_sd"] != printed["5", "ctrl_graphmax", "bleu_2_sd"]
    # "consistently better than PPLM, CTRL, OPT, and GPT-2 without graphmax"
    worse = [
        (method, order)
        for method, order in itertools.product(METHODS, ORDERS)
        if printed["5", f"{method}_graphmax", f"bleu_{order}"] < printed["5", method, f"bleu_{order}"]
    ]
    assert worse == [("ctrl", 2), ("ctrl", 5), ("pplm", 2), ("llama2", 4)]
    # "better performance in most of the experiments": BLEU-5, the headline metric, and perplexity are worse
    assert printed["8", "grams_2_5", "bleu_5"] < printed["8", "grams_2_3", "bleu_5"]
    assert printed["8", "grams_2_5", "perplexity"] > printed["8", "grams_2_3", "perplexity"]
    assert printed["8", "grams_2_3", "bleu_5"] == printed["2", "gpt2_graphmax", "bleu_5"]
    assert printed["8", "grams_2_3", "translation_bleu"] == printed["6", "bart_graphmax", "ro_en"]
    for model in ("gpt2", "gpt2_graphmax"):
        mean = np.mean([printed["9", model, category] for category in CATEGORIES])
        assert printed["9", model, "average"] == pytest.approx(mean, abs=0.0051)


def test_table_3_is_12_to_16_6_times_slower(printed):
    ratios = [
        printed["3", "llama2_graphmax", f"prompt_{prompt}"] / printed["3", "llama2", f"prompt_{prompt}"]
        for prompt in range(1, 6)
    ]
    # the text: "approximately 15-17 times"
    assert [round(ratio, 1) for ratio in sorted(ratios)] == [12.0, 13.2, 14.7, 15.6, 16.6]
    for prompt, ratio in enumerate(ratios, start=1):
        assert printed["3", "ratio", f"prompt_{prompt}"] == pytest.approx(ratio, abs=0.051)
