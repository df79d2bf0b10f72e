"""What controls do to a text, token by token: how likely it is with them, without them, and without each of them.

The controlled and the bare text are drawn with the same random numbers. An effect is a difference of log P of the token
that was drawn, in nats: between all controls and none, and between all controls and all but one. What two controls do
jointly is counted for both, so effects need not add up.

Shape letters: B ways to set the controls, T tokens of a continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.generation import Controls, GeneratedText, Writer


@dataclass(frozen=True)
class TokenEffect:
    """One token of the controlled text.

    Attributes:
        text: what it adds to the text.
        bare: its log P without controls, nats; -inf where it could not have been drawn.
        controlled: its log P with them.
        by: how much each active control raised (above 0) or lowered the token's log P, nats.
    """

    text: str
    id: int
    bare: float
    controlled: float
    by: Mapping[str, float]

    @property
    def raised(self) -> float:
        """By how many nats all controls together raised the token; inf if it could not have been drawn without them."""
        return self.controlled - self.bare


@dataclass(frozen=True)
class Comparison:
    """A controlled text beside the bare one with the same draws.

    Attributes:
        controlled, bare: the texts; their ``control`` holds the controls of each.
        tokens: the continuation of the controlled text.
    """

    controlled: GeneratedText
    bare: GeneratedText
    tokens: tuple[TokenEffect, ...]


def compare(
    generator: Writer[Any],
    prompt: str = "",
    control: Controls | None = None,
    *,
    seed: int,
    routes: Collection[str] | None = None,
    max_new_tokens: int | None = None,
    watch: Callable[[str, str], None] | None = None,
) -> Comparison:
    """Continue a prompt with and without controls, and return what they did to each token.

    Args:
        control: values by name; the others have their defaults.
        seed: of both texts; where the controls do nothing the texts are the same.
        routes: the routes the controls take, where a paper has several.
        max_new_tokens: instead of the generator's own.
        watch: called before every token with both texts so far.
    """
    begin, given = generator.prompt_ids(prompt), dict(control or {})

    def show(ids_BT: Tensor) -> None:
        assert watch is not None
        if ids_BT.shape[1] >= len(begin):
            rows = [ids[: _end(ids, len(begin), generator.eos_id)] for ids in ids_BT.tolist()]
            watch(*(generator.text(ids, len(begin), {}).text for ids in rows))

    controlled, bare = generator.generate(
        2,
        prompt,
        [given, generator.bare()],
        routes=routes,
        seed=seed,
        rows=[0, 0],
        max_new_tokens=max_new_tokens,
        watch=None if watch is None else show,
    )
    return Comparison(controlled, bare, effects(generator, prompt, controlled, bare, routes=routes))


def _end(ids: Sequence[int], start: int, eos_id: int) -> int:
    """Return where a row ends: after its end-of-text token, else after its last id."""
    return next((place + 1 for place in range(start, len(ids)) if ids[place] == eos_id), len(ids))


def effects(
    generator: Writer[Any],
    prompt: str,
    controlled: GeneratedText,
    bare: GeneratedText,
    *,
    routes: Collection[str] | None = None,
) -> tuple[TokenEffect, ...]:
    """Return the effects of one text's controls on each of its tokens, relative to the other text's controls."""
    full, none = dict(controlled.control), dict(bare.control)
    active = [name for name, value in full.items() if value != none.get(name)]
    ways = [full, none, *(_without(name, full, none) for name in active)]
    ids = list(controlled.ids[controlled.prompt_length :])
    log_BT = generator.log_probs(prompt, ids, ways, routes=routes)
    found = []
    for place, (number, text) in enumerate(zip(ids, _pieces(generator, prompt, ids), strict=True)):
        log_B = log_BT[:, place].tolist()
        by = {name: log_B[0] - without for name, without in zip(active, log_B[2:], strict=True)}
        found.append(TokenEffect(text, number, log_B[1], log_B[0], by))
    return tuple(found)


def _without(name: str, full: Mapping[str, Any], none: Mapping[str, Any]) -> dict[str, Any]:
    """Return the controls of a text with one of them set as in the bare text."""
    left = {other: value for other, value in full.items() if other != name}
    if name in none:
        left[name] = none[name]
    return left or dict(none)


def _pieces(generator: Writer[Any], prompt: str, ids: Sequence[int]) -> list[str]:
    """Return what each token adds to the text."""
    begin, before, pieces = generator.prompt_ids(prompt), "", []
    for stop in range(len(ids) + 1):
        text = generator.text([*begin, *ids[:stop]], len(begin), {}).text
        if stop:
            same = next((k for k, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), len(before))
            pieces.append(text[min(same, len(text)) :])
        before = text
    return pieces


def strength_curve(
    generator: Writer[Any],
    prompt: str,
    texts: Sequence[GeneratedText],
    name: str,
    values: Sequence[float],
    *,
    routes: Collection[str] | None = None,
) -> list[list[float]]:
    """Return each text's mean log P per token, nats, under each value of one control; the first text's others are kept.

    Exact, without sampling; a text with a token that a value excludes has ``-inf`` there.
    """
    ways = [{**texts[0].control, name: value} for value in values]
    curves = []
    for text in texts:
        ids = list(text.ids[text.prompt_length :])
        log_BT = generator.log_probs(prompt, ids, ways, routes=routes)
        curves.append((log_BT.mean(dim=1) if ids else torch.zeros(len(ways))).tolist())
    return curves
