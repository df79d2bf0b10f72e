"""What the W&B tables are made of; that they reach an offline run is in integration/test_wandb.py."""

from __future__ import annotations

from pathlib import Path

from lit_ctg.callback.wandb_tables import confusions, metric_rows, record_tables, verdict_rows
from lit_ctg.results.record import load_records

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "semantic_fusion" / "results"


def record():
    (found,) = [r for r in load_records([RESULTS / "main"]) if (r.regime, r.seed) == ("as_published", 111)]
    return found


def test_metric_rows_carry_unit_and_interval() -> None:
    rows = {row[0]: row[1:] for row in metric_rows(record())}
    assert len(rows) == len(record().metrics)
    entry = record().metrics["val/perplexity"]
    assert rows["val/perplexity"] == [
        entry["value"], "perplexity", "lower", entry["n"], *entry["ci95"], entry["version"]]  # fmt: skip
    floor = rows["floor/perplexity"]
    assert floor[4] is None and floor[5] is None


def test_confusion_counts_keep_their_names() -> None:
    found = confusions(record().metrics)
    assert "control/hard/confusion" in found
    assert found["control/hard/confusion"]["positive", "positive"] == 200
    assert all(isinstance(count, int) for counts in found.values() for count in counts.values())


def test_verdicts_stand_beside_the_printed_numbers() -> None:
    rows = {row[1]: row for row in verdict_rows(record())}
    table, _, printed, ours, verdict, reason = rows["Fusion, PPL"]
    assert table.startswith("Table 1") and printed == "2.152" and reason
    assert ours == record().metrics["val/perplexity_input_mask"]["value"]
    assert verdict in ("reproduced", "direction only", "not reproduced", "impossible")
    other = record()
    other.paper = "unknown"
    assert verdict_rows(other) == []


def test_every_table_is_there() -> None:
    tables = record_tables(record(), record().samples)
    assert {"metrics", "samples", "verdicts", "control/hard/confusion"} <= set(tables)
    assert len(tables["samples"].data) == len(record().samples)
