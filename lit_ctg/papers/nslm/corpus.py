"""WikiText as prepared in sec. 5.1: split numbers joined again, names of places as single tokens."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import torch

from lit_ctg.data import folder, wikitext
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.limits import Whole
from lit_ctg.papers.nslm.gazetteer import JOINER, gazetteer

HOST = "host/"  # before the names of the parts of a batch that are kept in the processor's memory
_SPLIT = re.compile(r"(?<=[0-9]) @([,.])@ (?=[0-9])")


def join_numbers(text: str) -> str:
    """Return ``text`` with commas and decimal points put back between digits.

    Hyphens (``@-@``) stay split: they also join words. Number words and ordinals are unchanged.
    """
    return _SPLIT.sub(r"\1", text)


@functools.cache
def _pattern(minimum_population: int) -> re.Pattern[str]:
    several = [name for name in gazetteer(minimum_population) if " " in name]
    # the longest name wins where one is a prefix of another
    several.sort(key=lambda name: (-len(name), name))
    return re.compile(r"(?<!\S)(?:" + "|".join(map(re.escape, several)) + r")(?!\S)")


@functools.cache
def _first_words(minimum_population: int) -> frozenset[str]:
    return frozenset(name.partition(" ")[0] for name in gazetteer(minimum_population) if " " in name)


def chunk_places(text: str, minimum_population: int) -> str:
    """Return ``text`` (tokens separated by spaces) with every multi-word place name joined into one token."""
    pattern, first = _pattern(minimum_population), _first_words(minimum_population)
    lines = []
    for line in text.split("\n"):
        # the pattern is long; most lines have no word that begins a place
        if not first.isdisjoint(line.split()):
            line = pattern.sub(lambda match: match.group().replace(" ", JOINER), line)
        lines.append(line)
    return "\n".join(lines)


class _NumbersAndPlaces(CorpusDataModule):
    """A corpus with numbers joined or places chunked.

    Args:
        join_numbers: ``1 @,@ 234`` becomes one token (numbers corpus).
        chunk_places: multi-word names of places become one token (places corpus).
        minimum_population: of cities that count as places.
    """

    def __init__(self, *, join_numbers: bool, chunk_places: bool, minimum_population: Whole, **options: Any) -> None:
        super().__init__(**options)
        self.join_numbers, self.chunk_places, self.minimum_population = join_numbers, chunk_places, minimum_population

    def options(self) -> dict[str, Any]:
        population = self.minimum_population if self.chunk_places else None
        # a mixin: defined by the corpus class
        options = super().options()  # type: ignore[safe-super]  # abstract only for the mixin by itself
        return options | {"join_numbers": self.join_numbers, "chunk_places": population}

    def on_before_batch_transfer(self, batch: dict[str, Any], dataloader_idx: int) -> dict[str, Any]:
        """Keep the parts of a batch for an accelerator as they are, under ``HOST``, as arrays.

        The contexts are read from them; to fetch them back, each step would wait for the one before it.
        """
        assert self.trainer is not None, "only a trainer moves batches"
        if self.trainer.strategy.root_device.type == "cpu":
            return batch
        kept = {HOST + name: part.numpy() for name, part in batch.items() if isinstance(part, torch.Tensor)}
        return batch | kept

    def transform(self, text: str) -> str:
        """Return a document's text with numbers joined and places chunked as configured."""
        if self.join_numbers:
            text = join_numbers(text)
        return chunk_places(text, self.minimum_population) if self.chunk_places else text


class WikiTextDataModule(_NumbersAndPlaces, wikitext.WikiTextDataModule):
    """WikiText with numbers joined or places chunked.

    It has the name of the corpus class that it extends: hashes of runs include class names, so runs of either are
    found.
    """


class FolderDataModule(_NumbersAndPlaces, folder.FolderDataModule):
    """The user's own texts with numbers joined or places chunked."""

    def documents(self, split: str) -> Iterator[Document]:
        for document in super().documents(split):
            yield Document(self.transform(document.text), document.source, document.meta)
