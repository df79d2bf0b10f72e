from __future__ import annotations

import re

import pytest
import torch

from lit_ctg.decoding.filters import repetition_penalty, sample
from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.grammar import LENGTHS, build_grammar, one_clause, two_clause

VOCABULARY = ClauseVocabulary()
SUBJECT = r"(Alice|Bob|Carol|Dave|Eve)"
PREDICATE = (
    r"(finishes|reviews|trains|starts|cooks) the (task|paper|model|project|meal) , "
    r"(slightly|moderately|very|extremely) (good|great|excellent|pleasant|wonderful|bad|poor|terrible|unpleasant|awful)"
)
ONE = re.compile(rf"<bos> {SUBJECT} {PREDICATE} [.!?] <eos>")
TWO = re.compile(
    rf"<bos> (?:{SUBJECT} {PREDICATE}|(?:Alice|Carol|Eve) {PREDICATE} (?:and|but) she {PREDICATE}"
    rf"|(?:Bob|Dave) {PREDICATE} (?:and|but) he {PREDICATE}) [.!?] <eos>"
)


def walks(grammar: FiniteStateGrammar, rows: int, steps: int) -> torch.Tensor:
    """Uniform random sentences of a grammar."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((rows, 1), VOCABULARY.bos_id)
    for _ in range(steps):
        scores = GrammarMask(grammar)(ids, torch.zeros(rows, len(VOCABULARY)))
        new = sample(scores, torch.rand(rows, generator=generator))
        ids = torch.cat([ids, new.unsqueeze(1)], dim=1)
    return ids


def spelled(row: list[int]) -> str:
    return " ".join(VOCABULARY.tokens[i] for i in row if i != VOCABULARY.pad_id)


def test_one_clause_makes_clauses_of_the_paper_and_nothing_else():
    sentences = [spelled(row) for row in walks(one_clause(VOCABULARY), 300, 9).tolist()]
    assert all(ONE.fullmatch(s) for s in sentences)
    assert {word for s in sentences for word in s.split()} == set(VOCABULARY.tokens[1:]) - {"and", "but", "she", "he"}
    assert all(len(s.split()) == LENGTHS["one_clause"] for s in sentences)


def test_two_clauses_have_a_pronoun_that_agrees():
    sentences = [spelled(row) for row in walks(two_clause(VOCABULARY), 600, 17).tolist()]
    assert all(TWO.fullmatch(s) for s in sentences)
    assert {word for s in sentences for word in s.split()} == set(VOCABULARY.tokens[1:])
    assert {len(s.split()) for s in sentences} == {10, LENGTHS["two_clause"]}


def test_the_pronoun_follows_from_the_subject():
    grammar = two_clause(VOCABULARY)
    for subject, pronoun in VOCABULARY.pronoun_of.items():
        ids = [VOCABULARY.bos_id, *VOCABULARY.encode(f"{subject} starts the model, very good and")]
        assert grammar.expected(grammar.state_after(ids)) == (pronoun,)


@pytest.mark.parametrize(
    ("name", "prompt", "state"),
    [
        ("one_clause", "", "SUBJ"),
        ("one_clause", "Carol starts the model,", "INTENS"),
        ("one_clause", "Carol starts the model, very good", "PUNCT"),
        ("one_clause", "Carol starts the model, very good!", "EOS"),
        ("two_clause", "Carol starts the model, very good", "PUNCT/she"),
        ("two_clause", "Bob starts the model, very good but he cooks", "THE/2"),
    ],
)
def test_a_prompt_reaches_its_state(name, prompt, state):
    grammar = build_grammar(name, VOCABULARY)
    assert grammar.state_after([VOCABULARY.bos_id, *VOCABULARY.encode(prompt)]) == state


@pytest.mark.parametrize(
    ("name", "prompt", "message"),
    [
        ("one_clause", "Carol the model", r"'the' \(token 2.*state VERB: expected one of 'cooks', 'finishes'"),
        ("one_clause", "Carol starts the model, very good and", r"'and' .*state PUNCT: expected one of '!', '.', '\?'"),
        ("two_clause", "Carol starts the model, very good and he", r"'he' .*state PRON/she: expected 'she'"),
        ("one_clause", "Carol starts the model, very good. Bob", r"'Bob' .*state EOS: expected '<eos>'"),
    ],
)
def test_a_prompt_off_the_grammar_is_an_error_in_one_line(name, prompt, message):
    with pytest.raises(UserError, match=message):
        build_grammar(name, VOCABULARY).state_after([VOCABULARY.bos_id, *VOCABULARY.encode(prompt)])


def test_an_unknown_grammar_is_an_error():
    with pytest.raises(UserError, match="did you mean 'one_clause'"):
        build_grammar("one_clauses", VOCABULARY)


@pytest.mark.parametrize("name", ["one_clause", "two_clause"])
def test_the_published_penalty_has_no_effect_under_the_grammar(name):
    """No slot allows a word that one of the three tokens before it can be, so the 2.5 and the 1.5 change nothing."""
    grammar, mask = build_grammar(name, VOCABULARY), GrammarMask(build_grammar(name, VOCABULARY))
    ids = walks(grammar, 200, LENGTHS[name] - 1)
    scores = torch.randn(200, len(VOCABULARY), generator=torch.Generator().manual_seed(1))
    for length in range(1, ids.shape[1]):
        prefix = ids[:, :length]
        live = prefix[:, -1] > VOCABULARY.eos_id
        penalised = repetition_penalty(
            prefix, scores, 2.5, window=3, last_ids=VOCABULARY.ids("punctuation"), last_penalty=1.8
        )
        assert torch.equal(mask(prefix, penalised)[live], mask(prefix, scores)[live])
        assert not torch.equal(penalised, scores)
