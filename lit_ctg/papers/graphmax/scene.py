"""Where a language model's scene graph comes from: a corpus read in the model's vocabulary, or a file made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.tokenizer import Tokenizer, blocks
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph

VOCABULARY = "vocabulary"  # key of ``information``: whose token ids the graph speaks of


class SceneGraph:
    """How to get the graph of a scene corpus over any vocabulary; made once, when first asked for.

    Args:
        corpus: the scene corpus; its texts are read, its tokenizer is not. None when ``path`` is given.
        split: which of its splits.
        path: a graph that ``lit-ctg data graph`` wrote, to read instead.
        order, transposed, normalization, minimum_count, row_edges: see ``CooccurrenceGraph.from_token_ids``.
    """

    def __init__(
        self,
        corpus: CorpusDataModule | None = None,
        *,
        split: str = "train",
        path: str | Path | None = None,
        order: int = 1,
        transposed: bool = False,
        normalization: str = "row",
        minimum_count: int = 1,
        row_edges: int = 256,
    ):
        if corpus is None and path is None:
            raise UserError("a scene graph needs a corpus to count, or the path of a graph that was counted before")
        # read when it is needed, which may be late in a run
        if path is not None and not Path(path).is_file():
            raise UserError(f"no scene graph at path={path}: write one with lit-ctg data graph, or leave path out")
        self.corpus, self.split, self.path = corpus, split, path
        self.settings = {
            "order": order,
            "transposed": transposed,
            "normalization": normalization,
            "minimum_count": minimum_count,
            "row_edges": row_edges,
        }
        self._made: dict[str, CooccurrenceGraph] = {}

    def graph(self, vocabulary: Tokenizer) -> CooccurrenceGraph:
        """Return the graph over ``vocabulary``.

        Raises:
            UserError: an empty corpus, no such file, a graph over another vocabulary.
        """
        key = vocabulary_checksum(vocabulary.tokens)
        if key not in self._made:
            self._made[key] = self._count(vocabulary, key) if self.path is None else self._read(key)
        return self._made[key]

    def _count(self, vocabulary: Tokenizer, key: str) -> CooccurrenceGraph:
        graph = CooccurrenceGraph.from_token_ids(
            token_ids(self.corpus, self.split, vocabulary), len(vocabulary), **self.settings
        )
        graph.information.update({VOCABULARY: key, "corpus": self.corpus.name, "split": self.split})
        return graph

    def _read(self, key: str) -> CooccurrenceGraph:
        graph = CooccurrenceGraph.load(self.path)
        if graph.information.get(VOCABULARY, key) != key:
            raise UserError(
                f"the scene graph {self.path} is over another vocabulary: build it with the experiment of this model"
            )
        return graph


def token_ids(corpus: CorpusDataModule, split: str, vocabulary: Tokenizer) -> Iterator[Sequence[int]]:
    """Yield the ids of one document at a time in a vocabulary that need not be the corpus' own."""
    texts = (document.text for document in corpus.documents(split))
    for block in blocks(texts):
        ids_T, counts_N = vocabulary.encode_many(block)
        yield from np.split(np.asarray(ids_T, dtype=np.int64), np.cumsum(counts_N)[:-1])


def vocabulary_checksum(tokens: Sequence[str]) -> str:
    """Return what tells one vocabulary from another."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16]
