"""Our tokenizers as fast Hugging Face tokenizers, with the same ids."""

from __future__ import annotations

import re
from typing import Any

from lit_ctg.data.byte_pair import ByteBPETokenizer
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer
from lit_ctg.errors import UserError

SPACY = (
    "Words were cut by spaCy's English rules, which the tokenizers library does not have: this tokenizer cuts at "
    "white space, so give it text whose words and marks spaCy has put blanks between."
)


def fast_tokenizer(vocabulary: Any, longest: int | None = None) -> tuple[Any, str]:
    """Return a ``PreTrainedTokenizerFast`` with the ids of a vocabulary, and a note for the user ("" if not needed).

    Args:
        vocabulary: one of our tokenizers.
        longest: number of positions of the model.

    Raises:
        UserError: another kind of tokenizer.
    """
    from transformers import PreTrainedTokenizerFast

    told = {} if longest is None else {"model_max_length": longest}
    if isinstance(vocabulary, HuggingFaceTokenizer):
        return vocabulary.engine, ""
    if isinstance(vocabulary, ByteBPETokenizer):
        end = vocabulary.tokens[vocabulary.eos_id]  # type: ignore[index] # every table of ours has one
        names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
        return PreTrainedTokenizerFast(tokenizer_object=vocabulary.engine, **names, **told), ""
    if not isinstance(vocabulary, WordTokenizer):
        raise UserError(
            f"data.tokenizer={getattr(vocabulary, 'kind', type(vocabulary).__name__)} has no fast tokenizer"
        )
    ids = {"unk_token": vocabulary.unknown_id, "pad_token": vocabulary.pad_id, "bos_token": vocabulary.bos_id,
           "eos_token": vocabulary.eos_id}  # fmt: skip
    specials = {name: vocabulary.tokens[number] for name, number in ids.items() if number is not None}
    made = PreTrainedTokenizerFast(tokenizer_object=word_engine(vocabulary), **specials, **told)
    return made, SPACY if isinstance(vocabulary, SpacyTokenizer) else ""


def word_engine(vocabulary: WordTokenizer) -> Any:
    """Return the ``tokenizers.Tokenizer`` that splits as ``WordTokenizer`` does: at ASCII white space."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    table = {token: number for number, token in enumerate(vocabulary.tokens)}
    engine = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if vocabulary.lower else []
    if vocabulary.eol is not None:
        steps.append(normalizers.Replace("\n", f" {vocabulary.eol} "))
        # words with spaces between them, which stand at no line end; no word begins with the mark of a piece
        joined = decoders.WordPiece(prefix="\uffff", cleanup=False)
        lines = decoders.Replace(Regex(f" ?{re.escape(vocabulary.eol)} ?"), "\n")
        engine.decoder = decoders.Sequence([joined, decoders.Fuse(), lines])
    if steps:
        engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[ \t\n\r\x0b\x0c]+"), "removed")
    return engine
