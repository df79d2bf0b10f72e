"""`lit-ctg evaluate`: build, load, validate, record."""

from __future__ import annotations

import time
from pathlib import Path

from rich.table import Table

from lit_ctg.config import plain
from lit_ctg.core.divergence import Diverged, check_weights
from lit_ctg.core.lightning_patches import interruptible
from lit_ctg.errors import UserError
from lit_ctg.results.record import RunRecord, config_hash, write_record
from lit_ctg.run.build import build
from lit_ctg.run.checkpoint import compose_with_checkpoint
from lit_ctg.run.directory import RECORD, RunDirectory, claim, run_stem
from lit_ctg.run.quiet import quiet
from lit_ctg.run.train import close_loggers, fill_record, new_record
from lit_ctg.terminal import Console


def evaluate(overrides: list[str]) -> RunRecord:
    """Evaluate a checkpoint on its validation split; print the metrics and leave a record under ``evaluate/``.

    Raises:
        UserError: bad overrides, no checkpoint, or one of another model or corpus.
        Diverged: the checkpoint's weights or the results are not finite; the record also says so.
    """
    with quiet():
        of_run = overrides and "=" not in overrides[0]
        for word in overrides[1:] if of_run else []:
            if word.partition("=")[0].lstrip("+") in ("seed", "training_seed"):
                raise UserError(f"{word}: a finished run keeps the seeds that it was trained with; leave it out")
        cfg, checkpoint = compose_with_checkpoint(overrides)
        config = plain(cfg)
        digest = config_hash(config)
        names = (cfg.paper, cfg.name, cfg.regime.name, cfg.size.name, cfg.seed)
        stem = run_stem(Path(cfg.output_root) / "evaluate", *names, digest)
        directory = claim(stem, skip_completed=False)
        assert isinstance(directory, RunDirectory)
        began = time.monotonic()
        with directory:
            experiment = build(cfg, directory.path, loggers=False)
            checkpoint.load_into(experiment.module, experiment.datamodule)
            check_weights(experiment.module, experiment.trainer.global_step)
            record = new_record(cfg, config, digest)
            record.threads, record.precision = experiment.threads, experiment.precision
            record.corpus = experiment.corpus
            try:
                with interruptible(experiment.trainer):
                    experiment.trainer.validate(experiment.module, experiment.datamodule, verbose=False)
            finally:
                close_loggers(experiment)
            fill_record(record, experiment, directory.path)
            record.wall_time_s = round(time.monotonic() - began, 3)
            write_record(record, directory.path / RECORD)
        table = Table(
            title=f"{record.experiment} {record.regime} seed {record.seed}: {checkpoint.path}", title_justify="left"
        )
        table.add_column("metric", overflow="fold")  # a name that is cut says nothing
        for column in ("value", "95% interval", "n"):
            table.add_column(column, justify="right")
        for name, metric in record.metrics.items():
            value = metric["value"]
            low_high = metric.get("ci95")
            interval = f"{low_high[0]:.4g} to {low_high[1]:.4g}" if low_high else ""
            table.add_row(name, "-" if value is None else f"{value:.5g} {metric['unit']}", interval, str(metric["n"]))
        console = Console(soft_wrap=True, highlight=False, markup=False)
        if not console.is_terminal:
            console.width = 200  # whoever searches a file or pipe for a name finds it in one piece
        console.print(table)
        if record.status == "DIVERGED":
            raise Diverged(record.error)
        return record
