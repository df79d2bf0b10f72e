"""What there is of each class in the corpus, and the densities of Fig. 2 of NSLM, fitted to training text.

Shape letters: N occurrences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.nslm.report import class_counts, density_curve


class ClassReport(Callback):
    """At the end of a run (``trainer.validate``), count the classes and compare densities with what was observed.

    Args:
        curves: class -> ``{metric, low, high}``: whole values of the metric at which densities are given; classes that
            the run does not have are passed over.

    Attributes:
        results: ``count/<split>/<class>`` and ``share/<split>/<class>`` (of all tokens; "all" for all classes);
            ``density/<class>/<observed or density>/<value>``: the share of training occurrences at a metric value, and
            what the best micro-model with that metric and density expects there.

    Raises:
        UserError: a curve of a metric that the class was not fitted with.
    """

    def __init__(self, *, curves: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self.curves = dict(curves)
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report what the module's micro-models were fitted to."""
        if trainer.state.fn != "validate":
            return
        module, datamodule = pl_module, trainer.datamodule  # type: ignore[attr-defined]
        packed = datamodule.prepare()
        found = {split: module.occurrences(datamodule, split) for split in ("train", "val", "test")}
        totals = {split: len(packed.ids(split)) for split in found}
        for count in class_counts(module.table, found, totals):
            where = f"{count.split}/{count.class_name}"
            self.results[f"count/{where}"] = _entry(count.tokens, "tokens", totals[count.split])
            self.results[f"share/{where}"] = _entry(count.share, "rate", totals[count.split])
        for name, settings in self.curves.items():
            if name in module.table.names:
                self._curves(name, settings, module, found["train"].of(module.table.names.index(name)))

    def _curves(self, name: str, settings: Mapping[str, Any], module: Any, occurrences: Any) -> None:
        """Add the curves of one class: the first trial of a density is its best."""
        low, high = int(settings["low"]), int(settings["high"])
        edges = np.arange(low, high + 2) - 0.5
        trials = module.selection.best(name)
        if settings["metric"] not in {trial.metric for trial in trials}:
            known = sorted({trial.metric for trial in trials})
            hint = did_you_mean(str(settings["metric"]), known)
            raise UserError(f"callback.class_report: class '{name}' has the metrics {', '.join(known)}{hint}")
        for trial in trials:
            if trial.metric == settings["metric"] and f"density/{name}/{trial.density}/{low}" not in self.results:
                curve = density_curve(trial.model, occurrences, edges)
                # so many rows would otherwise be kept until the process ends
                trial.model.forget()
                for series, column in ((trial.density, curve.fitted), ("observed", curve.observed)):
                    for value, share in zip(range(low, high + 1), column, strict=True):
                        self.results[f"density/{name}/{series}/{value}"] = _entry(share, "rate", len(occurrences))


def _entry(value: float, unit: str, n: int) -> dict[str, Any]:
    return MetricResult(float(value), unit, "none", n, None, 1).to_dict()
