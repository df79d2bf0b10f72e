"""The common contract of generation: a paper's controls, the rules they make, and the description of a text.

A paper gives a :class:`Generator`: its ``controls`` (names, ranges, defaults), its ``routes`` where a control has
several, and how they become score rules. Everything else is here: one control or prompt for all texts or one each,
unknown names and values out of range refused with one line, prompts that do not fit, the batched loop, a row's draws
that depend on (seed, row) alone.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError, check_known, check_number, did_you_mean, refuse

NO_END = -1  # an id that no token has: texts end only at their length
# of a control's value whose setting declares no range: beyond it half precision overflows
LARGEST = 1e4
Controls = Mapping[str, Any]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run without dropout; every part of the module then returns to its previous mode."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


@dataclass(frozen=True)
class ControlSetting:
    """One control that a user can set: ``control.<name>=<value>``.

    Attributes:
        name: as the command line spells it.
        meaning: one line for help and error messages.
        default: the value where the user sets none; None: nothing is set, the model runs uncontrolled.
        low, high: the range of a number, ends included.
        choices: the words it takes instead of a number.
        of_names: the value is a mapping (``control.mix.news=0.5``); the paper checks its values.
        off: the value that turns the control off; None: it is off when left out, or only modifies other controls.
    """

    name: str
    meaning: str
    default: Any = None
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    of_names: bool = False
    off: Any = None

    def checked(self, value: Any, key: str = "") -> Any:
        """Return a user's value, a number as a float.

        Args:
            key: name of the setting in messages; ``control.<name>`` by default.

        Raises:
            UserError: not a number, out of range, not one of the choices.
        """
        key = key or f"control.{self.name}"
        if self.choices or self.of_names:
            words, named = ", ".join(self.choices), isinstance(value, Mapping) and bool(value)
            hint = did_you_mean(str(value), self.choices)
            refuse({
                f"{key}={value}: use one of {words}{hint}": self.choices and value not in self.choices,
                f"{key}={value}: give a number for each name, {key}.<name>=0.5": self.of_names and not named,
            })  # fmt: skip
            return dict(value) if self.of_names else value
        low, high = (min(max(limit, -LARGEST), LARGEST) for limit in (self.low, self.high))
        check_number(key, value, least=low, most=high)
        return float(value)


@dataclass(frozen=True)
class GeneratedText:
    """One text; papers add what they know about it in a subclass.

    Attributes:
        ids: the same as token ids, without a token that only replaces an empty prompt.
        prompt_length: how many of ``ids`` belong to the prompt.
        control: the controls it was generated under, defaults filled in.
    """

    text: str
    ids: tuple[int, ...]
    prompt_length: int = 0
    control: dict[str, Any] = field(default_factory=dict, hash=False)

    def note(self) -> str:
        """Return one line about the text to show below it; "" where there is nothing to say."""
        return ""


TextT = TypeVar("TextT", bound=GeneratedText)


@dataclass(frozen=True)
class Batch:
    """What a writer continues by up to ``length`` tokens: prompts and their checked controls, one for each text.

    ``seed`` and ``rows`` are those of ``Writer.generate``. ``wrap`` puts a rule around those of the controls.
    """

    prompts: Sequence[list[int]]
    controls: Sequence[dict[str, Any]]
    routes: Collection[str]
    length: int
    eos_id: int
    seed: int | None = None
    rows: Sequence[int] | None = None
    wrap: Callable[[ScoreRule], ScoreRule] = lambda rules: rules


class Watched(ScoreRule):
    """A rule that reports the ids so far, [B, T], before every token."""

    def __init__(self, inner: ScoreRule, watch: Callable[[Tensor], None]) -> None:
        self.inner, self.watch = inner, watch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.watch(input_ids)
        return self.inner(input_ids, scores)


class Forced(ScoreRule):
    """Forces given tokens and records their log P under the rules: ``found`` holds [B] per token."""

    def __init__(self, start: int, ids: Sequence[int], found: list[Tensor], inner: ScoreRule) -> None:
        self.start, self.ids, self.found, self.inner = start, ids, found, inner

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        place = input_ids.shape[1] - self.start
        ruled = self.inner(input_ids, scores)
        if place < 0:
            return ruled
        self.found.append(ruled.double().log_softmax(-1)[:, self.ids[place]].cpu())
        return torch.full_like(ruled, -math.inf).index_fill(
            1, torch.tensor([self.ids[place]], device=ruled.device), 0.0
        )


class Writer(abc.ABC, Generic[TextT]):
    """Continues prompts under controls, by whatever means: the interface of a model to commands, pages and trials.

    Args:
        module: the trained module, or any model.
        max_new_tokens: maximum length of a continuation.
    """

    # the ways a control can reach the text (semantic fusion: hard, soft, channel); () where there is only one
    routes: tuple[str, ...] = ()
    eos_id: int = NO_END

    def __init__(self, module: Any, *, max_new_tokens: int) -> None:
        self.module, self.max_new_tokens = module, max_new_tokens

    @property
    @abc.abstractmethod
    def controls(self) -> tuple[ControlSetting, ...]:
        """The controls of this model; () where it follows none (a baseline)."""

    @abc.abstractmethod
    def prompt_ids(self, text: str) -> list[int]:
        """Return at least one id for a prompt ("" too) (``UserError``: a prompt that this model cannot continue)."""

    @abc.abstractmethod
    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> TextT:
        """Describe one generated row."""

    @property
    def context(self) -> int | None:
        """The number of positions of the model, or None where it has no limit."""
        return getattr(getattr(self.module, "backbone", None), "context", None)

    def generate(
        self,
        n: int,
        prompt: str | Sequence[str] = "",
        control: Controls | Sequence[Controls] | None = None,
        *,
        routes: Collection[str] | None = None,
        seed: int | None,
        rows: Sequence[int] | None = None,
        max_new_tokens: int | None = None,
        watch: Callable[[Tensor], None] | None = None,
    ) -> list[TextT]:
        """Generate ``n`` texts in one batch.

        Args:
            prompt: one for all, or one each.
            control: values by name, one mapping for all or one each; in a mapping for all a list holds one value per
                text; the others have their defaults.
            routes: the routes the controls take, of ``self.routes``; None takes all that this paper has.
            seed: text i is a function of (seed, rows[i]); None takes the best token everywhere.
            rows: row numbers, default 0 .. n-1.
            max_new_tokens: instead of the generator's own.
            watch: called before every token with the ids so far, [B, T].

        Raises:
            UserError: an unknown control or route, a value out of range, a prompt the model cannot take, a text
                longer than the model's context.
        """
        taken = self.checked_routes(routes)
        given = control_of_each(control or {}, n)
        checked = [self.row(self.checked(each), number) for number, each in enumerate(given)]
        prompts = [self.prompt_ids(text) for text in one_each(prompt, n, "prompts")]
        length = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        self.check_room(max(map(len, prompts), default=0), length)
        batch = Batch(prompts, checked, taken, length, self.eos_id, self.draws(seed), rows)
        made = self.draw(batch if watch is None else replace(batch, wrap=lambda rules: Watched(rules, watch)))
        return [self.text(ids, len(p), c) for ids, p, c in zip(made, prompts, checked, strict=True)]

    def log_probs(
        self,
        prompt: str,
        ids: Sequence[int],
        controls: Sequence[Controls],
        *,
        routes: Collection[str] | None = None,
    ) -> Tensor:
        """Return log P of each token of one given continuation under each of several controls, [B, T], float64.

        The prefix of a token is the prompt and the tokens before it, whatever the control. Temperature, nucleus and
        the like apply: a token that they exclude has ``-inf``.
        """
        taken = self.checked_routes(routes)
        checked = [self.row(self.checked(control), 0) for control in controls]
        if not ids or not checked:
            return torch.zeros(len(checked), len(ids), dtype=torch.float64)
        begin = self.prompt_ids(prompt)
        self.check_room(len(begin), len(ids))
        found: list[Tensor] = []
        forced = partial(Forced, len(begin), ids, found)
        self.draw(Batch([begin] * len(checked), checked, taken, len(ids), NO_END, wrap=forced))
        return torch.stack(found, dim=1)

    @abc.abstractmethod
    def draw(self, batch: Batch) -> list[list[int]]:
        """Return each prompt with its continuation."""

    def row(self, control: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the control of row ``number``; a paper may check combinations of controls here."""
        return control

    def draws(self, seed: int | None) -> int | None:
        """Return the seed to draw with; None takes the best token everywhere (greedy decoding)."""
        return seed

    def bare(self) -> dict[str, Any]:
        """Return the controls that leave the model bare: those with an ``off`` value are off, the rest left out."""
        return {setting.name: setting.off for setting in self.controls if setting.off is not None}

    def checked(self, control: Controls) -> dict[str, Any]:
        """Return a row's controls with the defaults filled in.

        Raises:
            UserError: no such control, or a value that it does not accept.
        """
        known = {setting.name: setting for setting in self.controls}
        for name in control:
            check_known(
                "control", name, known, "" if known else "this model has none (a baseline): leave control.* out"
            )
        filled = {name: setting.default for name, setting in known.items() if setting.default is not None}
        return filled | {name: known[name].checked(value) for name, value in control.items()}

    def checked_routes(self, routes: Collection[str] | None) -> tuple[str, ...]:
        """Return the routes that are on, in the paper's order (``UserError``: no such route)."""
        if routes is None:
            return self.routes
        routes = [routes] if isinstance(routes, str) else routes
        for name in routes:
            check_known("control route", name, self.routes)
        return tuple(name for name in self.routes if name in routes)

    def check_room(self, prompt: int, length: int) -> None:
        """Refuse a text that is longer than the model's context (the last token is drawn, not fed)."""
        check_room(prompt, length, self.context, "the continuation (decoding.*)")


class Generator(Writer[TextT]):
    """Continues prompts with one trained model of a paper, token by token under the score rules of its controls.

    A subclass gives ``controls``, ``prompt_ids``, ``rules`` and ``text``, and what else differs from the defaults:
    ``routes``, ``model``, ``state``, ``row``, ``eos_id``, ``pad_id``, ``context``.
    """

    pad_id: int = 0

    @abc.abstractmethod
    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        """Return the score rule of a batch from the checked controls of its rows."""

    def model(self, prompts: Sequence[Sequence[int]], routes: Collection[str]) -> Any:
        """Return the step model (``decoding/loop.py``) to draw from."""
        return self.module

    def state(self, controls: Sequence[dict[str, Any]], routes: Collection[str]) -> Any:
        """Return the argument of the step model's ``start``, such as the features of each row."""
        return None

    def draw(self, batch: Batch) -> list[list[int]]:
        state, model = self.state(batch.controls, batch.routes), self.model(batch.prompts, batch.routes)
        rules = batch.wrap(self.rules(batch.controls, batch.routes, state))
        options: dict[str, Any] = {name: getattr(batch, name) for name in ("seed", "rows", "eos_id")}
        options |= {"max_new_tokens": batch.length, "pad_id": self.pad_id, "channel": state}
        with evaluating(self.module):
            return generate(model, batch.prompts, rules, **options)


def check_room(prompt: int, new: int | None, context: int | None, named: str) -> None:
    """Refuse a text that is longer than a model's context; ``named`` is what sets its continuation's length."""
    if context is not None and new is not None and prompt + new - 1 > context:
        raise UserError(
            f"prompt and continuation are {prompt + new} tokens together, the model has {context} positions: "
            f"shorten the prompt or {named}"
        )


def one_each(given: Any, n: int, what: str) -> list[Any]:
    """Return one value for each of ``n`` texts: a string or mapping is for all, a sequence has one each."""
    if isinstance(given, str | Mapping):
        return [given] * n
    if len(given) != n:
        raise UserError(f"{len(given)} {what} for {n} texts: give one for all or one each")
    return list(given)


def control_of_each(control: Controls | Sequence[Controls], n: int) -> list[Controls]:
    """Return the controls of each of ``n`` texts; ``{"alpha": [0, 0.5, 1]}`` gives three texts a value each."""
    if not isinstance(control, Mapping):
        return one_each(control, n, "controls")
    values = {
        name: one_each(value, n, f"values of control.{name}") if isinstance(value, list | tuple) else [value] * n
        for name, value in control.items()
    }
    return [{name: each[number] for name, each in values.items()} for number in range(n)]
