"""Runs in the schema of Every Eval Ever: what it asks for is there, and nothing is made up."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.export import evaluation
from lit_ctg.results.render import main

# required keys of eval.schema.json 0.3.0, by where they stand
REQUIRED = {
    (): ("schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info", "eval_library"),
    ("source_metadata",): ("source_type", "source_organization_name", "evaluator_relationship"),
    ("eval_library",): ("name", "version"),
    ("model_info",): ("name", "id", "additional_details"),
}


def strings(details: dict[str, Any]) -> bool:
    return all(isinstance(value, str) for value in details.values())


def test_a_run_is_a_document_of_the_schema(make_record) -> None:
    record = make_record("main", "corrected", 111)
    record.metrics["val/perplexity"]["ci95"] = [4.5, 5.0]
    record.metrics["nothing"] = {**record.metrics["val/perplexity"], "value": math.nan}
    found = evaluation(record)
    for place, keys in REQUIRED.items():
        node = found
        for key in place:
            node = node[key]
        assert set(keys) <= set(node), place
    assert strings(found["model_info"]["additional_details"]) and strings(
        found["source_metadata"]["additional_details"]
    )
    assert {"deployment_type", "model_availability"} <= set(found["model_info"]["additional_details"])
    results = {result["evaluation_name"]: result for result in found["evaluation_results"]}
    with_direction = {name for name, entry in record.metrics.items() if entry["direction"] != "none"}
    assert set(results) == with_direction - {"nothing"}
    perplexity = results["val/perplexity"]
    assert perplexity["score_details"]["score"] == record.metrics["val/perplexity"]["value"]
    interval = perplexity["score_details"]["uncertainty"]["confidence_interval"]
    assert interval == {"lower": 4.5, "upper": 5.0, "confidence_level": 0.95}
    config = perplexity["metric_config"]
    assert (config["lower_is_better"], config["min_score"], config["max_score"]) == (True, 1.0, "Infinity")
    assert not results["control/hard/positive/adjective"]["metric_config"]["lower_is_better"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert evaluation(record) == found, "the same record gives the same document"


def test_the_packages_own_schema_holds(make_record) -> None:
    schemas = pytest.importorskip("every_eval_ever.schemas", reason="every-eval-ever asks for Python 3.12")
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(schemas.__file__).parent / "eval.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(evaluation(make_record("main", "corrected", 111)), schema)


def test_the_command_writes_a_file_a_run(tmp_path: Path, write_records, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_records(("main",), seeds=(111, 112), regimes=("corrected",))
    console = Console(file=StringIO(), width=200)
    out = tmp_path / "eee"
    main("semantic_fusion", format="eee", records=[folder], out=out, console=console)
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.json"))
    assert names == [f"semantic_fusion/main/corrected-paper-seed{seed}.json" for seed in (111, 112)]
    assert "written: 2 runs" in console.file.getvalue()  # type: ignore[attr-defined] # a StringIO
    with pytest.raises(UserError, match="give out=<folder>"):
        main("semantic_fusion", format="eee", records=[folder])
