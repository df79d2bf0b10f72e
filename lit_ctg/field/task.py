"""A task of the field: classes of texts, and who may see which texts.

Exact copies are removed first. Then whole documents are dealt to four splits by a shuffle that depends only on
``split_seed``: ``train`` (everything that a method learns), ``judge`` (the judges), ``choice`` (prompts on which a
method's strength is chosen) and ``report`` (the other prompts, and the human texts that judges and methods are compared
with). No split sees a document of another.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from lit_ctg.data.document import Document
from lit_ctg.data.labelled import class_name
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import Count, Fraction, Positive, Seed, checked

SPLITS = ("train", "judge", "choice", "report")
NEUTRAL = "neutral"
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
# scripts without blanks between words: Thai to Burmese, Khmer, kana, Han
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
_UNSPACED_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_UNSPACED_PIECE = re.compile(rf"(?:[{_UNSPACED}]|[^\s{_UNSPACED}]+)\s*")
_HEADING = re.compile(r"^\s*=+ .* =+\s*$", re.MULTILINE)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation; each letter where words are not set apart."""
    return (_UNSPACED_WORD if unspaced(text) else _WORD).findall(text.lower())


def unspaced(text: str) -> bool:
    """Return whether most of a text is in a script that sets no blanks between words, such as Chinese or Thai."""
    return 2 * len(_UNSPACED_LETTER.findall(text)) > sum(map(len, text.split()))


def pieces(text: str) -> list[str]:
    """Return a text cut at blanks, each piece with a blank behind; at each letter where words are not set apart."""
    return _UNSPACED_PIECE.findall(text) if unspaced(text) else [f"{word} " for word in text.split()]


@dataclass(frozen=True)
class Example:
    """A passage with its class."""

    text: str
    label: str


@checked
class Task:
    """Texts with classes, a reader of classes, and prompts.

    Args:
        data: a corpus (``lit_ctg.data``); its training documents are read, from its configured source.
        labels: class -> the values of ``column`` that mean it; None for every label of a folder (``data=folder``),
            whose class is named by ``class_name``.
        column: of a document: ``source``, or a key of its ``meta`` such as ``stars``.
        shares: split -> share of the documents.
        per_label: maximum documents read of each class; None for all.
        passage_words: maximum words (``pieces``) of a passage.
        prompt_words: number of words of a passage that make a prompt.
        asks: class, and ``neutral``, -> what an instruction asks for ("a positive review"); by default named after the
            class.
        least_accuracy: of both judges on human passages, below which the task is not run.

    Raises:
        UserError: classes without documents, shares that do not sum to 1, or a name that is not a word.
    """

    def __init__(
        self,
        *,
        name: str,
        data: Any,
        labels: Annotated[Mapping[str, Sequence[Any]], MinLen(2)] | None,
        column: str,
        shares: Mapping[str, Positive],
        per_label: Count | None,
        passage_words: Count,
        prompt_words: Count,
        least_accuracy: Fraction,
        asks: Mapping[str, str] | None = None,
        split_seed: Seed = 0,
    ) -> None:
        name = str(name)  # task.name=2020 is a number to Hydra
        known = [] if labels is not None else list(map(str, getattr(data, "labels", ())))
        labels = {class_name(label): [label] for label in known} if labels is None else labels
        self.labels = {str(label): [str(value) for value in values] for label, values in labels.items()}
        usual = {label: f"a text about {label.replace('_', ' ')}" for label in self.labels}
        self.asks = {NEUTRAL: "a text", **usual, **(asks or {})}
        refuse({
            f"task.name={name}: use letters, digits and underscores; it names folders and records":
                not re.fullmatch(r"\w+", name),
            f"task.shares: give {', '.join(SPLITS)} a share each, which sum to 1":
                set(shares) != set(SPLITS) or abs(sum(shares.values()) - 1) > 1e-9,
            f"task.labels: {', '.join(known)} are not different words: rename the files or folders":
                len(labels) < len(known),
            "task.labels: give two classes or more": len(labels) < 2,
            **{f"task.labels: the class {label!r} is not a word: name it {class_name(label)}":
               label != class_name(label) for label in self.labels},
            f"task.asks: give {NEUTRAL} and the classes {', '.join(self.labels)}":
                set(self.asks) != {NEUTRAL, *self.labels},
        })  # fmt: skip
        self.name, self.data, self.column, self.least_accuracy = name, data, column, least_accuracy
        self.shares, self.per_label, self.split_seed = dict(shares), per_label, split_seed
        self.passage_words, self.prompt_words = passage_words, prompt_words

    @property
    def targets(self) -> tuple[str, ...]:
        """The classes, in order: the targets of a control."""
        return tuple(self.labels)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the texts of all splits, and of what cuts them."""
        digest = hashlib.sha256(repr((self.passage_words, self.prompt_words)).encode())
        for split in SPLITS:
            for example in self.examples(split):
                digest.update(f"{split} {example.label} {example.text}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def label_of(self, document: Document) -> str | None:
        """Return the class of a document, None where it has none (three stars)."""
        value = document.source if self.column == "source" else document.meta.get(self.column)
        return next((label for label, values in self.labels.items() if str(value) in values), None)

    @cached_property
    def _dealt(self) -> dict[str, list[Example]]:
        counts: dict[str, int] = dict.fromkeys(self.labels, 0)
        kept, seen = [], set()
        for document in self.data.documents("train"):
            label, text = self.label_of(document), clean(document.text)
            if label is None or text in seen or counts[label] == self.per_label:
                continue
            seen.add(text)
            counts[label] += 1
            kept.append(Example(text, label))
        if missing := [label for label, count in counts.items() if not count]:
            raise UserError(
                f"task {self.name}: no document of {', '.join(missing)}: give another corpus (data.source, data.root) "
                "or task.labels"
            )
        dealt: dict[str, list[Example]] = {split: [] for split in SPLITS}
        generator = np.random.default_rng(self.split_seed)
        for label in self.labels:
            own = [example for example in kept if example.label == label]
            order = generator.permutation(len(own))
            ends = np.round(np.cumsum([self.shares[split] for split in SPLITS]) * len(own)).astype(int)
            for split, start, end in zip(SPLITS, [0, *ends[:-1]], ends, strict=True):
                if start == end:
                    raise UserError(f"task {self.name}: {split} gets no document of {label}: give more text")
                dealt[split] += [own[place] for place in order[start:end]]
        return dealt

    def examples(self, split: str, label: str | None = None) -> list[Example]:
        """Return the passages of a split, or those of one class."""
        return [
            Example(text, document.label)
            for document in self._dealt[split]
            if label in (None, document.label)
            for text in passages(document.text, self.passage_words)
        ]

    def texts(self, split: str, label: str) -> list[str]:
        """Return the passages of a class as texts."""
        return [example.text for example in self.examples(split, label)]

    def some(self, split: str, label: str, count: int) -> list[str]:
        """Return at most ``count`` random passages of a class: the first ones would be of one long document."""
        every = self.texts(split, label)
        return [every[place] for place in np.random.default_rng(self.split_seed).permutation(len(every))[:count]]

    def prompts(self, split: str, count: int) -> list[tuple[str, Example]]:
        """Return ``count`` prompts and the passages they begin, of the classes in turn.

        Raises:
            UserError: there are fewer passages.
        """
        queues = []
        for number, label in enumerate(self.targets):
            every = [each for each in self.examples(split, label) if len(pieces(each.text)) >= 2 * self.prompt_words]
            order = np.random.default_rng([self.split_seed, number]).permutation(len(every))
            queues.append([every[place] for place in order])
        chosen = [example for row in itertools.zip_longest(*queues) for example in row if example is not None][:count]
        if len(chosen) < count:
            raise UserError(f"task {self.name}: {len(chosen)} passages of {split} for {count} prompts: give fewer")
        return [(first_words(example.text, self.prompt_words), example) for example in chosen]


def clean(text: str) -> str:
    """Return a text without headings, with whitespace collapsed."""
    return " ".join(_HEADING.sub(" ", text).split())


def first_words(text: str, count: int) -> str:
    return "".join(pieces(text)[:count]).rstrip()


def passages(text: str, most: int) -> Iterator[str]:
    """Yield consecutive passages of at most ``most`` words; a remainder of less than half of that is left out."""
    words = pieces(text)
    for start in range(0, len(words), most):
        part = words[start : start + most]
        if len(part) * 2 >= most or start == 0:
            yield "".join(part).rstrip()


def log_odds_words(counts: Mapping[str, Mapping[str, int]], label: str, most: int, least: int = 5) -> list[str]:
    """Return the words that most distinguish a class from the others, best first.

    By the z-score of the log-odds ratio with an informative Dirichlet prior, the counts of all classes (Monroe,
    Colaresi and Quinn, 2008, sec. 3.3).

    Args:
        counts: class -> word -> count.
        most: maximum number of words.
        least: minimum number of occurrences of a word, over all classes.
    """
    own, rest = counts[label], _sum([words for name, words in counts.items() if name != label])
    prior = _sum([own, rest])
    prior_sum, own_sum, rest_sum = (float(sum(part.values())) for part in (prior, own, rest))
    scored = []
    for word, total in prior.items():
        if total < least or not word.isalpha() or (len(word) < 3 and not _UNSPACED_LETTER.fullmatch(word)):
            continue
        y, z = own.get(word, 0) + total, rest.get(word, 0) + total
        delta = np.log(y / (own_sum + prior_sum - y)) - np.log(z / (rest_sum + prior_sum - z))
        score = float(delta / np.sqrt(1 / y + 1 / z))
        if score > 0:
            scored.append((-score, word))
    return [word for _, word in sorted(scored)[:most]]


def _sum(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for table in tables:
        for word, count in table.items():
            total[word] = total.get(word, 0) + count
    return total


def class_counts(examples: Iterable[Example]) -> dict[str, dict[str, int]]:
    """Return class -> word -> count."""
    counts: dict[str, dict[str, int]] = {}
    for example in examples:
        own = counts.setdefault(example.label, {})
        for word in words_of(example.text):
            own[word] = own.get(word, 0) + 1
    return counts
