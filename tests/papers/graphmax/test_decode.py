"""lit_ctg.papers.graphmax.decode: sampling through every output layer."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.decoding.filters import TopK
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.graphmax import CooccurrenceGraph, VariantRule, graphmax, variants
from lit_ctg.papers.graphmax.control import of_run
from lit_ctg.papers.graphmax.decode import GraphmaxDecoding, GraphmaxGenerator
from lit_ctg.papers.graphmax.model import GraphmaxModule

WORDS = "the food was good and the staff was kind"


@pytest.fixture(scope="module")
def module() -> GraphmaxModule:
    torch.manual_seed(0)
    vocabulary = WordTokenizer(specials=["<unk>", "<bos>", "<eos>"])
    vocabulary.train([WORDS])
    backbone = GPT2Backbone(dim=16, layers=1, heads=2, context=20, dropout=0.5)
    module = GraphmaxModule(vocabulary=vocabulary, backbone=backbone, learning_rate=1e-3)
    module.__dict__["graph"] = CooccurrenceGraph.from_token_ids([vocabulary.encode(WORDS)], len(vocabulary))
    return module.train()


def generator(module: GraphmaxModule, **options) -> GraphmaxGenerator:
    decoding = GraphmaxDecoding(**{"variant": "graphmax", "strength": 1.0, "max_new_tokens": 8, **options})
    return decoding.generator(module, SimpleNamespace(vocabulary=module.vocabulary))


def test_control_chooses_layer_and_strength(module) -> None:
    made = generator(module)
    soft = made.generate(6, control={"variant": "softmax"}, seed=0)
    assert [text.ids for text in soft] == [text.ids for text in made.generate(6, control={"strength": 0}, seed=0)]
    strong = made.generate(6, "the", control={"variant": "successor_divergence", "strength": 1000}, seed=0)
    pairs = set(itertools.pairwise(WORDS.split()))
    for text in strong:
        words = text.text.split()
        followed = [pair for pair in itertools.pairwise(words) if pair[0] != "kind"]
        assert followed[0] in pairs
    assert made.generate(2, prompt=["the", "good"], seed=None)[1].text.startswith("good")


def test_the_output_layer_comes_before_temperature_top_k_and_nucleus(module) -> None:
    """Restated on a layer that turns the order of the scores round: of what it gives, the best five tenths are kept."""

    class Turned(ScoreRule):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return -scores

    decoding = GraphmaxDecoding(variant="graphmax", strength=1.0, temperature=2.0, top_k=3, top_p=0.5)
    found = decoding.rules(Turned())(torch.zeros(1, 1).long(), torch.tensor([[0.0, 4.0, 1.0, 2.0]]))
    # turned and cooled 0, -2, -0.5, -1; the three best; of them 0.51, 0.31 and 0.19 the first crosses one half
    assert found.isfinite().tolist() == [[True, False, False, False]] and found[0, 0] == 0.0
    wider = GraphmaxDecoding(variant="graphmax", strength=1.0, temperature=2.0, top_k=3, top_p=0.52)
    found = wider.rules(Turned())(torch.zeros(1, 1).long(), torch.tensor([[0.0, 4.0, 1.0, 2.0]]))
    assert found.isfinite().tolist() == [[True, False, True, False]] and found[0, 2] == -0.5
    greedy = generator(module).generate(1, "the", seed=None)[0].ids
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        assert generator(module, **options).generate(1, "the", seed=5)[0].ids == greedy


def test_a_text_ends_with_eos_or_where_the_context_is_full(module) -> None:
    made = generator(module, variant="interpolation", max_new_tokens=30)
    texts = made.generate(12, "the", seed=0)
    eos = module.vocabulary.eos_id
    ended = [text for text in texts if eos in text.ids]
    assert ended and all(text.ids.index(eos) == len(text.ids) - 1 for text in ended)
    assert all("<bos>" not in text.text and "<eos>" not in text.text for text in texts)
    # <bos> and 19 words fill the 20 positions: one more token can be foretold
    (full,) = made.generate(1, "the " * 19, control={"variant": "softmax"}, seed=0)
    assert len(full.ids) == 21 and full.prompt_length == 20
    _, beside = made.generate(2, ["the", "the " * 19], control={"variant": "softmax"}, seed=0)
    assert len(beside.ids) == 21, "the longest prompt leaves the room for all"
    with pytest.raises(UserError, match="no room"):
        made.generate(1, prompt="the " * 20, seed=0)
    assert len(made.generate(1, "the", seed=0, max_new_tokens=2)[0].ids) <= 4


def test_bad_input(module) -> None:
    made = generator(module)
    with pytest.raises(UserError, match="did you mean 'graphmax'"):
        made.generate(1, control={"variant": "grafmax"}, seed=0)
    with pytest.raises(UserError, match="number from 0"):
        made.generate(1, control={"strength": -1.0}, seed=0)
    # the control that a run exports
    assert of_run(module, None, SimpleNamespace(variant="successor", strength=2.0)).variant == "successor"
    with pytest.raises(UserError, match="variant=softmax"):
        of_run(module, None, SimpleNamespace(variant="softmax", strength=1.0))
    bare = WordTokenizer(specials=["<unk>"])
    bare.train([WORDS])
    with pytest.raises(UserError, match="no <bos>"):
        GraphmaxGenerator(module, made.decoding, bare).generate(1, seed=0)


def test_each_row_has_its_own_layer_and_strength(module) -> None:
    made = generator(module)
    control = {"variant": ["graphmax", "softmax", "successor_divergence"], "strength": [2.0, 1.0, 1000.0]}
    together = made.generate(3, "the", control=control, seed=2)
    for row in range(3):
        own = {name: values[row] for name, values in control.items()}
        assert made.generate(1, "the", control=own, seed=2, rows=[row]) == [together[row]]
        assert together[row].text.startswith("the") and together[row].ids[0] == module.vocabulary.bos_id
    assert module.training  # dropout is off while generating and back on afterwards


# --- lit_ctg.papers.graphmax.decode: graphmax in our loop's contract and in Hugging Face's generate -----------------


IDS = torch.zeros(12, 1, dtype=torch.long)


def rule(graph: CooccurrenceGraph, strength: float | list[float]) -> VariantRule:
    return VariantRule(variants(graph)["graphmax"], strength)


def test_top_k_solves_over_the_best_tokens(zipf_graph, zipf_logits) -> None:
    scores = RuleList([TopK(50), rule(zipf_graph, 1.0)])(IDS, zipf_logits)
    assert ((scores > float("-inf")).sum(dim=-1) == 50).all()
    whole = graphmax(zipf_logits, zipf_graph).probs_BV
    errors = []
    for k in (5, 50, 500, 3000):
        restricted = RuleList([TopK(k), rule(zipf_graph, 1.0)])(IDS, zipf_logits).softmax(-1)
        errors.append(float((restricted - whole).abs().sum(dim=-1).mean() / 2))
    # the error is what the cut tokens would have had, and vanishes with all of them
    assert errors == sorted(errors, reverse=True) and errors[0] > 0.05 and errors[-1] < 1e-3
