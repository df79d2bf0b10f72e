"""Judges of generated texts: two of different kinds, trained on human texts that no method and no model has seen.

A judge proves itself on held-out human texts of the length of the continuations; below the task's least accuracy it
decides nothing (a failed manipulation check).
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lit_ctg.errors import UserError
from lit_ctg.field.task import Example, Rule, Task, pieces, words_of
from lit_ctg.field.tune import check_kept, damaged, optimise, read_kept
from lit_ctg.files import write_atomic
from lit_ctg.statistics import Interval, wilson_interval


class Judge(ABC):
    """Assigns a class to a text."""

    name: str

    @abstractmethod
    def judge(self, texts: Sequence[str]) -> list[str | None]:
        """Return the class of each text; None where none fits."""


@dataclass(frozen=True)
class Proof:
    """A judge's results on held-out human texts.

    Attributes:
        balanced: mean over the classes of the share that it recognises, which is 1/C for guessing.
        interval: of right/of, 95%.
    """

    balanced: float
    right: int
    of: int
    interval: Interval | None


def prove(judge: Judge, examples: Sequence[Example]) -> Proof:
    """Return how well a judge recognises the classes of human texts."""
    if not examples:
        raise UserError("no held-out human text to try the judges on: give more text")
    made = judge.judge([example.text for example in examples])
    hits = np.array([own == example.label for own, example in zip(made, examples, strict=True)])
    labels = np.array([str(example.label) for example in examples])
    balanced = float(np.mean([hits[labels == label].mean() for label in sorted(set(labels))]))
    return Proof(balanced, int(hits.sum()), len(hits), wilson_interval(int(hits.sum()), len(hits)))


def snippets(examples: Sequence[Example], shortest: int, longest: int, each: int, seed: int) -> list[Example]:
    """Return pieces of ``shortest`` to ``longest`` words from random positions in passages, ``each`` per passage."""
    generator = np.random.default_rng(seed)
    found = []
    for example in examples:
        words = pieces(example.text)
        for _ in range(each):
            length = int(generator.integers(shortest, longest + 1))
            start = int(generator.integers(0, max(1, len(words) - length + 1)))
            found.append(Example("".join(words[start : start + length]).rstrip(), example.label))
    return found


def balanced(examples: Sequence[Example], seed: int) -> list[Example]:
    """Return equally many examples of every class (as many as the rarest has), in random order."""
    generator = np.random.default_rng(seed)
    by_label: dict[str, list[Example]] = {}
    for example in examples:
        by_label.setdefault(str(example.label), []).append(example)
    least = min(map(len, by_label.values()))
    chosen = [
        own[place]
        for _, own in sorted(by_label.items())
        for place in sorted(generator.permutation(len(own))[:least].tolist())
    ]
    return [chosen[place] for place in generator.permutation(len(chosen))]


class BagJudge(Judge):
    """Logistic regression over words and word pairs (tf-idf), scikit-learn's."""

    name = "bag"

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        self.model = make_pipeline(
            TfidfVectorizer(analyzer=_words_and_pairs, min_df=2, sublinear_tf=True),
            LogisticRegression(max_iter=1000, C=4.0, random_state=seed),
        )
        try:
            self.model.fit([example.text for example in examples], [example.label for example in examples])
        except ValueError as error:  # one class, or no repeated word
            raise UserError(f"the judge cannot be trained ({str(error)[:120]}): give more text") from error

    def judge(self, texts: Sequence[str]) -> list[str | None]:
        return [str(label) for label in self.model.predict(list(texts))]


def _words_and_pairs(text: str) -> list[str]:
    words = words_of(text)
    return words + [f"{a} {b}" for a, b in itertools.pairwise(words)]


class _Network(nn.Module):
    """Embeddings, a bidirectional gated recurrent layer, and the maximum of each unit over the words."""

    def __init__(self, size: int, classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, dim, padding_idx=0)
        self.dropout = nn.Dropout(0.3)
        self.layer = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * dim, classes)

    def forward(self, ids_BT: Tensor) -> Tensor:
        # packed, or the layer that reads backwards would begin with the padding of a batch's shorter texts
        lengths_B = (ids_BT != 0).sum(1).cpu()
        packed = pack_padded_sequence(
            self.dropout(self.embedding(ids_BT)), lengths_B, batch_first=True, enforce_sorted=False
        )
        states_BTD, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=ids_BT.shape[1])
        best_BD = states_BTD.masked_fill((ids_BT == 0).unsqueeze(2), -1.0).amax(1)  # the states are in (-1, 1)
        return self.head(self.dropout(best_BD))


class NeuralJudge(Judge):
    """A recurrent network over word embeddings, trained from scratch.

    Args:
        vocabulary: number of known words, the most frequent ones.
        longest: maximum words read of a text.
    """

    name = "neural"

    def __init__(
        self,
        examples: Sequence[Example],
        seed: int,
        *,
        steps: int,
        batch: int = 64,
        dim: int = 64,
        vocabulary: int = 8000,
        longest: int = 60,
    ) -> None:
        counts: dict[str, int] = {}
        for example in examples:
            for word in words_of(example.text):
                counts[word] = counts.get(word, 0) + 1
        kept = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]
        self.ids = {word: place + 2 for place, word in enumerate(kept)}  # 0: padding, 1: any other word
        self.labels, self.longest = sorted({str(example.label) for example in examples}), longest
        torch.manual_seed(seed)
        self.network = _Network(len(self.ids) + 2, len(self.labels), dim)
        ids_XT = self._ids([example.text for example in examples])
        label_X = torch.tensor([self.labels.index(str(example.label)) for example in examples])

        def loss_of(generator: np.random.Generator) -> Tensor:
            chosen = torch.from_numpy(generator.integers(0, len(label_X), size=batch))
            # known words are hidden now and then so that the network learns to handle unknown ones
            hidden = torch.from_numpy(generator.random((batch, ids_XT.shape[1])) < 0.1)
            ids_BT = ids_XT[chosen]
            return nn.functional.cross_entropy(
                self.network(ids_BT.masked_fill(hidden & (ids_BT > 0), 1)), label_X[chosen]
            )

        optimise(self.network.parameters(), loss_of, steps=steps, learning_rate=2e-3, seed=seed)
        self.network.eval()

    def save(self, folder: Path) -> None:
        content = {"ids": self.ids, "labels": self.labels, "longest": self.longest}
        write_atomic(folder / "judge.json", json.dumps(content))
        torch.save(self.network.state_dict(), folder / "weights.pt")

    @classmethod
    def load(cls, folder: Path) -> NeuralJudge:
        """Read a judge that ``save`` wrote (``UserError``: a file is damaged)."""
        made, words, path = cls.__new__(cls), folder / "judge.json", folder / "weights.pt"
        try:
            content = json.loads(words.read_text(encoding="utf-8"))
            made.ids, made.labels, made.longest = dict(content["ids"]), list(content["labels"]), int(content["longest"])
            if sorted(made.ids.values()) != list(range(2, len(made.ids) + 2)) or not all(
                map(str.isprintable, made.labels)
            ):
                raise ValueError("ids or labels are not a judge's")
        except (OSError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise damaged(words, error, folder) from None
        weights = read_kept(path, folder)
        try:
            made.network = _Network(len(made.ids) + 2, len(made.labels), weights["embedding.weight"].shape[1])
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise damaged(path, error, folder) from None
        made.network.load_state_dict(check_kept(weights, made.network.state_dict(), path, folder))
        made.network.eval()
        return made

    def _ids(self, texts: Sequence[str]) -> Tensor:
        rows = [[self.ids.get(word, 1) for word in words_of(text)[: self.longest]] or [1] for text in texts]
        width = max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])

    @torch.no_grad()
    def judge(self, texts: Sequence[str]) -> list[str | None]:
        if not texts:
            return []
        return [self.labels[place] for place in self.network(self._ids(texts)).argmax(1).tolist()]


class OccurrenceJudge(Judge):
    """Says whether what a class asks for occurs in a text."""

    @abstractmethod
    def has(self, text: str, label: str) -> bool:
        """Return whether it does."""


class WordJudge(OccurrenceJudge):
    """Says which of some words occurs, as a whole word in any of the forms given; the first where several do.

    Args:
        labels: class -> forms of its word.
        inflected: also count words made of a form and one of a few endings.
    """

    def __init__(self, labels: dict[str, list[str]], inflected: bool) -> None:
        self.name = "inflected" if inflected else "exact"
        endings = ("", "s", "es", "ed", "d", "ing", "er", "ers", "'s") if inflected else ("",)
        self.forms = {label: {form + end for form in forms for end in endings} for label, forms in labels.items()}

    def judge(self, texts: Sequence[str]) -> list[str | None]:
        return [
            next((label for label, forms in self.forms.items() if forms & set(words_of(text))), None) for text in texts
        ]

    def has(self, text: str, label: str) -> bool:
        return bool(self.forms[label] & set(words_of(text)))


class RuleJudge(OccurrenceJudge):
    """Says which of some rules a text obeys; None where it obeys none or several.

    Args:
        rules: class -> rule.
    """

    def __init__(self, name: str, rules: Mapping[str, Rule]) -> None:
        self.name, self.rules = name, dict(rules)

    def judge(self, texts: Sequence[str]) -> list[str | None]:
        obeyed = [[label for label, rule in self.rules.items() if rule(text)] for text in texts]
        return [labels[0] if len(labels) == 1 else None for labels in obeyed]

    def has(self, text: str, label: str) -> bool:
        return self.rules[label](text)


def successes(judge: Judge, texts: Sequence[str], targets: Sequence[str]) -> list[bool]:
    """Return for each text whether the judge finds the class that was asked for."""
    if isinstance(judge, OccurrenceJudge):
        return [judge.has(text, target) for text, target in zip(texts, targets, strict=True)]
    return [found == target for found, target in zip(judge.judge(texts), targets, strict=True)]


def judging_texts(task: Task, shortest: int, longest: int, each: int, seed: int) -> list[Example]:
    """Return the judges' training texts: pieces of human passages as long as continuations, balanced by class."""
    return balanced(snippets(task.examples("judge"), shortest, longest, each, seed), seed)


def proving_texts(task: Task, shortest: int, longest: int) -> list[Example]:
    """Return the held-out human pieces on which judges prove themselves, of an exact task whole passages."""
    held_out = task.examples("held_out")
    return held_out if task.exact else snippets(held_out, shortest, longest, 1, 0)
