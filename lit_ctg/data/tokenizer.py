"""Tokenizers with one interface: words at white space, spaCy's English words, and (``byte_pair.py``) byte-level BPE.

``encode`` is the plain definition; ``encode_many`` gives the same ids for many texts at once and is what packing uses.
"""

from __future__ import annotations

import abc
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from lit_ctg.data.chunk import Chunks, ChunkTable, word_starts
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.limits import Checked, Count, Whole

# one word with the white space after it: what spaCy's rules look at
_PIECES = re.compile(rb"\S+\s*|\s+")
MEMO_LIMIT = 500_000
BLOCK_CHARACTERS = 2**22


def blocks(texts: Iterable[str], characters: int = BLOCK_CHARACTERS) -> Iterator[list[str]]:
    """Group texts into lists of about ``characters`` to bound memory use."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= characters:
            yield block
            block, size = [], 0
    if block:
        yield block


class Tokenizer(Checked, abc.ABC):
    """Text to ids and back.

    Attributes:
        tokens: the vocabulary in id order (filled by ``train`` or ``restore``).
        unknown_id, pad_id, bos_id, eos_id: ids of the special tokens, ``None`` where the vocabulary has none.
    """

    kind: str
    starts_of: Callable[[np.ndarray], np.ndarray] = staticmethod(word_starts)

    def __init__(self) -> None:
        self.tokens: tuple[str, ...] = ()
        self._ids: dict[str, int] = {}
        self._table = ChunkTable()
        self.unknown_id = self.pad_id = self.bos_id = self.eos_id = None  # type: int | None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trained(self) -> bool:
        """Whether there is a vocabulary."""
        return bool(self.tokens)

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type that can hold every id."""
        return np.dtype("<u2" if len(self) <= 2**16 else "<u4")

    def id(self, token: str) -> int:
        """Return the id of a token of the vocabulary; ``UserError`` names an unknown one."""
        if token not in self._ids:
            hint = did_you_mean(token, self.tokens)
            raise UserError(f"'{token}' is not in the vocabulary ({len(self)} tokens){hint}")
        return self._ids[token]

    def _fill(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        self._table = ChunkTable(self.dtype)
        named = {name: self._ids.get(f"<{name}>") for name in ("unk", "pad", "bos", "eos")}
        self.unknown_id, self.pad_id, self.bos_id, self.eos_id = named.values()

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return plain values that, with the corpus, determine every id: part of the key of a packed corpus."""

    @abc.abstractmethod
    def train(self, texts: Iterable[str]) -> None:
        """Build the vocabulary from the training split, read once; does nothing for a ready-made tokenizer."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Return plain values from which ``restore`` rebuilds the same vocabulary."""

    @abc.abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` returned."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids."""

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids_T of all texts concatenated, counts_N): the same ids as ``encode`` gives for each text."""
        if len(self._table) > MEMO_LIMIT:
            self._table = ChunkTable(self.dtype)
        table, chunks = self._table, self.chunks(texts)
        numbers_C = table.numbers(chunks)
        if new := table.new():
            table.fill(*self._pack(new))
        return table.gather(numbers_C, chunks.sizes_N)

    def chunks(self, texts: Sequence[str]) -> Chunks:
        """Cut texts into pieces that are tokenized independently."""
        return Chunks([self._bytes(text) for text in texts], self.starts_of)

    def _bytes(self, text: str) -> bytes:
        return text.encode()

    @abc.abstractmethod
    def _pack(self, chunks: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids (of ``dtype``) of all chunks concatenated, and how many each has."""


class WordTokenizer(Tokenizer):
    """Words separated by ASCII white space; the vocabulary is that of the training split, most frequent first.

    A word of a text that is spelled like a special token becomes ``<unk>``, as ``<unk>`` itself does.

    Args:
        eol: the token of every line end (WikiText: ``<eos>``); ``None`` drops line ends.
        minimum: a word seen less often becomes ``<unk>``.
        size: keep at most this many tokens, specials included; ``None`` keeps all.
        specials: tokens put first whether or not the text holds them.
    """

    kind = "word"

    def __init__(
        self,
        *,
        lower: bool = False,
        eol: str | None = "<eos>",
        minimum: Whole = 1,
        size: Count | None = None,
        specials: Sequence[str] = ("<unk>",),
    ) -> None:
        super().__init__()
        self.lower, self.eol, self.minimum, self.size = lower, eol, minimum, size
        self._line_end = f" {eol} ".encode()
        self.specials = tuple(dict.fromkeys([*specials, *([eol] if eol else [])]))
        self._quoted = [word.encode() for word in {*self.specials, "<pad>", "<bos>", "<eos>"} - {"<unk>"}]
        kept = self.specials[:size]
        if "<unk>" not in specials or len(kept) < len(self.specials):
            raise UserError(
                f"data.tokenizer: size={size} and specials={list(specials)}: there must be '<unk>', for words outside "
                f"the training split, and room for {', '.join(self.specials)}; pass more, or size=null"
            )

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": self.kind, "lower": self.lower, "eol": self.eol, "minimum": self.minimum, "size": self.size,
                "specials": list(self.specials)}  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens)}

    def restore(self, state: dict[str, Any]) -> None:
        self._fill(state["tokens"])

    def _bytes(self, text: str) -> bytes:
        if self.lower:
            text = text.lower()
        data = text.encode()
        for word in self._quoted:  # the word of a text, not the special token
            if word in data:
                data = re.sub(rb"(?<!\S)" + re.escape(word) + rb"(?!\S)", b"<unk>", data)
        if self.eol is not None:
            data = data.replace(b"\n", self._line_end)
        # leading white space would be a chunk without a word
        return data.lstrip()

    def _words(self, chunk: bytes) -> list[str]:
        return [word.decode() for word in chunk.split()]

    def _split(self, chunks: Sequence[bytes]) -> tuple[list[str], np.ndarray]:
        """Return the words of all chunks and how many each has: here always one (``word_starts``, ``_bytes``)."""
        return list(map(bytes.decode, b" ".join(chunks).split())), np.ones(len(chunks), dtype=np.int64)

    def train(self, texts: Iterable[str]) -> None:
        table = ChunkTable()
        for block in blocks(texts):
            table.count(self.chunks(block))
        self.learn(table)

    def learn(self, table: ChunkTable) -> None:
        """Build the vocabulary from the counts of ``table``, and fill in the ids of its chunks."""
        words, lengths_K = self._split(table.new())
        counts: dict[str, int] = {}
        for word, count in zip(words, np.repeat(table.counts_K, lengths_K).tolist(), strict=True):
            counts[word] = counts.get(word, 0) + count
        for special in self.specials:
            counts.pop(special, None)
        # most frequent first, ties in alphabetical order (many short sorts are faster than one over pairs)
        groups: dict[int, list[str]] = {}
        for word, count in counts.items():
            if count >= self.minimum:
                groups.setdefault(count, []).append(word)
        tokens = [*self.specials]
        for count in sorted(groups, reverse=True):
            tokens += sorted(groups[count])
        self._fill(tokens if self.size is None else tokens[: self.size])
        table.fill(self._numbered(words), lengths_K)
        if len(table) <= MEMO_LIMIT:
            self._table = table

    def encode(self, text: str) -> list[int]:
        assert self.unknown_id is not None, "__init__ insists on '<unk>'"
        return [self._ids.get(word, self.unknown_id) for word in self._words(self._bytes(text))]

    def decode(self, ids: Iterable[int]) -> str:
        lines: list[list[str]] = [[]]
        for number in ids:
            if self.tokens[number] == self.eol:
                lines.append([])
            else:
                lines[-1].append(self.tokens[number])
        return "\n".join(" ".join(line) for line in lines)

    def _pack(self, chunks: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        words, lengths_D = self._split(chunks)
        return self._numbered(words), lengths_D

    def _numbered(self, words: Sequence[str]) -> np.ndarray:
        return np.fromiter(map(self._ids.get, words, repeat(self.unknown_id)), dtype=self.dtype, count=len(words))


class SpacyTokenizer(WordTokenizer):
    """spaCy's rules for English words (a blank pipeline, no model), line by line.

    Args:
        lower: fold case first, as the control-code paper's counts show its authors did.
        eol: the token of every line end; ``None`` drops line ends.
        whitespace: keep spaCy's white-space tokens (runs of more than one space), as the authors did.
    """

    kind = "spacy"

    def __init__(self, *, lower: bool = True, eol: str | None = None, whitespace: bool = False, **options: Any) -> None:
        super().__init__(lower=lower, eol=eol, **options)
        self.whitespace = whitespace
        self._rules: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # data loader workers get no copy of the rules: they are rebuilt where needed
        return {**self.__dict__, "_rules": None}

    def fingerprint(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {**super().fingerprint(), "whitespace": self.whitespace, "spacy": version("spacy")}

    def _bytes(self, text: str) -> bytes:
        return (text.lower() if self.lower else text).encode()

    def _words(self, chunk: bytes) -> list[str]:
        if self._rules is None:
            import spacy

            self._rules = spacy.blank("en").tokenizer
        words: list[str] = []
        for piece in _PIECES.findall(chunk):
            for number, part in enumerate(piece.decode().split("\n")):
                if number and self.eol is not None:
                    words.append(self.eol)
                if part.strip() == "<unk>":
                    words.append("<unk>")
                else:
                    words += [token.text for token in self._rules(part) if self.whitespace or not token.is_space]
        return words

    def _split(self, chunks: Sequence[bytes]) -> tuple[list[str], np.ndarray]:
        # one list, not one per chunk: a hundred thousand lists would keep the garbage collector busy
        words, ends = list[str](), [0]
        for chunk in chunks:
            words += self._words(chunk)
            ends.append(len(words))
        return words, np.diff(ends)


# Tokenizers of the Llama family put a space before every text, and decoding drops the space that a text begins with. So
# the tokens of a text depend on whether a word precedes it, and so does the text of a token.


def ids_behind(tokenizer: Tokenizer, before: str, texts: Sequence[str]) -> list[list[int]]:
    """Tokenize each text as it appears after ``before``.

    If a token spans both, or ``before`` holds an unknown token, the text is tokenized alone.
    """
    first = list(tokenizer.encode(before))
    first = [] if tokenizer.unknown_id in first else first

    def rows(wholes: Sequence[str]) -> list[list[int]]:
        ids_T, counts_N = tokenizer.encode_many(wholes)
        return [part.tolist() for part in np.split(ids_T, np.cumsum(counts_N)[:-1])] if len(wholes) else []

    found = rows([before * bool(first) + text for text in texts])
    shared = [place for place, ids in enumerate(found) if ids[: len(first)] != first or len(ids) == len(first)]
    found = [ids[len(first) :] for ids in found]
    for place, ids in zip(shared, rows([texts[place] for place in shared]), strict=True):
        found[place] = ids
    return found


def texts_behind(tokenizer: Any, special: Collection[int | None] = ()) -> list[str]:
    """Return the text of every token behind another one, with the space that it begins with or gets.

    Args:
        tokenizer: with ``decode`` and a length: ours or Hugging Face's.
        special: ids that cannot be the other one.
    """
    count = len(tokenizer)
    alone = ((number, tokenizer.decode([number])) for number in range(count) if number not in special)
    # half a character decodes to U+FFFD alone and to something else with its other half
    before = [number for number, text in itertools.islice((each for each in alone if _is_whole(each[1])), 1)]
    start = len(tokenizer.decode(before)) if before else 0
    return [tokenizer.decode([*before, number])[start:] for number in range(count)]


def _is_whole(text: str) -> bool:
    return bool(text.strip()) and "\ufffd" not in text
