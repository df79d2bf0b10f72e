"""Our measures without sampling noise: preconditions for texts to decide anything, and measures that need no texts.

On the validation split: a bigram model of the same text, a cache of the words read so far compared with the idea head,
and how much of the gate depends on the context. On held-out texts, teacher-forced: the probability of the terms. On
generated texts: the decision of a classifier trained on real ones.

Shape letters: B rows, T positions, V vocabulary, P measured positions, K window, N pairs or texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.core.metric import BatchMetric, Mask, RatioMetric, float64, pick_mask
from lit_ctg.core.model import datamodule_of
from lit_ctg.core.result import MetricResult
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.errors import UserError
from lit_ctg.limits import Checked, Count
from lit_ctg.metric.bigram import Bigrams
from lit_ctg.papers.idea_gate.corpus import Domain, load_domain
from lit_ctg.papers.idea_gate.gate import distinct, idea_loss
from lit_ctg.papers.idea_gate.metrics import GATED, GivenMean, HeadMetric, average_precision, cost, has_gate

CHUNK = 1 << 22  # idea logits converted to float64 at a time
# domains (``corpus.load_domain``) whose corpus files have other names
FILES = {"hardware": "computer_hardware"}


class BigramLoss(RatioMetric):
    """Cost of the validation targets under ``Bigrams`` of the training split, and how far the model's is below it.

    ``loss`` is in nats; ``margin``: bigram minus model, token by token; above 0 the model has learned more than pairs.
    """

    unit = "nats"
    direction = "higher"

    def __init__(self, *, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, groups=2, **kwargs)
        self.bigrams: Bigrams | None = None

    def bind(self, datamodule: Any, module: Any = None) -> BigramLoss:
        """Count the training split."""
        if self.bigrams is None:
            self.bigrams = Bigrams(datamodule.packed.ids("train"), len(datamodule.vocabulary))
        return self

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch."""
        mask_BT = pick_mask(batch, self.mask)
        self.update(batch["input_ids_BT"], batch["target_ids_BT"], cost(output, batch, GATED), mask_BT)

    def update(self, first_BT: Tensor, second_BT: Tensor, model_BT: Tensor, mask_BT: Tensor) -> None:
        """Add rows: each token, its successor, the model's cost of the latter in nats, True where it counts."""
        assert self.bigrams is not None, "call bind(datamodule) first"
        self.follow(mask_BT)
        nll_BT = torch.from_numpy(self.bigrams.nll(first_BT.cpu().numpy(), second_BT.cpu().numpy()))
        bigram_BT = nll_BT.to(model_BT).masked_fill(~mask_BT, 0.0)
        sums_B2 = torch.stack((bigram_BT.sum(1), (bigram_BT - model_BT).sum(1)), dim=1)
        self.add_rows(sums_B2, mask_BT.sum(1, keepdim=True).expand(-1, 2))

    def _result(self) -> dict[str, MetricResult]:
        named = self.results("loss", "margin")
        return {**named, "loss": replace(named["loss"], direction="none")}


class IdeaLoss(RatioMetric):
    """The idea loss over the validation split (sec. 5.1, Fig. 2), as in training but unweighted; nats per position.

    A model without an idea head gives no results.
    """

    unit = "nats"
    direction = "lower"

    def __init__(self, *, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)
        self._module: list[Any] = []

    def bind(self, datamodule: Any, module: Any = None) -> IdeaLoss:
        """Take window, stopwords and weight from the model."""
        self._module = [module]
        return self

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch."""
        if not has_gate(output):
            return
        (module,) = self._module
        windows_BTK = module.window(batch["target_ids_BT"], batch["mask_target_BT"])
        for row, kept_T in enumerate(pick_mask(batch, self.mask)):
            if bool(kept_T.any()):
                self.update(output.idea_BTV[row][kept_T], windows_BTK[row][kept_T])

    def update(self, idea_PV: Tensor, window_PK: Tensor) -> None:
        """Add the counted positions of one row."""
        (module,) = self._module
        self.follow(idea_PV)
        options = {"positive_weight": module.ideas.positive_weight, "stopword_mask": module.stopword_mask_V}
        rows = max(1, CHUNK // idea_PV.shape[1])
        parts = zip(idea_PV.split(rows), window_PK.split(rows), strict=True)
        total = sum(float(idea_loss(idea.double(), window, **options)) * len(idea) for idea, window in parts)
        self.add_rows(torch.tensor([total], dtype=torch.float64), torch.tensor([len(idea_PV)]))

    def _result(self) -> dict[str, MetricResult] | MetricResult:
        return super()._result() if float(self.rows) else {}


class HistoryCache(HeadMetric):
    """The idea head compared with an untrained baseline: the tokens read so far in the row, the most frequent first.

    ``average_precision`` (see ``IdeaHead``) ranks by counts in the row up to each position, with ties decided by the
    frequency in the training text; ``head_gain`` is the idea head's minus it, position by position.
    """

    names = ("average_precision", "head_gain")

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Measure a batch."""
        for row, places, window_PK in self.measured(output, batch):
            tokens_PK = distinct(window_PK, self.model.stopword_mask_V)
            some_P = (tokens_PK >= 0).any(1)
            if bool(some_P.any()):
                history_PV = self.history(batch["input_ids_BT"][row], places[some_P])
                idea_PV = output.idea_BTV[row, places[some_P]]
                self.update(history_PV, idea_PV, tokens_PK[some_P], self.model.stopword_mask_V)

    def update(self, history_PV: Tensor, idea_PV: Tensor, tokens_PK: Tensor, stopword_V: Tensor) -> None:
        """Add the positions of one row: both rankings, the tokens to find (-1 pads; at least one each), stopwords."""
        found = [
            average_precision(scores_PV.float().masked_fill(stopword_V, -torch.inf), tokens_PK)
            for scores_PV in (history_PV, idea_PV)
        ]
        total_2 = torch.stack((found[0].sum(), (found[1] - found[0]).sum()))
        self.add_rows(total_2[None], torch.full((1, 2), len(tokens_PK), device=total_2.device))

    def history(self, ids_T: Tensor, places_P: Tensor) -> Tensor:
        """Return the ranking's scores [P, V]: how often each token occurs in the row up to each position."""
        assert self.counts_V is not None, "call bind(datamodule, module) first"
        # below one occurrence in the row, so that it only decides ties
        frequency_V = (self.counts_V.double() / (self.counts_V.sum() + 1.0)).float().to(ids_T.device)
        read_PT = torch.arange(len(ids_T), device=ids_T.device) <= places_P[:, None]
        count_PV = torch.zeros(len(places_P), len(frequency_V), device=ids_T.device)
        return count_PV.scatter_add_(1, ids_T.expand(len(places_P), -1), read_PT.float()) + frequency_V


class GateContext(BatchMetric):
    """Share of the gate's variance that depends on the context; the rest is a constant per token.

    Over positions and tokens (without stopwords) the gate's variance is the mean over tokens of its variance over
    positions (context) plus the variance over tokens of its mean (static): ``context_share`` is the share of the first.
    ``context_share_weighted`` weights each token by its mean probability under the token head, so that tokens that are
    hardly ever drawn count little. A model without a gate, or with strength 0, gives no results.

    Args:
        stride: distance between measured positions.
    """

    unit = "share of variance"
    direction = "higher"
    positions: Tensor
    gate_sum: Tensor
    square_sum: Tensor
    probability_sum: Tensor

    def __init__(self, *, stride: Count = 4, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stride, self.mask = stride, mask
        self._module: list[Any] = []
        self.add_sum("positions")

    def bind(self, datamodule: Any, module: Any = None) -> GateContext:
        """Take the model with the gate."""
        if not self._module:
            for name in ("gate_sum", "square_sum", "probability_sum"):
                self.add_sum(name, (module.vocabulary_size,))
        self._module = [module]
        return self

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add every ``stride``-th position of a batch."""
        (module,) = self._module
        if not has_gate(output) or module.alpha == 0:
            return
        self.follow(batch["target_ids_BT"])
        places = slice(self.stride - 1, None, self.stride)
        counted_BT = pick_mask(batch, self.mask)[:, places]
        gate_PV = module.gate(output.idea_BTV[:, places][counted_BT])
        self.update(gate_PV, output.token_BTV[:, places][counted_BT].softmax(-1))

    def update(self, gate_PV: Tensor, probability_PV: Tensor) -> None:
        """Add positions: the gate in nats, and the token head's probabilities."""
        gate_PV, probability_PV = float64(gate_PV), float64(probability_PV)
        self.add(
            positions=torch.tensor(len(gate_PV)),
            gate_sum=gate_PV.sum(0),
            square_sum=gate_PV.square().sum(0),
            probability_sum=probability_PV.sum(0),
        )

    def compute(self) -> Tensor:
        """Return the share, unweighted and weighted, float64, (2,)."""
        (module,) = self._module
        kept_V = float64(~module.stopword_mask_V).to(self.gate_sum)
        mean_V = self.gate_sum / self.positions
        within_V = (self.square_sum / self.positions - mean_V.square()).clamp(min=0)
        shares = []
        for weight_V in (kept_V, kept_V * self.probability_sum):
            weight_V = weight_V / weight_V.sum()
            context = (weight_V * within_V).sum()
            static = (weight_V * mean_V.square()).sum() - (weight_V * mean_V).sum().square()
            shares.append(context / (context + static.clamp(min=0)))
        return torch.stack(shares)

    def _result(self) -> dict[str, MetricResult]:
        if not float(self.positions):
            return {}
        names, count = ("context_share", "context_share_weighted"), int(self.positions)
        return {
            name: MetricResult(value, self.unit, self.direction, count, None, self.version)
            for name, value in zip(names, self.compute().tolist(), strict=True)
        }


class Held:
    """The held-out text of a packed corpus by subject: non-overlapping windows, each with its document.

    Args:
        packed: the corpus.
        splits: which splits are held out.
    """

    def __init__(self, packed: Any, splits: Sequence[str] = ("val", "test")) -> None:
        self.packed, self.splits = packed, splits

    def windows(self, wanted: Any, length: int, limit: int | None = None) -> list[tuple[int, np.ndarray]]:
        """Return (document, ids [length]) of the documents whose source ``wanted(name)`` accepts.

        Args:
            wanted: called with a source's name.
            length: tokens of a window; the rest of a document is dropped.
            limit: maximum windows of one document.
        """
        found, number = [], 0
        for split in self.splits:
            for document, source in enumerate(self.packed.table(split, "source")):
                if wanted(self.packed.sources[source]):
                    ids = np.asarray(self.packed.document(split, document)).astype(np.int64)
                    starts = range(0, len(ids) - length + 1, length)
                    found += [(number, ids[start : start + length]) for start in starts[:limit]]
                    number += 1
        return found


def about(source: str, domain: str) -> bool:
    """Say whether a source of the corpus (a file of plain Wikipedia, a field of the sample) is about a domain."""
    return source in (domain, FILES.get(domain))


def term_ids(domain: Domain, vocabulary: Any, chosen: str = "long") -> Tensor:
    """Return the sorted ids of the domain's terms that are one token after a space."""
    encoded = ids_behind(vocabulary, "a", [f" {term}" for term in domain.terms[chosen]])
    return torch.tensor(sorted({ids[0] for ids in encoded if len(ids) == 1}), dtype=torch.long)


class MassMean(GivenMean):
    """Mean over windows of the probability of the domain's terms, by document."""

    unit = "probability a token"
    direction = "higher"


class ClassifiedShare(GivenMean):
    """Share of texts that the classifier assigns to the right domain: 1 where it is right, else 0."""

    unit = "share of texts"
    direction = "higher"


class TopicMass(Checked, Callback):
    """Teacher-forced probability of the domain's terms in held-out texts, in ``trainer.validate``; nothing is drawn.

    Three kinds of text per domain: ``inside``, windows of its articles; ``drifted``, the first ``before`` tokens of
    such a window and then general text; ``never``, the same general text after as many tokens of general text, of the
    same article where it has two windows. All three are measured after the first ``before`` tokens, so that ``drifted``
    minus ``never`` is what the model retains of the topic after the text has left it, and besides what a beginning on
    another subject changes: to be compared between models, not with 0.

    Args:
        domains: names or files of domains, see ``load_domain``.
        length: tokens of a window, at most the model's context + 1.
        before: tokens of the beginning, see above.
        windows: maximum windows per domain.
        arms: name -> strength of the gate; for a model without a gate, arms that change nothing are left out.
        batch_size: windows at a time.

    Attributes:
        results: ``mass/<arm>/<domain>/<kind>``, ``.../kept`` (drifted minus never, window by window), and for the real
            text ``mass/text/<domain>/<kind>``: the share of its tokens that are terms. ``all``: mean over domains.
    """

    def __init__(
        self,
        *,
        domains: Sequence[str],
        length: Count,
        before: Count,
        windows: Count,
        arms: Mapping[str, Mapping[str, float]],
        batch_size: Count = 16,
    ) -> None:
        super().__init__()
        if before >= length - 1:
            raise UserError(f"callback.topic_mass.before={before} must be below length - 1 = {length - 1}")
        self.domains = [load_domain(name) for name in domains]
        self.length, self.before, self.windows, self.batch_size = length, before, windows, batch_size
        self.arms = {name: dict(arm) for name, arm in arms.items()}
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the model that ``trainer.validate`` was given."""
        if trainer.state.fn == "validate":
            self.run(pl_module, datamodule_of(trainer))

    def run(self, module: Any, datamodule: Any) -> None:
        """Recompute ``results``; domains without held-out text in the corpus are left out."""
        self.results = {}
        held = Held(datamodule.prepare())
        names = [domain.name for domain in self.domains]
        general = held.windows(lambda s: not any(about(s, name) for name in names), self.length, limit=2)
        values: dict[str, dict[str, list[tuple[str, int, float]]]] = {}
        for domain in self.domains:
            own = held.windows(lambda s, name=domain.name: about(s, name), self.length)[: self.windows]
            if not own or len(general) < 2:
                continue
            terms = term_ids(domain, datamodule.vocabulary)
            for kind, texts in self.texts(own, general).items():
                ids_NT = torch.from_numpy(np.stack(texts))
                real_N = torch.isin(ids_NT[:, self.before + 1 :], terms).double().mean(1)
                measured = {"text": real_N} | {
                    arm: self.mass(module, ids_NT, terms, strength)
                    for arm, strength in self.arms.items()
                    if module.gated or not strength
                }
                for arm, mass_N in measured.items():
                    entries = [(domain.name, document, float(v)) for (document, _), v in zip(own, mass_N, strict=True)]
                    values.setdefault(arm, {}).setdefault(kind, []).extend(entries)
        for arm, kinds in values.items():
            for kind, entries in kinds.items():
                self._keep(f"mass/{arm}", kind, entries)
            pairs = zip(kinds["drifted"], kinds["never"], strict=True)
            self._keep(f"mass/{arm}", "kept", [(name, document, a - b) for (name, document, a), (_, _, b) in pairs])

    def texts(
        self, own: Sequence[tuple[int, np.ndarray]], general: Sequence[tuple[int, np.ndarray]]
    ) -> dict[str, list[np.ndarray]]:
        """Return the windows of each kind; window i of ``drifted`` and of ``never`` end in the same general text."""
        drifted, never = [], []
        for number, (_, ids) in enumerate(own):
            end = general[(2 * number + 1) % len(general)][1][self.before + 1 :]
            drifted.append(np.concatenate((ids[: self.before + 1], end)))
            never.append(np.concatenate((general[2 * number % len(general)][1][: self.before + 1], end)))
        return {"inside": [ids for _, ids in own], "drifted": drifted, "never": never}

    @torch.no_grad()
    def mass(self, module: Any, ids_NT: Tensor, terms: Tensor, strength: Mapping[str, float]) -> Tensor:
        """Return for each window the mean joint probability of all terms after its beginning, float64 [N].

        Args:
            module: the model; its own strength is restored.
            ids_NT: windows.
            terms: ids.
            strength: ``alpha`` or nothing.
        """
        own = module.alpha
        module.alpha = float(strength.get("alpha", own))
        try:
            found = []
            for ids_BT in ids_NT.split(self.batch_size):
                ids_BT = ids_BT.to(module.device)
                mask_BT = torch.ones_like(ids_BT[:, 1:], dtype=torch.bool)
                batch = {"input_ids_BT": ids_BT[:, :-1], "target_ids_BT": ids_BT[:, 1:]}
                batch |= {"mask_input_BT": mask_BT, "mask_target_BT": mask_BT}
                scores_BTV = module(batch).scores_BTV[:, self.before :]
                every_BT = scores_BTV.logsumexp(-1)
                terms_BT = scores_BTV[..., terms.to(module.device)].logsumexp(-1)
                found.append(float64((terms_BT - every_BT).exp()).mean(1).cpu())
            return torch.cat(found)
        finally:
            module.alpha = own

    def _keep(self, name: str, kind: str, entries: Sequence[tuple[str, int, float]]) -> None:
        """Record the mean of each domain and of all (their documents are groups of the bootstrap)."""
        groups = {key: number for number, key in enumerate(dict.fromkeys((domain, doc) for domain, doc, _ in entries))}
        domains = list(dict.fromkeys(domain for domain, _, _ in entries))
        for chosen in [*domains, "all"]:
            metric = MassMean(sync_on_compute=False)
            for domain, document, value in entries:
                if chosen in (domain, "all"):
                    metric.update([value], groups[domain, document])
            self.results[f"{name}/{chosen}/{kind}"] = metric.number().to_dict()


class TopicClassifier:
    """Classifier of topics: logistic regression on the tokens of pieces of real text, five domains and the rest.

    Args:
        domains: names of the domains.
        tokens: of a piece.
        pieces: number per class, from the training split.
        seed: of the choice of pieces.
    """

    OTHER = "other"

    def __init__(self, *, domains: Sequence[str], tokens: int = 100, pieces: int = 400, seed: int = 0) -> None:
        self.domains, self.tokens, self.pieces, self.seed = list(domains), tokens, pieces, seed
        self.accuracy: tuple[int, int] = (0, 0)
        self.real: dict[str, tuple[int, int]] = {}
        self._model: Any = None
        self._size = 0

    def fit(self, packed: Any, size: int) -> TopicClassifier:
        """Train on the training split; measure the accuracy on held-out pieces (most are of no domain).

        Args:
            packed: the corpus.
            size: V.

        Raises:
            UserError: a domain without training text.
        """
        from sklearn.linear_model import LogisticRegression

        self._size = size
        train, held = Held(packed, ("train",)), Held(packed)
        generator = np.random.default_rng(self.seed)
        classes = [*self.domains, self.OTHER]

        def pieces(corpus: Held, name: str, limit: int | None) -> list[np.ndarray]:
            def wanted(source: str) -> bool:
                found = [domain for domain in self.domains if about(source, domain)]
                return name in (found or [self.OTHER])

            return [ids for _, ids in corpus.windows(wanted, self.tokens, limit)]

        texts, labels = [], []
        for label, name in enumerate(classes):
            found = pieces(train, name, None)
            if not found:
                raise UserError(
                    f"topic classifier: the corpus has no training text about '{name}': use data=domains with "
                    "data.source=local, or leave callback.topic_trial.classifier out"
                )
            chosen = generator.permutation(len(found))[: self.pieces]
            texts += [found[i] for i in chosen]
            labels += [label] * len(chosen)
        self._model = LogisticRegression(C=1.0, max_iter=500).fit(self.features(texts), labels)
        hits = {name: (self.classes(pieces(held, name, 8)), label) for label, name in enumerate(classes)}
        self.real = {name: (int((chosen == label).sum()), len(chosen)) for name, (chosen, label) in hits.items()}
        self.accuracy = (sum(hit for hit, _ in self.real.values()), sum(n for _, n in self.real.values()))
        return self

    def features(self, texts: Sequence[Sequence[int] | np.ndarray]) -> Any:
        """Return the square roots of each text's token counts, sparse [N, V], normalised to length 1."""
        import scipy.sparse
        from sklearn.preprocessing import normalize

        rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        ids = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts]) if texts else np.zeros(0, np.int64)
        counts = scipy.sparse.csr_matrix((np.ones(len(ids)), (rows, ids)), shape=(len(texts), self._size))
        counts.sum_duplicates()
        counts.data = np.sqrt(counts.data)
        return normalize(counts)

    def classes(self, texts: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
        """Return for each text the index of its class in ``domains``; the last index is for others."""
        return self._model.predict(self.features(texts)) if len(texts) else np.zeros(0, np.int64)
