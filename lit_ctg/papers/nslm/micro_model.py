"""Micro-models: a metric function and a density, normalised over the vocabulary of a class (Eq. 1, Eq. 4).

Shape letters: N places, U distinct keys, J numbers of a key, K members.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_table import ClassMembers
from lit_ctg.papers.nslm.density import Density, Training, Unigram
from lit_ctg.papers.nslm.metric_function import BLOCK, Frequency, MetricFunction
from lit_ctg.papers.nslm.occurrence import Evidence, Occurrences

MEMO_BYTES = 1 << 28  # normalised rows that are kept
FIT_CELLS = 1 << 19  # weights of the keys a density is fitted with
BASES = ("uniform", "unigram")


class MicroModel:
    """P_MM(w | class, what came before).

    Where the metric has no value (a first occurrence in the document, nothing to convert) the smoothed unigram of the
    class takes its place; a member never seen in training has the weight that smoothing gives it.

    Args:
        metric, density: the pair.
        fallback_smoothing: added to each member's count in the unigram.
        base: ``uniform`` (the paper) or ``unigram`` (ours): the density is multiplied with the class's unigram before
            it is normalised (near *and* frequent), a multinomial is smoothed towards it.

    Raises:
        UserError: no such base.
    """

    def __init__(
        self, metric: MetricFunction, density: Density, *, fallback_smoothing: float = 0.1, base: str = "uniform"
    ) -> None:
        if base not in BASES:
            raise UserError(f"micro-model base '{base}': use one of {', '.join(BASES)}")
        self.metric, self.density, self.base = metric, density, base
        self.fallback_smoothing = fallback_smoothing
        self._memo: OrderedDict[tuple[float, ...], np.ndarray] = OrderedDict()

    def fit(self, occurrences: Occurrences, members: ClassMembers) -> MicroModel:
        """Fit to the training occurrences of the class; returns itself.

        Raises:
            UserError: there are none, or the metric needs other attributes than the members have.
        """
        if not len(occurrences):
            raise UserError(f"class '{members.name}' does not occur in training text: leave it out or give more text")
        needed, given = self.metric.attributes, members.attributes_KD.shape[1]
        if needed not in (0, given) or (needed and np.isnan(members.attributes_KD).any()):
            raise UserError(
                f"class '{members.name}': metric '{self.metric.name}' needs {needed} numbers for every member; "
                "use frequency, or give the members values"
            )
        self.members = members
        self._memo.clear()
        frequency = Frequency().fit(members, occurrences.index_N)
        count_1K, uniform_K = frequency.values(np.zeros((1, 1))), np.zeros(len(members))
        self.fallback_K = log_softmax(Unigram(self.fallback_smoothing).log_weight(count_1K, uniform_K)[0])
        self.log_base_K = self.fallback_K + np.log(len(members)) if self.base == "unigram" else uniform_K
        self.metric.fit(members, occurrences.index_N)
        keys_NJ = self.metric.keys(occurrences.evidence)
        usable_N = ~np.isnan(keys_NJ).any(1)
        x_N = self.metric.value_of(keys_NJ[usable_N], occurrences.index_N[usable_N])
        # a density of nothing: the class never occurs twice in a document, so it is never asked for either
        self.fitted = len(x_N) > 0
        if self.fitted:
            self.density.fit(self._training(x_N, keys_NJ[usable_N], occurrences.index_N[usable_N]))
        return self

    def _training(self, x_N: np.ndarray, keys_NJ: np.ndarray, index_N: np.ndarray) -> Training:
        """Put together what a density is fitted to; of many keys a fixed random sample is computed in full."""
        unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
        most = max(1, FIT_CELLS // len(self.members))
        chosen_U = np.arange(len(unique_UJ))
        if len(chosen_U) > most:
            chosen_U = np.sort(np.random.default_rng(0).choice(len(chosen_U), most, replace=False))
        row_U = np.full(len(unique_UJ), -1)
        row_U[chosen_U] = np.arange(len(chosen_U))
        row_N = row_U[where_N.reshape(-1)]
        pair_M, count_M = np.unique(row_N[row_N >= 0] * len(self.members) + index_N[row_N >= 0], return_counts=True)
        row_M, index_M = np.divmod(pair_M, len(self.members))
        x_UK = self.metric.values(unique_UJ[chosen_U])
        return Training(x_N, self.metric.kind, x_UK, row_M, index_M, count_M, self.log_base_K)

    def log_prob(self, evidence: Evidence) -> np.ndarray:
        """Return log_probs_NK (float64), each row a distribution over the class vocabulary."""
        keys_NJ = self.metric.keys(evidence)
        unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
        return self._rows(unique_UJ)[where_N.reshape(-1)]

    def log_prob_of(self, index_N: np.ndarray, evidence: Evidence) -> np.ndarray:
        """Return log_probs_N (float64) of one member at each place."""
        keys_NJ = self.metric.keys(evidence)
        log_probs_N = np.empty(len(keys_NJ))
        unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
        where_N = where_N.reshape(-1)
        step = max(1, BLOCK // len(self.members))
        order_N = np.argsort(where_N, kind="stable")
        edges = np.searchsorted(where_N[order_N], np.arange(0, len(unique_UJ) + step, step))
        for number, start in enumerate(range(0, len(unique_UJ), step)):
            chosen_N = order_N[edges[number] : edges[number + 1]]
            rows_UK = self._rows(unique_UJ[start : start + step])
            log_probs_N[chosen_N] = rows_UK[where_N[chosen_N] - start, index_N[chosen_N]]
        return log_probs_N

    def _rows(self, keys_UJ: np.ndarray) -> np.ndarray:
        """Return the normalised rows of distinct keys, from memory where they are kept."""
        names = [tuple(key) for key in keys_UJ.tolist()]
        missing = [place for place, name in enumerate(names) if name not in self._memo]
        rows_UK = np.empty((len(names), len(self.members)))
        fresh = dict(zip(missing, self._compute(keys_UJ[missing]), strict=True)) if missing else {}
        for place, name in enumerate(names):
            rows_UK[place] = fresh[place] if place in fresh else self._memo[name]
        for place, row_K in fresh.items():
            self._memo[names[place]] = row_K
        while len(self._memo) * len(self.members) * 8 > MEMO_BYTES:
            self._memo.popitem(last=False)
        return rows_UK

    def _compute(self, keys_UJ: np.ndarray) -> np.ndarray:
        undefined_U = np.isnan(keys_UJ).any(1)
        rows_UK = np.empty((len(keys_UJ), len(self.members)))
        rows_UK[undefined_U] = self.fallback_K
        if not self.fitted:
            rows_UK[:] = self.fallback_K
        elif not undefined_U.all():
            x_UK = self.metric.values(keys_UJ[~undefined_U])
            weight_UK = self.density.log_weight(x_UK, self.log_base_K)
            rows_UK[~undefined_U] = log_softmax(weight_UK, axis=1)
        return rows_UK

    def forget(self) -> None:
        """Free the kept rows; they are computed anew when they are asked for."""
        self._memo.clear()

    def describe(self) -> dict[str, Any]:
        """Return the pair and what was fitted, as plain values."""
        fitted = self.density.parameters() if self.fitted else {}
        return {"class": self.members.name, "metric": self.metric.name, "density": self.density.name,
                "base": self.base, "fallback_smoothing": self.fallback_smoothing, **fitted}  # fmt: skip


class Blend:
    """A mixture of micro-models of one class (the paper's outlook: several densities for one class).

    Args:
        models: fitted, of one class.
        weight_P: their weights, summing to 1; models with a weight below ``least`` are dropped.
    """

    def __init__(self, models: Sequence[MicroModel], weight_P: np.ndarray, least: float = 1e-3) -> None:
        kept = [place for place, weight in enumerate(weight_P) if weight >= least]
        self.models = [models[place] for place in kept]
        self.weight_P = np.asarray(weight_P)[kept] / np.asarray(weight_P)[kept].sum()
        self.members = models[0].members

    def log_prob(self, evidence: Evidence) -> np.ndarray:
        """Return log_probs_NK, see ``MicroModel.log_prob``."""
        parts = [np.log(w) + model.log_prob(evidence) for w, model in zip(self.weight_P, self.models, strict=True)]
        return np.logaddexp.reduce(parts, axis=0)

    def log_prob_of(self, index_N: np.ndarray, evidence: Evidence) -> np.ndarray:
        """Return log_probs_N, see ``MicroModel.log_prob_of``."""
        parts = [
            np.log(w) + model.log_prob_of(index_N, evidence)
            for w, model in zip(self.weight_P, self.models, strict=True)
        ]
        return np.logaddexp.reduce(parts, axis=0)

    def describe(self) -> dict[str, Any]:
        """Return weights and parts as plain values."""
        parts = [
            {"share": float(weight)} | model.describe()
            for weight, model in zip(self.weight_P, self.models, strict=True)
        ]
        return {"class": self.members.name, "blend": parts}
