"""Tables 2, 3 and 6, Fig. 2 and 3: perplexities by group of tokens, errors of guesses, counts and densities.

Shape letters: N tokens or occurrences, G groups, R stretches of tokens, U keys, K members.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.core.generation import evaluating
from lit_ctg.core.metric import RatioMetric, float64
from lit_ctg.core.model import datamodule_of
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, did_you_mean, refuse
from lit_ctg.limits import Checked, Choice, Count, Fields, Whole, check_value
from lit_ctg.papers.nslm.classes import Recogniser
from lit_ctg.papers.nslm.micro_model import MicroModel
from lit_ctg.papers.nslm.model import FINAL, GUESSERS, NSLMModule, TokenScores
from lit_ctg.papers.nslm.occurrences import Occurrences
from lit_ctg.papers.nslm.selection import REFERENCES, entry
from lit_ctg.statistics import exp_or_inf
from lit_ctg.terminal import Console

STRETCH = 500  # tokens that the interval treats as one sentence where articles are unknown
MOST_KEYS = 2000  # maximum occurrences behind an expectation; beyond that, an evenly spaced sample
CURVES = ("nnlm", "tag")
RESAMPLES = 2000  # of articles
# pairs of models compared on test text
COMPARED = (
    *((model, "nnlm") for model in ("hnlm", "crnn", "nslm", "summed", "nnlm_cache")),
    *((f"nslm_{name}", "nnlm") for name in REFERENCES),
    *((model, "nnlm_cache") for model in ("nslm", "nslm_cache")),
    ("nslm", "nslm_repeat"),
)
SHOWN = 3  # how many pairs per class are printed
UNITS = {1: "difference of values", 2: "km"}


class ClassPerplexity(RatioMetric):
    """exp of the mean -log P(w) over the tokens of each group; a token may be in several groups or in none.

    Log-probabilities must come from a model normalised over the whole vocabulary: a class's perplexity says how well
    its tokens are predicted among all words, not within the class. NaN for a group without tokens. The interval is by
    the delta method over articles; where they are unknown, over stretches of 500 tokens in the order of evaluation.
    """

    unit = "perplexity"
    direction = "lower"

    def __init__(self, *, groups: Sequence[str], **kwargs: Any) -> None:
        super().__init__(mask="target", groups=len(groups), **kwargs)
        self.names = tuple(groups)

    def update(self, log_prob_N: Tensor, member_NG: Tensor, document_N: Tensor | None = None) -> None:
        """Add tokens.

        Args:
            log_prob_N: of each, in nats.
            member_NG: its groups (bool).
            document_N: its article, each wholly within one update; None, or -1 for any token: unknown.
        """
        self.follow(log_prob_N)
        member_NG = float64(member_NG)
        # a token outside all groups may have probability 0: 0 * inf is NaN
        nll_NG = torch.where(member_NG > 0, -float64(log_prob_N).unsqueeze(1), 0.0)
        row_N = torch.arange(len(log_prob_N), device=nll_NG.device) // STRETCH
        if document_N is not None and not (document_N < 0).any():
            # streams take turns in an evaluation, so that a stretch of it has pieces of many articles: nearly a sample
            # of the whole text, although the tokens of an article are correlated
            row_N = document_N.to(nll_NG.device).unique(return_inverse=True)[1]
        rows = int(row_N.max()) + 1 if len(row_N) else 0
        total_RG = nll_NG.new_zeros(rows, len(self.names)).index_add(0, row_N, nll_NG)
        self.add_rows(total_RG, nll_NG.new_zeros(total_RG.shape).index_add(0, row_N, member_NG))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.update(output.log_prob_N, output.member_NG)

    def compute(self) -> Tensor:
        """Return the perplexity of each group, float64, (G,)."""
        return self.ratio().exp()

    def _result(self) -> dict[str, MetricResult]:
        results = {}
        for name, value, count, nats in zip(
            self.names, self.ratio().exp().tolist(), self.count.tolist(), self.intervals(), strict=True
        ):
            finite = nats is not None and math.isfinite(nats[1])
            ci95 = (exp_or_inf(nats[0]), exp_or_inf(nats[1])) if finite and nats else None
            results[name] = MetricResult(value, self.unit, self.direction, int(count), ci95, self.version)
        return results


class Articles:
    """Changes of perplexity, with intervals over articles (percentile bootstrap): tokens of one article are correlated.

    Args:
        document_N: article of each token, -1 if unknown: then there are no intervals.
    """

    def __init__(self, document_N: np.ndarray) -> None:
        articles, self.place_N = np.unique(document_N, return_inverse=True)
        self.count = len(articles)
        known = self.count > 1 and articles[0] >= 0
        rng, share_D = np.random.default_rng(0), np.full(self.count, 1 / max(self.count, 1))
        self.draw_RD = rng.multinomial(self.count, share_D, size=RESAMPLES) if known else None

    def change(self, model_N: np.ndarray, base_N: np.ndarray, member_N: np.ndarray) -> MetricResult:
        """Return the change in percent of a group's perplexity (bool) under ``model_N`` compared with ``base_N``.

        Args:
            model_N, base_N: log-probabilities in nats.
            member_N: the group, with at least one token.
        """
        fall_D = np.bincount(self.place_N[member_N], (model_N - base_N)[member_N], minlength=self.count)
        tokens_D = np.bincount(self.place_N[member_N], minlength=self.count)
        value, ci95 = _percent(fall_D.sum() / tokens_D.sum()), None
        if self.draw_RD is not None and (tokens_D > 0).sum() > 1:
            tokens_R = self.draw_RD @ tokens_D
            # a draw without any token of the group says nothing about it
            drawn_R = (self.draw_RD @ fall_D)[tokens_R > 0] / tokens_R[tokens_R > 0]
            with np.errstate(invalid="ignore"):  # between two infinities
                low, high = np.quantile(_percent(drawn_R), [0.025, 0.975])
            ci95 = (float(low), float(high))
        return MetricResult(float(value), "percent", "lower", int(tokens_D.sum()), ci95, 1)


def _percent(nats: Any) -> Any:
    """Return the change of a perplexity whose tokens gain this many nats on average; infinite if they lose hundreds."""
    with np.errstate(over="ignore"):  # a model that diverged, which its record says
        return 100 * np.expm1(-nats)


def unknown_members(datamodule: Any, recognisers: Iterable[Recogniser], split: str) -> int:
    """Return how many tokens of a split would be in a class but are out of vocabulary: ``<unk>`` for all models."""
    known, members = frozenset(datamodule.vocabulary.tokens), tuple(recognisers)

    @functools.cache
    def lost(token: str) -> bool:
        return token not in known and any(one.attributes(token) is not None for one in members)

    words = (word for document in datamodule.documents(split) for word in document.text.split())
    return sum(map(lost, words))


def density_curve(
    model: MicroModel, occurrences: Occurrences, edges: np.ndarray
) -> tuple[tuple[np.ndarray, int], tuple[np.ndarray, int]]:
    """Return how often metric values in the bins ``edges`` occur, and how often the micro-model expects them.

    Each is the share of every bin and the number of occurrences behind it. Both are of the occurrences that have a
    value under the metric, the expectation of an evenly spaced sample of them if there are many: the mean of the
    micro-model's distributions after their previous members, binned by the metric.
    """
    keys_NJ = model.metric.keys(occurrences.evidence)
    usable_N = np.flatnonzero(~np.isnan(keys_NJ).any(1))
    observed_N = model.metric.value_of(keys_NJ[usable_N], occurrences.index_N[usable_N])
    observed_E = np.histogram(observed_N, edges)[0] / max(len(usable_N), 1)
    sample_N = usable_N
    if len(usable_N) > MOST_KEYS:
        sample_N = usable_N[np.linspace(0, len(usable_N) - 1, MOST_KEYS).astype(int)]
    chosen = occurrences.where(sample_N)
    keys_UJ, where_N, counts_U = np.unique(keys_NJ[sample_N], axis=0, return_inverse=True, return_counts=True)
    expected_E = np.zeros(len(edges) - 1)
    first_U = np.unique(where_N.reshape(-1), return_index=True)[1]
    for key_J, place, count in zip(keys_UJ, first_U, counts_U, strict=True):
        x_K = model.metric.values(key_J[None])[0]
        probs_K = np.exp(model.log_prob(chosen.where(np.array([place])).evidence)[0])
        expected_E += count * np.histogram(x_K, edges, weights=probs_K)[0]
    expected_E = expected_E / max(len(sample_N), 1)
    return (observed_E, len(usable_N)), (expected_E, len(sample_N))


class NSLMEvaluation(Checked, Callback):
    """Record the models' results on validation text, after epochs and at the end, and on test text at the end.

    Args:
        total: name of the tokens of all classes: numbers, places; or several names, each with its classes (those that
            the run lacks are skipped).
        rarity: lower bounds of the groups by count in training text (Fig. 3).
        patience: training has converged, and stops, when this many validations in a row have not improved
            ``val/perplexity`` (sec. 5.2: "all models converged within 20 training epochs").

    Attributes:
        results: ``<split>/<model>[_cache]/<group>`` perplexities: a class, ``total``, ``global``, ``first``, ``later``
            (class tokens without and with an earlier member in the document), ``rarity_<from>_<to>`` (class tokens);
            ``repeated`` and ``changed`` (later ones that are, or are not, the previous member);
            ``<split>/<model>/<class>/median_error`` and ``mean_error`` of the best guess; ``mixture_weight``;
            ``val/perplexity`` of the final model; ``grid/...`` and ``micro_model/...`` (see ``Selection.results``);
            ``inside/<split>/<micro-model>/<group>`` perplexities of the member given its class;
            ``change/test/<model>/<base>/<group>`` in percent, its interval over articles.
        history: ``val/perplexity`` of the validated epochs; ``train/nnlm`` and ``train/tag`` of all (means over steps,
            nats per token).

    Raises:
        UserError: ``total`` names a class that the model does not know; several processes.
    """

    def __init__(
        self, *, total: str | Mapping[str, Sequence[str]], rarity: Sequence[Whole], patience: Count = 3
    ) -> None:
        super().__init__()
        self.total, self.rarity, self.patience = total, tuple(rarity), patience
        self.results: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[list[float]]] = {}
        self.stopped = False
        self._sums: dict[str, Any] = {}
        self._steps = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Look for the classes that ``total`` names (the text may lack some), an NSLM, and one process alone: each of
        several would score its own streams of the text."""
        known = [recogniser.name for recogniser in getattr(pl_module, "recognisers", ())]
        named = {} if isinstance(self.total, str) else self.total
        unknown = [f"{total}: {name}{did_you_mean(name, known)}" for total, own in named.items() for name in own
                   if name not in known]  # fmt: skip
        refuse({
            f": {type(pl_module).__name__} is not an NSLM; leave it out": not isinstance(pl_module, NSLMModule),
            f" works in one process, not {trainer.world_size}; set trainer.devices=1": trainer.world_size > 1,
            f".total.{''.join(unknown[:1])} is not a class of the model": unknown,
        }, "callback.nslm_evaluation")  # fmt: skip

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the best pairs of the grid search; the record has all of them."""
        selection = getattr(pl_module, "selection", None)
        if selection is not None and trainer.is_global_zero:
            Console(soft_wrap=True, highlight=False).print(selection.table(most=SHOWN), markup=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train no further if the run had stopped before it was interrupted."""
        if self.stopped:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sums, self._steps = dict.fromkeys(CURVES, 0.0), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add up the step's costs, on the device, without waiting for it."""
        # a single-task model has no tags
        self._sums = {name: total + outputs[name] for name, total in self._sums.items() if name in outputs}
        self._steps += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the epoch's means: a training curve even if no epoch is validated."""
        for name, total in self._sums.items():
            mean = float(total) / max(1, self._steps)
            self.history.setdefault(f"train/{name}", []).append([trainer.current_epoch + 1, mean])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the results on the validation text, on which the module was tuned; at the end also on test text."""
        if trainer.sanity_checking:
            return
        module: Any = pl_module
        (scores,) = module.validation
        self.evaluate(trainer, module, scores, "val")
        final = self.results["val/nslm/global"]
        self.results[FINAL] = final
        self.results["mixture_weight"] = entry(float(module.mixture_weight), "weight", len(scores))
        if trainer.state.fn == "fit":
            self.history.setdefault(FINAL, []).append([trainer.current_epoch + 1, final["value"]])
            values = [value for _, value in self.history[FINAL]]
            if len(values) - 1 - int(np.argmin(values)) >= self.patience:
                self.stopped = trainer.should_stop = True
        else:
            self.results |= module.selection.results()
            self.evaluate(trainer, module, TokenScores.join(list(self._test(trainer, module))), "test")

    def _test(self, trainer: Trainer, module: Any) -> Iterator[TokenScores]:
        """Yield the scores of test text, character RNNs included."""
        module.on_test_epoch_start()
        limit = trainer.limit_test_batches if isinstance(trainer.limit_test_batches, int) else None
        with evaluating(module), torch.no_grad(), trainer.precision_plugin.forward_context():
            for index, batch in itertools.islice(enumerate(datamodule_of(trainer).test_dataloader()), limit):
                yield module.test_step(trainer.strategy.batch_to_device(batch), index)

    def evaluate(self, trainer: Trainer, module: Any, scores: TokenScores, split: str) -> None:
        """Store the perplexities and errors of a split in ``results``."""
        count_V = np.bincount(datamodule_of(trainer).prepare().ids("train"), minlength=len(module.vocabulary))
        groups = self.groups(scores, module.table.names, count_V)
        weight, references = float(module.mixture_weight), module.reference_weights
        models = scores.models(weight, references)
        cached = scores.cached(scores.models(weight, {"printed": references["printed"]}), module.cache.weight)
        models |= cached
        for model, log_prob_N in models.items():
            self._perplexities(f"{split}/{model}", log_prob_N, groups, scores.document_N)
        inside_groups = self.inside_groups(scores, module.table.names)
        for model, log_prob_N in scores.inside().items():
            self._perplexities(f"inside/{split}/{model}", log_prob_N, inside_groups, scores.document_N)
        if split == "test":
            articles = Articles(scores.document_N)
            for model, base in COMPARED:
                for name, member_N in groups.items():
                    if model in models and member_N.any():
                        result = articles.change(models[model], models[base], member_N)
                        self.results[f"change/{split}/{model}/{base}/{name}"] = result.to_dict()
        for number, members in enumerate(module.table.classes):
            inside_N = scores.class_N == number
            unit = members.unit or UNITS.get(members.attributes_KD.shape[1], "")
            self._errors(scores, inside_N, f"{split}/{{}}/{members.name}", unit)

    def _perplexities(
        self, where: str, log_prob_N: np.ndarray, groups: Mapping[str, np.ndarray], document_N: np.ndarray
    ) -> None:
        """Store the perplexity of one model for every group that has tokens."""
        metric = ClassPerplexity(groups=list(groups), sync_on_compute=False)
        member_NG = np.stack(list(groups.values()), 1)
        metric.update(torch.from_numpy(log_prob_N), torch.from_numpy(member_NG), torch.from_numpy(document_N))
        for group, result in metric.named().items():
            if result.n:
                self.results[f"{where}/{group}"] = result.to_dict()

    def groups(self, scores: TokenScores, names: Sequence[str], count_V: np.ndarray) -> dict[str, np.ndarray]:
        """Return which tokens are in which group, [N] bool each."""
        inside_N = scores.class_N >= 0
        groups = {name: scores.class_N == number for number, name in enumerate(names)}
        groups |= self.totals(scores, names) | {"global": np.ones(len(scores), dtype=bool)}
        later_N = inside_N & ~scores.first_N
        groups |= {"first": inside_N & scores.first_N, "later": later_N}
        groups |= {"repeated": scores.repeat_N, "changed": later_N & ~scores.repeat_N}
        count_N = count_V[scores.target_N]
        for low, high in itertools.pairwise((*self.rarity, None)):
            below_N = count_N < high if high is not None else True
            groups[f"rarity_{low}_{'more' if high is None else high - 1}"] = inside_N & (count_N >= low) & below_N
        return groups

    def totals(self, scores: TokenScores, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the tokens of all classes, or of several, by the names in ``total``, [N] bool each."""
        if isinstance(self.total, str):
            return {self.total: scores.class_N >= 0}
        numbers = {total: [names.index(one) for one in own if one in names] for total, own in self.total.items()}
        return {total: np.isin(scores.class_N, own) for total, own in numbers.items()}

    def inside_groups(self, scores: TokenScores, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the groups of the tokens of a class, [N] bool each."""
        groups = {name: scores.class_N == number for number, name in enumerate(names)} | self.totals(scores, names)
        kinds = {"first": scores.first_N, "repeated": scores.repeat_N, "changed": ~scores.first_N & ~scores.repeat_N}
        parts = {f"{name}/{kind}": own & one for name, own in groups.items() for kind, one in kinds.items()}
        return groups | parts

    def _errors(self, scores: TokenScores, inside_N: np.ndarray, name: str, unit: str) -> None:
        """Store median and mean absolute error of the best guesses at the member."""
        for column, guesser in enumerate(GUESSERS):
            error_N = scores.error_NG[inside_N, column]
            error_N = error_N[~np.isnan(error_N)]
            if len(error_N):
                where = name.format({"mixture": "nslm", "nslm": "nslm_alone"}.get(guesser, guesser))
                self.results[f"{where}/median_error"] = entry(np.median(error_N), unit, len(error_N), "lower")
                self.results[f"{where}/mean_error"] = entry(error_N.mean(), unit, len(error_N), "lower")

    def state_dict(self) -> dict[str, Any]:
        """Return the history and the sums of the epoch so far, so that a resumed run's record holds every step."""
        sums = {name: float(total) for name, total in self._sums.items()}
        return {"history": self.history, "sums": sums, "steps": self._steps, "stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]
        self._sums, self._steps = dict(state_dict["sums"]), state_dict["steps"]
        self.stopped = state_dict.get("stopped", False)


@dataclass(frozen=True)
class CurveSettings:
    """The whole values of a metric at which densities are reported, for their limits."""

    metric: str
    low: int
    high: int


class ClassReport(Checked, Callback):
    """At the end of a run (``trainer.validate``), count the classes and compare densities with the observations.

    Args:
        curves: class -> ``{metric, low, high}``: whole values of the metric at which densities are reported; classes
            that the run lacks are skipped.

    Attributes:
        results: ``count/<split>/<class>`` and ``share/<split>/<class>`` (of all tokens; "all" for all classes);
            ``unknown/<split>/all``: class tokens that are ``<unk>`` because training text lacks them;
            ``density/<class>/<observed or density>/<value>``: the share of training occurrences at a metric value, and
            the expectation of the best micro-model with that metric and density.

    Raises:
        UserError: a curve without a metric or a whole low and high, or for a metric with which the class was not
            fitted.
    """

    def __init__(self, *, curves: Mapping[str, Annotated[Mapping[str, Any], Fields(CurveSettings)]]) -> None:
        super().__init__()
        self.curves = dict(curves)
        for name, settings in self.curves.items():
            if not {"metric", "low", "high"} <= set(settings) or settings["low"] > settings["high"]:
                raise UserError(
                    f"callback.class_report.curves.{name}: give {{metric: ..., low: ..., high: ...}}, low at most high"
                )
        self.results: dict[str, dict[str, Any]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look, before any training, whether the classes were fitted with the metrics of their curves."""
        if getattr(pl_module, "selection", None) is not None:
            self._check(pl_module)

    def _check(self, module: Any) -> None:
        for name, settings in self.curves.items():
            if name not in module.table.names:
                continue
            known = sorted({trial.metric for trial in module.selection.best(name)})
            where = f"callback.class_report.curves.{name}.metric"
            check_value(where, settings["metric"], Annotated[str, Choice(known)])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "validate":
            return
        module, datamodule = cast("NSLMModule", pl_module), datamodule_of(trainer)
        self._check(module)  # of a checkpoint that is evaluated, too
        packed = datamodule.prepare()
        found = {split: module.occurrences(datamodule, split) for split in ("train", "val", "test")}
        totals = {split: len(packed.ids(split)) for split in found}
        for split, total in totals.items():
            counts = {name: len(found[split].of(number)) for number, name in enumerate(module.table.names)}
            for name, count in {**counts, "all": len(found[split])}.items():
                self.results[f"count/{split}/{name}"] = entry(count, "tokens", total)
                self.results[f"share/{split}/{name}"] = entry(count / total, "rate", total)
            unknown = unknown_members(datamodule, module.recognisers, split)
            self.results[f"unknown/{split}/all"] = entry(unknown, "tokens", len(found[split]) + unknown)
        for name, settings in self.curves.items():
            if name in module.table.names:
                self._curves(name, settings, module, found["train"].of(module.table.names.index(name)))

    def _curves(self, name: str, settings: Mapping[str, Any], module: Any, occurrences: Any) -> None:
        """Add the curves of one class: the first trial of a density is its best."""
        low, high = int(settings["low"]), int(settings["high"])
        edges = np.arange(low, high + 2) - 0.5
        for trial in module.selection.best(name):
            if trial.metric == settings["metric"] and f"density/{name}/{trial.density}/{low}" not in self.results:
                curves = density_curve(trial.model, occurrences, edges)
                # otherwise this many rows would stay cached until the process ends
                trial.model.forget()
                for series, (column_E, count) in zip(("observed", trial.density), curves, strict=True):
                    for value, share in zip(range(low, high + 1), column_E.tolist(), strict=True):
                        self.results[f"density/{name}/{series}/{value}"] = entry(share, "rate", count)
