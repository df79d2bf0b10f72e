"""The exhaustive grid {metric function, density} per class on validation text (sec. 3.3), and a blend of all pairs.

Shape letters: N positions, P pairs of the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import ClassMembers, ClassTable, candidate
from lit_ctg.papers.nslm.micro_model import (
    DENSITIES,
    METRICS,
    Blend,
    Density,
    Frequency,
    MetricFunction,
    MicroModel,
    Repeat,
    Unigram,
    mixture_weights,
)
from lit_ctg.papers.nslm.occurrences import Occurrences

AnyModel = MicroModel | Repeat | Blend
BLEND = "blend"
# simpler micro-models than the chosen one, to locate the source of a gain: how frequent members are; repetition,
# without values or coordinates; the best pair with one Gaussian; the best pair that measures something; the pair that
# Tables 2 and 3 print for the class
REFERENCES = ("unigram", "repeat", "gaussian", "metric", "printed")
PRINTED = {
    "year": ("difference", "mixture"),
    "day": ("frequency", "unigram"),
    "round": ("value", "multinomial"),
    "decimal": ("difference", "mixture"),
    "range": ("difference", "multinomial"),
    "convert": ("convert", "binary"),
    "other": ("value", "multinomial"),
    **dict.fromkeys(("city", "state", "country"), ("euclidean", "gaussian")),
}
NAMES = ("class", "metric", "density", "base")  # keys of a micro-model's description that are not parameters


@dataclass(frozen=True)
class Trial:
    """One cell of the grid.

    Attributes:
        perplexity: of the members within their class, on validation occurrences; NaN where there are none.
    """

    class_name: str
    metric: str
    density: str
    base: str
    parameters: dict[str, float]
    perplexity: float
    n: int
    model: MicroModel | Repeat

    @property
    def label(self) -> str:
        """The name of the pair (and of the base, if it is not the paper's) in records."""
        return _label(self.metric, self.density, self.base)


@dataclass(frozen=True)
class Selection:
    """The outcome of the grid search.

    Attributes:
        models: the chosen micro-model of each class, in the order of the class table.
        trials: every cell of the grid, in the order tried.
        blends: perplexity within the class, on validation occurrences, of the classes that have a blend, whose weights
            were found on the same text.
        references: the simpler micro-models for comparison, by name of ``REFERENCES`` and class.
    """

    models: dict[str, AnyModel]
    trials: list[Trial]
    blends: dict[str, float]
    references: dict[str, dict[str, AnyModel]] = field(default_factory=dict)

    def best(self, class_name: str) -> list[Trial]:
        """Return the best trial of every (metric, density, base) of a class, in order of quality."""
        best: dict[str, Trial] = {}
        for trial in self.trials:
            before = best.get(trial.label)
            # without occurrences in validation text no trial is better than the first
            if trial.class_name == class_name and (before is None or trial.perplexity < before.perplexity):
                best[trial.label] = trial
        return sorted(best.values(), key=lambda trial: trial.perplexity)

    def table(self, most: int | None = None) -> str:
        """Return the grid as lines of text, ``most`` pairs per class, the ones in use first and starred."""
        lines = [f"{'class':<12}{'metric/density':<34}{'perplexity':>12}{'n':>8}"]
        for name in self.models:
            rows = [(trial.label, trial.perplexity, trial.n) for trial in self.best(name)[:most]]
            if name in self.blends:
                rows.insert(0, (BLEND, self.blends[name], rows[0][2]))
            for place, (label, perplexity, n) in enumerate(rows):
                mark = "*" if place == 0 else " "
                lines.append(f"{name:<12}{mark}{label:<33}{perplexity:>12.2f}{n:>8}")
        return "\n".join(lines)

    def results(self) -> dict[str, dict[str, Any]]:
        """Return run-record entries.

        ``grid/<class>/<metric>/<density>`` and ``grid/<class>/blend``: perplexity within the class, validation text.
        ``micro_model/<class>/<metric>/<density>/<what>``: for the pairs in use, the ``share`` of the blend (1: a pair
        alone) and the fitted parameters; ``<what>/0``, ``<what>/1`` where there are several.
        """
        results = {}
        for name, model in self.models.items():
            best = self.best(name)
            for trial in best:
                results[f"grid/{name}/{trial.label}"] = entry(trial.perplexity, "perplexity", trial.n, "lower")
            n = best[0].n if best else 0
            if name in self.blends:
                results[f"grid/{name}/{BLEND}"] = entry(self.blends[name], "perplexity", n, "lower")
            for key, value in _plain_parameters(model).items():
                unit = "weight" if key.endswith("/share") else "parameter"
                results[f"micro_model/{name}/{key}"] = entry(value, unit, n)
        return results


def entry(value: float, unit: str, n: int, direction: Any = "none") -> dict[str, Any]:
    """Return a number without an interval as a run-record entry."""
    return MetricResult(float(value), unit, direction, n, None, 1).to_dict()


def _label(metric: str, density: str, base: str) -> str:
    return f"{metric}/{density}" + ("" if base == "uniform" else f"/{base}")


def _plain_parameters(model: AnyModel) -> dict[str, float]:
    """Return ``<metric>/<density>/<parameter>`` of all parts of a micro-model."""
    found = model.describe()
    plain: dict[str, float] = {}
    for part in found.get("blend", [{"share": 1.0} | found]):
        label = _label(part["metric"], part["density"], part["base"])
        for name, value in part.items():
            if name in NAMES:
                continue
            if isinstance(value, list):
                plain |= {f"{label}/{name}/{place}": float(entry) for place, entry in enumerate(value)}
            else:
                plain[f"{label}/{name}"] = float(value)
    return plain


def select(
    table: ClassTable,
    train: Occurrences,
    validation: Occurrences,
    *,
    bases: Sequence[str] = ("uniform",),
    blend: bool = False,
    repeat: bool = False,
) -> Selection:
    """Fit every pair of every class to training text and keep the best on validation text.

    A class without occurrences in validation text keeps its smoothed unigram. The grid includes smoothing and numbers
    of components.

    Args:
        train, validation: class tokens of the two splits.
        blend: instead of one pair, mix all pairs of a class, with weights by EM on validation text (ours).
        repeat: also try every pair combined with repetition (ours; see ``Repeat``).

    Raises:
        UserError: no class, or one that does not occur in training text.
    """
    if not table.classes:
        raise UserError("no class has a member in this vocabulary: fit on text with papers.nslm.micro_models instead")
    models: dict[str, AnyModel] = {}
    trials: list[Trial] = []
    blends: dict[str, float] = {}
    references: dict[str, dict[str, AnyModel]] = {name: {} for name in REFERENCES}
    for number, members in enumerate(table.classes):
        own = _class_trials(members, train.of(number), validation.of(number), bases, repeat)
        trials += own
        for name, model in _references(own, train.of(number)).items():
            references[name][members.name] = model
        ranked = Selection({}, own, {}).best(members.name) if len(validation.of(number)) else []
        models[members.name] = ranked[0].model if ranked else own[0].model
        if blend and len(ranked) > 1 and len(validation.of(number)):
            mixed = fit_blend([trial.model for trial in ranked], validation.of(number))
            models[members.name] = mixed
            blends[members.name] = class_perplexity(mixed, validation.of(number))
    return Selection(models, trials, blends, references)


def _class_trials(
    members: ClassMembers, train: Occurrences, validation: Occurrences, bases: Sequence[str], repeat: bool
) -> list[Trial]:
    """Try all pairs of one class, after choosing the smoothing of the unigram that all fall back on."""
    unigrams = []
    for smoothing in Unigram.grid["smoothing"]:
        pair = Frequency(), Unigram(smoothing)
        unigrams.append(_trial(members, train, validation, *pair, smoothing, "uniform", {"smoothing": smoothing}))
    smoothing = min(unigrams, key=lambda trial: (np.isnan(trial.perplexity), trial.perplexity)).parameters["smoothing"]
    trials = sorted(unigrams, key=lambda trial: trial.parameters["smoothing"] != smoothing)
    for metric_name, density_name in itertools.product(members.metrics, members.densities):
        metric_type = candidate(METRICS, metric_name, MetricFunction)
        density_type = candidate(DENSITIES, density_name, Density)
        if density_type is Unigram or metric_type.kind not in density_type.kinds:
            continue
        for base, values in itertools.product(bases, itertools.product(*density_type.grid.values())):
            parameters = dict(zip(density_type.grid, values, strict=True))
            density = density_type(**parameters)
            trials.append(_trial(members, train, validation, metric_type(), density, smoothing, base, parameters))
    if repeat:
        # among the unigrams only the one that all fall back on
        trials += [_repeating(trial, train, validation) for trial in [trials[0], *trials[len(unigrams) :]]]
    return trials


def _trial(
    members: ClassMembers,
    train: Occurrences,
    validation: Occurrences,
    metric: MetricFunction,
    density: Density,
    smoothing: float,
    base: str,
    parameters: dict[str, float],
) -> Trial:
    model = MicroModel(metric, density, fallback_smoothing=smoothing, base=base).fit(train, members)
    perplexity = class_perplexity(model, validation)
    # a grid has many models: only those used later may keep their rows
    model.forget()
    return Trial(members.name, metric.name, density.name, base, parameters, perplexity, len(validation), model)


def _repeating(trial: Trial, train: Occurrences, validation: Occurrences) -> Trial:
    """Return the trial of repetition combined with the micro-model of another trial."""
    assert isinstance(trial.model, MicroModel)
    model = Repeat(trial.model).fit(train)
    perplexity = class_perplexity(model, validation)
    model.forget()
    return replace(trial, metric=model.metric_name, density=model.density_name, perplexity=perplexity, model=model)


def _references(trials: list[Trial], train: Occurrences) -> dict[str, AnyModel]:
    """Return the micro-models of ``REFERENCES``; the smoothed unigram replaces those without a pair."""
    unigram = trials[0].model
    assert isinstance(unigram, MicroModel)
    # as in the paper: no base, no blend, no repetition
    plain = [t for t in trials if isinstance(t.model, MicroModel) and t.base == "uniform"]
    plain = sorted((t for t in plain if not np.isnan(t.perplexity)), key=lambda trial: trial.perplexity)
    pairs = [trial for trial in plain if trial.metric != "frequency"]
    gaussian = [trial.model for trial in pairs if trial.density == "gaussian"]
    metric = [trial.model for trial in pairs]
    printed = [t.model for t in plain if (t.metric, t.density) == PRINTED.get(t.class_name)]
    return {
        "unigram": unigram,
        "repeat": Repeat(unigram).fit(train),
        "gaussian": gaussian[0] if gaussian else unigram,
        "metric": metric[0] if metric else unigram,
        "printed": printed[0] if printed else unigram,
    }


def class_perplexity(model: AnyModel, occurrences: Occurrences) -> float:
    """Return exp of the mean -log P_MM over occurrences of the class; NaN where there are none."""
    if not len(occurrences):
        return float("nan")
    return float(np.exp(-model.log_prob_of(occurrences.index_N, occurrences.evidence).mean()))


def fit_blend(models: Sequence[MicroModel | Repeat], validation: Occurrences) -> Blend:
    """Return a mixture of micro-models with weights by EM on validation occurrences."""
    log_NP = np.stack([model.log_prob_of(validation.index_N, validation.evidence) for model in models], axis=1)
    return Blend(models, mixture_weights(log_NP))
