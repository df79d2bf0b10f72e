"""A task of the field: classes of texts, and who may see which texts.

Whole documents are dealt to four splits by a shuffle that depends only on ``split_seed``: ``train`` (the base model and
everything that a method learns), ``fluency`` (the independent language model), ``judge`` (the judges) and ``held_out``
(prompts, and the human texts on which judges prove themselves). No split sees a document of another; one that the
corpus holds twice may be in two.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen

from lit_ctg.data.document import Document
from lit_ctg.data.labelled import class_name
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import Count, Positive, Seed, checked

SPLITS = ("train", "fluency", "judge", "held_out")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
# scripts without blanks between words: Thai to Burmese, Khmer, kana, Han
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
_UNSPACED_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_UNSPACED_PIECE = re.compile(rf"(?:[{_UNSPACED}]|[^\s{_UNSPACED}]+)\s*")
Rule = Callable[[str], bool]
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
    """A passage with its class; ``None`` if it belongs to none (three stars)."""

    text: str
    label: str | None


@checked
class Task:
    """Texts with classes, a reader of classes, and prompts.

    Args:
        data: a corpus (``lit_ctg.data``); its training documents are read, from its configured source.
        labels: class -> the values of ``column`` that mean it; None for every label of a folder (``data=folder``),
            whose class is named by ``class_name``.
        column: of a document: ``source``, or a key of its ``meta`` such as ``stars``; ``words``: the class is a word of
            ``labels``, and a passage belongs to it when it holds that word (or one of the forms given); ``rules``: a
            passage belongs to the class whose rule it obeys, to none if it obeys two.
        shares: split -> share of the documents.
        per_label: maximum documents read of each class; None for all.
        passage_words: maximum words (``pieces``) of a passage.
        prompt_words: number of words of a held-out passage that make a prompt.
        unit_words: cut documents into units of so many words before they are dealt (books, of which there is one of a
            class); None deals whole documents.
        rules: name of a judge -> class -> rule, a callable that returns whether a text is of the class and whose
            ``repr`` shows all that it depends on; with ``column=rules``. The first judge's are the truth of passages.
        lexicon: graded words for methods that steer by words, with ``words``, ``column("polarity")``, ``held_out``
            and ``path``; None: those that most set a class apart in its training texts.
        lexicon_signs: class -> 1 or -1: a word is of the class with the sign of its polarity.

    Raises:
        UserError: classes without documents, shares that do not sum to 1, rules that are not for the classes, a lexicon
            without a sign or a word for every class, or a name that is not a word.
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
        split_seed: Seed = 0,
        unit_words: Count | None = None,
        rules: Mapping[str, Mapping[str, Rule]] | None = None,
        lexicon: Any = None,
        lexicon_signs: Mapping[str, Literal[1, -1]] | None = None,
    ) -> None:
        name = str(name)  # task.name=2020 is a number to Hydra
        known = [] if labels is not None else list(map(str, getattr(data, "labels", ())))
        labels = {class_name(label): [label] for label in known} if labels is None else labels
        self.labels = {str(label): [str(value) for value in values] for label, values in labels.items()}
        self.rules = {judge: dict(own) for judge, own in (rules or {}).items()}
        uneven = any(list(own) != list(self.labels) for own in self.rules.values())
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
            "task.rules: give each judge a rule of every class of task.labels, with task.column=rules":
                (column == "rules") != bool(self.rules) or uneven,
            f"task.lexicon={lexicon}: give its file as task.lexicon.path= (as in task=reviews)":
                lexicon is not None and not hasattr(lexicon, "words"),
        })  # fmt: skip
        signs = {str(label): sign for label, sign in (lexicon_signs or {}).items()}
        if lexicon is not None:
            grades, needs = lexicon.column("polarity"), f"lexicon {lexicon.path}: no word has a polarity"
            other = "give it such words, another task.lexicon.path or other task.lexicon_signs"
            refuse({
                f"task.lexicon_signs={signs}: give one for each of {', '.join(self.labels)}":
                    set(signs) != set(self.labels),
                **{f"{needs} {'above' if sign > 0 else 'below'} 0, as the class {label} needs: {other}":
                   not any(sign * grade > 0 for grade in grades) for label, sign in signs.items()},
            })  # fmt: skip
        self.lexicon, self.lexicon_signs = lexicon, signs
        self.name, self.data, self.column = name, data, column
        self.shares, self.per_label, self.split_seed = dict(shares), per_label, split_seed
        self.unit_words = unit_words
        self.passage_words, self.prompt_words = passage_words, prompt_words
        self._documents: dict[str, list[Document]] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The classes, in order: the targets of a control."""
        return tuple(self.labels)

    @property
    def exact(self) -> bool:
        """Whether a class is what must occur, a word or what a rule finds, so that rules judge and no classifier."""
        return self.column in ("words", "rules")

    def identity(self) -> dict[str, Any]:
        """Return everything that the texts of the splits depend on."""
        first = next((document.text for document in self.data.documents("train")), "")
        return {
            "checksum": self.data.checksum(),
            "options": self.data.options(),
            "max_documents": self.data.max_documents,
            "column": self.column,
            "labels": self.labels,
            "shares": self.shares,
            "per_label": self.per_label,
            "passage_words": self.passage_words,
            "split_seed": self.split_seed,
            **({} if self.unit_words is None else {"unit_words": self.unit_words}),
            **({"rules": repr(self.rules)} if self.rules else {}),
            **({"unspaced": True} if unspaced(first) else {}),
        }

    def label_of(self, document: Document) -> str | None:
        """Return the class of a document, None where it has none."""
        if self.exact:
            return None
        value = document.source if self.column == "source" else document.meta.get(self.column)
        return next((label for label, values in self.labels.items() if str(value) in values), None)

    def label_of_passage(self, text: str, of_document: str | None) -> str | None:
        """Return the class of a passage: of its document, the first word of ``labels`` that occurs in it, or that of
        the only rule that it obeys."""
        if not self.exact:
            return of_document
        if self.rules:
            obeyed = [label for label, rule in next(iter(self.rules.values())).items() if rule(text)]
            return obeyed[0] if len(obeyed) == 1 else None
        words = set(words_of(text))
        return next((label for label, forms in self.labels.items() if words & set(forms)), None)

    def documents(self, split: str) -> list[Document]:
        if self._documents is None:
            self._documents = self._dealt()
        return self._documents[split]

    def _units(self) -> Iterator[Document]:
        for document in self.data.documents("train"):
            if self.unit_words is None:
                yield document
            else:
                for text in passages(clean(document.text), self.unit_words):
                    yield Document(text, document.source, document.meta)

    def _dealt(self) -> dict[str, list[Document]]:
        counts: dict[str | None, int] = {}
        kept = []
        for document in self._units():
            label = self.label_of(document)
            if self.per_label is not None and counts.get(label, 0) >= self.per_label:
                continue
            counts[label] = counts.get(label, 0) + 1
            kept.append(document)
        missing = [label for label in self.labels if label not in counts and not self.exact]
        if missing or not kept:
            raise UserError(
                f"task {self.name}: no document of {', '.join(missing) or 'any class'}: give another corpus "
                "(data.source, data.root) or task.labels"
            )
        order = np.random.default_rng(self.split_seed).permutation(len(kept))
        ends = np.round(np.cumsum([self.shares[split] for split in SPLITS]) * len(kept)).astype(int)
        dealt, first = {}, 0
        for split, end in zip(SPLITS, ends, strict=True):
            dealt[split] = [kept[place] for place in order[first:end]]
            first = end
            own = {self.label_of(document) for document in dealt[split]}
            if lacking := [label for label in self.labels if label not in own and not self.exact]:
                raise UserError(
                    f"task {self.name}: the split {split} got no document of {', '.join(lacking)}: give more text"
                )
        return dealt

    def texts(self, split: str) -> list[str]:
        """Return the texts of a split, without headings."""
        return [clean(document.text) for document in self.documents(split)]

    def checksum(self, split: str) -> str:
        """Return the sha256 of the texts of a split, on which its language model depends."""
        return hashlib.sha256("\n".join(self.texts(split)).encode("utf-8", "surrogatepass")).hexdigest()

    def examples(self, split: str, label: str | None = None) -> list[Example]:
        """Return the passages of a split that have a class, or those of one class."""
        found = []
        for document in self.documents(split):
            own = self.label_of(document)
            for text in passages(clean(document.text), self.passage_words):
                known = self.label_of_passage(text, own)
                if known is not None and label in (None, known):
                    found.append(Example(text, known))
        return found

    def prompts(self, count: int) -> list[tuple[str, Example]]:
        """Return ``count`` prompts and the passages they begin: the first words of held-out passages, equally many of
        every class where there are enough; classes alternate.

        Raises:
            UserError: there are fewer passages.
        """
        by_label: dict[str | None, list[Example]] = {label: [] for label in self.targets}
        every = self.examples("held_out")
        order = np.random.default_rng(self.split_seed + 1).permutation(len(every))
        for place in order:
            if len(pieces(every[place].text)) >= 2 * self.prompt_words:
                by_label[every[place].label].append(every[place])
        chosen: list[Example] = []
        queues = [iter(queue) for queue in by_label.values()]
        while len(chosen) < count and queues:
            for queue in list(queues):
                example = next(queue, None)
                if example is None:
                    queues.remove(queue)
                elif len(chosen) < count:
                    chosen.append(example)
        if len(chosen) < count:
            raise UserError(f"task {self.name}: {len(chosen)} held-out passages for {count} prompts: ask for fewer")
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
        if example.label is None:
            continue
        own = counts.setdefault(example.label, {})
        for word in words_of(example.text):
            own[word] = own.get(word, 0) + 1
    return counts
