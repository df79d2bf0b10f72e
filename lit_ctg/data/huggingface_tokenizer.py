"""Hugging Face tokenizers: a pretrained model's, by folder or name, without special tokens; and ours as fast ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_ctg.core.chat import text_ids
from lit_ctg.data.byte_pair import ByteBPETokenizer
from lit_ctg.data.tokenizer import SpacyTokenizer, Tokenizer, WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.limits import Pretrained
from lit_ctg.network.pretrained import resolve


class HuggingFaceTokenizer(Tokenizer):
    """Ids of the text alone: no ``<bos>``, ``<eos>`` or language token is added, none is read from a text.

    Args:
        path: a folder with the tokenizer's files, or another name of a model (``network.pretrained.resolve``).
        strip: drop white space around a text, such as the line end of a sentence.

    Raises:
        UserError: none there, or no path.
    """

    kind = "huggingface"

    def __init__(self, *, path: Pretrained, revision: str | None = None, strip: bool = False) -> None:
        super().__init__()
        self.path: str | None = path
        self.revision, self.strip = revision, strip
        self._use(load(path, revision))

    @classmethod
    def of(cls, engine: Any) -> HuggingFaceTokenizer:
        """Wrap a tokenizer that is already loaded."""
        made = cls.__new__(cls)
        Tokenizer.__init__(made)
        made.path, made.revision, made.strip = None, None, False
        made._use(engine)
        made.train([])
        return made

    def _use(self, engine: Any) -> None:
        self.engine = engine
        table = engine.get_vocab()
        words = {number: token for token, number in table.items()}
        # an unused id still takes a place, or later ids would shift
        self._names = tuple(words.get(number, f"<id {number}>") for number in range(max(words) + 1))

    def fingerprint(self) -> dict[str, Any]:
        backend = getattr(self.engine, "backend_tokenizer", None)
        # a tokenizer without a backend has its rules in its class
        rules = type(self.engine).__name__ if backend is None else backend.to_str()
        content = "\n".join([rules, *self._names])
        return {"kind": self.kind, "strip": self.strip, "checksum": hashlib.sha256(content.encode()).hexdigest()}

    def train(self, texts: Iterable[str]) -> None:
        if not self.trained:
            self._take()

    def state(self) -> dict[str, Any]:
        return {"size": len(self)}

    def restore(self, state: dict[str, Any]) -> None:
        self._take()

    def _take(self) -> None:
        self._fill(self._names)
        self.unknown_id, self.pad_id = self.engine.unk_token_id, self.engine.pad_token_id
        self.bos_id, self.eos_id = self.engine.bos_token_id, self.engine.eos_token_id
        if self.unknown_id == self.eos_id:
            self.unknown_id = None  # GPT-2 names an unknown token, but its bytes cover every text

    def encode(self, text: str) -> list[int]:
        return text_ids(self.engine, [text.strip() if self.strip else text])[0]

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids_T of all texts concatenated, counts_N); texts are not cut, since the rules may look far ahead."""
        rows = text_ids(self.engine, [text.strip() for text in texts] if self.strip else texts)
        counts_N = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = (number for row in rows for number in row)
        return np.fromiter(ids, dtype=self.dtype, count=int(counts_N.sum())), counts_N

    def decode(self, ids: Iterable[int]) -> str:
        return self.engine.decode([int(number) for number in ids], clean_up_tokenization_spaces=False)

    def _pack(self, chunks: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        return self.encode_many([chunk.decode() for chunk in chunks])


# one of these is in every folder that a tokenizer was saved to
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")


def load(path: str, revision: str | None = None, key: str = "data.tokenizer.path") -> Any:
    """Return the tokenizer; every way in which it can be missing gives one line that names the setting ``key``.

    Raises:
        UserError: no such folder or name, or no tokenizer there.
    """
    from transformers import AutoTokenizer

    try:
        folder = Path(place := resolve(path, key))
        if folder.is_dir() and not any((folder / name).is_file() for name in FILES):
            raise FileNotFoundError(f"none of {', '.join(FILES)} there")  # transformers would make up an empty one
        found = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=False)
        if found.get_vocab() == {}:
            raise ValueError("it is empty")
        return found
    except UserError:
        raise
    except Exception as error:
        # the libraries raise all kinds of errors: OSError, ValueError, KeyError, errors of the hub and of tokenizers
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{key}={path}: no tokenizer could be loaded ({reason}); give the folder that "
            "save_pretrained of model and tokenizer wrote, or a hub name"
        ) from error


SPACY = (
    "Words were cut by spaCy's English rules, which the tokenizers library does not have: this tokenizer cuts at "
    "white space, so give it text whose words and marks spaCy has put blanks between."
)


def fast_tokenizer(vocabulary: Any, longest: int | None = None) -> tuple[Any, str]:
    """Return a ``PreTrainedTokenizerFast`` with the ids of a vocabulary, and a note for the user ("" if not needed).

    Args:
        longest: number of positions of the model.

    Raises:
        UserError: another kind of tokenizer.
    """
    from transformers import PreTrainedTokenizerFast

    limits = {} if longest is None else {"model_max_length": longest}
    if isinstance(vocabulary, HuggingFaceTokenizer):
        return vocabulary.engine, ""
    if isinstance(vocabulary, ByteBPETokenizer):
        end = vocabulary.tokens[vocabulary.eos_id]  # type: ignore[index] # every table of ours has one
        names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
        return PreTrainedTokenizerFast(tokenizer_object=vocabulary.engine, **names, **limits), ""
    if not isinstance(vocabulary, WordTokenizer):
        raise UserError(
            f"data.tokenizer={getattr(vocabulary, 'kind', type(vocabulary).__name__)} has no fast tokenizer"
        )
    ids = {"unk_token": vocabulary.unknown_id, "pad_token": vocabulary.pad_id, "bos_token": vocabulary.bos_id,
           "eos_token": vocabulary.eos_id}  # fmt: skip
    specials = {name: vocabulary.tokens[number] for name, number in ids.items() if number is not None}
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    table = {token: number for number, token in enumerate(vocabulary.tokens)}
    engine = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if vocabulary.lower else []
    if vocabulary.eol is not None:
        steps.append(normalizers.Replace("\n", f" {vocabulary.eol} "))
        # words with spaces between them, but not at line ends; no word begins with the mark of a piece
        joined = decoders.WordPiece(prefix="\uffff", cleanup=False)
        lines = decoders.Replace(Regex(f" ?{re.escape(vocabulary.eol)} ?"), "\n")
        engine.decoder = decoders.Sequence([joined, decoders.Fuse(), lines])
    if steps:
        engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[ \t\n\r\x0b\x0c]+"), "removed")
    made = PreTrainedTokenizerFast(tokenizer_object=engine, **specials, **limits)
    return made, SPACY if isinstance(vocabulary, SpacyTokenizer) else ""
