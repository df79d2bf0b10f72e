"""Grammars from YAML: the paper's two against masks written out by hand, files of one's own, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import yaml

from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.decode import build_grammar
from lit_ctg.papers.semantic_fusion.grammar import Lexis, compile_grammar, names

V = ClauseVocabulary()
SLOTS = {"VERB": ["verb"], "THE": ["the"], "OBJ": ["object"], "COMMA": ["comma"], "INTENS": ["intensifier"]}
SLOTS["ADJ"] = ["adjective_positive", "adjective_negative"]


def chain(suffix: str, after: str) -> dict[str, dict[str, str]]:
    names = [*(slot + suffix for slot in SLOTS), after]
    return {a: dict.fromkeys(groups, b) for a, b, groups in zip(names, names[1:], SLOTS.values(), strict=False)}


def written_out(two: bool) -> FiniteStateGrammar:
    """The grammars of sec. 2, state by state."""
    arrows: dict[str, dict[str, str]] = {"BOS": {"bos": "SUBJ"}, "EOS": {"eos": "END"}}
    if two:
        arrows["SUBJ"] = {"she_subject": "VERB/she", "he_subject": "VERB/he"}
        for pronoun in ("she", "he"):
            arrows |= chain(f"/{pronoun}", f"PUNCT/{pronoun}")
            arrows[f"PUNCT/{pronoun}"] = {"punctuation": "EOS", "conjunction": f"PRON/{pronoun}"}
            arrows[f"PRON/{pronoun}"] = {pronoun: "VERB/2"}
        arrows |= chain("/2", "PUNCT/2") | {"PUNCT/2": {"punctuation": "EOS"}}
    else:
        arrows |= {"SUBJ": {"subject": "VERB"}, **chain("", "PUNCT"), "PUNCT": {"punctuation": "EOS"}}
    classes = {group: V.ids(group) for group in V.groups}
    classes |= {"bos": (V.bos_id,), "eos": (V.eos_id,), "she": (V.id("she"),), "he": (V.id("he"),)}
    classes |= {f"{p}_subject": tuple(V.id(n) for n, q in V.pronoun_of.items() if q == p) for p in ("she", "he")}
    return FiniteStateGrammar(
        tokens=V.tokens, classes=classes, transitions=arrows, start="BOS", end="END", pad_id=V.pad_id
    )


@pytest.mark.parametrize(("name", "longest"), [("one_clause", 10), ("two_clause", 18)])
def test_the_files_compile_to_the_masks_of_the_paper(name, longest):
    compiled, expected = build_grammar(name, V), written_out(name == "two_clause")
    ours = compiled.machine
    assert compiled.longest == longest and set(ours.states) == set(expected.states) and set(names()) >= {name}
    for state in expected.states:
        a, b = ours.states.index(state), expected.states.index(state)
        assert torch.equal(ours.allowed_SV[a], expected.allowed_SV[b]), state
        for token in expected.allowed_SV[b].nonzero().flatten().tolist():
            assert ours.states[ours.next_SV[a, token]] == expected.states[expected.next_SV[b, token]]


OWN = {
    "start": "SUBJ",
    "agreement": {"number": {"one": ["Alice", "she"], "many": ["Bob", "he"]}},
    "groups": {"who": ["Alice", "Bob"]},
    "slots": {
        "SUBJ": {"words": "who", "remember": "number", "next": "VERB"},
        "VERB": {"words": ["cooks", "trains"], "next": "MARK"},
        "MARK": [{"words": "punctuation", "next": "END"}, {"words": "and", "next": "PRON"}],
        "PRON": {"words": "pronoun", "agree": "number", "next": "VERB/2"},
        "VERB/2": {"words": "verb", "next": "MARK/2"},
        "MARK/2": {"words": ".", "next": "END"},
    },
}


def write(folder: Path, content: object) -> str:
    path = folder / "own.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def changed(**slots) -> dict:
    content = copy.deepcopy(OWN)
    content["slots"] |= slots
    return content


def test_a_grammar_of_ones_own_has_slots_alternatives_and_agreement(tmp_path):
    compiled = build_grammar(write(tmp_path, OWN), V)
    machine = compiled.machine
    assert compiled.longest == 8  # <bos> Alice cooks and she trains . <eos>
    for name, pronoun in (("Alice", "she"), ("Bob", "he")):
        ids = [V.bos_id, *V.encode(f"{name} cooks and")]
        assert machine.expected(machine.state_after(ids)) == (pronoun,)
    with pytest.raises(UserError, match=r"'Eve' .*expected one of 'Alice', 'Bob'"):
        machine.state_after([V.bos_id, V.id("Eve")])
    assert machine.in_slot(torch.tensor([[V.bos_id, *V.encode("Alice cooks and she")]]), "VERB").all()


def test_a_circle_has_no_longest_sentence(tmp_path):
    circle = changed(MARK=[{"words": "punctuation", "next": "END"}, {"words": "and", "next": "VERB"}])
    assert build_grammar(write(tmp_path, circle), V).longest is None


def test_a_word_of_several_pieces_is_a_chain_of_states():
    tokens = ["<pad>", "<bos>", "<eos>", "un", "well", "able", "good", "."]
    spelled = {"unable": [(3, 5)], "unwell": [(3, 4)], "good": [(6,)], "ungood": [(3, 6), (3, 4, 6)], ".": [(7,)]}
    lexis = Lexis(tokens, lambda word: spelled.get(word, []), {}, {}, 1, 2, 0)
    content = {
        "start": "ADJ",
        "slots": {
            "ADJ": {"words": ["unable", "unwell", "good"], "next": "MARK"},
            "MARK": {"words": ".", "next": "END"},
        },
    }
    compiled = compile_grammar("g", content, lexis)
    allowed = {tuple(row): compiled.machine.allowed(torch.tensor([row]))[0].nonzero().flatten().tolist()
               for row in ([1], [1, 3], [1, 3, 5], [1, 6])}  # fmt: skip
    assert allowed == {(1,): [3, 6], (1, 3): [4, 5], (1, 3, 5): [7], (1, 6): [7]}
    assert compiled.longest == 5
    assert not compiled.machine.in_slot(torch.tensor([[1, 3]]), "ADJ").any()  # in the middle of a word
    GrammarMask(compiled.machine)(torch.tensor([[1, 3]]), torch.zeros(1, 8))
    # two alternatives whose words begin alike
    content["slots"]["ADJ"] = [{"words": "unable", "next": "MARK"}, {"words": ["unwell", "good"], "next": "END"}]
    forked = compile_grammar("g", content, lexis).machine
    assert forked.allowed(torch.tensor([[1, 3, 5], [1, 3, 4]])).nonzero().tolist() == [[0, 7], [1, 2]]
    content["slots"]["ADJ"] = {"words": [], "next": "MARK"}
    # a word that goes on where another of the same beginning ends leads two ways
    content["slots"]["ADJ"]["words"] = ["unwell", "ungood"]
    with pytest.raises(UserError, match=r"g: .*one word cannot lead two ways"):
        compile_grammar("g", content, lexis)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "cannot be read as YAML"),
        ("just a text", "start, slots"),
        ({"start": "A"}, "slots"),
        ({**OWN, "strat": 1}, "'strat'"),
        ({**OWN, "start": "SUJB"}, "did you mean 'SUBJ'"),
        (changed(VERB={"words": "verb"}), "slot VERB"),
        (changed(VERB={"words": "verb", "next": "MRAK"}), "did you mean 'MARK'"),
        (changed(VERB={"words": "vreb", "next": "MARK"}), "did you mean 'verb'"),
        (changed(VERB={"words": [], "next": "MARK"}), "slot VERB"),
        (changed(VERB={"words": [True], "next": "MARK"}), "truth value"),
        (changed(VERB={"words": "verb", "next": "MARK", "agrees": 1}), "'agrees'"),
        (changed(VERB={"words": "verb", "next": "MARK", "agree": "gender"}), "'gender'"),
        (changed(**{"MARK/2": {"words": ".", "next": "VERB/2"}}), "cannot end"),
        (changed(SUBJ={"words": ["Alice", "Eve"], "remember": "number", "next": "VERB"}), "'Eve'"),
        (changed(SUBJ={"words": "who", "next": "VERB"}), "'number'"),
        (changed(MARK=[{"words": "and", "next": "END"}, {"words": "and", "next": "PRON"}]), "lead two ways"),
        (changed(EOS={"words": ".", "next": "END"}), "EOS"),
        ({**OWN, "agreement": ["number"]}, "agreement"),
        (changed(PRON={"words": "Carol", "agree": "number", "next": "VERB/2"}), "cannot end"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        build_grammar(write(tmp_path, content), V)
    assert "\n" not in str(caught.value) and "own.yaml" in str(caught.value)
