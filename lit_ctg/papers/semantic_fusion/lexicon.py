"""User-defined words: a graded lexicon from a file, and the tokens of any tokenizer that spell its words.

A CSV file has the columns ``word``, ``polarity`` and optionally ``strength``, ``class`` and further graded columns; a
YAML file maps each word to the same columns (or only to its polarity)::

    word,polarity,strength,class
    superb,1.0,,praise
    lousy,-0.8,,blame
    very,0,0.8,intensifier

Shape letters: B rows, T positions, W words of the lexicon, L ids of a spelling, V vocabulary.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor, nn

from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import read_yaml
from lit_ctg.limits import Choice, Fraction, check_value, checked

FOLDER = Path(__file__).parent / "words"
VADER = "vader"  # the lexicon of the package vaderSentiment (Hutto and Gilbert, 2014)
VADER_MOST = 4.0  # its grades are from -4 to 4
NO_WORD = -1
# multiplier of the hash for finding spellings, which are then compared id by id
_BASE = 1_000_003


def names() -> str:
    """Return the names of the included lexicons, and of the one in a package."""
    return ", ".join([*sorted(path.stem for path in FOLDER.glob("*.csv")), VADER])


@checked
class Lexicon:
    """Words, each with graded columns and a class.

    Args:
        path: a CSV or YAML file, the name of one of ours (``reviews``), or ``vader``: the words of VADER's lexicon with
            their mean grade as polarity, the classes ``praise`` and ``blame`` (pip install 'lit-ctg[vader]').
        held_out: words kept out of training.
        held_out_share: this share of the words too, from 0 to 1, chosen by a fixed shuffle.

    Attributes:
        words: lower case, in the order of the file.
        columns: name -> W numbers; always ``polarity`` and ``strength`` (0 by default).
        classes: class of each word, "" for none.
        held_out: the words kept out of training.

    Raises:
        UserError: no such file, an empty or repeated word, a value that is not a number or out of range, a held-out
            word that is not in the file; names file and line or word.
    """

    def __init__(self, *, path: str, held_out: Iterable[str] = (), held_out_share: Fraction = 0.0) -> None:
        ours = FOLDER / f"{path}.csv"
        self.path = _vader_file() if path == VADER else ours if ours.is_file() else Path(path).expanduser()
        if not self.path.is_file():
            _refuse(path, f"no such file; give a CSV or YAML file of words, or one of ours ({names()})")
        readers = {".yaml": _read_yaml, ".yml": _read_yaml, ".txt": _read_vader if path == VADER else _read_csv}
        rows = readers.get(self.path.suffix, _read_csv)(self.path)
        if not rows:
            _refuse(path, "no word in it")
        columns = list(dict.fromkeys(["polarity", "strength", *(name for _, row in rows for name in row)]))
        graded = [name for name in columns if name != "class"]
        entries: dict[str, Mapping[str, Any]] = {}
        for (where, word), row in rows:
            word = word.strip().lower()
            if not word:
                _refuse(path, f"{where}: a word is empty")
            if word in entries:
                _refuse(path, f"{where}: '{word}' appears twice")
            entries[word] = {
                **{name: _grade(f"lexicon {path}, {where}: '{word}'", name, row.get(name)) for name in graded},
                "class": str(row.get("class") or ""),
            }
        self.words = tuple(entries)
        self.columns = {name: tuple(entry[name] for entry in entries.values()) for name in graded}
        self.classes = tuple(entry["class"] for entry in entries.values())
        self.held_out = tuple(word.lower() for word in held_out)
        for word in self.held_out:
            if word not in entries:
                hint = did_you_mean(word, entries)
                _refuse(path, f"no word '{word}' to hold out{hint}; set model.bank.lexicon.held_out ([] for none)")
        order = np.random.default_rng(0).permutation(len(self.words))[: round(held_out_share * len(self.words))]
        self.held_out = tuple(dict.fromkeys([*self.held_out, *(self.words[place] for place in sorted(order))]))

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        columns: Mapping[str, Sequence[float]],
        classes: Sequence[str],
        held_out: Iterable[str] = (),
    ) -> Lexicon:
        """Return a lexicon from the checked attributes of another.

        Raises:
            UserError: not as many grades or classes as words.
        """
        made = cls.__new__(cls)
        made.path, made.words, made.classes = Path("of a bundle"), tuple(words), tuple(classes)
        made.columns = {name: tuple(map(float, values)) for name, values in columns.items()}
        made.held_out = tuple(held_out)
        if {len(made.classes), *map(len, made.columns.values())} != {len(made.words)}:
            _refuse(made.path, f"{len(made.words)} words: give each its grades and a class")
        return made

    def column(self, name: str) -> tuple[float, ...]:
        """Return one graded column (``UserError``: no such column)."""
        check_value(f"lexicon {self.path}, column", name, Annotated[str, Choice(self.columns)])
        return self.columns[name]

    def of_class(self, name: str) -> tuple[str, ...]:
        """Return the words of a class (``UserError``: no word has it)."""
        check_value(f"lexicon {self.path}, class", name, Annotated[str, Choice(sorted(set(self.classes) - {""}))])
        return tuple(word for word, kind in zip(self.words, self.classes, strict=True) if kind == name)


def _refuse(path: str | Path, why: str, cause: Exception | None = None) -> NoReturn:
    raise UserError(f"lexicon {path}: {why}") from cause


def _grade(where: str, name: str, value: Any) -> float:
    """Return a grade of a file, 0 for an empty cell."""
    with contextlib.suppress(ValueError):  # refused as the text that it is
        value = float(value or 0) if isinstance(value, str | None) else value
    check_value(f"{where}.{name}", value, Fraction if name == "strength" else Annotated[float, Interval(ge=-1, le=1)])
    return float(value)


Row = tuple[tuple[str, str], dict[str, Any]]  # ((place, word), columns)


def _read_csv(path: Path) -> list[Row]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            header = [str(name).strip() for name in reader.fieldnames or ()]
            if "word" not in header:
                _refuse(path, f"the first line has no column 'word' ({', '.join(header) or 'it is empty'})")
            if len(set(header)) < len(header):
                _refuse(path, f"a column appears twice in the first line ({', '.join(header)})")
            reader.fieldnames = header
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    _refuse(path, f"line {reader.line_num}: it does not have as many columns as the first line")
                word = row.pop("word")
                rows.append(((f"line {reader.line_num}", word), row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        _refuse(path, f"cannot be read as CSV in UTF-8: {error}", error)
    return rows


def _vader_file() -> Path:
    """Return the lexicon's file in the package, which is not imported (``UserError``: it is not installed)."""
    found = importlib.util.find_spec("vaderSentiment")
    places = () if found is None else found.submodule_search_locations or ()
    for place in places:
        if (Path(place) / "vader_lexicon.txt").is_file():
            return Path(place) / "vader_lexicon.txt"
    _refuse(VADER, "needs vaderSentiment: pip install 'lit-ctg[vader]'")


def _read_vader(path: Path) -> list[Row]:
    """Read the words of VADER's lexicon (token, mean, ...), without its emoticons; of two lines of a word the last."""
    rows: dict[str, Row] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        word, grade, *_ = [*line.split("\t"), ""]
        if word.isalpha():
            polarity = float(grade) / VADER_MOST
            kind = "praise" if polarity > 0 else "blame"
            rows[word.lower()] = ((f"line {number}", word), {"polarity": polarity, "class": kind})
    return list(rows.values())


def _read_yaml(path: Path) -> list[Row]:
    content = read_yaml(path, f"lexicon {path}")
    if not isinstance(content, Mapping):
        _refuse(path, "give a mapping from each word to its polarity or its columns")
    rows = []
    for word, entry in content.items():
        if not isinstance(word, str):
            _refuse(path, f"YAML does not read the word {word!r} as text: put it in quotes")
        columns = dict(entry) if isinstance(entry, Mapping) else {"polarity": entry}
        rows.append(((f"entry '{word}'", word), {str(name): value for name, value in columns.items()}))
    return rows


class WordFinder(nn.Module):
    """Finds lexicon words in token ids of any tokenizer: the word, if any, with which the prefix ends.

    A word counts at its last token if a word begins at its first; a longer word does not count (``good`` in
    ``goodness`` counts until the next token shows that the word continues, as for a reader of the prefix).

    Args:
        vocabulary: a tokenizer with ``tokens``, ``encode`` and ``decode``.

    Attributes:
        spellings: word index -> its id sequences; () for a word that the vocabulary cannot spell.

    Raises:
        UserError: the vocabulary cannot spell any word of the lexicon.
    """

    begins_V: Tensor
    ends_open_V: Tensor

    def __init__(self, lexicon: Lexicon, vocabulary: Any) -> None:
        super().__init__()
        self.lexicon = lexicon
        speller = Speller(vocabulary)
        self.spellings = speller.spell_all(lexicon.words, f"lexicon {lexicon.path}")
        self.register_buffer("begins_V", speller.begins_V, persistent=False)
        self.register_buffer("ends_open_V", speller.ends_open_V, persistent=False)
        by_length: dict[int, dict[tuple[int, ...], int]] = {}
        for number, spellings in enumerate(self.spellings):
            for ids in spellings:
                by_length.setdefault(len(ids), {}).setdefault(ids, number)
        self.lengths = sorted(by_length)
        for length, found in by_length.items():
            rows_KL = torch.tensor(list(found))
            order_K = _hash(rows_KL).argsort()
            self.register_buffer(f"rows_{length}", rows_KL[order_K], persistent=False)
            self.register_buffer(f"hashes_{length}", _hash(rows_KL)[order_K], persistent=False)
            self.register_buffer(f"words_{length}", torch.tensor(list(found.values()))[order_K], persistent=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return the index of the word that ends at each position, long [B, T], or -1."""
        return self.spans(ids_BT)[0]

    def whole(self, ids_BT: Tensor) -> Tensor:
        """Return the same for whole texts: without words that the next token continues."""
        word_BT = self.spans(ids_BT)[0]
        known_BT = ids_BT.clamp(min=0, max=len(self.begins_V) - 1)
        goes_on_BT = self.ends_open_V[known_BT[:, :-1]] & ~self.begins_V[known_BT[:, 1:]] & (ids_BT[:, 1:] >= 0)
        return word_BT.masked_fill(nn.functional.pad(goes_on_BT, (0, 1)), NO_WORD)

    def spans(self, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of the word that ends at each position and its number of tokens, long [B, T] each."""
        word_BT, length_BT = torch.full_like(ids_BT, NO_WORD), torch.zeros_like(ids_BT)
        # a model's output may have more rows than its tokenizer has tokens; padding is below 0 and is not a word
        known_BT = ids_BT.clamp(min=0, max=len(self.begins_V) - 1)
        # a first token that could continue a word does not begin one after a token of an open word
        open_BT = self.ends_open_V[known_BT] & (ids_BT >= 0)
        before_BT = nn.functional.pad(open_BT[:, :-1], (1, 0))
        fresh_BT = self.begins_V[known_BT] | ~before_BT
        for length in self.lengths:
            if length > ids_BT.shape[1]:
                break
            windows = ids_BT.unfold(1, length, 1)  # [B, T - L + 1, L]
            hashes, rows, words = (getattr(self, f"{name}_{length}") for name in ("hashes", "rows", "words"))
            place = torch.searchsorted(hashes, _hash(windows).contiguous()).clamp(max=len(hashes) - 1)
            found = (rows[place] == windows).all(-1) & fresh_BT[:, : windows.shape[1]]
            word_BT[:, length - 1 :] = torch.where(found, words[place], word_BT[:, length - 1 :])
            length_BT[:, length - 1 :] = torch.where(found, length, length_BT[:, length - 1 :])
        return word_BT, length_BT


# characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class Speller:
    """A tokenizer's spellings of words: with and without a space before, in lower case, capitalised, in capitals.

    Words of scripts that put no spaces between words (``UNSPACED``) are spelled without, and begin anywhere.
    """

    def __init__(self, vocabulary: Any) -> None:
        self.vocabulary = vocabulary
        tokens = vocabulary.tokens
        # a vocabulary of words has no token that begins with a space or its stand-in
        marked = [token[:1] in (" ", "\u0120", "\u2581") for token in tokens]
        self.by_word = not any(marked)
        # as read, not as stored (a line end of a byte-level tokenizer is stored as a letter)
        texts = list(tokens) if self.by_word else [vocabulary.decode([number]) for number in range(len(tokens))]
        # a mark such as "." neither continues a word nor lets one continue after it
        begins = [
            self.by_word or mark or not text[:1].isalnum() or bool(UNSPACED.match(text))
            for mark, text in zip(marked, texts, strict=True)
        ]
        self.begins_V = torch.tensor(begins)
        self.ends_open_V = torch.tensor(
            [not self.by_word and text[-1:].isalnum() and not UNSPACED.match(text[-1:]) for text in texts]
        )
        self.unknown = getattr(vocabulary, "unknown_id", None)

    def spell(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return the id sequences of a word inside a text, each once."""
        forms = dict.fromkeys((word, word.capitalize(), word.upper()))
        alone = self.by_word or UNSPACED.match(word)
        texts = [text for form in forms for text in ((form,) if alone else (f" {form}", form))]
        found = []
        for ids in map(tuple, ids_behind(self.vocabulary, "" if self.by_word else "(", texts)):
            # some tokenizers lose the space or fold case: decoding must return the word
            if ids and self.unknown not in ids and self.vocabulary.decode(ids).strip().lower() == word.lower():
                found.append(ids)
        return tuple(dict.fromkeys(found))

    def spell_all(self, words: Sequence[str], where: str) -> list[tuple[tuple[int, ...], ...]]:
        """Return the id sequences of each word.

        Raises:
            UserError: the tokenizer can spell none of them; names ``where`` they come from.
        """
        spellings = [self.spell(word) for word in words]
        if not any(spellings):
            raise UserError(f"{where}: the tokenizer spells none of its words: use one in its language")
        return spellings


def _hash(ids: Tensor) -> Tensor:
    """Return one number for the last axis; int64 overflow wraps around harmlessly."""
    value = torch.zeros_like(ids[..., 0])
    for column in ids.unbind(-1):
        value = value * _BASE + column + 1
    return value


def table_of(values: Sequence[float]) -> Tensor:
    """Return word values [W + 1] indexed by word; the last row (-1, no word) is 0."""
    return torch.tensor([*values, 0.0])
