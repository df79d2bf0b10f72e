"""The same texts under judges of another seed; the report shows how the ranking holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.field.page import rejudged, task_page
from lit_ctg.field.rank import deciding_judges
from lit_ctg.field.rejudge import judged_anew
from lit_ctg.results.record import load_records

RunCli = Callable[..., tuple[int, str, str]]


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where these runs lie: their names are those of other tests' runs."""
    return tmp_path_factory.mktemp("rejudged")


@pytest.fixture(scope="module")
def kept(root: Path) -> Path:
    """Records of two methods, judged by whoever is better than nothing."""
    from lit_ctg.cli import main

    words = ["task=sentiment,keywords", "method=bare,log_odds", "size=smoke", "judges.least_accuracy=0.01"]
    assert main(["field", "run", *words, f"output_root={root}"]) == 0
    return root / "field"


def test_the_texts_are_judged_anew_and_the_report_says_how_the_ranking_holds(
    kept: Path, root: Path, run_cli: RunCli
) -> None:
    code, _, err = run_cli("field", "rejudge", "seed=1", f"records={kept}", f"output_root={root}")
    assert code == 0, err
    (told,) = rejudged([str(kept)])
    assert told["task"] == "sentiment" and told["seed"] == 1 and set(told["areas"]) == {"bare", "log_odds"}
    assert not (kept / "judges" / "keywords-seed1.json").exists(), "rules have no seed"
    records = load_records([kept / "sentiment-bare", kept / "sentiment-log_odds"])
    assert set(told["balanced_accuracy"]) == {"bag", "neural"}
    text, _ = task_page("sentiment", records, [told])
    (line,) = [line for line in text.splitlines() if line.startswith("Judges of seed 1 (")]
    assert "Kendall's tau with the table" in line and all(f"{value:.3f}" in line for value in told["areas"].values())
    other = {**told, "bench": "of other records"}
    assert "Judges of seed 1 (" not in task_page("sentiment", records, [other])[0]
    alone = {**told, "areas": {"bare": 0.5, "other": 0.6}}
    assert "no method but bare is here and there" in task_page("sentiment", records, [alone])[0]
    blind = {**told, "areas": {}}
    assert "none decides" in task_page("sentiment", records, [blind])[0]


def test_with_the_same_judges_the_areas_are_the_same(kept: Path, root: Path) -> None:
    """Judges of seed 0 say of the stored texts what the records say."""
    records = load_records([kept / "sentiment-bare", kept / "sentiment-log_odds"])
    for record in records:
        record.config["judges"]["seed"] = 7  # so that seed 0 is another one
    told = judged_anew(records, 0, str(root), None)
    for record in records:
        record.config["judges"]["seed"] = 0
    deciding, _ = deciding_judges(records[0])
    text, _ = task_page("sentiment", records)
    assert deciding and all(f"| {method} | {area:.3f} [" in text for method, area in told["areas"].items())


def test_bad_input_is_one_line(kept: Path, root: Path, run_cli: RunCli) -> None:
    given = [f"records={kept}", f"output_root={root}"]
    assert "of this seed; give another one" in run_cli("field", "rejudge", "seed=0", *given)[2]
    assert "have no seed" in run_cli("field", "rejudge", "seed=1", "task=keywords", *given)[2]
    assert "give one folder" in run_cli("field", "rejudge", "seed=1", f"records={kept},{kept.parent}")[2]
    records = load_records([kept / "sentiment-bare"])
    records[0].corpus["text"] = "another"
    with pytest.raises(UserError, match="the corpus is not the records'"):
        judged_anew(records, 1, str(root), None)
