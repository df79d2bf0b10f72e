"""Texts and conversations as ids in which no special token comes from a text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lit_ctg.errors import UserError, one_line

ROLES = ("system", "user", "assistant")
# replaces the content of a message while its template is written: characters that no template has
_MARK = "\ue000{}\ue001"


def check_messages(messages: Any, where: str) -> list[dict[str, str]]:
    """Return a conversation that ends with the user's message."""
    shape = isinstance(messages, Sequence) and not isinstance(messages, str) and len(messages) > 0
    for message in messages if shape else [None]:
        given = message if isinstance(message, Mapping) else {}
        if set(given) != {"role", "content"} or given["role"] not in ROLES or not isinstance(given["content"], str):
            raise UserError(
                f'{where}: give messages as [{{"role": "user", "content": "..."}}], the roles are {", ".join(ROLES)}'
            )
    if messages[-1]["role"] != "user":
        raise UserError(f"{where}: the last message is to be the user's, which the model answers")
    return [dict(message) for message in messages]


def chat_ids(tokenizer: Any, messages: Any, system: str | None = None, where: str = "messages") -> list[int]:
    """Return a conversation in the model's chat template, up to where its reply begins.

    A message that quotes a special token (``<|im_end|>``) does not contain it: it is tokenized on its own.

    Args:
        messages: mappings with ``role`` and ``content``, or a text, the user's only message.
        system: another first message, of the role system.
        where: the setting or line that messages name.

    Raises:
        UserError: not such messages, or a tokenizer without a template or whose template refuses them.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(f"{where}: the model has no chat template: give prompt=, or an instruct model such as smollm2")
    checked = check_messages([{"role": "user", "content": messages}] if isinstance(messages, str) else messages, where)
    if system is not None:
        if checked[0]["role"] == "system":
            raise UserError(f"{where}: system= and a message of the role system: leave one out")
        checked.insert(0, {"role": "system", "content": system})

    def written(contents: Sequence[str]) -> str:
        named = [{**message, "content": content} for message, content in zip(checked, contents, strict=True)]
        try:
            return str(tokenizer.apply_chat_template(named, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template raises whatever it likes
            raise UserError(f"{where}: the model's chat template refuses them ({one_line(error)[:120]})") from error

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    contents = [message["content"] for message in checked]
    whole, quotes = written(contents), quoted_special(tokenizer)
    if len(quotes.findall(whole)) == len(quotes.findall(written(["x"] * len(checked)))):
        return ids(whole)
    marks = {_MARK.format(number): content for number, content in enumerate(contents)}
    parts = re.split(f"({'|'.join(marks)})", written(list(marks)))
    found = [text_ids(tokenizer, [marks[part]])[0] if part in marks else ids(part) for part in parts if part]
    return [number for part in found for number in part]


def text_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts alone: one that quotes a special token (``<|im_end|>``) does not contain it.

    Only the unknown token keeps its id, since corpora of words write it.
    """
    rows = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if len(texts) else []
    quotes = quoted_special(tokenizer)
    return [_quoting(tokenizer, text, quotes) if quotes.search(text) else row
            for text, row in zip(texts, rows, strict=True)]  # fmt: skip


def quoted_special(tokenizer: Any) -> re.Pattern[str]:
    """Return what finds the names of special tokens in a text, but not that of the unknown token."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    names = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
    return re.compile("|".join(map(re.escape, sorted(names - {_unknown(tokenizer)}, reverse=True))) or "(?!)", re.I)


def _unknown(tokenizer: Any) -> str | None:
    """Return the unknown token, None if it also means something else, as in GPT-2."""
    others = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    return None if tokenizer.unk_token in others else tokenizer.unk_token


def _quoting(tokenizer: Any, text: str, quotes: re.Pattern[str]) -> list[int]:
    """Return the ids of a text that quotes special tokens."""
    special = set(tokenizer.convert_tokens_to_ids(quotes.findall(text)))
    unknown, ids = _unknown(tokenizer), list[int]()

    def plain(part: str) -> list[int]:
        return list(tokenizer(part, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"])

    for number, part in enumerate(text.split(unknown) if unknown else [text]):
        ids += [tokenizer.unk_token_id] * (number > 0)
        found = plain(part)
        if special & set(found):  # vocabularies of words and of SentencePiece also have them among their texts
            cuts = [0, *(quote.start() + 1 for quote in quotes.finditer(part)), len(part)]
            found = [each for start, end in itertools.pairwise(cuts) for each in plain(part[start:end])]
        ids += found
    return ids
