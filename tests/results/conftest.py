"""Made-up but plausible run records of semantic fusion, written as a finished sweep would leave them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.results.record import RunRecord, config_hash, write_record
from lit_ctg.results.spec import Printed, RowSpec, TableSpec
from lit_ctg.results.table import COUNTS, Cell, Row, Table
from lit_ctg.results.verdict import REPRODUCED, Verdict

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SEEDS = (111, 112, 113, 114, 115)
TRIALS = 200
FOCUS = {"good": 0.003, "great": 7.1, "terrible": 6.9, "slightly": 0.003, "very": 0.003, "!": 3.6, "?": 3.4, ",": 0.003}
BASELINES = ("baseline", "coupled_baseline", "long_baseline")


def entry(value: float, unit: str = "perplexity", direction: str = "lower", n: int = 17760) -> dict:
    """Return one metric as ``MetricResult.to_dict`` gives it."""
    return {"value": value, "unit": unit, "direction": direction, "n": n, "ci95": None, "version": 1}


def rate(hits: int) -> dict:
    """Return a rate of 200 trials."""
    hits = min(max(hits, 0), TRIALS)
    return entry(hits / TRIALS, "rate", "higher", TRIALS)


def perplexities(rng: random.Random, regime: str, fusion: bool) -> dict:
    """Perplexities and focus CE of one run: leaking ones about 2, causal ones about 4.8."""
    published = regime == "as_published"
    ppl = rng.gauss(2.15, 0.15) if published else rng.gauss(4.75 if fusion else 5.0, 0.25)
    seen = rng.gauss(1.45, 0.05) if published else rng.gauss(2.75, 0.08)
    metrics = {
        "val/perplexity": entry(ppl * 1.06),
        "val/perplexity_input_mask": entry(ppl),
        "val/perplexity_seen_only": entry(seen * 1.05),
        "val/perplexity_seen_only_input_mask": entry(seen),
        "val/perplexity_prefix_only": entry(20.4 if published else ppl * 1.06),
        "probe/causal": entry(0.0 if published else 1.0, "flag", "higher", 40),
        "probe/max_change": entry(8.7 if published else 0.0, "logit", "lower", 40),
        "floor/perplexity": entry(2.869),
        "floor/perplexity_input_mask": entry(2.672),
        "floor/perplexity_seen_only": entry(2.497),
        "floor/perplexity_seen_only_input_mask": entry(2.337),
    }
    shift = 0.0 if published else 1.4
    for token, value in FOCUS.items():
        metrics[f"val/focus_ce/{token}"] = entry(
            value * rng.uniform(0.9, 1.1) + shift * (value < 1), "nats", "lower", 900
        )
    if fusion:
        metrics["val/semantic_mse"] = entry(rng.gauss(0.0105, 0.0008), "squared error", "lower", 390720)
        metrics["val/semantic_mse_constant"] = entry(0.0455, "squared error", "lower", 390720)
    return metrics


def controls(rng: random.Random, regime: str, prefix: str = "") -> dict:
    """Control metrics of every path the regime has."""
    hit_rates = {"off": 0.5, "hard": 1.0, "soft": 0.97, "channel": 0.84}
    paths = [path for path in hit_rates if path != "channel" or (regime == "corrected" and not prefix)]
    metrics = {}
    for path in paths:
        for setting in ("positive", "negative_question", "negative"):
            name = f"{prefix}control/{path}/{setting}"
            sure = hit_rates[path] == 1.0
            metrics[f"{name}/adjective"] = rate(TRIALS if sure else round(TRIALS * hit_rates[path] + rng.gauss(0, 5)))
            if setting != "negative":
                metrics[f"{name}/punctuation"] = rate(TRIALS if sure else round(TRIALS * hit_rates[path] * 0.5))
            metrics[f"{name}/ood_hit"] = rate(
                round(TRIALS * (0.59 if setting == "positive" else 0.46) + rng.gauss(0, 6))
            )
        for intended in ("positive", "negative"):
            hits = round(metrics[f"{prefix}control/{path}/{intended}/adjective"]["value"] * TRIALS)
            other = "negative" if intended == "positive" else "positive"
            for realized, count in {intended: hits, other: TRIALS - hits, "other": 0}.items():
                key = f"{prefix}control/{path}/confusion/{intended}/{realized}"
                metrics[key] = entry(float(count), "count", "none", TRIALS)
    return metrics


def build_record(name: str, regime: str, seed: int, size: str = "paper") -> RunRecord:
    """Return one plausible record."""
    fusion = name not in BASELINES
    rng = random.Random(f"{name}-{regime}-{seed}")
    metrics = perplexities(rng, regime, fusion) | controls(rng, regime)
    if fusion:
        metrics |= controls(rng, regime, "untrained/")
    final = metrics["val/perplexity_input_mask"]["value"]
    curve = [[e, final * (1 + 3.0 / e**2.5)] for e in range(1, 6)] + [[6, final]]
    history = {"val/perplexity_input_mask": curve, "val/perplexity": curve}
    samples = [
        {"path": path, "setting": setting, "text": text}
        for path, setting, text in (
            ("off", "positive", "Alice cooks the model, moderately pleasant!"),
            ("hard", "positive", "Carol finishes the model, extremely wonderful!"),
            ("hard", "positive", "Bob trains the task, very bad."),
            ("hard", "negative_question", "Alice reviews the model, moderately awful?"),
        )
    ]
    if name.startswith(COUNTS):
        metrics, history = {"reference/val/bigram_perplexity": entry(9.0, "perplexity", "lower", TRIALS)}, {}
    samples += [{**sample, "prompt": "Carol starts the model,"} for sample in samples]
    identity: dict[str, Any] = {
        "paper": "semantic_fusion", "name": name, "regime": regime, "size": size, "seed": seed
    }  # fmt: skip
    config = {**identity, "model": {"lr": 3e-4}}
    return RunRecord(
        **identity,
        experiment=f"semantic_fusion/{name}",
        config=config,
        config_hash=config_hash(config),
        git={"commit": "0" * 40, "dirty": False},
        versions={"torch": "2.13.0", "python": "3.11.2"},
        started_at=f"2026-01-02T03:04:{seed % 60:02d}+00:00",
        device="cpu",
        threads=1,
        parameters=545_000 if fusion else 540_000,
        wall_time_s=61.5,
        tokens_per_s=15300.0,
        peak_memory_mb=812.0,
        metrics=metrics,
        history=history,
        samples=samples,
    )


def table_of(
    *rows: Row, size: str = "paper", title: str = "T_1 & [x]", notes: tuple[str, ...] = (), caption: str = ""
) -> Table:
    """Return a table made by hand."""
    return Table(
        TableSpec("a_paper", "table_x", title, caption, "", tuple(row.spec for row in rows)), size, rows, notes
    )


def row_of(
    label: str,
    printed: str | Printed | None = None,
    published: Cell | None = None,
    corrected: Cell | None = None,
    **spec: Any,
) -> Row:
    """Return a row made by hand: its label, the printed number, our cells in both regimes, what its spec says."""
    number = Printed(1.0, printed) if isinstance(printed, str) else printed
    where = {"row": label, "column": "x"} if number is not None else None
    return Row(RowSpec(label, printed=where, **spec), number, {"as_published": published, "corrected": corrected})


def full_cell() -> Cell:
    """Return a cell that has everything but folds and cells."""
    return Cell(
        {1: 0.25, 2: 0.75}, 0.5, (0.125, 0.875), 1234, verdict=Verdict(REPRODUCED, "close"), finding="a finding",
        note="a note", spread=12.34, spread_printed=5.67,
    )  # fmt: skip


@pytest.fixture
def bare_root(tmp_path: Path) -> Path:
    """Return a folder of experiments with semantic fusion alone, without its records."""
    skip = shutil.ignore_patterns("records")
    shutil.copytree(EXPERIMENTS / "semantic_fusion", tmp_path / "experiments" / "semantic_fusion", ignore=skip)
    return tmp_path / "experiments"


@pytest.fixture
def make_record() -> Callable[..., RunRecord]:
    """Return ``make_record(name, regime, seed, size="paper")``."""
    return build_record


@pytest.fixture
def write_records(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes records of the named experiments and gives their folder."""

    def write(
        names: tuple[str, ...] = ("main", "baseline"),
        seeds: tuple[int, ...] = SEEDS,
        regimes: tuple[str, ...] = ("as_published", "corrected"),
        folder: str = "outputs",
    ) -> Path:
        for name in names:
            for regime in regimes:
                for seed in seeds:
                    stem = f"{regime}-paper-seed{seed}-abcd1234"
                    path = tmp_path / folder / "semantic_fusion" / name / stem / "run.json"
                    write_record(build_record(name, regime, seed), path)
        return tmp_path / folder

    return write
