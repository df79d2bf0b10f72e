from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.results.collect import collect, main
from lit_ctg.results.record import load_records, write_record


def test_finished_records_are_copied_whole_and_not_overwritten(make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 7)
    record.git = {"commit": "c" * 40, "dirty": False}
    record.config["output_root"] = "/somebody/outputs"
    write_record(record, tmp_path / "outputs" / "a" / "run.json")
    failed = make_record("main", "corrected", 8)
    failed.status, failed.error = "FAILED", "because"
    write_record(failed, tmp_path / "outputs" / "b" / "run.json")
    assert main([str(tmp_path / "outputs"), "--into", str(tmp_path / "experiments")]) == 0
    (copied,) = load_records([tmp_path / "experiments"])
    assert copied.source.name == "corrected-paper-seed7.json"
    assert (copied.metrics, copied.history, copied.config_hash) == (record.metrics, record.history, record.config_hash)
    assert copied.samples == record.samples
    # a path of somebody's machine does not travel
    assert copied.config == {**record.config, "output_root": "outputs"}
    assert collect(load_records([tmp_path / "outputs"]), tmp_path / "experiments") == []
    assert len(collect(load_records([tmp_path / "outputs"]), tmp_path / "experiments", replace=True)) == 1


def test_a_run_of_uncommitted_code_is_refused(make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 7)
    record.git = {"commit": "c" * 40, "dirty": True}
    with pytest.raises(UserError, match="uncommitted"):
        collect([record], tmp_path)


@pytest.mark.parametrize(("field", "value"), [("name", "../../x"), ("paper", ".."), ("name", "a/b"), ("name", "/etc")])
def test_a_record_cannot_say_that_it_belongs_elsewhere(field: str, value: str, make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 7)
    record.git = {"commit": "c" * 40, "dirty": False}
    setattr(record, field, value)
    with pytest.raises(UserError, match="no plain folder name"):
        collect([record], tmp_path / "deep" / "experiments")
    assert not list(tmp_path.rglob("*.json"))
