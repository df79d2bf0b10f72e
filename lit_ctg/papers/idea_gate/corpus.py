"""Domains, and the corpus of the deciding experiment: Wikipedia with more text on them, their terms as single tokens.

The paper's own corpus is WikiText-103 with GPT-2's tokens (sec. 4.1); this one is ours, for models of a few million
parameters: it has enough text to learn the domains, and the probability of a term is that of one token.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MinLen

from lit_ctg.data.byte_pair import END, TrainedBPETokenizer, byte_level
from lit_ctg.data.document import Document
from lit_ctg.data.wikipedia import WikipediaDataModule
from lit_ctg.errors import UserError
from lit_ctg.files import read_yaml
from lit_ctg.limits import Choice, Count, check_arguments, check_value
from lit_ctg.papers.idea_gate.metrics import words

Merge = tuple[str, str]
FOLDER = Path(__file__).resolve().parent / "topic"
LISTS = ("short", "long")
AUTHORS = "authors"


@dataclass(frozen=True)
class Domain:
    """One domain.

    Attributes:
        name: the file's stem.
        terms: list name (``short``, ``long``, ``authors``) -> terms, lower case, single words; the long list contains
            the short one, and ``authors`` is the short one where the paper's author has none.
        prompts: beginnings of texts; the first is the one printed in the paper (or its stand-in).
    """

    name: str
    terms: dict[str, frozenset[str]]
    prompts: tuple[str, ...]


def known_domains() -> list[str]:
    """Return the names of the domains that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


Terms = Annotated[str, MinLen(1)] | Annotated[Sequence[str], MinLen(1)]


@dataclass(frozen=True)
class DomainFile:
    """The content of a domain's file; terms are lists, or texts of terms separated by spaces."""

    prompts: Annotated[Sequence[Annotated[str, MinLen(1)]], MinLen(1)]
    short: Terms
    long: Terms
    authors: Terms = ()


def load_domain(name: str | Path) -> Domain:
    """Load a domain by name, or from the user's own YAML file (a path that ends in ``.yaml``; see ``DomainFile``).

    Raises:
        UserError: no such domain or file, a key or value that does not fit, a term that is not a single lower-case
            word.
    """
    path = Path(name)
    if path.suffix != ".yaml":
        check_value("domain", str(name), Annotated[str, Choice(known_domains())])
        path = FOLDER / f"{name}.yaml"
    where = f"domain {path}"
    data = read_yaml(path, where)
    needed = {"prompts", *LISTS}
    if not isinstance(data, dict) or not needed <= data.keys() <= needed | {AUTHORS}:
        raise UserError(f"{where}: give a mapping with {', '.join(sorted(needed))}, and perhaps {AUTHORS}")
    check_arguments(DomainFile, data, where)
    terms = {key: _terms(data[key], f"{where}.{key}") for key in data if key != "prompts"}
    terms[AUTHORS] = terms.get(AUTHORS, terms["short"])
    return Domain(path.stem, terms | {"long": terms["short"] | terms["long"]}, tuple(data["prompts"]))


def _terms(value: str | Sequence[str], where: str) -> frozenset[str]:
    terms = value.split() if isinstance(value, str) else value
    for term in terms or [""]:
        # as the measures split texts: a term with a mark around it would never match
        if words(term) != [term]:
            raise UserError(f"{where}: '{term}' must be one lower-case word without marks around it")
    return frozenset(terms)


class DomainWikipedia(WikipediaDataModule):
    """Plain Wikipedia text with some sources repeated in training.

    Args:
        copies: source -> how often each of its training articles is read; 1 for the others. The sample has no such
        sources and is unchanged.
        options: see ``WikipediaDataModule``.

    Raises:
        UserError: in ``local_files``, a source that no file has.
    """

    def __init__(self, *, copies: Mapping[str, Count], **options: Any) -> None:
        super().__init__(**options)
        self.copies = dict(copies)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "copies": self.copies}

    def local_files(self) -> list[Path]:
        files = super().local_files()
        known = [path.name.partition(".")[0].removeprefix("domain_") for path in files]
        for source in self.copies:
            check_value("data.copies", source, Annotated[str, Choice(known)])
        return files

    def local_documents(self, split: str) -> Iterator[Document]:
        for document in super().local_documents(split):
            times = self.copies.get(document.source, 1) if split == "train" else 1
            yield from itertools.repeat(document, times)


class DomainBPETokenizer(TrainedBPETokenizer):
    """Byte-level BPE trained on the training split, in which every domain term after a space is one token.

    The last merges of the trained table make room for merges that join the pieces of the terms; because those come
    last, they only change text that contains the terms (or beginnings of them). The table stays plain BPE, so any GPT-2
    tokenizer can load it.

    Args:
        size: maximum size of the vocabulary, including bytes, ``<|endoftext|>`` and the pieces of terms.
        domains: names of domains or their files, see ``load_domain``; all terms of their long lists are used.
        minimum: a pair seen less often is not merged.

    Raises:
        UserError: a domain that cannot be loaded; in ``train``, a size too small for the terms.
    """

    kind = "domain_bpe"

    def __init__(self, *, size: Annotated[int, Ge(257)], domains: Sequence[str], minimum: int = 2) -> None:
        super().__init__(size=size, minimum=minimum)
        self.terms = sorted(frozenset().union(*(load_domain(name).terms["long"] for name in domains)))

    def fingerprint(self) -> dict[str, Any]:
        terms = hashlib.sha256("\n".join(self.terms).encode()).hexdigest()
        return {**super().fingerprint(), "kind": self.kind, "terms": terms}

    def train(self, texts: Iterable[str]) -> None:
        super().train(texts)
        from tokenizers import models

        table = json.loads(self.engine.to_str())["model"]
        merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in table["merges"]]
        vocabulary, merges = with_words(table["vocab"], merges, self.terms, self.size)
        engine = byte_level(models.BPE(vocab=vocabulary, merges=merges))
        engine.add_special_tokens([END])
        self._take(engine)


def with_words(
    vocabulary: Mapping[str, int], merges: Sequence[Merge], words: Sequence[str], size: int
) -> tuple[dict[str, int], list[Merge]]:
    """Return a BPE table of at most ``size`` tokens in which every word after a space is one token.

    Args:
        vocabulary: token -> id, in the order in which merges made them.
        merges: pairs in order.
        words: without the space.
        size: of the vocabulary; the last tokens of the table are dropped.

    Raises:
        UserError: there is no room for the words, or GPT-2's rules split one of them.
    """
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    base = len(tokens) - len({first + second for first, second in merges})
    kept = min(size, len(tokens))
    while True:
        if kept <= base:
            raise UserError(
                f"data.tokenizer.size={size} has no room for {len(words)} words as single tokens: give more"
            )
        table, joined = _joined(tokens[:kept], merges, words)
        if len(table) <= size:
            return table, joined
        kept -= len(table) - size


def _joined(tokens: Sequence[str], merges: Sequence[Merge], words: Sequence[str]) -> tuple[dict[str, int], list[Merge]]:
    """Return the table of ``tokens`` and the merges among them, followed by merges for ``words``."""
    from tokenizers import pre_tokenizers

    table = {token: number for number, token in enumerate(tokens)}
    joined = list(itertools.takewhile(lambda pair: "".join(pair) in table, merges))
    rank = {pair: number for number, pair in enumerate(joined)}
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    for word in words:
        (characters, _), *further = cut(f" {word}")
        if further:
            raise UserError(f"data.tokenizer: '{word}' cannot be one token: GPT-2's rules cut it")
        while len(pieces := bpe_pieces(characters, rank)) > 1:
            pair = (pieces[0], pieces[1])
            rank[pair] = len(rank)
            joined.append(pair)
            table.setdefault("".join(pair), len(table))
    return table, joined


def bpe_pieces(characters: Sequence[str], rank: Mapping[Merge, int]) -> list[str]:
    """Return the byte-pair encoding of one word: repeatedly join the pair of lowest rank."""
    pieces = list(characters)
    while len(pieces) > 1:
        best = min(itertools.pairwise(pieces), key=lambda pair: rank.get(pair, len(rank)))
        if best not in rank:
            break
        merged, place = [], 0
        while place < len(pieces):
            if tuple(pieces[place : place + 2]) == best:
                merged.append("".join(best))
                place += 2
            else:
                merged.append(pieces[place])
                place += 1
        pieces = merged
    return pieces
