"""The tables of idea_gate ask for runs that are listed and for numbers that those runs record."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.config import compose, plain
from lit_ctg.papers.idea_gate.topic.domain import LISTS
from lit_ctg.papers.idea_gate.topic_drift import span_name
from lit_ctg.papers.idea_gate.topic_trial import ALL, TopicTrial
from lit_ctg.results.spec import load_specs
from lit_ctg.run.reproduce import load_groups

ROOT = Path(__file__).resolve().parents[4] / "experiments"
SCORES = ("stickiness", "density", "stickiness_with_prompt", "density_with_prompt")


@pytest.fixture(scope="module")
def terms():
    """Every (experiment, regime, metric) that a row of a table reads."""
    rows = [row for spec in load_specs(ROOT, "idea_gate") for row in spec.rows if row.samples is None]
    return {
        (experiment, regime, metric[regime])
        for row in rows
        for experiment, metric in row.terms
        for regime in row.regimes
    }


@pytest.fixture(scope="module")
def recorded():
    """Names of what the trials and the X-ray of a small run record."""
    callbacks = plain(compose(["experiment=idea_gate/strengths", "size=small"]))["callback"]
    trial, xray = callbacks["topic_trial"], callbacks["xray"]
    names = set()
    for arm in trial["arms"]:
        for domain in (*trial["domains"], ALL):
            names.add(f"topic/{arm}/{domain}/distinct_2")
            for chosen in LISTS:
                base = f"topic/{arm}/{domain}/{chosen}"
                names |= {f"{base}/{score}" for score in SCORES} | {f"{base}/drift/fall"}
                names |= {f"{base}/drift/{span_name(span)}" for span in trial["spans"]}
    for name, entry in xray["prompts"].items():
        names |= {f"xray/{name}/{word}" for word in entry["words"]} | {f"xray/{name}/clamped"}
    return names


def test_every_run_is_listed(terms) -> None:
    listed = {(group.name, group.regime) for group in load_groups(ROOT, "idea_gate", "small")}
    wanted = {(experiment, regime) for experiment, regime, _ in terms}
    assert wanted <= listed
    assert wanted == listed, "runs that no table reads"


def test_every_number_is_recorded(terms, recorded) -> None:
    asked = {metric for _, _, metric in terms if metric.startswith(("topic/", "xray/"))}
    assert asked and asked <= recorded
    metrics = plain(compose(["experiment=idea_gate/main"]))["metric"]
    others = {metric for _, _, metric in terms} - asked
    assert {name.split("/")[1] for name in others if name.startswith("val/")} <= set(metrics)


@pytest.mark.parametrize("regime", ["as_published", "corrected"])
@pytest.mark.parametrize("size", ["smoke", "small", "paper"])
def test_the_configured_trials_are_accepted_and_fit_the_context(regime, size) -> None:
    cfg = plain(compose(["experiment=idea_gate/main", f"size={size}", f"regime={regime}"]))
    options = {
        key: value for key, value in cfg["callback"]["topic_trial"].items() if key not in ("_target_", "decoding")
    }
    trial = TopicTrial(**options, decoding=None)
    assert trial.prompts == (1 if regime == "as_published" else 5)
    assert len(trial.function_words) == 15
    # the rest of the context is for the prompt
    assert trial.max_new_tokens <= 0.8 * cfg["backbone"]["context"]
