"""What W&B shows beside the curves: generations, added every epoch, and the record as tables.

Everything here is on disk too: generations in ``generations.jsonl``, the rest in ``run.json`` and the tables made
from it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from lit_ctg.core.generation import evaluating
from lit_ctg.core.model import datamodule_of
from lit_ctg.errors import UserError, one_line
from lit_ctg.files import write_samples
from lit_ctg.results.gather import results_for
from lit_ctg.results.record import RunRecord
from lit_ctg.results.spec import experiments_root

GENERATIONS = "generations"
CONFUSION = "/confusion/"


@contextlib.contextmanager
def starting_wandb() -> Iterator[None]:
    """Turn whatever W&B raises while a run of it starts into one line.

    Its settings come from the environment too, and nonsense there raises errors of several packages.

    Raises:
        UserError: names the variables of the environment that W&B reads, not their values: one is a key.
    """
    given = ", ".join(sorted(name for name in os.environ if name.startswith("WANDB_")))
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        remedy = f"check {given} in the environment, or " if given else ""
        raise UserError(
            f"logger=wandb: {one_line(error)[:300]}; {remedy}log in with `wandb login`, set logger.wandb.offline=true "
            "or take logger=csv"
        ) from error


def wandb_loggers(trainer: Trainer) -> list[WandbLogger]:
    """Return the W&B loggers of a trainer."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]


class WandbGenerations(Callback):
    """A few texts after every epoch, in a growing table: the same rows (seed, i) as the model improves.

    Args:
        decoding: its ``generator(module, datamodule)`` generates.
        folder: the run directory; the texts go to ``generations.jsonl`` there.
        prompt: beginning of every text.
        seed: of the draws.
        n: texts per epoch.
    """

    def __init__(self, decoding: Any, folder: Path, *, prompt: str, seed: int, n: int = 4) -> None:
        super().__init__()
        self.decoding, self.path = decoding, folder / f"{GENERATIONS}.jsonl"
        self.prompt, self.seed, self.n = prompt, seed, n
        self.table: Any = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate, append to file and table (not in the final validation, which makes the record's samples)."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        with evaluating(pl_module):
            generator = self.decoding.generator(pl_module, datamodule_of(trainer))
            made = generator.generate(self.n, prompt=self.prompt, control={}, seed=self.seed)
        epoch = trainer.current_epoch + 1
        rows = [{"epoch": epoch, "row": row, "text": text.text} for row, text in enumerate(made)]
        write_samples([*self._before(epoch), *rows], self.path)
        for logger in wandb_loggers(trainer):
            self._log(logger, rows)

    def _before(self, epoch: int) -> list[dict[str, Any]]:
        """Return the texts of earlier epochs; a run that was killed and resumed repeats an epoch."""
        lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.is_file() else []
        kept = [json.loads(line) for line in lines if line]
        return [row for row in kept if row["epoch"] < epoch]

    def _log(self, logger: WandbLogger, rows: list[dict[str, Any]]) -> None:
        import wandb

        if self.table is None:
            self.table = wandb.Table(columns=list(rows[0]), log_mode="INCREMENTAL")
        for row in rows:
            self.table.add_data(*row.values())
        logger.experiment.log({GENERATIONS: self.table})


def log_record(trainer: Trainer, record: RunRecord, samples: Sequence[Mapping[str, Any]]) -> None:
    """Log a finished record's metrics with units, samples, confusion matrices and verdicts to W&B, if it is in use.

    The metrics' values also go to the run's summary, where a sweep looks for the quantity to optimise.
    """
    values = {name: entry["value"] for name, entry in record.metrics.items() if math.isfinite(entry["value"])}
    for logger in wandb_loggers(trainer):
        logger.experiment.log(record_tables(record, samples))
        logger.experiment.summary.update(values)


def record_tables(record: RunRecord, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ``log_record`` logs, by name."""
    import wandb

    tables: dict[str, Any] = {"metrics": wandb.Table(columns=list(_METRIC_COLUMNS), data=metric_rows(record))}
    if samples:
        columns = list(dict.fromkeys(key for sample in samples for key in sample))
        data = [[_cell(sample.get(column)) for column in columns] for sample in samples]
        tables["samples"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    for name, counts in confusions(record.metrics).items():
        data = [[actual, predicted, count] for (actual, predicted), count in counts.items()]
        table = wandb.Table(columns=["Actual", "Predicted", "nPredictions"], data=data)
        fields = {key: key for key in table.columns}
        tables[name] = wandb.plot_table("wandb/confusion_matrix/v1", table, fields, {"title": name})
    if rows := verdict_rows(record):
        tables["verdicts"] = wandb.Table(columns=list(_VERDICT_COLUMNS), data=rows)
    return tables


_METRIC_COLUMNS = ("name", "value", "unit", "direction", "n", "low", "high", "version")
_VERDICT_COLUMNS = ("table", "row", "printed", "ours", "verdict", "reason")


def metric_rows(record: RunRecord) -> list[list[Any]]:
    """Return the metrics as rows of ``_METRIC_COLUMNS``."""
    rows = []
    for name, entry in sorted(record.metrics.items()):
        low, high = entry["ci95"] or (None, None)
        rows.append([name, *(entry[key] for key in _METRIC_COLUMNS[1:5]), low, high, entry["version"]])
    return rows


def confusions(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[tuple[str, str], int]]:
    """Return the counts of every ``<name>/confusion/<actual>/<predicted>`` by ``<name>/confusion``."""
    found: dict[str, dict[tuple[str, str], int]] = {}
    for name, entry in metrics.items():
        head, middle, tail = name.partition(CONFUSION)
        actual, _, predicted = tail.partition("/")
        if middle and predicted:
            found.setdefault(f"{head}{CONFUSION}".rstrip("/"), {})[actual, predicted] = round(entry["value"])
    return found


def verdict_rows(record: RunRecord) -> list[list[Any]]:
    """Return this run's numbers beside the printed ones, with verdicts, as rows of ``_VERDICT_COLUMNS``.

    A single run has no interval, so a verdict here is weaker than that of the tables over all seeds.
    """
    try:
        results = results_for(record.paper, experiments_root(record.paper), (), record.size, extra=[record])
    except UserError:  # a missing or broken paper is not a reason to lose a finished run
        return []
    rows = []
    for table in results.tables:
        for row in table.rows:
            cell = row.cells.get(record.regime)
            if row.printed is not None and cell is not None and cell.hole is None and cell.verdict is not None:
                verdict = cell.verdict
                rows.append([table.title, row.spec.label, row.printed.text, cell.mean, verdict.label, verdict.reason])
    return rows


def _cell(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else json.dumps(value, ensure_ascii=False)
