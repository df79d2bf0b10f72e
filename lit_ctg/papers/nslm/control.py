"""Micro-models as a control for any tokenizer: classes stored as text, members of any number of tokens.

A language model's tokens need not be words. Where a class member may begin, the model's mass on the first tokens of the
class's members is redistributed among them by the micro-model (Eq. 4); after such a token, its mass on continuing
tokens and, where a member is complete, on ending it, is redistributed among the remaining members. The product over the
tokens of a member is then exactly the micro-model's probability of it.

Other words may begin with the same token (" North" of "North Korea"). Of the mass of a first token only the share that
members had among the words of the training text that begin with it is redistributed, where that is known.

Shape letters: N rows, T prefix tokens, V tokens, W members of all classes, K members of one class, D attributes of a
member, C classes, S left-context states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import MinLen
from torch import Tensor

from lit_ctg.control.base import Control, Prefix, Stage, Values, added_ids, like_inputs, row_values
from lit_ctg.control.trie import Running, TokenTrie
from lit_ctg.core.chat import text_ids
from lit_ctg.core.generation import ControlSetting
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import (
    CONTEXTS,
    FILLERS,
    MONTHS,
    RANGE_MARKS,
    ClassMembers,
    ClassTable,
    LeftContext,
    UnitTable,
)
from lit_ctg.papers.nslm.gazetteer import JOINER
from lit_ctg.papers.nslm.micro_model import (
    DENSITIES,
    METRICS,
    Blend,
    Density,
    Frequency,
    MicroModel,
    Repeat,
    mixture_weights,
)
from lit_ctg.papers.nslm.occurrences import Carry, Contexts, ContextTracker
from lit_ctg.statistics import interval_of_rows

if TYPE_CHECKING:
    from lit_ctg.papers.nslm.model import NSLMModule

AnyModel = MicroModel | Repeat | Blend
# how text is split into words where a run of tokens is not a class member
LEAST = -690.0  # log-probability of a member that the micro-model excludes
KEPT = 512  # contexts
LEAST_TEXTS = 5  # below it the interval of a saving is over positions
PIECES = re.compile(r"\d[\d,]*(?:\.\d+)?|\w+|\S")


@dataclass(frozen=True)
class Fired:
    """A class whose mass is redistributed.

    Attributes:
        previous: text of the previous member; "" where there is none.
        mass: the language model's probability of the first tokens of its members.
    """

    class_name: str
    state: str
    previous: str
    mass: float


@dataclass(frozen=True)
class CarriedClass:
    """One class in its portable form.

    Attributes:
        texts: its members, as written in the training text.
        states: names of the left contexts in which the class is available.
        count: occurrences in training, as weight among classes whose members begin with the same tokens.
    """

    name: str
    texts: tuple[str, ...]
    attributes_KD: np.ndarray
    states: tuple[str, ...]
    count: float
    model: AnyModel


class MicroModels(Control):
    """Redistributes the model's mass on numbers, places and the like by micro-models of the preceding text.

    Args:
        weight: of the micro-models, the default strength.
        others: how often each other word occurred in training, of those that begin with the same character as some
            member; None: not known, then no other word is taken to begin with a member's first token.
    """

    kind, paper, stage = "micro_models", "nslm", Stage.CLASSES
    of_ids = False
    excludes = frozenset({"micro_models"})
    not_weights = r"\d+\.attributes"  # members without a number have NaN

    def __init__(
        self,
        classes: Annotated[Sequence[CarriedClass], MinLen(1)],
        *,
        weight: float = 1.0,
        others: Mapping[str, int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.classes, self.weight, self.others = tuple(classes), weight, dict(others or {})
        self.states = tuple(dict.fromkeys(["plain", *(state for each in classes for state in each.states)]))
        self.reader: WordReader | None = None
        self._tokenizer: Any = None

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "weight of the micro-models: 1 is Eq. 4, 0 the model itself"
        return (ControlSetting("strength", meaning, self.weight, low=0.0, high=1.0),)

    def bind(self, tokenizer: Any) -> None:
        if tokenizer is self._tokenizer:
            return
        self.reader, self._tokenizer = WordReader(self, HuggingFaceTokenizer.of(tokenizer)), tokenizer

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        if self.reader is None:
            raise UserError(f"control {self.name} needs the tokenizer: Steered(model, controls, tokenizer=...)")
        return RedistributeClassMass(self.reader, values["strength"])

    def explain(self, input_ids: Tensor, scores: Tensor) -> list[list[Fired]]:
        """Return, for each row, the classes of which a member may begin now, the most likely class first.

        Args:
            input_ids, scores: of the language model whose tokenizer is bound.
        """
        assert self.reader is not None, "bind a tokenizer first"
        reader, rows = self.reader, []
        for reading, probs_V in zip(
            reader.read(input_ids), scores.detach().double().softmax(-1).cpu().numpy(), strict=True
        ):
            state, fired = int(reading.next_contexts.state_BT[0, -1]), []
            for number in np.flatnonzero(reader.table.available_SC[state]).tolist():
                place = int(reading.next_contexts.previous_BTC[0, -1, number])
                mass = sum(
                    probs_V[np.unique(begun.ids_J[begun.owner_M[reader.class_W[begun.member_M] == number]])].sum()
                    for begun in (reader.below(form, 0) for form in range(len(reader.tries)))
                )
                previous = self.classes[number].texts[place] if place >= 0 else ""
                fired.append(Fired(self.classes[number].name, reader.table.states[state], previous, float(mass)))
            rows.append(sorted(fired, key=lambda entry: -entry.mass))
        return rows

    def fit_strength(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> dict[str, float]:
        """Find the weight that makes the user's held-out texts most likely, and make it the default.

        Only positions where the micro-models change something count; the weight of the mixture is found by EM. It is 0
        where the interval of the saving includes 0.

        Args:
            texts: one document each, truncated to the model's positions.

        Returns:
            See ``saving``.

        Raises:
            UserError: no text has such a position.
        """
        log_N2 = self._log_pairs(model, tokenizer, texts)
        self.weight = float(mixture_weights(np.concatenate(log_N2))[0])
        found = _saving(log_N2, self.weight)
        if found["low"] <= 0:
            self.weight = 0.0
            found = _saving(log_N2, self.weight)
        return found

    def saving(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> dict[str, float]:
        """Return what the micro-models save at their default strength.

        Args and Raises: see ``fit_strength``.

        Returns:
            ``strength``; ``nats`` saved per position compared with the model alone, with the bounds ``low`` and
            ``high`` of its 95% interval over texts (over positions below 5 texts); ``places``, the positions.
        """
        return _saving(self._log_pairs(model, tokenizer, texts), self.weight)

    @torch.no_grad()
    def _log_pairs(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> list[np.ndarray]:
        """Return log-probabilities [N, 2] of each text's tokens that the micro-models change: theirs, the model's."""
        self.bind(tokenizer)
        assert self.reader is not None
        rule = RedistributeClassMass(self.reader, torch.ones(1, dtype=torch.float64))
        start, _ = added_ids(tokenizer)
        most = getattr(model.config, "max_position_embeddings", None)
        found = []
        for text in texts:
            # as in decoding, where the tokenizer begins a prompt (with ``<s>``, say)
            ids = (start + text_ids(tokenizer, [text])[0])[:most]
            if len(ids) < 2:
                continue
            ids_1T = torch.tensor([ids], device=like_inputs(model).device)
            log_TV = model(input_ids=ids_1T).logits[0].double().log_softmax(-1)
            pairs = []
            for place in range(max(1, len(start)), len(ids)):
                ruled_1V = rule(ids_1T[:, :place], log_TV[place - 1 : place])
                both = [float(ruled_1V[0, ids[place]]), float(log_TV[place - 1, ids[place]])]
                if abs(both[0] - both[1]) > 1e-9:
                    pairs.append(both)
            if pairs:
                found.append(np.array(pairs))
        if not found:
            raise UserError(
                f"control {self.name}: the texts hold no member of {', '.join(c.name for c in self.classes)}"
            )
        return found

    def config(self) -> dict[str, Any]:
        others = {"others": self.others} if self.others else {}
        return {
            "weight": self.weight,
            **others,
            "classes": [
                {
                    "name": each.name,
                    "texts": list(each.texts),
                    "states": list(each.states),
                    "count": each.count,
                    "model": _plain(each.model),
                }
                for each in self.classes
            ],
        }

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number, each in enumerate(self.classes):
            found[f"{number}.attributes"] = torch.from_numpy(np.ascontiguousarray(each.attributes_KD, dtype=np.float64))
            for place, part in enumerate(_parts(each.model)):
                found[f"{number}.{place}.fallback"] = torch.from_numpy(np.ascontiguousarray(part.fallback_K))
                if isinstance(part.metric, Frequency):
                    found[f"{number}.{place}.count"] = torch.from_numpy(np.array(part.metric.count_K))
        return found

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> MicroModels:
        classes = []
        for number, entry in enumerate(config["classes"]):
            own = {
                name.partition(".")[2]: value.numpy()
                for name, value in tensors.items()
                if name.startswith(f"{number}.")
            }
            texts, attributes_KD = tuple(entry["texts"]), own["attributes"]
            if len(attributes_KD) != len(texts) or attributes_KD.dtype != np.float64:
                raise ValueError(f"{len(attributes_KD)} descriptions of {len(texts)} members")
            members = ClassMembers(entry["name"], np.arange(len(texts)), texts, attributes_KD, (), ())
            model = _restored(entry["model"], members, own)
            states = tuple(entry["states"])
            classes.append(CarriedClass(entry["name"], texts, attributes_KD, states, entry["count"], model))
        # older bundles have no other words
        others = {str(word): int(count) for word, count in config.get("others", {}).items()}
        return cls(classes, weight=config["weight"], others=others)


def _saving(log_N2: Sequence[np.ndarray], weight: float) -> dict[str, float]:
    """Return ``MicroModels.saving`` of log-probabilities [N, 2] by text."""
    with np.errstate(divide="ignore"):
        gains = [np.logaddexp(own[:, 0] + np.log(weight), own[:, 1] + np.log1p(-weight)) - own[:, 1] for own in log_N2]
    units = gains if len(gains) >= LEAST_TEXTS else np.concatenate(gains)[:, None]
    total_U, count_U = np.array([[unit.sum(), len(unit)] for unit in units]).T
    nats = float(total_U.sum() / count_U.sum())
    low, high = interval_of_rows(total_U, count_U) or (-math.inf, math.inf)
    return {"strength": weight, "nats": nats, "low": low, "high": high, "places": float(count_U.sum())}


# micro-models as plain values -----------------------------------------------------------------------------------------


def _parts(model: AnyModel) -> list[MicroModel]:
    """Return the micro-models in a model, in the order of ``_plain``."""
    if isinstance(model, Blend):
        return [part for each in model.models for part in _parts(each)]
    return [model.inner] if isinstance(model, Repeat) else [model]


def _plain(model: AnyModel) -> dict[str, Any]:
    """Return a fitted micro-model as plain values, except the parts in ``tensors``.

    Raises:
        UserError: the user's own metric or density: a bundle contains no code.
    """
    if isinstance(model, Blend):
        return {"blend": [_plain(each) for each in model.models], "weights": model.weight_P.tolist()}
    if isinstance(model, Repeat):
        return {"repeat": model.repeat, "inner": _plain(model.inner)}
    _refuse_own(model.metric, METRICS)
    _refuse_own(model.density, DENSITIES)
    fitted = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(model.density).items()
    }
    return {
        "metric": model.metric.name,
        "density": model.density.name,
        "density_values": fitted,
        "base": model.base,
        "fallback_smoothing": model.fallback_smoothing,
        "fitted": model.fitted,
    }


def _refuse_own(part: Any, known: Mapping[str, type]) -> None:
    if known.get(part.name) is not type(part):
        raise UserError(f"'{part.name}' is a class of your own, which a bundle cannot carry: choose another one")


def _restored(plain: Mapping[str, Any], members: ClassMembers, own: Mapping[str, np.ndarray]) -> AnyModel:
    place = iter(range(len(own)))

    def build(part: Mapping[str, Any]) -> AnyModel:
        if "blend" in part:
            models: list[MicroModel | Repeat] = []
            for each in map(build, part["blend"]):
                if isinstance(each, Blend):
                    raise ValueError("a mixture of mixtures")
                models.append(each)
            blend = Blend(models, np.array(part["weights"]), least=0.0)
            blend.weight_P = np.array(part["weights"])
            return blend
        if "repeat" in part:
            inner = build(part["inner"])
            assert isinstance(inner, MicroModel)
            repeat = Repeat(inner)
            repeat.repeat = float(part["repeat"])
            return repeat
        return _single(part, members, own, next(place))

    return build(plain)


def _single(part: Mapping[str, Any], members: ClassMembers, own: Mapping[str, np.ndarray], place: int) -> MicroModel:
    metric = METRICS[part["metric"]]().fit(members, np.zeros(0, dtype=np.int64))
    if metric.attributes and not np.isfinite(members.attributes_KD).all():
        raise ValueError(f"the metric {metric.name} needs finite numbers")
    if isinstance(metric, Frequency):
        metric.count_K = own[f"{place}.count"]
    density: Density = DENSITIES[part["density"]]()
    for name, value in part["density_values"].items():
        setattr(density, name, np.array(value) if isinstance(value, list) else value)
    model = MicroModel(metric, density, fallback_smoothing=part["fallback_smoothing"], base=part["base"])
    model.members, model.fitted = members, bool(part["fitted"])
    model.fallback_K = own[f"{place}.fallback"]
    if model.fallback_K.shape != (len(members),):
        raise ValueError(f"{len(model.fallback_K)} shares for {len(members)} members")
    uniform_K = np.zeros(len(members))
    model.log_base_K = model.fallback_K + np.log(len(members)) if model.base == "unigram" else uniform_K
    return model


# reading a growing prefix ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """The reading of one prefix.

    Attributes:
        carry, contexts: before the word that the prefix may still be inside.
        next_carry, next_contexts: after it, where a new word begins.
        form, node: their path in a trie; node 0: none.
        open: a word may continue after the last token.
    """

    carry: Carry
    contexts: Contexts
    next_carry: Carry
    next_contexts: Contexts
    pending: tuple[int, ...] = ()
    form: int = 0
    node: int = 0
    open: bool = False


@dataclass(frozen=True)
class Member:
    """A class member in a text.

    Attributes:
        number, index: of its class, and of the member in it.
        begin, stop: its tokens are those from ``begin`` to before ``stop``.
    """

    number: int
    index: int
    begin: int
    stop: int


@dataclass(frozen=True)
class Below:
    """The continuations of a node of a trie.

    Attributes:
        owner_M, member_M: pairs of an index into ``ids_J`` and a member that it may become.
        here: members that are complete at the node.
    """

    ids_J: np.ndarray
    owner_M: np.ndarray
    member_M: np.ndarray
    here: np.ndarray

    def mass(self, share_W: np.ndarray) -> np.ndarray:
        """Return the total probability of the members after each token, [J]."""
        return np.bincount(self.owner_M, share_W[self.member_M], minlength=len(self.ids_J))


class WordReader:
    """The classes over a tokenizer: spellings of their members, and the contexts of the next word of a prefix.

    Members have two forms in a tokenizer with spaces: with a space before them, and without (after a bracket). A member
    of several words is written as in the training text ("New_York") where that is one token, else with spaces; in a
    prefix either is read.

    Raises:
        UserError: the tokenizer cannot spell any member of a class.
    """

    def __init__(self, control: MicroModels, vocabulary: HuggingFaceTokenizer) -> None:
        self.classes, self.vocabulary = control.classes, vocabulary
        tokens = vocabulary.tokens
        marked = [token[:1] in (" ", "\u0120", "\u2581") for token in tokens]
        self.by_word = not any(marked)
        texts = [vocabulary.decode([number]) for number in range(len(tokens))]
        # punctuation such as "(" neither continues a word nor lets one continue after it
        begins = [self.by_word or mark or not text[:1].isalnum() for mark, text in zip(marked, texts, strict=True)]
        open_ = [not self.by_word and text[-1:].isalnum() for text in texts]
        self.table, self.word_of = _table(control)
        self.unknown = self.table.index_CV.shape[1] - 1
        self.tracker = ContextTracker(self.table)
        self.class_W = np.repeat(np.arange(len(self.classes)), [len(each.texts) for each in self.classes])
        self.first_W = np.cumsum([0, *(len(each.texts) for each in self.classes)])
        forms = ("",) if self.by_word else (" ", "")
        spelled = [self._spell(blank) for blank in forms]
        for number, each in enumerate(self.classes):
            if not any(ways for form in spelled for ways in form[self.first_W[number] : self.first_W[number + 1]]):
                raise UserError(f"control {control.name}: the tokenizer spells no member of the class {each.name}")
        begins_V, open_V = torch.tensor(begins), torch.tensor(open_)
        # alternative spellings follow: they are recognised but get no probability, or a member's share would double
        paths = [[ways[:1] for ways in form] + [ways[1:] for ways in form] for form in spelled]
        self.tries = [TokenTrie.of(form, None if self.by_word else begins_V, open_V) for form in paths]
        self._below: dict[tuple[int, int], Below] = {}
        self.own = [self._own(form, blank, control.others) for form, blank in enumerate(forms)]
        self._groups: dict[tuple[int, int], list[np.ndarray]] = {}
        self._known: dict[tuple[Any, ...], Any] = {}
        start = self.tracker.start(1)
        contexts, _ = self.tracker.read(np.array([[self.unknown]]), None, start)
        self._running: Running[Reading] = Running(Reading(start, contexts, start, contexts), self._advance)

    def _spell(self, blank: str) -> list[list[tuple[int, ...]]]:
        """Return the spellings of each member, that in which the model writes it first."""
        texts = [text for each in self.classes for text in each.texts]
        written = [list(dict.fromkeys((text, text.replace(JOINER, " ")))) for text in texts]
        ids = iter(self._ids([blank + text for ways in written for text in ways]))
        return [[own for text in ways if self._spells(own := tuple(next(ids)), text)] for ways in written]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts inside a text: one that words are read behind, whether a space follows or not."""
        return ids_behind(self.vocabulary, "" if self.by_word else "(", texts)

    def _spells(self, ids: tuple[int, ...], text: str) -> bool:
        # decoding must return the member: some tokenizers lose spaces, fold case or lack letters
        known = bool(ids) and self.vocabulary.unknown_id not in ids
        # bytes spell any text: only a single token shows that the model writes members as the training text did
        return known and (len(ids) == 1 or JOINER not in text) and self.vocabulary.decode(ids).strip() == text

    def _own(self, form: int, blank: str, others: Mapping[str, int]) -> np.ndarray:
        """Return the share of members among the training words that begin with each first token of members, [J]."""
        begun = self.below(form, 0)
        if not others:
            return np.ones(len(begun.ids_J))
        counts = [each.count * np.exp(_parts(each.model)[0].fallback_K) for each in self.classes]
        # a member that training text lacks still has its token where no other word begins with it
        own_J = np.maximum(begun.mass(np.concatenate(counts)), 1e-9)
        count_V = np.zeros(len(self.vocabulary.tokens))
        for ids, count in zip(self._ids([blank + word for word in others]), others.values(), strict=True):
            if ids:
                count_V[ids[0]] += count
        share_J: np.ndarray = own_J / (own_J + count_V[begun.ids_J])
        return share_J

    def read(self, ids_NT: Tensor) -> list[Reading]:
        """Return the reading of each prefix, reading only its new part."""
        return self._running.of(ids_NT)

    def readings(self, ids: Sequence[int]) -> list[Reading]:
        """Return the reading of every prefix of a text, from none of its tokens to all."""
        found = [self._running.start]
        for token in ids:
            found.append(self._step(found[-1], token))
        return found

    def members(self, readings: Sequence[Reading]) -> list[Member]:
        """Return the class members of a text that was read."""
        found, begin = [], 0
        for stop, reading in enumerate(readings):
            last = stop + 1 == len(readings)
            if not reading.pending or not (last or len(readings[stop + 1].pending) == 1):
                continue
            words = self._words(reading.pending)
            number = int(self.table.class_of_SV[reading.contexts.state_BT[0, -1], words[0]]) if len(words) == 1 else -1
            if number >= 0:
                found.append(Member(number, int(self.table.index_CV[number, words[0]]), begin, stop))
            begin = stop
        return found

    def _advance(self, state: Reading, tokens: list[int]) -> Reading:
        for token in tokens:
            state = self._step(state, token)
        return state

    def _step(self, state: Reading, token: int) -> Reading:
        form, node = state.form, state.node
        onward = self.tries[form].child(node, token) if node else None
        trie = self.tries[0]
        if onward is not None:
            pending, carry, contexts = (*state.pending, token), state.carry, state.contexts
        elif state.open and trie.goes_on(token):
            pending, carry, contexts, onward = (*state.pending, token), state.carry, state.contexts, 0
        else:
            pending, carry, contexts = (token,), state.next_carry, state.next_contexts
            form, onward = self._begun(token)
        next_carry, next_contexts = carry, contexts
        for word in self._words(pending):
            next_contexts, next_carry = self.tracker.read(np.array([[word]]), None, next_carry)
        return Reading(carry, contexts, next_carry, next_contexts, pending, form, onward, trie.is_open(token))

    def _begun(self, token: int) -> tuple[int, int]:
        for form, trie in enumerate(self.tries):
            if (node := trie.child(0, token)) is not None:
                return form, node
        return 0, 0

    def _words(self, pending: Sequence[int]) -> list[int]:
        """Return the words in some tokens, as indices into the table; unknown words share one more index."""
        text = self.vocabulary.decode(pending).strip()
        if text in self.word_of:
            return [self.word_of[text]]
        return [self.word_of.get(piece, self.unknown) for piece in PIECES.findall(text)]

    def below(self, form: int, node: int) -> Below:
        """Return the continuations of a node."""
        key = (form, node)
        if key not in self._below:
            trie = self.tries[form]
            ids, following = trie.children(node)
            reached = [sorted(self.members_below(form, int(child))) for child in following]
            ids_J = ids.numpy()[[bool(members) for members in reached]]
            reached = [members for members in reached if members]
            owner = np.repeat(np.arange(len(reached)), [len(members) for members in reached])
            members = np.array([member for each in reached for member in each], dtype=np.int64)
            here = sorted(self._first(trie.ends[node])) if node else []
            self._below[key] = Below(ids_J, owner, members, np.array(here, dtype=np.int64))
        return self._below[key]

    def members_below(self, form: int, node: int) -> set[int]:
        trie, found, waiting = self.tries[form], set[int](), [node]
        while waiting:
            at = waiting.pop()
            found |= self._first(trie.ends[at])
            waiting += trie.children(at)[1].tolist()
        return found

    def _first(self, ends: Iterable[int]) -> set[int]:
        """Return the members whose first spelling ends here."""
        return {number for number in ends if number < len(self.class_W)}

    def groups(self, form: int, state: int) -> list[np.ndarray]:
        """Return the classes available in a left-context state, grouped if their members begin with the same tokens."""
        key = (form, state)
        if key not in self._groups:
            begun = self.below(form, 0)
            parent = {int(number): int(number) for number in np.flatnonzero(self.table.available_SC[state])}

            def root(number: int) -> int:
                while parent[number] != number:
                    number = parent[number]
                return number

            # pairs of a first token and a class
            pairs = np.unique(np.stack([begun.owner_M, self.class_W[begun.member_M]], axis=1), axis=0)
            first: dict[int, int] = {}
            for token, number in pairs.tolist():
                if number in parent:
                    parent[root(number)] = root(first.setdefault(token, number))
            together: dict[int, list[int]] = {}
            for number in parent:
                together.setdefault(root(number), []).append(number)
            self._groups[key] = [np.array(numbers) for numbers in together.values()]
        return self._groups[key]

    def shares(self, form: int, contexts: Contexts) -> list[np.ndarray]:
        """Return the probabilities [W] of each group's members, 0 elsewhere."""
        return self._cached(("shares", form), contexts, lambda: self._shares(form, contexts))

    def _shares(self, form: int, contexts: Contexts) -> list[np.ndarray]:
        found = []
        for numbers in self.groups(form, int(contexts.state_BT[0, -1])):
            share_W = np.zeros(len(self.class_W))
            weights = np.array([max(self.classes[number].count, 1e-9) for number in numbers])
            for number, weight in zip(numbers, weights / weights.sum(), strict=True):
                own = slice(self.first_W[number], self.first_W[number + 1])
                share_W[own] += weight * self.chances(int(number), contexts)
            found.append(share_W)
        return found

    def chances(self, number: int, contexts: Contexts) -> np.ndarray:
        """Return a class's micro-model over its members [K]."""

        def make() -> np.ndarray:
            evidence = contexts.evidence(number, np.ones_like(contexts.state_BT, dtype=bool))
            # 0 would leave a member what the model gives it
            chance_K: np.ndarray = np.exp(np.maximum(self.classes[number].model.log_prob(evidence)[-1], LEAST))
            return chance_K

        return self._cached(("chances", number), contexts, make)

    def _cached(self, what: tuple[str, int], contexts: Contexts, make: Callable[[], Any]) -> Any:
        """Return what was made for these contexts: few words change them."""
        parts = (contexts.state_BT, contexts.previous_BTC, contexts.source_value_BT, contexts.source_unit_BT)
        key = (*what, *(part[0, -1].tobytes() for part in parts))
        if key not in self._known:
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[key] = make()
        return self._known[key]


def _table(control: MicroModels) -> tuple[ClassTable, dict[str, int]]:
    """Return the classes over a vocabulary of words: their members, the words of left contexts, one unknown word.

    The second part finds a word's index; members of several words are found in both ways of writing them.
    """
    units = sorted({word for unit in UnitTable().units for phrase in unit.written for word in phrase.split()})
    known = [*MONTHS, *RANGE_MARKS, *FILLERS, "(", ")", *units]
    members = [text.replace(JOINER, " ") for each in control.classes for text in each.texts]
    words = list(dict.fromkeys([*known, *members]))
    place = {word: number for number, word in enumerate(words)}
    contexts: list[LeftContext] = []
    for name in CONTEXTS:  # most urgent first
        if name in control.states:
            contexts.append(CONTEXTS[name]())
    for context in contexts:
        context.bind((*words, ""))
    states = ("plain", *(context.name for context in contexts))
    class_of_SV = np.full((len(states), len(words) + 1), -1)
    index_CV = np.full((len(control.classes), len(words) + 1), -1)
    available_SC = np.zeros((len(states), len(control.classes)), dtype=bool)
    classes = []
    for number, each in enumerate(control.classes):
        ids_K = np.array([place[text.replace(JOINER, " ")] for text in each.texts])
        classes.append(ClassMembers(each.name, ids_K, each.texts, each.attributes_KD, (), ()))
        index_CV[number, ids_K] = np.arange(len(ids_K))
        for state, name in enumerate(states):
            if name in each.states:
                class_of_SV[state, ids_K], available_SC[state, number] = number, True
    stored = {text: place[text.replace(JOINER, " ")] for each in control.classes for text in each.texts}
    return ClassTable(tuple(classes), tuple(contexts), class_of_SV, index_CV, available_SC), stored | place


# the rule -------------------------------------------------------------------------------------------------------------


class RedistributeClassMass(ScoreRule):
    """Redistributes the mass of class members by micro-models, see the module's docstring.

    Args:
        strength_B: weight of the micro-models, one per prompt.
    """

    def __init__(self, reader: WordReader, strength_B: Tensor) -> None:
        self.reader, self.strength_B = reader, strength_B

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities ``[N, V]`` in the dtype of ``scores``."""
        log_NV = scores.detach().double().log_softmax(-1).cpu()
        strength_N = row_values(self.strength_B, len(scores)).numpy()
        for log_V, reading, strength in zip(log_NV.numpy(), self.reader.read(input_ids), strength_N, strict=True):
            own_V = log_V.copy()
            self.redistribute(log_V, reading)
            # where nothing was redistributed (nearly everywhere) the mixture is the model's own
            changed = np.flatnonzero(log_V != own_V)
            with np.errstate(divide="ignore"):
                ruled, own = np.log(strength) + log_V[changed], np.log1p(-strength) + own_V[changed]
            log_V[changed] = np.logaddexp(ruled, own)
        return log_NV.to(scores.dtype).to(scores.device)

    def redistribute(self, log_V: np.ndarray, reading: Reading) -> None:
        """Redistribute the mass of class members, in place, in log-probabilities [V] after a prefix that was read."""
        reader = self.reader
        going_on = np.empty(0, dtype=np.int64)
        if reading.node:
            inside = reader.below(reading.form, reading.node)
            going_on = inside.ids_J
            for share_W in reader.shares(reading.form, reading.contexts):
                self._inside(log_V, reading, inside, share_W)
        for form in range(len(reader.tries)):
            # a member without a space before it cannot begin inside a word
            if form == 1 and reading.open:
                continue
            begun = reader.below(form, 0)
            fresh_J = ~np.isin(begun.ids_J, going_on) if len(going_on) else np.ones(len(begun.ids_J), dtype=bool)
            own_J = reader.own[form]
            for share_W in reader.shares(form, reading.next_contexts):
                mass_J = begun.mass(share_W)
                chosen_J = fresh_J & (mass_J > 0)
                _share(log_V, begun.ids_J[chosen_J], mass_J[chosen_J], own_J[chosen_J])

    def _inside(self, log_V: np.ndarray, reading: Reading, inside: Below, share_W: np.ndarray) -> None:
        """After the first tokens of a member: redistribute continuing and, where one is complete, ending it."""
        mass_J, ended = inside.mass(share_W), float(share_W[inside.here].sum())
        chosen_J = (mass_J > 0) & np.isfinite(log_V[inside.ids_J])  # forbidden tokens stay forbidden
        ids, mass_J = inside.ids_J[chosen_J], mass_J[chosen_J]
        if not ended or not len(ids):
            _share(log_V, ids, mass_J, np.ones(len(ids)))
            return
        ends_V = np.ones(len(log_V), dtype=bool)
        if reading.open:
            ends_V = ~self.reader.tries[0].continuing(len(log_V)).numpy()
        ends_V[inside.ids_J] = False
        log_end = np.logaddexp.reduce(log_V[ends_V], initial=-np.inf)
        whole = np.logaddexp(np.logaddexp.reduce(log_V[ids]), log_end)
        if not np.isfinite(whole):
            return
        total = mass_J.sum() + ended
        log_V[ids] = whole + np.log(mass_J / total)
        if np.isfinite(log_end):
            log_V[ends_V] += whole + np.log(ended / total) - log_end


def _share(log_V: np.ndarray, ids: np.ndarray, mass_K: np.ndarray, own_K: np.ndarray) -> None:
    """Redistribute shares of some tokens, in place, in proportion to given masses; forbidden tokens stay forbidden.

    Args:
        mass_K: what each is to have of the redistributed total, relative to the others.
        own_K: the share of each token's probability that is redistributed; the rest stays.
    """
    allowed_K = np.isfinite(log_V[ids])
    ids, mass_K, own_K = ids[allowed_K], mass_K[allowed_K], own_K[allowed_K]
    if len(ids) == 0:
        return
    whole = np.logaddexp.reduce(log_V[ids] + np.log(own_K))
    if np.isfinite(whole):
        with np.errstate(divide="ignore"):
            kept_K = log_V[ids] + np.log1p(-own_K)
        log_V[ids] = np.logaddexp(kept_K, whole + np.log(mass_K / mass_K.sum()))


# from runs ------------------------------------------------------------------------------------------------------------


def carried(table: ClassTable, models: Mapping[str, AnyModel], counts: Mapping[str, float]) -> list[CarriedClass]:
    """Return the classes of a table with their micro-models, as text.

    Raises:
        UserError: the user's own left context, metric or density: a bundle contains no code.
    """
    for context in table.contexts:
        _refuse_own(context, CONTEXTS)
    found = []
    for number, members in enumerate(table.classes):
        if members.name in models:
            states = tuple(name for name, ok in zip(table.states, table.available_SC[:, number], strict=True) if ok)
            model = models[members.name]
            _plain(model)
            count = float(counts.get(members.name, 1.0))
            found.append(CarriedClass(members.name, members.tokens, members.attributes_KD, states, count, model))
    return found


def of_run(module: Any, datamodule: Any, decoding: Any) -> MicroModels:
    """Return the control of a finished run: the micro-models chosen on its validation text.

    Raises:
        UserError: a run without classes; see ``carried``.
    """
    from lit_ctg.papers.nslm.model import NSLMModule  # imports Lightning

    if not isinstance(module, NSLMModule) or not module.table.classes:
        raise UserError("this run has no class of tokens: export a run of nslm/numbers or nslm/places")
    if module.micro_models is None:
        module.choose_micro_models(datamodule)
    assert module.micro_models is not None
    names = module.table.names
    seen = module.occurrences(datamodule, "train").class_N
    counts = {name: float((seen == number).sum()) for number, name in enumerate(names)}
    models = dict(zip(names, module.micro_models, strict=True))
    classes, weight = carried(module.table, models, counts), float(module.mixture_weight)
    return MicroModels(classes, weight=weight, others=_others(module, datamodule))


def _others(module: NSLMModule, datamodule: Any) -> dict[str, int]:
    """Return how often words of the training text that are in no class occur, if a member begins with their letter."""
    tokens, table = module.vocabulary.tokens, module.table
    count_V = np.bincount(datamodule.prepare().ids("train"), minlength=len(tokens))
    letters = {text[:1] for members in table.classes for text in members.tokens}
    return {
        tokens[number]: int(count_V[number])
        for number in np.flatnonzero((count_V > 0) & ~table.any_class_V).tolist()
        if tokens[number][:1] in letters
    }
