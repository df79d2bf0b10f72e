"""A pretrained encoder-decoder (BART, mBART, T5, Marian, ...) by folder or name, with graphmax in its decoder.

It is tried (sec. 5.2), not trained. Shape letters: B pairs, S source positions, T target positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.translation import TranslationModel


class PretrainedTranslationModule(TranslationModel):
    """Translates as the pretrained model does; special tokens are put where its tokenizer puts them.

    Args:
        vocabulary: the model's own tokenizer (``data/tokenizer=huggingface``).
        path: a folder that ``save_pretrained`` wrote, or a hub name.
        revision: commit on the hub.
        source_language, target_language: the tokenizer's codes (mBART: ``ro_RO``, ``en_XX``); None where it has none.
        task: words before every source sentence (T5: ``translate English to Romanian: ``).
        published: numbers of Algorithm 1.

    Raises:
        UserError: nothing to load there, another tokenizer, an unknown language, or no token to start a translation.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        path: str,
        revision: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        task: str = "",
        published: AlgorithmOne | None = None,
    ):
        super().__init__()
        engine = getattr(vocabulary, "engine", None)
        if engine is None:
            raise UserError("a pretrained translation model needs its own tokenizer: data/tokenizer=huggingface")
        self.vocabulary, self.scene, self.published = vocabulary, None, published
        self.network = _load(path, revision).requires_grad_(False)
        if self.rows < len(vocabulary):
            raise UserError(f"model.path={path} has {self.rows} tokens, its tokenizer {len(vocabulary)}: not a pair")
        for name, code in (("src_lang", source_language), ("tgt_lang", target_language)):
            if code is not None:
                _set_language(engine, name, code)
        self.before, self.after = _around(engine, task)
        self.decoder_start = (*_first(self.network, engine, target_language), *_around(engine, target=True)[0])
        self.silent = frozenset([*engine.all_special_ids, *self.decoder_start])

    def source(self, source_ids_BS: Tensor, mask_source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and mask with the model's special tokens in place of the batch's <eos>."""
        rows = [
            torch.tensor([*self.before, *ids_S[mask_S].tolist()[:-1], *self.after], device=ids_S.device)
            for ids_S, mask_S in zip(source_ids_BS, mask_source_BS, strict=True)
        ]
        ones = [torch.ones_like(row_S, dtype=torch.bool) for row_S in rows]
        padding = float(self.vocabulary.pad_id or 0)
        ids_BS = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
        return ids_BS, nn.utils.rnn.pad_sequence(ones, batch_first=True)

    def configure_optimizers(self) -> None:
        """Nothing is trained."""


def _load(path: str, revision: str | None) -> Any:
    """Return the network in float32; every way in which it can be missing is one line."""
    from transformers import AutoModelForSeq2SeqLM

    try:
        return AutoModelForSeq2SeqLM.from_pretrained(
            path, revision=revision, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"model.path={path}: no encoder-decoder could be loaded ({reason})") from error


def _set_language(engine: Any, name: str, code: str) -> None:
    if not hasattr(engine, name):
        raise UserError(f"{type(engine).__name__} knows no languages: leave model.source_language and .target_language")
    if code not in engine.get_vocab():
        raise UserError(f"{type(engine).__name__} has no language '{code}': use its own codes, such as ro_RO")
    setattr(engine, name, code)


def _around(engine: Any, task: str = "", *, target: bool = False) -> tuple[list[int], list[int]]:
    """Return the ids that stand before and behind a sentence: special tokens, and the words of the task."""
    plain = engine("a", add_special_tokens=False)["input_ids"]
    whole = (engine(text_target="a") if target else engine(task + "a"))["input_ids"]
    for first in range(len(whole) - len(plain), -1, -1):
        if whole[first : first + len(plain)] == plain:
            return whole[:first], whole[first + len(plain) :]
    raise UserError(
        f"model.task={task!r}: the tokenizer joins its end to the sentence; end it with ': ' or leave it out"
    )


def _first(network: Any, engine: Any, target_language: str | None) -> list[int]:
    """Return the token that the decoder starts with."""
    settings = (network.generation_config, network.config)
    found = next(
        (one for one in (getattr(s, "decoder_start_token_id", None) for s in settings) if one is not None), None
    )
    if found is None and target_language is not None:
        found = engine.convert_tokens_to_ids(target_language)
    if found is None:
        raise UserError("the model names no decoder_start_token_id: give model.target_language")
    return [found]
