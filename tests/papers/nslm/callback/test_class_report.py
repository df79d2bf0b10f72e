"""Counts and curves in a run record."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_report import ClassReport
from lit_ctg.papers.nslm.construction import class_table, make_recogniser
from lit_ctg.papers.nslm.occurrence import Occurrences
from lit_ctg.papers.nslm.selection import select

GRID = {"metrics": ["difference", "frequency"], "densities": ["gaussian", "multinomial", "unigram"]}
TOKENS = ["in", *map(str, range(1900, 1960))]


def run(curves: dict) -> tuple[ClassReport, np.ndarray]:
    """Return the report on 2,000 tokens, every second one the year after the year before."""
    rng = np.random.default_rng(0)
    ids_T = np.zeros(2000, dtype=np.int64)
    ids_T[1::2] = (np.cumsum(rng.choice([0, 1, 1, 2], 1000)) % 60) + 1
    table = class_table(TOKENS, [make_recogniser("year", {"pattern": r"19\d\d", **GRID})])
    found = Occurrences.from_documents(ids_T, np.zeros(1, dtype=int), table)
    texts = {"train": ids_T, "val": ids_T, "test": ids_T[:1600]}
    packed = SimpleNamespace(ids=texts.get)
    module = SimpleNamespace(
        table=table,
        selection=select(table, found, found),
        occurrences=lambda datamodule, split: Occurrences.from_documents(texts[split], np.zeros(1, dtype=int), table),
    )
    trainer = SimpleNamespace(state=SimpleNamespace(fn="validate"), datamodule=SimpleNamespace(prepare=lambda: packed))
    report = ClassReport(curves=curves)
    report.on_validation_end(trainer, module)
    return report, ids_T


def test_counts_and_curves() -> None:
    curves = {"year": {"metric": "difference", "low": -2, "high": 3}, "city": {"metric": "x", "low": 0, "high": 1}}
    report, ids_T = run(curves)
    assert report.results["count/train/year"]["value"] == 1000
    assert report.results["share/val/all"]["value"] == pytest.approx(0.5)
    assert report.results["count/test/year"]["value"] == 800 and report.results["count/test/year"]["n"] == 1600
    steps = np.diff(ids_T[1::2])
    for value in range(-2, 4):
        observed = report.results[f"density/year/observed/{value}"]["value"]
        assert observed == pytest.approx((steps == value).mean(), abs=1e-9)
        assert report.results[f"density/year/multinomial/{value}"]["value"] == pytest.approx(observed, abs=0.03)
    # a Gaussian spreads beyond the steps that there are
    mean, variance = steps.mean(), steps.var()
    x = np.arange(-59, 60)
    density = np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    assert report.results["density/year/observed/3"]["value"] == 0
    assert report.results["density/year/gaussian/3"]["value"] == pytest.approx(density[x == 3][0], rel=0.5)
    assert {name.split("/")[2] for name in report.results if name.startswith("density")} == {
        "observed", "gaussian", "multinomial"
    }  # fmt: skip


def test_only_at_the_end_and_only_metrics_there_are() -> None:
    with pytest.raises(UserError, match="did you mean 'difference'"):
        run({"year": {"metric": "diference", "low": 0, "high": 1}})
    report = ClassReport(curves={})
    report.on_validation_end(SimpleNamespace(state=SimpleNamespace(fn="fit")), None)
    assert report.results == {}
