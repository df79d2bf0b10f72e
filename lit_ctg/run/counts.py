"""`lit-ctg data counts`: the perplexity of count-based models on a corpus, a scale for every language model.

It also reports what an experiment's trials find in real text, where they need no model. It trains nothing and takes
seconds. Its run record, named ``counts_<name>``, is beside the experiment's own, so that tables can show it and
checks can compare models with it (``results/spec.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from omegaconf import DictConfig
from rich.table import Table

from lit_ctg.config import compose, plain
from lit_ctg.core.result import MetricResult
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.metric.bigram import Bigrams, Unigrams
from lit_ctg.results.record import RunRecord, config_hash, write_record
from lit_ctg.results.table import COUNTS
from lit_ctg.run.build import build_datamodule, chosen, instantiate
from lit_ctg.run.corpus import fingerprint, text_corpus
from lit_ctg.run.directory import RECORD, RunDirectory, claim, run_stem
from lit_ctg.run.train import new_record
from lit_ctg.terminal import Console
from lit_ctg.trust import resolve

MODELS: dict[str, type[Unigrams] | type[Bigrams]] = {"unigram": Unigrams, "bigram": Bigrams}
# tokens processed at a time
CHUNK = 1 << 20


def counts(datamodule: CorpusDataModule) -> dict[str, MetricResult]:
    """Return ``reference/<split>/<unigram|bigram>_perplexity`` of the splits other than the training split.

    Counts come from the training split; every token of a split except the first is predicted from the one before.
    """
    packed = datamodule.prepare()
    size, train_N = len(datamodule.vocabulary), packed.ids("train")
    found = {}
    for name, model in MODELS.items():
        counted = model(train_N, size)
        for split in packed.splits:
            ids_N = np.asarray(packed.ids(split)).astype(np.int64)
            if split == "train" or len(ids_N) < 2:
                continue
            starts = range(0, len(ids_N) - 1, CHUNK)
            nats = math.fsum(
                float(counted.nll(ids_N[at : at + CHUNK][: len(ids_N) - 1 - at], ids_N[at + 1 : at + 1 + CHUNK]).sum())
                for at in starts
            )
            n = len(ids_N) - 1
            perplexity = math.exp(nats / n)
            found[f"reference/{split}/{name}_perplexity"] = MetricResult(perplexity, "perplexity", "lower", n, None, 1)
    return found


def of_trials(cfg: DictConfig, datamodule: LightningDataModule) -> dict[str, dict[str, Any]]:
    """Return what the experiment's trials measure on real text: their ``text_references``."""
    found: dict[str, dict[str, Any]] = {}
    for name, node in chosen(cfg.callback):
        if hasattr(resolve(node.get("_target_"), f"callback.{name}"), "text_references"):
            found |= instantiate(node, f"callback.{name}").text_references(datamodule)
    return found


def main(overrides: list[str], console: Console | None = None) -> RunRecord:
    """Count the corpus of ``experiment=<paper>/<name>``, print the perplexities and write their record.

    Raises:
        UserError: no experiment, data without splits to count, or whatever composing and reading it raise.
    """
    cfg = compose(overrides)
    datamodule = build_datamodule(cfg)
    if hasattr(datamodule, "count_references"):  # sentences that are drawn, not read
        count: Callable[[], dict[str, MetricResult]] = datamodule.count_references
    else:
        count = partial(counts, text_corpus(datamodule, "data counts"))
    began = time.monotonic()
    cfg.name = f"{COUNTS}{cfg.name}"
    config = plain(cfg)
    record = new_record(cfg, config, config_hash(config))
    stem = run_stem(
        Path(cfg.output_root), cfg.paper, cfg.name, record.regime, record.size, cfg.seed, record.config_hash
    )
    directory = claim(stem, skip_completed=False)
    assert isinstance(directory, RunDirectory)  # a finished run ends the search only with skip_completed
    with directory:
        record.metrics = {name: result.to_dict() for name, result in count().items()}
        record.metrics |= of_trials(cfg, datamodule)
        record.corpus, record.threads, record.device = fingerprint(datamodule), torch.get_num_threads(), "cpu"
        record.status, record.wall_time_s = "DONE", round(time.monotonic() - began, 3)
        write_record(record, directory.path / RECORD)
    table = Table(title=f"{cfg.paper}/{cfg.name} {record.regime}: models of counts", title_justify="left")
    for column in ("quantity", "value", "tokens"):
        table.add_column(column, justify="left" if column == "quantity" else "right")
    for name, metric in record.metrics.items():
        table.add_row(name, f"{metric['value']:,.4g}", f"{metric['n']:,}")
    shown = console or Console(soft_wrap=True, highlight=False)
    shown.print(table)
    shown.print(f"record: {directory.path / RECORD}", markup=False, soft_wrap=True)
    return record
