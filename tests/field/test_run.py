"""Runs: from words to a record, resumed by cell, the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.cli import dispatch
from lit_ctg.errors import UserError
from lit_ctg.field import run as runs
from lit_ctg.field.bench import Bench
from lit_ctg.field.command import combinations, compose
from lit_ctg.field.verify import recompute
from lit_ctg.results.record import RunRecord, load_records


def record_at(folder: Path) -> RunRecord:
    (record,) = load_records([folder])
    return record


def test_a_run_that_was_stopped_keeps_its_cells(
    bench: Bench, field_words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = compose([*field_words, "method=log_odds"])
    shared = {runs.config_hash(runs.plain(cfg), without=[*runs.HASH_IGNORED, "method", "name", "bundle"]): bench}
    cells, inner = list[str](), runs.written

    def stopped(bench: Bench, ways: list[runs.Way], part: str) -> list[dict[str, Any]]:
        cells.append(f"{part} " + " ".join(f"{way.number}{way.label[:3]}" for way in ways))
        if part == "report" and len(cells) == 2:
            raise KeyboardInterrupt
        return inner(bench, ways, part)

    monkeypatch.setattr(runs, "written", stopped)
    with pytest.raises(KeyboardInterrupt):
        runs.run(cfg, shared)
    assert cells[0] == "choice 0neg 0pos 1neg 1pos 2neg 2pos", "all strengths of both classes in one batch"
    monkeypatch.setattr(bench, "strengths", lambda *given: pytest.fail("the strengths were kept"))
    outcome = runs.run(cfg, shared)
    assert outcome.status == "DONE" and len(cells) == 3 and cells[1] == cells[2]
    record = record_at(outcome.folder)
    assert not (outcome.folder / runs.CELLS).exists()
    assert len(record.samples) == 3 * 2 * 2 + 2 * 2 and record.corpus["weights"] == bench.weights
    assert runs.run(cfg, shared).status == "SKIPPED"
    stored = {name: entry["value"] for name, entry in record.metrics.items()}
    for found in recompute(record):
        if found.part == "value":
            assert stored[found.metric] == pytest.approx(found.low), found.metric
    # a text that was changed afterwards is found out
    record.samples[-1]["text"], record.samples[-1]["tfidf"] = "a a a a a a", 1 - record.samples[-1]["tfidf"]
    wrong = {found.metric for found in recompute(record) if stored[found.metric] != pytest.approx(found.low)}
    assert {"success/tfidf/positive", "repetition/positive", "distinct_2/positive"} <= wrong


def test_a_damaged_cell_is_made_again(tmp_path: Path) -> None:
    cells, made = runs.Cells(tmp_path, {"weights": "a"}), list[int]()

    def make() -> int:
        made.append(1)
        return 7

    for damage in (None, "[", "{}", json.dumps({"identity": {"weights": "b"}, "value": 3})):
        if damage is not None:
            (tmp_path / "x.json").write_text(damage)
        assert cells.get("x", make) == cells.get("x", make) == 7
    assert len(made) == 4


def test_methods_of_a_sweep_share_the_bench_and_a_failure_stops_no_other(
    field_words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built, inner = list[Any](), runs.build_bench
    monkeypatch.setattr(runs, "build_bench", lambda cfg: built.append(cfg) or inner(cfg))
    assert dispatch(["field", "run", *field_words, "method=bare,bundle,neutral"]) == 1
    told = capsys.readouterr().out
    assert (
        "[1/3] sentiment-bare seed 0: done" in told and "[2/3] sentiment-bundle seed 0: failed: method=bundle" in told
    )
    assert "[3/3] sentiment-neutral seed 0: done" in told and len(built) == 2, "again after the failure only"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=x"], "task"), (["method=x"], "method"), (["decode.prompts=0"], r"decode\.prompts"),
        (["train.rank=x"], r"train\.rank"), (["decode.top_p=2"], r"decode\.top_p"), (["seed=-1"], "seed"),
        (["name=other"], "name"), (["dtype=int3"], "dtype"), (["x=1"], "x"), (["shares.train=2"], r"shares\.train"),
    ],
)  # fmt: skip
def test_words_that_do_not_fit_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(words)


def test_commas_make_every_combination() -> None:
    assert combinations(["seed=0,1", "method=a,b"]) == [
        [f"seed={seed}", f"method={name}"] for seed in (0, 1) for name in "ab"
    ]
    with pytest.raises(UserError, match="give task= and method="):
        runs.run_all(["seed=1"])


@pytest.mark.long
def test_an_offline_run_of_wandb_is_beside_the_record(field_words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    logged = {}
    inner = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run, "log", lambda self, data, **more: (logged.update(data), inner(self, data, **more))[1]
    )
    words = [*field_words, "method=bare", "logger=wandb", "name=sentiment-logged"]
    outcome = runs.run(compose(words))
    assert outcome.status == "DONE" and list(outcome.folder.glob("wandb/offline-run-*/*.wandb"))
    record = record_at(outcome.folder)
    assert len(logged["samples"].data) == len(record.samples) and len(logged["metrics"].data) == len(record.metrics)
    assert wandb.run is None, "finished"
    # what is logged changes nothing of the run
    assert runs.run(compose([word for word in words if word != "logger=wandb"])).status == "SKIPPED"
