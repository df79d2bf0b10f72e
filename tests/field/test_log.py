"""W&B tables of a run of the field: an offline run holds what is on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.field.command import compose
from lit_ctg.field.log import strength_rows
from lit_ctg.field.run import run
from lit_ctg.results.record import load_records


@pytest.mark.long
def test_an_offline_run_lies_beside_the_record(field_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    logged = {}
    inner = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run, "log", lambda self, data, **more: (logged.update(data), inner(self, data, **more))[1]
    )
    words = ["size=smoke", "method=log_odds", "logger=wandb", "name=sentiment-logged", f"output_root={field_root}"]
    outcome = run(compose(words))
    assert outcome.status == "DONE" and list(outcome.folder.glob("wandb/offline-run-*/*.wandb"))
    (record,) = load_records([outcome.folder])
    assert logged["strengths"].columns[0] == "strength"
    assert [row[0] for row in logged["strengths"].data] == record.config["method"]["strengths"]
    assert len(logged["samples"].data) == len(record.samples) and len(logged["metrics"].data) == len(record.metrics)
    assert wandb.run is None, "finished"
    # what is logged changes nothing of the run
    plain = compose([word for word in words if word != "logger=wandb"])
    assert run(plain).status == "SKIPPED"


def test_a_row_a_strength(field_root: Path) -> None:
    run(compose(["size=smoke", "method=log_odds", f"output_root={field_root}"]))
    record = load_records([field_root / "field" / "sentiment-log_odds"])[0]
    columns, rows = strength_rows(record)
    assert [row[0] for row in rows] == record.config["method"]["strengths"]
    place = columns.index("perplexity")
    assert [row[place] for row in rows] == [record.metrics[f"perplexity@{row[0]:g}"]["value"] for row in rows]
