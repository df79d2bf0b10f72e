"""Byte-level BPE with Hugging Face tokenizers: GPT-2's own tables from a folder or the hub, or tables trained here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from lit_ctg.data.chunk import run_starts
from lit_ctg.data.hub import HubFiles
from lit_ctg.data.source import file_checksum, find_optional, read_json, read_lines
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.limits import Whole

END = "<|endoftext|>"


class ByteBPETokenizer(Tokenizer):
    """What both kinds of table share; every text can be encoded and comes back unchanged.

    ``<|endoftext|>`` is ``bos_id`` and ``eos_id``; there is no unknown token and no padding. In a text it is text.
    """

    starts_of = staticmethod(run_starts)

    def __init__(self) -> None:
        super().__init__()
        # a ``tokenizers.Tokenizer`` once there is a vocabulary
        self.engine: Any = None

    def _take(self, engine: Any) -> None:
        self.engine = engine
        table = engine.get_vocab()
        self._fill(sorted(table, key=table.__getitem__))
        self.bos_id = self.eos_id = table.get(END)

    def state(self) -> dict[str, Any]:
        return {"engine": self.engine.to_str()}

    def restore(self, state: dict[str, Any]) -> None:
        import tokenizers

        self._take(tokenizers.Tokenizer.from_str(state["engine"]))

    def encode(self, text: str) -> list[int]:
        self.engine.encode_special_tokens = True  # a copy of the engine has forgotten it
        return self.engine.encode(text).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self.engine.decode([int(number) for number in ids], skip_special_tokens=False)

    def _pack(self, chunks: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        self.engine.encode_special_tokens = True
        encodings = self.engine.encode_batch_fast([chunk.decode() for chunk in chunks])
        ids = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        lengths_D = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        return np.fromiter(ids, dtype=self.dtype, count=int(lengths_D.sum())), lengths_D


def byte_level(model: Any) -> Any:
    """Return an engine that splits text and names bytes as GPT-2's tokenizer does, given a table of merges."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, pre_tokenizers

    engine = Engine(model)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return engine


class GPT2Tokenizer(ByteBPETokenizer):
    """GPT-2's 50,257 tokens.

    Args:
        root: a folder with encoder.json and vocab.bpe (OpenAI's names) or vocab.json and merges.txt (the hub's), also
        compressed; ``None`` fetches them from the hub.
        repository, revision: where on the hub, with the commit pinned.
    """

    kind = "gpt2"

    def __init__(
        self,
        *,
        root: str | Path | None = None,
        repository: str = "openai-community/gpt2",
        revision: str | None = None,
        cache_root: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.root, self.repository, self.revision, self.cache_root = root, repository, revision, cache_root
        self._files: tuple[Path, Path] | None = None

    def files(self) -> tuple[Path, Path]:
        """Return the paths of the token table and the merge list; ``UserError`` if they are unavailable."""
        if self._files is None:
            self._files = self._hub() if self.root is None else self._local(self.root)
        return self._files

    def _local(self, root: str | Path) -> tuple[Path, Path]:
        table, merges = (
            find_optional(root, names, suffixes=("",))
            for names in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt"))
        )
        if table is None or merges is None:
            raise UserError(f"{root} needs encoder.json and vocab.bpe (or vocab.json and merges.txt, also .xz): "
                            "give data.tokenizer.root=<folder> or use data/tokenizer=bpe")  # fmt: skip
        return table, merges

    def _hub(self) -> tuple[Path, Path]:
        hub = HubFiles(self.repository, self.revision, root=self.cache_root, kind="model")
        try:
            return hub.fetch("vocab.json")[0], hub.fetch("merges.txt")[0]
        except UserError as error:
            reason = str(error).partition(": use data.source")[0]
            raise UserError(f"{reason}; give data.tokenizer.root=<folder with encoder.json and vocab.bpe>, or "
                            "data/tokenizer=bpe to train a tokenizer") from error  # fmt: skip

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": self.kind, "files": [file_checksum(path) for path in self.files()]}

    def train(self, texts: Iterable[str]) -> None:
        if self.trained:
            return
        from tokenizers import models

        table, merges = self.files()
        ids = read_json(table)
        pairs: list[tuple[str, str]] = []
        problem = ""
        # the tokens and their ids from 0 on, each once
        if not isinstance(ids, dict) or set(map(repr, ids.values())) != set(map(repr, range(len(ids)))):
            problem, ids = f"{table} is not a table of tokens with ids counted from 0", {}
        elif END not in ids:
            problem = f"{table} has no {END}: it is not GPT-2's"
        for number, line in enumerate(read_lines(merges) if not problem else (), start=1):
            if line and not line.startswith("#version"):
                left, _, right = line.partition(" ")
                pairs.append((left, right))
                if not {left, right, left + right} <= ids.keys():
                    problem = problem or f"{merges} line {number} does not belong to {table}"
        if problem:
            raise UserError(f"{problem}; fetch both files again")
        self._take(byte_level(models.BPE(vocab=ids, merges=pairs)))


class TrainedBPETokenizer(ByteBPETokenizer):
    """Byte-level BPE trained on the training split; deterministic, so its content is not part of the key.

    Args:
        size: tokens in the vocabulary, including the 256 bytes and ``<|endoftext|>``.
        minimum: pairs seen less often are not merged.
    """

    kind = "bpe"

    def __init__(self, *, size: Annotated[int, Ge(257)], minimum: Whole = 2) -> None:
        super().__init__()
        self.size, self.minimum = size, minimum

    def fingerprint(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {"kind": self.kind, "size": self.size, "minimum": self.minimum, "tokenizers": version("tokenizers")}

    def train(self, texts: Iterable[str]) -> None:
        from tokenizers import models, pre_tokenizers, trainers

        engine = byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=self.size, min_frequency=self.minimum, special_tokens=[END], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        engine.train_from_iterator(texts, trainer)
        self._take(engine)
