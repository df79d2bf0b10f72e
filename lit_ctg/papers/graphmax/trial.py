"""Trials of graphmax: early checks of their settings (a mistake must not cost a training), folds, the trial itself."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import torch
from annotated_types import Ge
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.callback.progress import steps
from lit_ctg.core.generation import evaluating
from lit_ctg.core.model import datamodule_of
from lit_ctg.core.result import Direction, MetricResult
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError, did_you_mean, refuse
from lit_ctg.limits import Checked, Choice, Fields, NonNegative, Whole
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne, check_runs
from lit_ctg.papers.graphmax.variant import Certificates, Variant, VariantName, chosen, variants
from lit_ctg.statistics import paired_t_interval, t_interval


@dataclass(frozen=True)
class MethodSettings:
    """The settings of a method, for their limits."""

    variant: VariantName | None
    strength: NonNegative = 1.0
    strengths: Sequence[NonNegative] | None = None


Methods = Mapping[str, Annotated[Mapping[str, Any], Fields(MethodSettings)]]


def checked_methods(
    where: str, given: Methods, *, strengths: str = "strength", reference: bool = False
) -> dict[str, Mapping[str, Any]]:
    """Return the methods that have a variant; a null variant leaves one out.

    Args:
        where: name of the setting in the configuration.
        given: name -> ``{variant: ..., <strengths>: ...}``.
        strengths: ``strength`` for one number, ``strengths`` for a list.
        reference: softmax must be among them.

    Raises:
        UserError: an unknown key, no method at all, or no softmax where it is needed.
    """
    for name, setting in given.items():
        unknown = [str(key) for key in setting if key not in ("variant", strengths)]
        if unknown or "variant" not in setting:
            hint = did_you_mean(unknown[0], ["variant", strengths]) if unknown else ""
            raise UserError(f"{where}.{name}={setting}: give {{variant: <name>, {strengths}: ...}}{hint}")
    kept = {name: setting for name, setting in given.items() if setting["variant"] is not None}
    if reference or not kept:
        check_softmax(where, kept)
    return kept


def check_softmax(where: str, methods: Methods) -> None:
    """Refuse methods without softmax, the reference of all others; ``UserError`` names the setting."""
    if methods.get("softmax", {}).get("variant") != "softmax":
        raise UserError(f"{where}: the others are compared with softmax, add softmax: {{variant: softmax}}")


# Scene corpora in folds: the graph is counted on four, measurements use the held-out fifth (sec. 5).
#
# Shape suffixes: B rows, T positions, V vocabulary, N contexts.


@dataclass(frozen=True)
class Measure:
    """One number of one fold; ``base`` names the measure for comparison, fold by fold, ``version`` its definition."""

    value: float
    unit: str
    direction: Direction
    n: int
    base: str | None = None
    version: int = 1


@dataclass(eq=False)
class Fold:
    """One held-out part of a scene corpus, with everything counted on the others.

    Attributes:
        others: ids of the other folds' reviews.
        seed: of the draws in this fold.
        published: numbers of Algorithm 1.
        certificates: rows given to the certified solver in this fold, and those it certified.
    """

    scene: str
    number: int
    texts: Sequence[str]
    ids: Sequence[np.ndarray]
    others: Sequence[np.ndarray]
    vocabulary: Tokenizer
    seed: int
    published: AlgorithmOne | None = None
    certificates: Certificates = field(default_factory=Certificates)

    @cached_property
    def graph(self) -> CooccurrenceGraph:
        """The scene graph of the other folds (order 1)."""
        return CooccurrenceGraph.from_token_ids(self.others, len(self.vocabulary))

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """Every variant over that graph by name."""
        return variants(self.graph, published=self.published, certificates=self.certificates)

    def ngrams(self, order: int) -> NgramModel:
        """Return a Witten-Bell model of the other folds' reviews, without the language model."""
        size = len(self.vocabulary)
        return NgramModel.count(self.others, size, order=order, smoothing="witten_bell", dtype=torch.float64)

    def variant(self, name: str) -> Variant:
        """Return one variant; ``UserError`` names an unknown one."""
        return chosen(name, self.variants)

    def rng(self, *purpose: int) -> np.random.Generator:
        """Return a generator for one purpose in this fold; the global random state is not used."""
        return np.random.default_rng([self.seed, self.number, *purpose])

    @property
    def text_seed(self) -> int:
        """Seed of the texts generated in this fold: the same for all methods, another in each fold."""
        return int(self.rng(4).integers(2**31))


# tokens of left context for n-gram models
BEFORE = 2


@dataclass(frozen=True)
class Contexts:
    """Next-word problems: logits of the language model, the previous token, the actual next token.

    ``before_NK`` has the last ``BEFORE`` tokens that the language model saw, the newest last, -1 where there are none.
    """

    logits_NV: Tensor
    last_N: Tensor
    target_N: Tensor
    before_NK: Tensor


def read_scene(
    scene: CorpusDataModule, vocabulary: Tokenizer, split: str = "train"
) -> tuple[list[str], list[np.ndarray]]:
    """Return the distinct reviews, of two tokens or more, of one of a corpus's splits and their ids in a vocabulary."""
    texts = list(dict.fromkeys(document.text for document in scene.documents(split)))
    ids, start = [], 0
    flat_T, counts_N = vocabulary.encode_many(texts) if texts else (np.zeros(0), np.zeros(0))
    for count in counts_N:
        ids.append(np.asarray(flat_T[start : start + int(count)], dtype=np.int64))
        start += int(count)
    kept = [(text, row) for text, row in zip(texts, ids, strict=True) if len(row) > 1]
    return [text for text, _ in kept], [row for _, row in kept]


def split_folds(
    scene: str,
    texts: Sequence[str],
    ids: Sequence[np.ndarray],
    *,
    folds: int,
    vocabulary: Tokenizer,
    seed: int,
    published: AlgorithmOne | None = None,
    never_held: Sequence[np.ndarray] = (),
) -> Iterator[Fold]:
    """Yield every fold in turn; a review is held out in exactly one.

    Args:
        never_held: ids of reviews that are among the others of every fold: those the language model was trained on.

    Raises:
        UserError: fewer reviews than folds, or fewer than two folds.
    """
    if folds < 2 or len(ids) < folds:
        raise UserError(
            f"callback.graphmax_trial.scenes.{scene}: {len(ids)} reviews are too few for {folds} folds; choose another "
            "corpus or fewer folds"
        )
    order = np.random.default_rng(seed).permutation(len(ids))
    for number in range(folds):
        held = sorted(order[number::folds].tolist())
        others = sorted(set(range(len(ids))) - set(held))
        yield Fold(
            scene=scene,
            number=number,
            texts=[texts[place] for place in held],
            ids=[ids[place] for place in held],
            others=[*(ids[place] for place in others), *never_held],
            vocabulary=vocabulary,
            seed=seed,
            published=published,
        )


def contexts_of(
    fold: Fold, module: LightningModule, *, contexts: int, length: int, places: int = 4, rows: int = 8
) -> Contexts:
    """Draw next-word problems from the held-out reviews.

    Args:
        module: language model; ``forward`` must return the logits of the plain output layer.
        length: maximum tokens of left context.
    """
    windows, picks = windows_of(fold, contexts=contexts, length=length, places=places)
    batches = range(0, len(windows), rows)
    logits_NV = torch.cat([_picked(module, windows[at : at + rows], picks[at : at + rows], length) for at in batches])
    last_N, target_N, before_NK = (ids.to(logits_NV.device) for ids in tokens_of(windows, picks))
    return Contexts(logits_NV, last_N, target_N, before_NK)


def windows_of(fold: Fold, *, contexts: int, length: int, places: int = 4) -> tuple[list[np.ndarray], list[list[int]]]:
    """Draw pieces of held-out reviews and the places in them whose next token is asked for (see ``contexts_of``)."""
    rng = fold.rng(1)
    order = itertools.cycle(rng.permutation(len(fold.ids)).tolist())
    windows: list[np.ndarray] = []
    picks: list[list[int]] = []
    wanted = contexts
    while wanted > 0:
        ids_T = fold.ids[next(order)]
        start = int(rng.integers(0, max(1, len(ids_T) - length)))
        window_T = ids_T[start : start + length + 1]
        chosen = rng.choice(len(window_T) - 1, min(places, wanted, len(window_T) - 1), replace=False)
        windows.append(window_T)
        picks.append(sorted(chosen.tolist()))
        wanted -= len(picks[-1])
    return windows, picks


def tokens_of(windows: Sequence[np.ndarray], picks: Sequence[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return every place's last token ``[N]``, next token ``[N]`` and last ``BEFORE`` tokens ``[N, BEFORE]``."""
    found = [(window_T, p) for window_T, row in zip(windows, picks, strict=True) for p in row]
    pairs = [(window_T[p], window_T[p + 1]) for window_T, p in found]
    last_N, target_N = torch.tensor(np.array(pairs)).unbind(1)
    before = [[-1] * (BEFORE - 1 - p) + window_T[max(0, p - BEFORE + 1) : p + 1].tolist() for window_T, p in found]
    return last_N, target_N, torch.tensor(before)


def _picked(module: LightningModule, windows: Sequence[np.ndarray], picks: Sequence[list[int]], length: int) -> Tensor:
    scores_BTV = logits_of(module, [window_T[:-1].tolist() for window_T in windows], length)
    return torch.cat([scores_BTV[row, places] for row, places in enumerate(picks)]).float()


def logits_of(module: LightningModule, rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return the module's logits ``[B, length, V]``, before any output layer, of some texts padded at the end."""
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long, device=module.device)
    mask_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, ids in enumerate(rows):
        ids_BT[row, : len(ids)] = torch.tensor(ids[:length], device=module.device)
        mask_BT[row, : len(ids)] = True
    batch = {"input_ids_BT": ids_BT, "target_ids_BT": ids_BT, "mask_input_BT": mask_BT, "mask_target_BT": mask_BT}
    output = module(batch)
    logits_BTV: Tensor = getattr(output, "logits_BTV", output.scores_BTV)
    return logits_BTV


def pretty(strength: float) -> str:
    """Return a strength as spelled in names: 0.1, 1, 10."""
    return f"{strength:g}"


# Does graphmax help? Next-word likelihood, generations, time and pictures over folds of review corpora (sec. 5).
#
# The language model is the global knowledge, a review corpus the local knowledge. Every number is measured in each of a
# few folds, with separate graph and held-out reviews, and reported as their mean with Student's t interval.


# splits of a scene corpus of which folds can be made
HELD_OUT = ("train", "test")
WHERE = "callback.graphmax_trial"


def _texts(corpus: Any, split: str) -> set[str]:
    return {document.text for document in corpus.documents(split)}


class Part(Protocol):
    """One experiment of the trial. ``first_fold_only``: it needs no interval over folds, such as a picture."""

    first_fold_only: bool

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return how many positions the language model needs."""

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        """Return this fold's numbers by name, and texts worth keeping."""


@runtime_checkable
class ReferencePart(Protocol):
    """A part that has numbers without a language model: what gives its measures a scale."""

    def references(self, fold: Fold) -> dict[str, Measure]:
        """Return this fold's numbers by name."""


class GraphmaxTrial(Checked, Callback):
    """Run every part on every fold of every scene in ``trainer.validate``, which ends every run.

    Args:
        scenes: name -> corpus of reviews.
        held_out: the split of which the folds are made. With ``train`` no other split is read. With ``test``, for a
            language model trained on the training split of the same reviews, that split is among the others of
            every fold: the graph has all that the model has seen, and no held-out review.
        parts: name -> part; null leaves one out.
        folds: number of parts of a scene (Table 2: five).
        seed: of folds and draws; the global random state is neither read nor advanced.
        published: Algorithm 1 with its numbers (sec. 4.1).

    Attributes:
        results: ``<name>`` from a part, including ``<scene>``: mean over folds, t interval over folds, n the count over
            all folds, ``folds`` the value in each. A measure with a base has ``<name>_change``: the paired difference
            from it. ``certified/<scene>/<variant>`` is the share of the rows given to the certified solver that it
            certified, over all parts.
        samples: dicts with scene, method and text.

    Raises:
        UserError: no Algorithm 1.
    """

    def __init__(
        self,
        *,
        scenes: Mapping[str, CorpusDataModule | None],
        held_out: Annotated[str, Choice(HELD_OUT)] = "train",
        parts: Mapping[str, Part | None],
        folds: Annotated[int, Ge(2)],
        seed: Whole,
        published: AlgorithmOne,
    ) -> None:
        super().__init__()
        check_runs(published, f"{WHERE}.published", needed=True)
        self.scenes = {name: scene for name, scene in scenes.items() if scene is not None}
        self.parts_by_name = {name: part for name, part in parts.items() if part is not None}
        self.folds, self.seed, self.published, self.held_out = folds, seed, published, held_out
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse, before any training, settings with which the later trial would fail.

        Raises:
            UserError: a part needs more positions than the model has, a scene has fewer reviews than folds, or the
                language model is trained on reviews of the split that is held out.
        """
        if stage == "fit":
            refuse(self._faults(datamodule_of(trainer), pl_module))

    def _faults(self, data: Any, module: LightningModule) -> Iterator[str]:
        has = getattr(getattr(module, "backbone", None), "context", None)
        for name, part in self.parts_by_name.items():
            needs = part.positions(data.vocabulary)
            if has is not None and needs > has:
                yield (
                    f"{WHERE}.parts.{name} needs {needs} positions, the model has {has}: ask for fewer tokens or raise "
                    "backbone.context"
                )
        tested = self.held_out == "test"
        trained = _texts(data, "train") if tested else set()
        for name, scene in self.scenes.items():
            # each review counts once, and those of the training split are never held out as test
            texts = _texts(scene, self.held_out) - (_texts(scene, "train") if tested else set())
            if len(texts) < self.folds:
                yield f"{WHERE}.scenes.{name}: {len(texts)} reviews are too few for {self.folds} folds; lower folds"
            if common := len(texts & trained):
                yield (
                    f"{WHERE}.scenes.{name}: the language model is trained on {common} of its {len(texts)} held-out "
                    "reviews; give both the same splits (data.val_fraction, data.test_fraction)"
                )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.run(pl_module, datamodule_of(trainer).vocabulary)

    def run(self, module: LightningModule, vocabulary: Any) -> None:
        self.results, self.samples = {}, []
        with torch.inference_mode(), evaluating(module):
            for name, scene in self.scenes.items():
                measured: dict[str, list[Measure]] = defaultdict(list)
                for fold in self._folds(name, scene, vocabulary):
                    self._measure(fold, module, measured)
                self._keep(measured)

    def text_references(self, datamodule: Any) -> dict[str, dict[str, Any]]:
        """Return what needs no language model, on the same folds: the parts' ``references``."""
        self.results, self.samples = {}, []
        for name, scene in self.scenes.items():
            measured: dict[str, list[Measure]] = defaultdict(list)
            for fold in self._folds(name, scene, datamodule.vocabulary):
                for part in self.parts_by_name.values():
                    if isinstance(part, ReferencePart):
                        for key, number in part.references(fold).items():
                            measured[key].append(number)
            self._keep(measured)
        return self.results

    def _folds(self, name: str, scene: CorpusDataModule, vocabulary: Tokenizer) -> Iterator[Fold]:
        texts, ids, never_held = self._reviews(scene, vocabulary)
        return split_folds(
            name,
            texts,
            ids,
            folds=self.folds,
            vocabulary=vocabulary,
            seed=self.seed,
            published=self.published,
            never_held=never_held,
        )

    def _keep(self, measured: Mapping[str, list[Measure]]) -> None:
        for key, result in summarize_folds(measured).items():
            self.results[key] = result.to_dict()
            values = [one.value for one in measured.get(key, [])]
            if len(values) > 1 and all(map(math.isfinite, values)):
                self.results[key]["folds"] = values

    def _reviews(self, scene: CorpusDataModule, vocabulary: Tokenizer) -> tuple[list[str], list[Any], list[Any]]:
        """Return text and ids of the reviews that folds are made of, and ids of those that are never held out."""
        texts, ids = read_scene(scene, vocabulary, self.held_out)
        if self.held_out == "train":
            return texts, ids, []
        seen, known_ids = read_scene(scene, vocabulary)
        known = set(seen)
        # a review of both splits was seen in training
        kept = [(text, row) for text, row in zip(texts, ids, strict=True) if text not in known]
        return [text for text, _ in kept], [row for _, row in kept], known_ids

    def _measure(self, fold: Fold, module: LightningModule, measured: dict[str, list[Measure]]) -> None:
        for part in steps(self.parts_by_name.values(), f"{fold.scene}, part {fold.number + 1}"):
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
    """Return the mean over folds of every number, and of its paired difference from its base."""
    results = {}
    for name, folds in measured.items():
        values, first = [fold.value for fold in folds], folds[0]
        n = sum(fold.n for fold in folds)
        mean = math.fsum(values) / len(values)
        interval = t_interval(values) if all(map(math.isfinite, values)) else None
        results[name] = MetricResult(mean, first.unit, first.direction, n, interval, first.version)
        if first.base is not None and first.base != name:
            base = [fold.value for fold in measured[first.base]]
            finite = all(map(math.isfinite, values + base))
            change = mean - math.fsum(base) / len(base)
            paired = paired_t_interval(values, base) if finite else None
            results[f"{name}_change"] = MetricResult(change, first.unit, first.direction, n, paired, first.version)
    return results
