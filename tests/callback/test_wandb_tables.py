"""What the W&B tables are made of; that they reach an offline run is in integration/test_wandb.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.loggers import WandbLogger

from lit_ctg.callback.wandb_tables import (
    WandbGenerations,
    confusions,
    log_record,
    metric_rows,
    record_tables,
    verdict_rows,
)
from tests.committed import records_of


def record():
    return records_of("semantic_fusion", "main", "as_published")[0]


@pytest.fixture
def logger() -> WandbLogger:
    """A logger that keeps what it is given."""

    class Logger(WandbLogger):
        def __init__(self) -> None:
            self.logged, self.run = {}, SimpleNamespace(summary={})
            self.run.log = self.logged.update

        @property
        def experiment(self):
            return self.run

    return Logger()


def test_metric_rows_carry_unit_and_interval() -> None:
    rows = {row[0]: row[1:] for row in metric_rows(record())}
    assert len(rows) == len(record().metrics)
    entry = record().metrics["val/perplexity"]
    assert rows["val/perplexity"] == [
        entry["value"], "perplexity", "lower", entry["n"], *entry["ci95"], entry["version"]]  # fmt: skip
    floor = rows["floor/perplexity"]
    assert floor[4] is None and floor[5] is None


def test_verdicts_stand_beside_the_printed_numbers() -> None:
    rows = {row[1]: row for row in verdict_rows(record())}
    table, _, printed, ours, verdict, reason = rows["Fusion, PPL"]
    assert table.startswith("Table 1") and printed == "2.152" and reason
    assert ours == record().metrics["val/perplexity_input_mask"]["value"]
    assert verdict in ("reproduced", "undecided", "not reproduced")
    other = record()
    other.paper = "unknown"
    assert verdict_rows(other) == []


def test_every_table_is_there() -> None:
    tables = record_tables(record(), record().samples)
    assert {"metrics", "samples", "verdicts", "control/hard/confusion"} <= set(tables)
    assert len(tables["samples"].data) == len(record().samples)


def test_a_confusion_has_what_was_asked_before_what_came() -> None:
    cells = {"t/confusion/a/b": 3.0, "t/confusion/b/a": 1.0, "u/confusion/a/a": 2.0, "confusion/a/b": 9.0, "x": 1.0}
    cells["t/confusion/total"] = 4.0
    found = confusions({name: {"value": value} for name, value in cells.items()})
    assert found == {"t/confusion": {("a", "b"): 3, ("b", "a"): 1}, "u/confusion": {("a", "a"): 2}}
    given = record()
    made = record_tables(given, [])["control/hard/confusion"]
    assert made.spec.string_fields == {"title": "control/hard/confusion"}
    assert made.table.columns == ["Actual", "Predicted", "nPredictions"]
    counts = confusions(given.metrics)["control/hard/confusion"]
    assert {(row[0], row[1]): row[2] for row in made.table.data} == counts


def test_every_number_is_in_the_summary_for_a_sweep_to_optimise(logger) -> None:
    given = record()
    given.metrics["bleu/nothing"] = {**given.metrics["val/perplexity"], "value": math.nan}
    log_record(SimpleNamespace(loggers=[object(), logger]), given, [{"text": "a"}])
    assert logger.run.summary["val/perplexity"] == given.metrics["val/perplexity"]["value"]
    assert set(logger.run.summary) == set(given.metrics) - {"bleu/nothing"}
    assert "metrics" in logger.logged and logger.logged["samples"].data == [["a"]]


def test_an_epoch_done_again_has_its_texts_once(tiny, trainer_of, tmp_path: Path) -> None:
    class Decoding:
        def generator(self, module, datamodule):
            return self

        def generate(self, n, **options):
            asked.append((n, options))
            assert not modes[-1].training, "without dropout"
            return [SimpleNamespace(text=f"text {row}") for row in range(n)]

    asked, modes = [], []

    def fit(epochs: int) -> None:
        module, data = tiny()
        callback = WandbGenerations(Decoding(), tmp_path, prompt="the", seed=5, n=2)
        modes.append(module)
        trainer = trainer_of(callback, max_epochs=epochs, num_sanity_val_steps=1)
        trainer.fit(module, data)
        trainer.validate(module, data)

    fit(3)
    fit(2)  # as after a kill that came before the checkpoint of the first epoch
    rows = [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["epoch"], row["row"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert asked == [(2, {"prompt": "the", "control": {}, "seed": 5})] * 5, "only after an epoch"


def test_the_texts_of_every_epoch_are_rows_of_one_growing_table(logger, tiny, tmp_path: Path) -> None:
    module, data = tiny()

    class Decoding:
        def generator(self, *given: object):
            assert given == (module, data)
            return self

        def generate(self, n: int, **options: object) -> list[SimpleNamespace]:
            assert not module.training, "without dropout"
            return [SimpleNamespace(text=f"a text\u2028of two lines, {row}") for row in range(n)]

    callback = WandbGenerations(Decoding(), tmp_path, prompt="the", seed=5)
    state = {"state": SimpleNamespace(fn="fit"), "sanity_checking": False}
    trainer = SimpleNamespace(**state, loggers=[object(), logger], datamodule=data)
    tables = []
    for trainer.current_epoch in (0, 1):
        callback.on_validation_end(trainer, module.train())
        tables.append(logger.logged.pop("generations"))
        assert not logger.logged and module.training
    assert tables[0] is tables[1] and tables[0].log_mode == "INCREMENTAL", "later rows are sent, not all again"
    rows = [[epoch, row, f"a text\u2028of two lines, {row}"] for epoch in (1, 2) for row in range(4)]
    assert (tables[0].columns, tables[0].data) == (["epoch", "row", "text"], rows)
    lines = (tmp_path / "generations.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [list(json.loads(line).values()) for line in lines] == rows
