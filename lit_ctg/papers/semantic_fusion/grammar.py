"""The clause grammars of semantic fusion (sec. 2, "Controllable decoding") on the shared finite-state machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lit_ctg.decoding.grammar import FiniteStateGrammar
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary

# slot -> token classes that fill it, in the order of a clause
CLAUSE = {
    "VERB": ("verb",),
    "THE": ("the",),
    "OBJ": ("object",),
    "COMMA": ("comma",),
    "INTENS": ("intensifier",),
    "ADJ": ("adjective_positive", "adjective_negative"),
}

# <bos> SUBJ VERB the OBJ , INTENS ADJ PUNCT <eos>: ten tokens; a second clause is eight more
LENGTHS = {"one_clause": 10, "two_clause": 18}


def one_clause(vocabulary: ClauseVocabulary) -> FiniteStateGrammar:
    """``<bos> SUBJ VERB the OBJ , INTENS ADJ PUNCT <eos>``."""
    return _grammar(
        vocabulary,
        {
            "BOS": {"bos": "SUBJ"},
            "SUBJ": {"subject": "VERB"},
            **_clause("", "PUNCT"),
            "PUNCT": {"punctuation": "EOS"},
            "EOS": {"eos": "END"},
        },
    )


def two_clause(vocabulary: ClauseVocabulary) -> FiniteStateGrammar:
    """One clause, or two joined by ``CONJ PRON`` where the pronoun agrees with the subject.

    The states of the first clause exist once a pronoun (``VERB/she``, ``VERB/he``, ...), so the state still knows the
    subject's pronoun where it is needed; those of the second clause are ``VERB/2``, ... In the slot ``PUNCT`` of the
    first clause the sentence may also go on with a conjunction.
    """
    pronouns = sorted(set(vocabulary.pronoun_of.values()))
    transitions = {"BOS": {"bos": "SUBJ"}, "SUBJ": {f"subject_{p}": f"VERB/{p}" for p in pronouns}}
    for pronoun in pronouns:
        transitions |= _clause(f"/{pronoun}", f"PUNCT/{pronoun}")
        transitions[f"PUNCT/{pronoun}"] = {"punctuation": "EOS", "conjunction": f"PRON/{pronoun}"}
        transitions[f"PRON/{pronoun}"] = {pronoun: "VERB/2"}
    transitions |= _clause("/2", "PUNCT/2")
    return _grammar(vocabulary, {**transitions, "PUNCT/2": {"punctuation": "EOS"}, "EOS": {"eos": "END"}})


def build_grammar(name: str, vocabulary: ClauseVocabulary) -> FiniteStateGrammar:
    """Return the grammar that ``decoding.grammar`` names.

    Raises:
        UserError: no such grammar.
    """
    grammars: dict[str, Callable[[ClauseVocabulary], FiniteStateGrammar]]
    grammars = {"one_clause": one_clause, "two_clause": two_clause}
    if name not in grammars:
        raise UserError(f"decoding.grammar={name!r}{did_you_mean(str(name), grammars)}: use {' or '.join(grammars)}")
    return grammars[name](vocabulary)


def _clause(suffix: str, following: str) -> dict[str, dict[str, str]]:
    """The states VERB ... ADJ of one clause, each named with the suffix, the last one leading to ``following``."""
    names = [*(slot + suffix for slot in CLAUSE), following]
    return {
        state: dict.fromkeys(classes, target)
        for state, target, classes in zip(names, names[1:], CLAUSE.values(), strict=False)
    }


def _grammar(vocabulary: ClauseVocabulary, transitions: Mapping[str, Mapping[str, str]]) -> FiniteStateGrammar:
    groups = ("subject", "conjunction", "punctuation", *(name for names in CLAUSE.values() for name in names))
    classes: dict[str, tuple[int, ...]] = {name: vocabulary.ids(name) for name in groups}
    classes |= {"bos": (vocabulary.bos_id,), "eos": (vocabulary.eos_id,)}
    for pronoun in set(vocabulary.pronoun_of.values()):
        subjects = [name for name, taken_up in vocabulary.pronoun_of.items() if taken_up == pronoun]
        classes[f"subject_{pronoun}"] = tuple(vocabulary.id(name) for name in subjects)
        classes[pronoun] = (vocabulary.id(pronoun),)
    return FiniteStateGrammar(
        tokens=vocabulary.tokens,
        classes=classes,
        transitions=transitions,
        start="BOS",
        end="END",
        pad_id=vocabulary.pad_id,
    )
