"""The tokenizer of a pretrained Hugging Face model, by folder or name; its ids come without special tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError


class HuggingFaceTokenizer(Tokenizer):
    """Ids of the text alone: no ``<bos>``, ``<eos>`` or language token is added.

    Args:
        path: a folder with the tokenizer's files, or a name on the hub.
        revision: commit on the hub.
        strip: drop white space around a text, such as the line end of a sentence.

    Raises:
        UserError: none there, or no path.
    """

    kind = "huggingface"

    def __init__(self, *, path: str | None, revision: str | None = None, strip: bool = False) -> None:
        super().__init__()
        self.path, self.revision, self.strip = path, revision, strip
        if path is None:
            raise UserError(
                "no pretrained model chosen: give its folder or hub name (backbone.path, for translation model.path)"
            )
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
        return self._numbers(text.strip() if self.strip else text)

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids_T of all texts concatenated, counts_N); texts are not cut, since the rules may look far ahead."""
        rows = self._numbers([text.strip() for text in texts] if self.strip else list(texts)) if len(texts) else []
        counts_N = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = (number for row in rows for number in row)
        return np.fromiter(ids, dtype=self.dtype, count=int(counts_N.sum())), counts_N

    def _numbers(self, text: str | list[str]) -> Any:
        return self.engine(text, add_special_tokens=False, verbose=False)["input_ids"]

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
        folder = Path(path).expanduser()
        place = str(folder) if folder.is_dir() else path
        if folder.is_dir() and not any((folder / name).is_file() for name in FILES):
            raise FileNotFoundError(f"none of {', '.join(FILES)} there")  # transformers would make up an empty one
        found = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=False)
    except Exception as error:
        # the libraries raise all kinds of errors: OSError, ValueError, KeyError, errors of the hub and of tokenizers
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{key}={path}: no tokenizer could be loaded ({reason}); give the folder that "
            "save_pretrained of model and tokenizer wrote, or a hub name"
        ) from error
    if found.get_vocab() == {}:
        raise UserError(f"{key}={path}: its tokenizer is empty")
    return found
