"""Scene corpora in folds: the graph is counted on four, what is measured is held out in the fifth (sec. 5).

Shape suffixes: B rows, T positions, V vocabulary, N contexts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor

from lit_ctg.core.result import Direction
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.variant import Certificates, Variant, chosen, variants


@dataclass(frozen=True)
class Measure:
    """One number of one fold; ``base`` names the measure it is compared with, fold by fold."""

    value: float
    unit: str
    direction: Direction
    n: int
    base: str | None = None


@dataclass(eq=False)
class Fold:
    """One part of a scene corpus held out, with all that is counted on the others.

    Attributes:
        scene: name of the corpus.
        number: which fold.
        texts, ids: the held-out reviews.
        others: ids of the other folds' reviews.
        vocabulary: the language model's.
        seed: of the draws made in this fold.
        published: numbers of Algorithm 1.
        certificates: rows that the certified solver was given in this fold, and those it certified.
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

    def variant(self, name: str) -> Variant:
        """Return one variant; ``UserError`` names an unknown one."""
        return chosen(name, self.variants)

    def rng(self, *purpose: int) -> np.random.Generator:
        """Return a generator for one purpose in this fold; the global random state is left alone."""
        return np.random.default_rng([self.seed, self.number, *purpose])


@dataclass(frozen=True)
class Contexts:
    """Next-word problems: logits of the language model, the token before, the token that came."""

    logits_NV: Tensor
    last_N: Tensor
    target_N: Tensor


def read_scene(scene: CorpusDataModule, vocabulary: Tokenizer) -> tuple[list[str], list[np.ndarray]]:
    """Return the distinct reviews of a corpus' training split and their ids in the language model's vocabulary.

    Raises:
        UserError: no review has two tokens.
    """
    texts = list(dict.fromkeys(document.text for document in scene.documents("train")))
    ids, ends = [], 0
    flat_T, counts_N = vocabulary.encode_many(texts) if texts else (np.zeros(0), np.zeros(0))
    for count in counts_N:
        ids.append(np.asarray(flat_T[ends : ends + int(count)], dtype=np.int64))
        ends += int(count)
    kept = [(text, row) for text, row in zip(texts, ids, strict=True) if len(row) > 1]
    if not kept:
        raise UserError("the scene corpus is empty: choose another one for callback.graphmax_trial.scenes")
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
) -> Iterator[Fold]:
    """Yield every fold in turn; a review is held out in exactly one.

    Raises:
        UserError: fewer reviews than folds, or fewer than two folds.
    """
    if folds < 2 or len(ids) < folds:
        raise UserError(f"{len(ids)} reviews of scene {scene} cannot be parted into {folds} folds (2 or more)")
    order = np.random.default_rng(seed).permutation(len(ids))
    for number in range(folds):
        held = sorted(order[number::folds].tolist())
        others = sorted(set(range(len(ids))) - set(held))
        yield Fold(
            scene=scene,
            number=number,
            texts=[texts[place] for place in held],
            ids=[ids[place] for place in held],
            others=[ids[place] for place in others],
            vocabulary=vocabulary,
            seed=seed,
            published=published,
        )


def contexts_of(
    fold: Fold, module: LightningModule, *, contexts: int, length: int, places: int = 4, rows: int = 8
) -> Contexts:
    """Draw next-word problems from the held-out reviews.

    Args:
        fold: its reviews.
        module: language model; ``forward`` must give the logits of the plain output layer.
        contexts: how many.
        length: most tokens of left context.
        places: positions looked at in one review.
        rows: reviews in one batch.
    """
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
    batches = range(0, len(windows), rows)
    logits_NV = torch.cat([_picked(module, windows[at : at + rows], picks[at : at + rows], length) for at in batches])
    pairs = [(window_T[p], window_T[p + 1]) for window_T, row in zip(windows, picks, strict=True) for p in row]
    last_N, target_N = torch.tensor(np.array(pairs), device=logits_NV.device).unbind(1)
    return Contexts(logits_NV, last_N, target_N)


def _picked(module: LightningModule, windows: Sequence[np.ndarray], picks: Sequence[list[int]], length: int) -> Tensor:
    scores_BTV = logits_of(module, [window_T[:-1].tolist() for window_T in windows], length)
    return torch.cat([scores_BTV[row, places] for row, places in enumerate(picks)]).float()


def logits_of(module: LightningModule, rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return the module's scores ``[B, length, V]`` of some texts, padded at their end."""
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long, device=module.device)
    mask_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, ids in enumerate(rows):
        ids_BT[row, : len(ids)] = torch.tensor(ids[:length], device=module.device)
        mask_BT[row, : len(ids)] = True
    batch = {"input_ids_BT": ids_BT, "target_ids_BT": ids_BT, "mask_input_BT": mask_BT, "mask_target_BT": mask_BT}
    return module(batch).scores_BTV


def pretty(strength: float) -> str:
    """Return a strength as it stands in names: 0.1, 1, 10."""
    return f"{strength:g}"
