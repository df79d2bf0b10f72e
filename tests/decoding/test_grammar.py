from __future__ import annotations

import pytest
import torch

from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.errors import UserError

TOKENS = ("<pad>", "<s>", "</s>", "Ann", "Bo", "runs", "she", "he", ".")
ANN, BO, RUNS, SHE, HE, STOP = 3, 4, 5, 6, 7, 8
CLASSES = {
    "start": (1,),
    "eos": (2,),
    "ann": (ANN,),
    "bo": (BO,),
    "verb": (RUNS,),
    "she": (SHE,),
    "he": (HE,),
    "stop": (STOP,),
}
TRANSITIONS = {
    "BEGIN": {"start": "NAME"},
    "NAME": {"ann": "VERB/she", "bo": "VERB/he"},
    "VERB/she": {"verb": "MORE/she"},
    "VERB/he": {"verb": "MORE/he"},
    "MORE/she": {"she": "VERB/last", "stop": "EOS"},
    "MORE/he": {"he": "VERB/last", "stop": "EOS"},
    "VERB/last": {"verb": "STOP"},
    "STOP": {"stop": "EOS"},
    "EOS": {"eos": "END"},
}


def grammar(**changes) -> FiniteStateGrammar:
    settings = {
        "tokens": TOKENS, "classes": CLASSES, "transitions": TRANSITIONS, "start": "BEGIN", "end": "END", "pad_id": 0,
    }  # fmt: skip
    return FiniteStateGrammar(**{**settings, **changes})


def slow_state(ids: list[int]) -> str | None:
    """The state by the written-out transitions, without tables."""
    state = "BEGIN"
    for token in ids:
        if token == 0 or state == "END":
            continue
        following = [target for name, target in TRANSITIONS[state].items() if token in CLASSES[name]]
        if not following:
            return None
        state = following[0]
    return state


def random_prefixes(rows: int, length: int) -> torch.Tensor:
    """Half of the rows walk along the grammar, half are arbitrary ids."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, len(TOKENS), (rows, length), generator=generator)
    g = grammar()
    for row in range(rows // 2):
        for column in range(length):
            options = [i for i in range(len(TOKENS)) if slow_state([*ids[row, :column].tolist(), i]) is not None]
            pick = torch.randint(0, len(options), (1,), generator=generator)
            ids[row, column] = options[int(pick)]
    assert bool((g.states_after(ids)[: rows // 2] < len(g.states)).all())
    return ids


def test_tables_equal_the_written_out_transitions():
    g, ids = grammar(), random_prefixes(60, 7)
    expected = [slow_state(row) for row in ids.tolist()]
    found = [None if s == len(g.states) else g.states[s] for s in g.states_after(ids).tolist()]
    assert found == expected
    assert None in expected and len(set(expected)) > 5  # the comparison saw both sides
    allowed = g.allowed(ids)
    for row, prefix in enumerate(ids.tolist()):
        for token in range(1, len(TOKENS)):
            fits = expected[row] not in (None, "END") and slow_state([*prefix, token]) is not None
            assert bool(allowed[row, token]) == fits
        assert bool(allowed[row, 0]) == (expected[row] == "END")  # padding is generated only after the end


def test_states_remember_what_came_before():
    g = grammar()
    assert g.state_after([1, ANN, RUNS]) == "MORE/she"
    assert g.state_after([1, BO, RUNS]) == "MORE/he"
    assert g.expected("MORE/she") == ("she", ".")
    assert g.expected("MORE/he") == ("he", ".")


def test_the_answer_is_a_function_of_the_prefix_whatever_was_asked_before():
    g, ids = grammar(), random_prefixes(20, 7)
    fresh = {length: grammar().states_after(ids[:, :length]) for length in range(8)}
    for length in (0, 1, 2, 3, 7, 7, 4, 5, 0, 6):
        assert torch.equal(g.states_after(ids[:, :length]), fresh[length])
    flipped = ids.flip(0)
    assert torch.equal(g.states_after(flipped), fresh[7].flip(0))
    buffer = ids[:, :4].clone()
    g.states_after(buffer)
    buffer.copy_(flipped[:, :4])  # a caller that reuses its buffer must not be answered from memory
    assert torch.equal(g.states_after(buffer), fresh[4].flip(0))
    assert torch.equal(g.states_after(ids[:3]), fresh[7][:3])


def test_advance_is_one_step():
    g, ids = grammar(), random_prefixes(20, 5)
    assert torch.equal(g.advance(g.states_after(ids[:, :4]), ids[:, 4]), g.states_after(ids))


def test_padding_is_transparent_and_the_end_is_not_left():
    g = grammar()
    assert g.state_after([0, 0, 1, 0, ANN]) == "VERB/she"
    end = g.states_after(torch.tensor([[1, ANN, RUNS, STOP, 2, 0, 0], [1, ANN, RUNS, STOP, 2, 2, RUNS]]))
    assert [g.states[s] for s in end.tolist()] == ["END", "END"]


def test_slots_gather_the_states_of_one_name():
    g = grammar()
    ids = torch.tensor([[1, ANN], [1, BO], [1, RUNS]])
    assert g.in_slot(ids, "VERB").tolist() == [True, True, False]
    assert g.in_slot(torch.tensor([[1, ANN, RUNS, SHE]]), "VERB").tolist() == [True]
    with pytest.raises(KeyError):
        g.in_slot(ids, "ADVERB")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, RUNS], r"'runs' \(token 1.*state NAME: expected one of 'Ann', 'Bo'$"),
        ([1, ANN, RUNS, HE], r"'he' \(token 3.*state MORE/she: expected one of 'she', '\.'$"),
        ([ANN], r"'Ann' \(token 0.*state BEGIN: expected '<s>'$"),
        ([1, ANN, RUNS, STOP, 2, RUNS], r"'runs' \(token 5.*state END: expected nothing more$"),
        ([1, 99], r"id 99 \(token 1.*outside the vocabulary of 9"),
        ([1, -1], r"id -1 \(token 1.*outside the vocabulary of 9"),
    ],
)
def test_a_prompt_off_the_grammar_says_token_state_and_expectation(ids, message):
    with pytest.raises(UserError, match=message) as error:
        grammar().state_after(ids)
    assert "\n" not in str(error.value)


def test_the_mask_forbids_what_the_grammar_does_not_allow():
    mask, scores = GrammarMask(grammar()), torch.arange(9.0).expand(2, -1)
    masked = mask(torch.tensor([[1, ANN, RUNS], [1, BO, RUNS]]), scores)
    assert [[i for i, s in enumerate(row) if s > -float("inf")] for row in masked.tolist()] == [[SHE, STOP], [HE, STOP]]
    assert masked[0, SHE] == scores[0, SHE]
    with pytest.raises(UserError, match="state NAME"):
        mask(torch.tensor([[1, ANN, RUNS], [1, RUNS, RUNS]]), scores)


def test_a_grammar_that_allows_everything_changes_nothing():
    free = grammar(classes={"any": range(1, 9)}, transitions={"BEGIN": {"any": "BEGIN"}, "LAST": {"any": "END"}})
    scores = torch.randn(3, 9)
    masked = GrammarMask(free)(torch.ones(3, 2, dtype=torch.long), scores)
    assert torch.equal(masked[:, 1:], scores[:, 1:])


def test_a_token_may_be_of_two_classes_that_lead_to_one_state():
    both = grammar(
        classes={"a": (1, 2), "b": (2, 3)}, transitions={"BEGIN": {"a": "LAST", "b": "LAST"}, "LAST": {"a": "END"}}
    )
    assert both.states_after(torch.tensor([[1], [2], [3]])).unique().numel() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "NOWHERE"}, "start 'NOWHERE'"),
        ({"end": "NAME"}, "end 'NAME'"),
        ({"transitions": {"BEGIN": {"nothing": "END"}}}, "unknown class 'nothing'"),
        ({"transitions": {"BEGIN": {"start": "NOWHERE"}}}, "state 'NOWHERE'"),
        ({"classes": {**CLASSES, "stop": (9,)}}, "id 9"),
        ({"classes": {**CLASSES, "stop": (0,)}}, "id 0 is padding"),
        ({"classes": {**CLASSES, "bo": (ANN,)}}, "left for two states by 'Ann'"),
    ],
)
def test_a_wrong_grammar_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        grammar(**changes)
