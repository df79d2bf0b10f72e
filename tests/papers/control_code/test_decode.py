"""Generation: rows are independent, mixtures and blends are what they say, published faults, bad input."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.decode import CodeDecoding, CodeSteps

SOURCES = ("garden", "music", "news")
GREEDY = {
    "choice": "greedy",
    "top_k": 10,
    "temperature": 1.0,
    "top_p": 0.9,
    "new_tokens": 6,
    "forget_prompt": False,
    "causal": True,
    "start": ".",
}
PUBLISHED = {"choice": "uniform_top_k", "forget_prompt": True, "causal": False}
DATA = SimpleNamespace(sources=SOURCES)


@pytest.fixture
def make_generator(make_module):
    """Return a maker of generators over a model whose codes differ loudly."""

    def make(network="transformer", decoding=None, **options):
        module = make_module(network, **options).double().eval()
        if module.code is not None:
            torch.manual_seed(0)
            torch.nn.init.normal_(module.code.weight, std=2.0)
        return CodeDecoding(**{**GREEDY, **(decoding or {})}).generator(module, DATA)

    return make


def one_by_one(generator, prompt, weights, steps):
    """Greedy continuation by whole forward passes of a batch of one."""
    module, ids = generator.module, list(prompt)
    for _ in range(steps):
        state = module.start(1, torch.tensor([weights]).double())
        hidden_1TD = module.hidden(torch.tensor([ids]), state)
        scores_V = module.scores(hidden_1TD, state)[0, -1].clone()
        scores_V[module.vocabulary.unknown_id] = -torch.inf
        ids.append(int(scores_V.argmax()))
    return ids


@pytest.mark.parametrize("network", ["transformer", "gru"])
@pytest.mark.parametrize("injection", ["neuron", "prompt"])
def test_each_row_has_its_own_code_and_equals_a_single_row(network, injection, make_generator):
    generator = make_generator(network, injection=injection)
    prompts, codes = [[4, 5, 6], [4, 5, 6], [7], [4, 5, 6]], torch.eye(3)[[0, 1, 2, 0]]
    made = generator.continue_ids(prompts, codes, seed=None, max_new_tokens=5)
    assert made == [one_by_one(generator, p, c, 5) for p, c in zip(prompts, codes.tolist(), strict=True)]
    assert made[0] == made[3]
    if injection == "neuron":  # loud enough to change the best token
        assert made[0] != made[1]
    for row in range(4):
        alone = generator.continue_ids(prompts[row : row + 1], codes[row : row + 1], seed=None, max_new_tokens=5)
        assert alone == [made[row]]


def test_every_choice_draws_as_it_says_and_never_the_unknown_token(make_generator):
    generator = make_generator(decoding={"choice": "sample"})
    texts = generator.generate(4, "w1 w2", {"source": "music"}, seed=5)
    assert len({t.ids for t in texts}) > 1
    assert all(t.text.startswith("w1 w2 ") and len(t.ids) == 8 for t in texts)
    texts = make_generator().generate(4, "w1", seed=0)
    assert [t.control["source"] for t in texts] == ["garden", "music", "news", "garden"]
    generator = make_generator(decoding={"choice": "uniform_top_k"})
    (best,) = generator.generate(1, "w1", {"source": "news"}, seed=None)
    assert list(best.ids) == one_by_one(generator, list(best.ids[:1]), [0.0, 0.0, 1.0], 6)
    assert generator.generate(1, "w1", {"source": "news"}, seed=3) != [best]
    assert generator.decoding.choice == "uniform_top_k"
    generator = make_generator()
    generator.module.output.bias.data[generator.vocabulary.unknown_id] = 1e3
    made = generator.continue_ids([[4]], torch.eye(3)[:1], seed=None, max_new_tokens=4)
    assert generator.vocabulary.unknown_id not in made[0]


def test_an_empty_prompt_starts_behind_a_token_that_is_not_shown(make_generator):
    generator = make_generator()
    (text,) = generator.generate(1, control={"source": "news"}, seed=0)
    stop = generator.vocabulary.id(".")
    assert len(text.ids) == 6
    assert [stop, *text.ids] == one_by_one(generator, [stop], [0.0, 0.0, 1.0], 6)
    assert text.text == generator.vocabulary.decode(text.ids) and text.prompt_length == 0
    both = generator.generate(2, [".", ""], control={"source": "news"}, seed=0)
    assert both[0].ids == (stop, *text.ids) and both[0].prompt_length == 1, "a prompt that is that token is shown"
    assert both[1] == text
    assert generator.generate(1, " ", control={"source": "news"}, seed=0) == [text], "blanks are no prompt"


def scores(generator, control, ids):
    """Log-probabilities of the next token after a prefix under a control, by the generator's own steps."""
    steps = CodeSteps(generator.module, None, causal=True)
    state = steps.start(1, [generator.blend(control)])
    with torch.no_grad():
        for number in ids:
            scores_BV, state = steps.step(torch.tensor([[number]]), state)
    return scores_BV[0].log_softmax(-1)


def test_a_mix_is_in_the_codes_and_a_blend_in_the_distributions(make_generator):
    generator, ids = make_generator(), [4, 5]
    pure = {name: scores(generator, {"source": name}, ids) for name in SOURCES}
    blend = scores(generator, {"blend": {"garden": 3.0, "news": 1.0}}, ids)
    expected = (0.75 * pure["garden"].exp() + 0.25 * pure["news"].exp()).log()
    assert torch.allclose(blend, expected, atol=1e-12)
    mix = scores(generator, {"mix": {"garden": 0.75, "news": 0.25}}, ids)
    module = generator.module
    kept = module.code.weight.data.clone()
    module.code.weight.data[1] = 0.75 * kept[0] + 0.25 * kept[2]
    assert torch.allclose(mix, scores(generator, {"source": "music"}, ids), atol=1e-12)
    assert not torch.allclose(mix, blend, atol=1e-3)
    module.code.weight.data.copy_(kept)
    for kind in ("mix", "blend"):
        assert torch.allclose(scores(generator, {kind: {"news": 2.0}}, ids), pure["news"], atol=1e-12)
    generator = make_generator()
    controls = [{"source": "news"}, {"blend": {"garden": 0.5, "music": 0.5}}, {"mix": {"garden": 0.5, "music": 0.5}}]
    together = generator.generate(3, "w3", controls, seed=0)
    for control, text in zip(controls, together, strict=True):
        assert generator.generate(1, "w3", control, seed=0) == [text]
    generator = make_generator()
    assert generator.blend({"blend": {"garden": 1, "music": 0}}) == [(1.0, [1.0, 0.0, 0.0])]
    with pytest.raises(UserError, match="give one of"):
        generator.blend({})


def published_row(generator, prompt, weights, choices):
    """The authors' loop: no mask, the prompt gone after the first new token; ``choices`` are the tokens drawn."""
    module, context, rows = generator.module, list(prompt), []
    for chosen in choices:
        state = module.start(1, torch.tensor([weights]).double())
        hidden_1TD = module.hidden(torch.tensor([context]), state, causal=False)
        rows.append(module.scores(hidden_1TD, state)[0, -1])
        context = ([] if context == list(prompt) else context) + [chosen]
    return rows


@pytest.mark.parametrize("injection", ["neuron", "prompt"])
def test_published_generation_draws_from_the_ten_best_without_mask_and_prompt(injection, make_generator):
    """Deviation 3."""
    generator = make_generator(decoding=PUBLISHED, injection=injection, position="batch_row")
    prompts, codes = [[4, 5, 6], [7, 8, 9]], torch.eye(3)[[1, 2]]
    made = generator.continue_ids(prompts, codes, seed=1, max_new_tokens=6)
    for ids, prompt, weights in zip(made, prompts, codes.tolist(), strict=True):
        new = ids[len(prompt) :]
        for scores_V, chosen in zip(published_row(generator, prompt, weights, new), new, strict=True):
            scores_V[generator.vocabulary.unknown_id] = -torch.inf
            assert chosen in scores_V.topk(10).indices.tolist()
    # it is no greedy choice, and a corrected one differs
    assert made != generator.continue_ids(prompts, codes, seed=None, max_new_tokens=6)
    rule = generator.decoding.rules([0])
    kept = rule(torch.zeros(1, 1, dtype=torch.long), torch.arange(30.0).unsqueeze(0)).softmax(-1)[0]
    assert torch.allclose(kept[20:], torch.full((10,), 0.1)) and not kept[:20].any()


@pytest.mark.parametrize(("forget", "causal"), [(True, False), (True, True), (False, False)])
def test_each_published_fault_scores_as_the_authors_loop_does(forget, causal, make_generator):
    faults = {**PUBLISHED, "forget_prompt": forget, "causal": causal}
    generator = make_generator(decoding=faults, position="batch_row")
    module, prompts, weights = generator.module, [[4, 5, 6], [7, 8]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    new = [[9, 10, 11, 12], [13, 14, 15, 16]]
    for ids, prompt, weight in zip(new, prompts, weights, strict=True):
        steps = generator.model([prompt], ())
        state = steps.start(1, [[(1.0, weight)]])
        for place, number in enumerate([*prompt, *ids], start=1):
            with torch.no_grad():
                scores_1V, state = steps.step(torch.tensor([[number]]), state)
                context = [*prompt, *ids][:place]
                if forget and place > len(prompt):
                    context = context[len(prompt) :]
                single = module.start(1, torch.tensor([weight]).double())
                hidden_1TD = module.hidden(torch.tensor([context]), single, causal=causal)
                assert torch.allclose(scores_1V[0], module.scores(hidden_1TD, single)[0, -1], atol=1e-10)
    # without a seed the best tokens, under the same faults
    greedy = make_generator(decoding={**faults, "choice": "greedy"}, position="batch_row")
    best = greedy.continue_ids(prompts, torch.tensor(weights), seed=None, max_new_tokens=4)
    assert generator.continue_ids(prompts, torch.tensor(weights), seed=None, max_new_tokens=4) == best


def test_sampling_is_at_a_temperature_from_the_nucleus_with_the_token_that_crosses(make_generator):
    rule = make_generator(decoding={"choice": "sample", "temperature": 0.5, "top_p": 0.6}).decoding.rules([0])
    # 4, 2 and 1 squared by the temperature: the first has 16 of 21, more than .6 (at temperature 1 it has 4 of 7)
    kept = rule(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[8.0, 4.0, 2.0, 1.0]]).log()).softmax(-1)
    assert kept.tolist()[0] == pytest.approx([0.0, 1.0, 0.0, 0.0])
    rule = make_generator(decoding={"choice": "sample", "temperature": 0.5, "top_p": 0.8}).decoding.rules([0])
    kept = rule(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[8.0, 4.0, 2.0, 1.0]]).log()).softmax(-1)
    assert kept.tolist()[0] == pytest.approx([0.0, 16 / 20, 4 / 20, 0.0])


@pytest.mark.parametrize(
    ("prompt", "control", "message"),
    [
        ("w1", {"source": "musik"}, "did you mean 'music'"),
        ("w1", {"mix": {"books": 1.0}}, "=books"),
        ("w1", {"mix": {"music": -1}}, "control.music=-1"),
        ("w1", {"mix": {"music": math.inf}}, "control.music=inf"),
        ("w1", {"blend": {"music": 0}}, "are all 0"),
        ("w1", {"source": "music", "mix": {"news": 1}}, "give one of"),
        ("w1 tree", {}, "'tree'"),
    ],
)
def test_bad_input(prompt, control, message, make_generator):
    with pytest.raises(UserError, match=message):
        make_generator().generate(1, prompt, control, seed=0)


@pytest.mark.parametrize("injection", ["neuron", "prompt"])
def test_a_text_beyond_the_positions_is_told_before_it_begins(injection, make_generator):
    generator = make_generator(injection=injection)
    context = generator.module.context
    assert context == (1023 if injection == "prompt" else 1024)
    ids = [4] * (context - 1)
    assert len(generator.continue_ids([ids], torch.eye(3)[:1], seed=None, max_new_tokens=2)[0]) == context + 1
    with pytest.raises(UserError, match=rf"{context + 2} tokens together, the model has {context} positions: shorten"):
        generator.continue_ids([[4, 5], ids], torch.eye(3)[:2], seed=None, max_new_tokens=3)
    assert make_generator("gru").module.context is None
    ids_BT, state = torch.full((1, context + 1), 4), generator.module.start(1, torch.eye(3)[:1].double())
    with pytest.raises(UserError, match=f"a text of {context + 1} tokens is longer than the model's"):
        generator.module.hidden(ids_BT, state)


def test_a_model_without_codes_follows_no_control(make_generator):
    generator = make_generator(injection="none")
    assert generator.controls == ()
    (text, other) = generator.generate(2, "w1 w2", seed=None)
    assert text.control == {} and text.ids == other.ids and len(text.ids) == 8
    with pytest.raises(UserError, match="'source'"):
        generator.generate(1, "w1", {"source": "garden"}, seed=None)
