"""Does graphmax help? Next-word likelihood, generations, time and pictures over folds of review corpora (sec. 5).

The language model is the global knowledge, a review corpus the local one. Every number is measured in each of a few
folds, with graph and held-out reviews apart, and reported as their mean with Student's t interval.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.model import evaluating
from lit_ctg.core.result import MetricResult
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.trial_scene import Fold, Measure, read_scene, split_folds
from lit_ctg.papers.graphmax.trial_setting import check_whole
from lit_ctg.statistics import paired_t_interval, t_interval

VERSION = 1


class Part(Protocol):
    """One experiment of the trial. ``first_fold_only``: what needs no interval over folds, such as a picture."""

    first_fold_only: bool

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return how many positions the language model must have."""

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        """Return this fold's numbers by name, and texts worth keeping."""


class GraphmaxTrial(Callback):
    """Run every part on every fold of every scene in ``trainer.validate``, which ends every run.

    Args:
        scenes: name -> corpus of reviews; only its training split is read.
        parts: name -> part; null leaves one out.
        folds: how many parts a scene is cut into (Table 2: five).
        seed: of folds and draws; the global random state is neither read nor moved.
        published: Algorithm 1 with its numbers (sec. 4.1).

    Attributes:
        results: ``<name>`` as a part gives it, with ``<scene>`` in it: mean over folds, t interval over folds, n the
            things counted in all folds, ``folds`` the value in each. A measure with a base has ``<name>_change``: the
            paired difference to it. ``certified/<scene>/<variant>`` is the share of the rows that the certified solver
            was given and certified, in all parts.
        samples: dicts with scene, method and text.

    Raises:
        UserError: fewer than two folds, a seed that is no whole number of at least 0, or no Algorithm 1.
    """

    def __init__(
        self,
        *,
        scenes: Mapping[str, CorpusDataModule | None],
        parts: Mapping[str, Part | None],
        folds: int,
        seed: int,
        published: AlgorithmOne,
    ) -> None:
        super().__init__()
        check_whole("callback.graphmax_trial", 2, folds=folds)
        check_whole("callback.graphmax_trial", 0, seed=seed)
        if not isinstance(published, AlgorithmOne):
            raise UserError("callback.graphmax_trial.published is missing: give Algorithm 1 its numbers (sec. 4.1)")
        self.scenes = {name: scene for name, scene in scenes.items() if scene is not None}
        self.parts_by_name = {name: part for name, part in parts.items() if part is not None}
        self.folds, self.seed, self.published = folds, seed, published
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse, before any training, what the trial after it would stumble over.

        Raises:
            UserError: a part needs more positions than the model has, or a scene has fewer reviews than folds.
        """
        if stage != "fit":
            return
        vocabulary = trainer.datamodule.vocabulary  # type: ignore[attr-defined]
        has = getattr(getattr(pl_module, "backbone", None), "context", None)
        for name, part in self.parts_by_name.items():
            needs = part.positions(vocabulary)
            if has is not None and needs > has:
                raise UserError(
                    f"callback.graphmax_trial.parts.{name} needs {needs} positions, the model has {has}: ask for fewer "
                    "tokens or raise backbone.context"
                )
        for name, scene in self.scenes.items():
            found = len(list(itertools.islice(scene.documents("train"), self.folds)))
            if found < self.folds:
                raise UserError(
                    f"callback.graphmax_trial.scenes.{name} has {found} reviews for {self.folds} folds: choose another "
                    "corpus or fewer folds"
                )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model that ``trainer.validate`` was given (not the ones on the way of a training run)."""
        if trainer.state.fn == "validate":
            self.run(pl_module, trainer.datamodule.vocabulary)  # type: ignore[attr-defined]

    def run(self, module: LightningModule, vocabulary: Any) -> None:
        """Fill ``results`` and ``samples``."""
        self.results, self.samples = {}, []
        with torch.inference_mode(), evaluating(module):
            for name, scene in self.scenes.items():
                texts, ids = read_scene(scene, vocabulary)
                measured: dict[str, list[Measure]] = defaultdict(list)
                for fold in split_folds(
                    name,
                    texts,
                    ids,
                    folds=self.folds,
                    vocabulary=vocabulary,
                    seed=self.seed,
                    published=self.published,
                ):
                    self._measure(fold, module, measured)
                for key, result in summarize_folds(measured).items():
                    self.results[key] = result.to_dict()
                    values = [one.value for one in measured.get(key, [])]
                    if len(values) > 1 and all(map(math.isfinite, values)):
                        self.results[key]["folds"] = values

    def _measure(self, fold: Fold, module: LightningModule, measured: dict[str, list[Measure]]) -> None:
        for part in self.parts_by_name.values():
            if part.first_fold_only and fold.number > 0:
                continue
            numbers, samples = part.measure(fold, module)
            for key, number in numbers.items():
                measured[key].append(number)
            self.samples += samples
        for name, rows in fold.certificates.rows.items():
            share = fold.certificates.certified[name] / rows
            measured[f"certified/{fold.scene}/{name}"].append(Measure(share, "rate", "higher", rows))


def summarize_folds(measured: Mapping[str, list[Measure]]) -> dict[str, MetricResult]:
    """Return the mean over folds of every number, and of its paired difference to its base."""
    results = {}
    for name, folds in measured.items():
        values, first = [fold.value for fold in folds], folds[0]
        n = sum(fold.n for fold in folds)
        mean = math.fsum(values) / len(values)
        interval = t_interval(values) if all(map(math.isfinite, values)) else None
        results[name] = MetricResult(mean, first.unit, first.direction, n, interval, VERSION)
        if first.base is not None and first.base != name:
            base = [fold.value for fold in measured[first.base]]
            finite = all(map(math.isfinite, values + base))
            change = mean - math.fsum(base) / len(base)
            paired = paired_t_interval(values, base) if finite else None
            results[f"{name}_change"] = MetricResult(change, first.unit, first.direction, n, paired, VERSION)
    return results
