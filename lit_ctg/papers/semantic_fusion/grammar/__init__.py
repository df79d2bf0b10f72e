"""Grammars as YAML, compiled to the masks of ``decoding/grammar.py``: the paper's two, and users' files.

A file has a ``start`` slot and ``slots``; a slot has one continuation or a list of alternatives::

    start: SUBJ
    agreement: {number: {one: [dog, it], many: [dogs, they]}}   # what words agree in, beside what the corpus knows
    groups: {animal: [dog, dogs]}                               # groups beside those of the corpus
    slots:
      SUBJ: {words: animal, remember: number, next: VERB}       # words: a group, a word or a list of them
      VERB: {words: [sleeps, sleep], next: PUNCT}
      PUNCT:
        - {words: [".", "!"], next: END}
        - {words: and, next: PRON}
      PRON: {words: [it, they], agree: number, next: VERB/2}    # the remembered number, which is forgotten then
      VERB/2: {words: [sleeps, sleep], next: PUNCT/2}           # "VERB/2" is a further place of the slot VERB
      PUNCT/2: {words: ".", next: END}

A state of the compiled grammar is a slot with the remembered values (``PUNCT/one``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from annotated_types import MinLen

from lit_ctg.decoding.grammar import FiniteStateGrammar
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import read_yaml
from lit_ctg.limits import Choice, check_mapping, check_value
from lit_ctg.papers.semantic_fusion.lexicon import Speller

FOLDER = Path(__file__).parent
END = "END"
_OPTION = dict.fromkeys(("words", "next", "remember", "agree"), Any)
_FILE = {"start": Any, "slots": Annotated[Mapping[str, Any], MinLen(1)],
         "groups": Mapping[str, Any] | None, "agreement": Mapping[str, Mapping[str, Any]] | None}  # fmt: skip
Memory = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Lexis:
    """The words to which a grammar file may refer.

    Attributes:
        spell: word -> its possible id sequences (a word of several pieces has several ids); () if it has none.
        agreement: feature -> word -> value.
        bos_id, eos_id, pad_id: the first and the last id of a sentence, and padding.
    """

    tokens: Sequence[str]
    spell: Callable[[str], Iterable[tuple[int, ...]]]
    groups: Mapping[str, Collection[str]]
    agreement: Mapping[str, Mapping[str, str]]
    bos_id: int
    eos_id: int
    pad_id: int


@dataclass(frozen=True)
class CompiledGrammar:
    """Masks and the maximum tokens of a sentence, including ``<bos>`` and ``<eos>``; None if there is no maximum."""

    machine: FiniteStateGrammar
    longest: int | None


def names() -> list[str]:
    """Return the names of the included grammars."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_grammar(name: str) -> tuple[str, dict[str, Any]]:
    """Return the display name of the grammar ``name`` (one of ours, or a path) and the content of its file.

    Raises:
        UserError: no such grammar or file, or a file that is not YAML.
    """
    path = FOLDER / f"{name}.yaml"
    if name not in names():
        path = Path(str(name)).expanduser()
        if path.suffix not in (".yaml", ".yml"):
            hint = did_you_mean(str(name), names())
            raise UserError(f"decoding.grammar={name!r}{hint}: use {' or '.join(names())}, or the path of a YAML file")
    return f"grammar {name}", read_yaml(path, f"grammar {name}")


def compile_grammar(where: str, content: Any, lexis: Lexis) -> CompiledGrammar:
    """Compile the content of a grammar file into masks.

    Args:
        where: name of the file in messages.

    Raises:
        UserError: an unknown key, slot, group or word, a word that leads to two slots, a sentence that cannot end.
    """
    return _Compiler(where, content, lexis).compile()


def compile_for_text(
    where: str,
    content: Any,
    vocabulary: Any,
    groups: Mapping[str, Collection[str]],
    agreement: Mapping[str, Mapping[str, str]] | None = None,
    *,
    start_id: int | None,
    end_id: int | None,
) -> CompiledGrammar:
    """Compile a grammar for a tokenizer of text, in which a word has one spelling, with a space before it.

    Raises:
        UserError: no token begins or ends a text; see ``compile_grammar``.
    """
    if start_id is None or end_id is None:
        raise UserError(f"{where}: the tokenizer has no token for the beginning and end of a text")
    speller = Speller(vocabulary)
    lexis = Lexis(
        tokens=(*vocabulary.tokens, "<padding>"),  # no token of the model may be transparent
        spell=lambda word: speller.spell(word)[:1],
        groups=groups,
        agreement=agreement or {},
        bos_id=start_id,
        eos_id=end_id,
        pad_id=len(vocabulary),
    )
    return compile_grammar(where, content, lexis)


class _Compiler:
    """Walks the slots from the start, with one state per reachable slot and memory."""

    def __init__(self, where: str, content: Any, lexis: Lexis) -> None:
        self.where, self.lexis = where, lexis
        check_mapping(where, content, _FILE, ("start", "slots"))
        slots, own, given = content["slots"], content.get("groups") or {}, content.get("agreement") or {}
        self.groups = {**lexis.groups, **{str(name): self._strings(f"groups.{name}", own[name]) for name in own}}
        self.agreement = {
            **lexis.agreement,
            **{
                str(feature): {
                    word: str(value)
                    for value in values
                    for word in self._strings(f"agreement.{feature}.{value}", values[value])
                }
                for feature, values in given.items()
            },
        }
        self.slots = {str(name): self._options(str(name), slots[name]) for name in slots}
        for slot, options in self.slots.items():
            for following in [option["next"] for option in options]:
                if following != END and following not in self.slots:
                    hint = did_you_mean(str(following), self.slots)
                    self.refuse(f"slot {slot}: next={following!r} is not a slot{hint}")
        self.start = str(content["start"])
        check_value(f"{where}: start", self.start, Annotated[str, Choice(self.slots)])
        self.classes: dict[str, tuple[int, ...]] = {}
        self.transitions: dict[str, dict[str, str]] = {}
        self.reached: dict[str, tuple[str, Memory]] = {}

    def refuse(self, why: str) -> NoReturn:
        raise UserError(f"{self.where}: {why}")

    def compile(self) -> CompiledGrammar:
        self.classes |= {"bos": (self.lexis.bos_id,), "eos": (self.lexis.eos_id,)}
        self.transitions["BOS"] = {"bos": _state(self.start, ())}
        waiting: list[tuple[str, Memory]] = [(self.start, ())]
        while waiting:
            slot, memory = waiting.pop()
            state = _state(slot, memory)
            if state in self.transitions:
                if self.reached[state] != (slot, memory):
                    self.refuse(f"slot {slot}: its state {state} is that of another slot or agreement: rename one")
                continue
            self.reached[state] = (slot, memory)
            self.transitions[state] = {}
            for number, option in enumerate(self.slots[slot]):
                waiting += self._expand(slot, memory, number, option)
        self.transitions["EOS"] = {"eos": END}
        ends, grown = {END}, True
        while grown:
            more = {s for s, arrows in self.transitions.items() if s not in ends and ends & set(arrows.values())}
            ends, grown = ends | more, bool(more)
        if stuck := [state for state in self.transitions if state not in ends]:
            self.refuse(f"a sentence that reaches {stuck[-1]} cannot end: give a later slot next: END")
        try:
            machine = FiniteStateGrammar(
                tokens=self.lexis.tokens,
                classes=self.classes,
                transitions=self.transitions,
                start="BOS",
                end=END,
                pad_id=self.lexis.pad_id,
            )
        except ValueError as error:
            self.refuse(f"{error}: one word cannot lead two ways")
        return CompiledGrammar(machine, self._longest())

    def _expand(self, slot: str, memory: Memory, number: int, option: Mapping[str, Any]) -> list[tuple[str, Memory]]:
        """Add the transitions of one alternative; return their targets."""
        reached: dict[Memory, list[str]] = {}
        for word in option["words"]:
            held = dict(memory)
            if feature := option.get("agree"):
                if feature not in held:
                    self.refuse(f"slot {slot} agrees in '{feature}', which no slot before it remembers")
                if self.agreement[feature].get(word) != held.pop(feature):
                    continue
            if feature := option.get("remember"):
                if word not in self.agreement[feature]:
                    self.refuse(f"slot {slot} remembers '{feature}', but agreement.{feature} does not have '{word}'")
                held[feature] = self.agreement[feature][word]
            reached.setdefault(tuple(sorted(held.items())), []).append(word)
        state, targets = _state(slot, memory), []
        for held_now, words in reached.items():
            following = option["next"]
            target = "EOS" if following == END else _state(following, held_now)
            self._arrows(state, f"{state}:{number}:{target}", words, target)
            if following != END:
                targets.append((following, held_now))
        return targets

    def _arrows(self, state: str, name: str, words: list[str], target: str) -> None:
        """Add transitions from ``state`` to ``target`` by any of the words, with extra states for further pieces."""
        whole: list[int] = []
        for word in words:
            spellings = sorted(set(self.lexis.spell(word)))
            if not spellings:
                self.refuse(f"the word '{word}' is not in the vocabulary{did_you_mean(word, self.lexis.tokens)}")
            for pieces in spellings:
                if len(pieces) == 1:
                    whole.append(pieces[0])
                    continue
                at = state
                for index, piece in enumerate(pieces):
                    last = index == len(pieces) - 1
                    begun = "-".join(map(str, pieces[: index + 1]))
                    # words with a common beginning share states, wherever they lead
                    onward = target if last else f"{state.split('/')[0]}~/{state}:{begun}"
                    label = f"{at}>{piece}>{onward}"
                    self.classes[label] = (piece,)
                    self.transitions.setdefault(at, {})[label] = onward
                    at = onward
        if whole:
            self.classes[name] = tuple(whole)
            self.transitions[state][name] = target

    def _longest(self) -> int | None:
        """Return the number of tokens on the longest path from start to end, or None if there is a cycle."""
        length: dict[str, int] = {END: 0}
        under_way: set[str] = set()

        def of(state: str) -> int:
            if state in under_way:
                raise RecursionError
            if state not in length:
                under_way.add(state)
                length[state] = 1 + max(of(target) for target in self.transitions[state].values())
                under_way.discard(state)
            return length[state]

        try:
            return of("BOS")
        except RecursionError:
            return None

    def _strings(self, what: str, value: Any) -> list[str]:
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, bool):
                self.refuse(f"{what}: YAML reads {item} as a truth value, put the word in quotes")
            if not isinstance(item, str) or not item:
                self.refuse(f"{what}={value!r}: give a word or a list of words")
        if not items:
            self.refuse(f"{what} is empty: give at least one word")
        return list(items)

    def _options(self, slot: str, given: Any) -> list[dict[str, Any]]:
        """Return the alternatives of a slot, with their words spelled out."""
        if slot.split("/")[0] in ("BOS", "EOS", END) or "~" in slot:
            self.refuse(f"slot {slot}: BOS, EOS and END are ours, and '~' may not occur in a name: rename the slot")
        options = given if isinstance(given, list) else [given]
        checked = []
        for option in options or [None]:
            check_mapping(f"{self.where}: slot {slot}", option, _OPTION, ("words", "next"))
            for key in ("remember", "agree"):
                if key in option and option[key] not in self.agreement:
                    known = ", ".join(self.agreement) or "none"
                    self.refuse(f"slot {slot}: {key}={option[key]!r} is not an agreement (there are: {known})")
            words = [
                word
                for item in self._strings(f"slot {slot}: words", option["words"])
                for word in self._group(slot, item)
            ]
            checked.append({**option, "words": list(dict.fromkeys(words))})
        return checked

    def _group(self, slot: str, item: str) -> Collection[str]:
        """Return the words of a group, or the word itself."""
        if item in self.groups:
            return self.groups[item]
        if not list(self.lexis.spell(item)):
            known = [*self.groups, *self.lexis.tokens]
            self.refuse(f"slot {slot}: '{item}' is neither a group nor a word of the corpus{did_you_mean(item, known)}")
        return [item]


def _state(slot: str, memory: Memory) -> str:
    return "/".join([slot, *(value for _, value in memory)])
