"""The as-published runs against the authors' own training curves of Figure 6 (experiments/control_code/numbers.csv)."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from lit_ctg.results.spec import load_specs, read_printed
from tests.committed import records_of

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "control_code"
CURVES = {
    "neuron_8_layers": "transformer_scripts_l8_h512_neuron",
    "neuron_6_layers": "transformer_scripts_l6_h512_neuron",
    "prompt_6_layers": "transformer_scripts_l6_h512_prompt",
    "prompt_2_layers": "transformer_scripts_l2_h512_prompt",
}
# nats of the logged loss. The first epochs hang on rounding; from the eighth on the curves are smooth. With a code that
# is scaled as a word is the neuron arm (hidden 128) stood at 11 to 14 nats after three epochs; the curve is at 8.2
TOLERANCE = {1: 1.0, 2: 1.0, 3: 1.0, 8: 0.4, 10: 0.4}
# with 8 layers our perplexity jumps between 1,227 and 1,917 in epochs 8 to 11, theirs does not; then both are smooth
MORE = {"neuron_8_layers": {10: 0.5, 12: 0.2, 20: 0.1, 25: 0.1}}


def printed(curve: str) -> dict[int, float]:
    numbers = read_printed(FOLDER / "numbers.csv")
    return {epoch: numbers["figure_6", curve, f"epoch_{epoch}"].value for epoch in range(1, 51)}


def test_the_plateau_of_the_printed_curves_shows_their_formula():
    """The default arm stays at word frequencies until epoch 31: 6.76 nats, printed as 28 / 27 of it."""
    plateau = [math.log(printed("prompt_6_layers")[epoch]) for epoch in range(24, 31)]
    assert max(plateau) - min(plateau) < 0.01
    # unigrams of Scripts, its training part: exp(6.58) is the best a model can do that knows its source and no context
    assert 7.0 < plateau[0] < 7.02 and 6.74 < plateau[0] * 27 / 28 < 6.78


@pytest.mark.parametrize("curve", CURVES)
def test_committed_runs_begin_as_the_printed_curve_does(curve):
    runs = records_of("control_code", CURVES[curve], "as_published", "paper")
    if not runs:
        pytest.skip(f"no committed run of {CURVES[curve]}, as published, size=paper")
    values = printed(curve)
    limits = TOLERANCE | MORE.get(curve, {})
    logged = [dict(record.history["train/logged_loss"]) for record in runs]
    # seeds differ by up to 1.1 nats in the first epoch (11.8 to 12.9 with 6 layers): their mean is held to the limit,
    # each run to half as much again. With a code that is scaled as a word is the epoch was 2.1 nats off (6 layers)
    first, limit = math.log(values[1]), limits.pop(1)
    assert statistics.fmean(one[1] for one in logged) == pytest.approx(first, abs=limit), curve
    assert [one[1] for one in logged] == [pytest.approx(first, abs=1.5 * limit)] * len(logged), curve
    for record, one in zip(runs, logged, strict=True):
        for epoch, tolerance in limits.items():
            assert one[epoch] == pytest.approx(math.log(values[epoch]), abs=tolerance), (record.seed, epoch)


def test_a_run_follows_the_printed_curve_of_eight_layers_to_its_end():
    """It never breaks through; of our three seeds one does not either, and is as near as one run can be to another."""
    values = printed("neuron_8_layers")
    furthest = []
    for record in records_of("control_code", CURVES["neuron_8_layers"], "as_published", "paper"):
        logged = dict(record.history["train/logged_perplexity"])
        furthest.append(max(abs(logged[epoch] / values[epoch] - 1) for epoch in range(23, 51)))
    furthest.sort()
    assert furthest[0] < 0.01 and all(one > 0.3 for one in furthest[1:])


def test_curves_whose_breakthrough_is_a_matter_of_the_seed_are_judged_by_one_rule() -> None:
    """With four layers or more one run leaves the plateau and another does not: three equal ones are no exception."""
    rules = {
        spec.name: {(row.terms[0][0], row.interval) for row in spec.rows if "as the authors log it" in row.section}
        for spec in load_specs(FOLDER.parent, "control_code")
    }
    assert len(rules["figure_6"]) == 8 and len(rules["figure_4"]) == 4
    for experiment, interval in rules["figure_6"] | rules["figure_4"]:
        assert interval == ("seeds" if "_l2_" in experiment else "range"), experiment
