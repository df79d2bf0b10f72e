"""lit_ctg.papers.graphmax.trial_parts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import graphmax
from lit_ctg.papers.graphmax.metrics import NgramJudge
from lit_ctg.papers.graphmax.trial import contexts_of
from lit_ctg.papers.graphmax.trial_parts import (
    GENERATED,
    Convergence,
    DecodingTime,
    NextWordNll,
    ReviewGeneration,
    Sampler,
    TopWords,
    ngram_texts,
    own_nll,
    without_end,
)

METHODS = {
    "softmax": {"variant": "softmax"},
    "graphmax": {"variant": "graphmax", "strength": 1.0},
    "copy": {"variant": "interpolation", "strength": 1e9},
}


def sampler(**changes) -> Sampler:
    return Sampler(**{"methods": METHODS, "temperature": 1.0, "top_p": 1.0, **changes})


def part(**changes) -> ReviewGeneration:
    settings = {"texts": 6, "prompt_tokens": 1, "new_tokens": 5, "sampled": 3, "judge_order": 2}
    return ReviewGeneration(sampler=sampler(), **{**settings, **changes})


def test_continuations_keep_their_prompt_and_share_their_noise(folds, module):
    prompts = [[3, 4], [5], [6]]
    plain = sampler().continue_ids(folds[0], module, "softmax", prompts, 4)
    assert [row[: len(p)] for row, p in zip(plain, prompts, strict=True)] == prompts
    assert [len(row) for row in plain] == [6, 5, 5]
    alone = sampler().continue_ids(folds[0], module, "softmax", prompts[:1], 4)
    assert alone[0] == plain[0]
    same = sampler(methods={"g": {"variant": "graphmax", "strength": 0.0}})
    assert same.continue_ids(folds[0], module, "g", prompts, 4) == plain
    assert sampler().continue_ids(folds[0], module, "graphmax", prompts, 4) != plain
    # folds draw apart
    other = sampler().continue_ids(folds[1], module, "softmax", prompts * 4, 5)
    drawn = sampler().continue_ids(folds[0], module, "softmax", prompts * 4, 5)
    assert sum(a == b for a, b in zip(drawn, other, strict=True)) < 6


def test_what_is_drawn_hangs_on_seed_temperature_and_nucleus(folds, module):
    prompts = [[3], [5], [6], [4]]
    plain = sampler().continue_ids(folds[0], module, "softmax", prompts, 6)
    assert sampler().continue_ids(replace(folds[0], seed=4), module, "softmax", prompts, 6) != plain
    best = module.table.argmax(-1)
    for changes in ({"temperature": 1e-4}, {"top_p": 1e-6}, {"model_temperature": 1e-4}):
        for row in sampler(**changes).continue_ids(folds[0], module, "softmax", prompts, 6):
            assert all(after == best[before] for before, after in pairwise(row)), changes
    strong = {"m": {"variant": "interpolation", "strength": 1e9}, "one": {"variant": "interpolation", "strength": 1.0},
              "default": {"variant": "interpolation"}}  # fmt: skip
    drawn = {name: sampler(methods=strong).continue_ids(folds[0], module, name, prompts, 6) for name in strong}
    assert drawn["default"] == drawn["one"] != drawn["m"], "the strength is 1 unless given"


def test_the_judge_knows_the_held_out_reviews_and_each_perplexity_is_its_own(folds, module, monkeypatch):
    known, scored = [], []

    class Judge:
        def __init__(self, rows, size, *, order):
            known.append((list(rows), size, order))

        def nll(self, ids, start):
            scored.append((tuple(ids), start))
            return 2.0 * (len(ids) - start), len(ids) - start

    where = "lit_ctg.papers.graphmax.trial_parts"
    monkeypatch.setattr(f"{where}.NgramJudge", Judge)
    monkeypatch.setattr(f"{where}.own_nll", lambda _, ids, start: (1.0 * (len(ids) - start), len(ids) - start))
    numbers, samples = part(samples_kept=1).measure(folds[0], module)
    held_out = ([ids.tolist() for ids in folds[0].ids], len(folds[0].vocabulary), 2)
    for name in METHODS:
        assert numbers[f"perplexity_lm/shop/{name}"].value == pytest.approx(math.e)
        assert numbers[f"perplexity_judge/shop/{name}"].value == pytest.approx(math.e**2)
        assert numbers[f"perplexity_judge/shop/{name}"].base == "perplexity_judge/shop/softmax"
        for protocol in ("bleu", "bleu_sampled"):
            assert numbers[f"{protocol}/shop/{name}/bleu_2"].base == f"{protocol}/shop/softmax/bleu_2"
    assert len(samples) == len(METHODS)
    scored.clear()
    part().references(folds[0])
    assert known == [held_out] * 2
    # real ones are of the other reviews, from the token on at which a continuation begins, as long as one
    others = {tuple(ids[:6].tolist()) for ids in folds[0].others}
    assert {ids for ids, _ in scored[:6]} <= others - {tuple(ids[:6].tolist()) for ids in folds[0].ids}
    assert {start for _, start in scored} == {1} and len(scored) == 4 * 6


def test_a_control_code_is_read_by_the_language_model_only(folds, module, monkeypatch):
    """What it writes is kept the same here, so that every measure but its own must be, too."""
    code, inner, found = "the food", Sampler.continue_ids, {}
    prefix = list(folds[0].vocabulary.encode(code))
    for front in ([], prefix):
        seen, own = [], []

        def continue_ids(self, fold, module, method, prompts, new_tokens, front=front, seen=seen):
            seen.extend(prompts)
            bare = [prompt[len(front) :] for prompt in prompts]
            return [[*front, *row] for row in inner(self, fold, module, method, bare, new_tokens)]

        def nll(_, ids, start, own=own):
            own.append((tuple(ids), start))
            return 1.0, 1

        monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.own_nll", nll)
        monkeypatch.setattr(Sampler, "continue_ids", continue_ids)
        numbers, samples = part(samples_kept=6, prefix=code if front else None).measure(folds[0], module)
        found[len(front)] = {name: m.value for name, m in numbers.items()}, samples, seen, own
    (plain, bare, prompts, own), (numbers, coded, seen, read) = found.values()
    assert numbers == plain and coded == bare and seen == [prefix + prompt for prompt in prompts]
    assert read == [((*prefix, *ids), len(prefix) + start) for ids, start in own]
    assert part(prefix=code).positions(folds[0].vocabulary) == part().positions(folds[0].vocabulary) + len(prefix)


def test_copying_the_graph_has_more_of_its_bigrams(folds, module):
    numbers, samples = part(texts=30).measure(folds[0], module)
    precision = {name: numbers[f"bleu/shop/{name}/precision_2"].value for name in METHODS}
    assert precision["copy"] > precision["softmax"] + 0.2
    assert numbers["perplexity_judge/shop/copy"].value < numbers["perplexity_judge/shop/softmax"].value
    # fewer references, fewer matches
    assert numbers["bleu_sampled/shop/copy/precision_2"].value < precision["copy"]
    assert {sample["method"] for sample in samples} == set(METHODS)
    assert all(sample["text"] and sample["prompt"] not in ("", sample["text"]) for sample in samples)
    assert {number.version for number in numbers.values()} == {GENERATED}
    # the first fold alone shows texts
    first, again = part().measure(folds[1], module), part().measure(folds[1], module)
    assert first == again and first[1] == []
    assert all(math.isfinite(number.value) for number in first[0].values())


def test_real_reviews_and_ngram_models_give_a_scale(folds):
    found = part(texts=40, new_tokens=6).references(folds[0])
    real, unigram, bigram, trigram = (
        {name: found[f"reference/shop/{kind}/{name}"].value for name in ("bleu_2", "precision_2", "perplexity_judge")}
        for kind in ("real", "unigram", "bigram", "trigram")
    )
    assert real["bleu_2"] > 1.3 * unigram["bleu_2"] > 0 and real["perplexity_judge"] < 0.7 * unigram["perplexity_judge"]
    assert unigram["precision_2"] < bigram["precision_2"] < trigram["precision_2"]
    assert all((measure.base, measure.version) == (None, 1) for measure in found.values())
    again = part(texts=40, new_tokens=6).references(folds[0])
    assert {name: m.value for name, m in again.items()} == {name: m.value for name, m in found.items()}
    with pytest.raises(UserError, match="lower prompt_tokens"):
        part(prompt_tokens=50).references(folds[0])


def test_an_ngram_model_writes_what_it_counted():
    model = NgramModel.count([[1, 2, 3, 1, 2, 3, 1, 2, 3]], 5, order=2, smoothing="witten_bell", dtype=torch.float64)
    rng = np.random.default_rng(0)
    # after 1 comes 2 with probability 0.75 and more: a nucleus of 0.5 has nothing else
    assert ngram_texts(model, [[1], [4, 2]], 4, top_p=0.5, rng=rng) == [[2, 3, 1, 2], [3, 1, 2, 3]]
    three = NgramModel.count([[1, 2, 3, 4, 2, 1, 1]] * 9, 5, order=3, smoothing="witten_bell", dtype=torch.float64)
    # after 4 2 comes 1, after 1 2 and the rest of it 3; of a prompt of one token the shorter history counts
    assert ngram_texts(three, [[4, 2], [0, 1, 2], [3]], 2, top_p=0.3, rng=rng) == [[1, 1], [3, 4], [4, 2]]
    drawn = [row[0] for row in ngram_texts(model, [[1]] * 4000, 1, top_p=1.0, rng=rng)]
    expected = model.probs(torch.tensor([[1]]))[0]
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 4000, expected, atol=0.03)


@pytest.fixture
def ending(folds, vocabulary):
    """A fold whose vocabulary has an <eos>, as that of a model trained on whole documents."""
    words = type(vocabulary)(lower=False, eol=None, specials=("<unk>", "<eos>"))
    words.train(folds[0].texts)
    ids = [torch.tensor(words.encode(text)).numpy() for text in folds[0].texts]
    assert words.eos_id is not None and "<eos>" in words.decode([words.eos_id])
    return replace(folds[0], vocabulary=words, ids=ids, others=ids)


class Script(torch.nn.Module):
    """Says the given ids one after the other, whatever the prompt of one token."""

    device = torch.device("cpu")

    def __init__(self, size, said):
        super().__init__()
        self.size, self.said = size, said

    def forward(self, batch):
        raise AssertionError("not asked here")

    def start(self, batch_size, controls):
        return 0

    def step(self, ids_B1, place):
        scores = torch.full((len(ids_B1), self.size), -100.0)
        scores[:, self.said[place]] = 100.0
        return scores, place + 1


def test_the_end_is_no_part_of_a_text(ending, folds, module, monkeypatch):
    """Neither text nor judge sees <eos>, nor what a row might have after it; an empty text counts nothing."""
    eos, food = ending.vocabulary.eos_id, ending.vocabulary.id("food")
    for ids, start, end, kept in (
        ([7, 1, 2, 9, 3, 9], 1, 9, [7, 1, 2]),
        ([9, 1, 2], 1, 9, [9, 1, 2]),  # a prompt may begin with it
        ([7, 9], 1, 9, [7]),
        ([7, 1], 1, None, [7, 1]),
    ):
        assert without_end(ids, start, end) == kept
    log_probs = module.table.detach().double().log_softmax(-1)
    expected = -float(log_probs[4, 5] + log_probs[5, 6])
    assert own_nll(module, [3, 4, 5, 6], 2) == (pytest.approx(expected, abs=1e-6), 2)
    plain = sampler(methods={"softmax": {"variant": "softmax"}})
    trial = ReviewGeneration(sampler=plain, texts=6, prompt_tokens=1, new_tokens=5, sampled=3, judge_order=2)
    numbers, samples = trial.measure(ending, Script(len(ending.vocabulary), [eos] * 5))
    assert [sample["text"] for sample in samples] == ["", ""] and numbers["bleu/shop/softmax/bleu_2"].value == 0.0
    for name in ("perplexity_judge", "perplexity_lm"):
        assert math.isnan(numbers[f"{name}/shop/softmax"].value) and numbers[f"{name}/shop/softmax"].n == 0
    scored = []
    monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.own_nll", lambda _, ids, start: (1.0, len(ids) - start))
    monkeypatch.setattr(NgramJudge, "nll", lambda _, ids, start: scored.append(list(ids)) or (1.0, len(ids) - start))
    numbers, samples = part().measure(ending, Script(len(ending.vocabulary), [food, food, eos, food, food]))
    said = [row[1:] for row in scored]
    # <eos> has no successors: copying them continues otherwise
    assert said[:12] == [[food, food]] * 12, "softmax and graphmax"
    assert all(eos not in row for row in said)
    assert [sample["text"] for sample in samples if sample["method"] == "softmax"] == ["food food"] * 2
    assert all("eos" not in sample["text"] for sample in samples)
    assert numbers["perplexity_judge/shop/softmax"].n == 12


def test_time_is_measured_against_softmax(folds, module, monkeypatch):
    # the first takes 1 s, then 5 s, 9 s, ...
    ticks, where = iter(range(1000)), "lit_ctg.papers.graphmax.trial_parts.time"
    monkeypatch.setattr(where, SimpleNamespace(perf_counter=lambda: next(ticks) ** 2))
    timed = DecodingTime(sampler=sampler(), prompts=2, prompt_tokens=1, new_tokens=3)
    numbers, _ = timed.measure(folds[0], module)
    # seconds a token: of one to three new ones
    assert 1 / numbers["seconds/shop/softmax/prompt_1"].value in (1, 2, 3)
    assert 5 / numbers["seconds/shop/softmax/prompt_2"].value in (1, 2, 3)
    assert numbers["time_ratio/shop/softmax"].value == 1.0
    assert numbers["time_ratio/shop/softmax/prompt_2"].value == 1.0
    ratio = numbers["seconds/shop/graphmax/prompt_1"].value / numbers["seconds/shop/softmax/prompt_1"].value
    assert numbers["time_ratio/shop/graphmax/prompt_1"].value == pytest.approx(ratio)
    both = {name: sum(numbers[f"seconds/shop/{name}/prompt_{k}"].value for k in (1, 2)) for name in METHODS}
    assert numbers["time_ratio/shop/graphmax"].value == pytest.approx(both["graphmax"] / both["softmax"])
    # of softmax and graphmax in two rounds, by the other clock: the least time counts
    steps = iter([100 * turn + end for turn, seconds in enumerate((9.0, 4.0, 3.0, 8.0)) for end in (0, seconds)])
    monkeypatch.setattr(where, SimpleNamespace(process_time=steps.__next__))
    methods = {name: {"variant": name} for name in ("softmax", "graphmax")}
    timed = DecodingTime(sampler=sampler(methods=methods), prompts=1, prompt_tokens=1, new_tokens=1, rounds=2,
                         clock="cpu")  # fmt: skip
    numbers, _ = timed.measure(folds[0], module)
    assert numbers["seconds/shop/softmax/prompt_1"].value == 3.0
    assert numbers["time_ratio/shop/graphmax"].value == pytest.approx(4 / 3)


def test_mistakes_are_named_when_a_part_is_built():
    where = r"^callback\.graphmax_trial\.parts[^\n]*"
    with pytest.raises(UserError, match=f"{where}did you mean 'strength'"):
        sampler(methods={"g": {"variant": "graphmax", "strenght": 1}})
    alone, lengths = sampler(methods={"graphmax": {"variant": "graphmax"}}), {"prompt_tokens": 1, "new_tokens": 1}
    with pytest.raises(UserError, match=f"{where}add softmax"):
        ReviewGeneration(sampler=alone, texts=1, sampled=1, judge_order=1, **lengths)
    with pytest.raises(UserError, match=f"{where}add softmax"):
        DecodingTime(sampler=alone, prompts=1, **lengths)


# --- lit_ctg.papers.graphmax.trial_parts against a loop over contexts -----------------------------------------------


VARIANTS = {
    "softmax": {"variant": "softmax"},
    "sparsemax": {"variant": "sparsemax"},
    "graphmax": {"variant": "graphmax", "strengths": [0.0, 1.0]},
    "interpolation": {"variant": "interpolation", "strengths": [0.1, 5.0]},
    "algorithm_one": {"variant": "algorithm_one", "strengths": [0.0, 1.0]},
}


@pytest.fixture
def measured(folds, module):
    part = NextWordNll(variants=VARIANTS, contexts=20, length=6)
    return folds[0], part, part.measure(folds[0], module)[0], contexts_of(folds[0], module, contexts=40, length=6)


def test_nll_is_that_of_a_loop_over_the_second_half(measured, module):
    fold, _, numbers, found = measured
    counted = list(range(1, 40, 2))
    softmax = [-float(found.logits_NV[i].double().log_softmax(0)[found.target_N[i]]) for i in counted]
    assert numbers["nll/shop/softmax"].value == pytest.approx(sum(softmax) / 20, abs=1e-6)
    probs = [graphmax(found.logits_NV[i].double(), fold.graph, 1.0, tol=1e-10).probs_BV for i in counted]
    expected = sum(-math.log(float(x[found.target_N[i]])) for x, i in zip(probs, counted, strict=True)) / 20
    assert numbers["nll/shop/graphmax/1"].value == pytest.approx(expected, abs=2e-3)
    plain = [found.logits_NV[i].double().softmax(0) for i in counted]
    shift = sum(float((x - p).abs().sum()) / 2 for x, p in zip(probs, plain, strict=True)) / 20
    assert numbers["shift/shop/graphmax/1"].value == pytest.approx(shift, abs=2e-3)
    changed = sum(int(x.argmax() != p.argmax()) for x, p in zip(probs, plain, strict=True)) / 20
    assert numbers["top/shop/graphmax/1"].value == pytest.approx(changed)
    rows = fold.graph.matrix.toarray()[found.last_N.numpy()[counted]] > 0
    mass = sum(float(x[torch.from_numpy(row)].sum()) for x, row in zip(probs, rows, strict=True)) / 20
    assert numbers["attested/shop/graphmax/1"].value == pytest.approx(mass, abs=2e-3)
    # strength 0 is softmax exactly
    assert numbers["nll/shop/graphmax/0"].value == pytest.approx(numbers["nll/shop/softmax"].value, abs=1e-6)
    assert numbers["shift/shop/graphmax/0"].value < 1e-6 and numbers["zero/shop/graphmax/1"].value == 0.0
    # zeros are counted and not infinite: a target without probability costs log(V / floor) and no less
    zero, nll = numbers["zero/shop/sparsemax"].value, numbers["nll/shop/sparsemax"].value
    assert zero > 0 and math.isfinite(nll) and nll > zero * math.log(1 / 1e-3)


def test_ngrams_alone_stand_beside_the_output_layers(measured):
    """Witten-Bell by hand on the other folds' reviews, over the contexts that measure; no language model in it."""
    fold, part, numbers, found = measured
    alone = part.references(fold)
    assert set(alone) == {f"nll/shop/{name}" for name in ("unigram", "bigram", "trigram")}
    for name, measure in alone.items():
        assert (measure.value, measure.n, measure.base) == (numbers[name].value, 20, None)
    others = [ids.tolist() for ids in fold.others]

    def prob(token, history):
        lower = prob(token, history[1:]) if history else 1 / len(fold.vocabulary)
        n = len(history)
        after = [t[i] for t in others for i in range(n, len(t)) if t[i - n : i] == history]
        kinds = len(set(after))
        return (after.count(token) + kinds * lower) / (len(after) + kinds) if after else lower

    assert found.before_NK[:, -1].tolist() == found.last_N.tolist()
    assert (found.before_NK[:, 0] < 0).any() and (found.before_NK[:, 0] >= 0).any(), "with and without a second token"
    for order, name in enumerate(("unigram", "bigram", "trigram"), start=1):
        nats = 0.0
        for i in range(1, 40, 2):
            history = found.before_NK[i].tolist()[3 - order :] if order > 1 else []
            nats -= math.log(prob(int(found.target_N[i]), [token for token in history if token >= 0]))
        measure = numbers[f"nll/shop/{name}"]
        assert measure.value == pytest.approx(nats / 20, abs=1e-9)
        assert measure.n == 20 and measure.base == "nll/shop/softmax"


def test_the_strength_is_chosen_where_it_is_not_measured(folds, module, monkeypatch):
    found = contexts_of(folds[0], module, contexts=40, length=6)
    even_N = torch.arange(40) % 2 == 0

    def layer(logits_NV, last_N, strength):
        """Foretell the even contexts at 0.1, which choose, and the odd ones, which measure, at any other strength."""
        right_N = even_N if strength == 0.1 else ~even_N
        hit_N1 = torch.where(right_N, 0.5, 0.01)[:, None].to(logits_NV)
        rest_NV = ((1 - hit_N1) / (logits_NV.shape[1] - 1)).expand_as(logits_NV)
        return rest_NV.scatter(1, found.target_N[:, None], hit_N1).log()

    monkeypatch.setattr(type(folds[0]), "variant", lambda fold, name: layer)
    strengths = {"variant": "interpolation", "strengths": [5.0, 0.1, 7.0]}
    part = NextWordNll(variants={"softmax": {"variant": "softmax"}, "i": strengths}, contexts=20, length=6)
    numbers = part.measure(folds[0], module)[0]
    # the best of the measured half would have been -log 0.5
    assert numbers["nll/shop/i/chosen"].value == pytest.approx(-math.log(0.01), abs=1e-6)
    assert numbers["nll/shop/i/5"].value == pytest.approx(-math.log(0.5), abs=1e-6)
    assert numbers["nll/shop/i/chosen"].base == "nll/shop/softmax" and numbers["nll/shop/i/chosen"].n == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"g": {"variant": "graphmax", "strength": 1}}}, "did you mean 'strengths'"),
        ({"variants": {"g": {"strengths": [1.0]}}}, "give {variant: <name>, strengths: ...}"),
        ({"variants": {"graphmax": {"variant": "graphmax"}}}, "add softmax"),
    ],
)
def test_a_mistake_is_named_when_the_part_is_built(changes, message):
    with pytest.raises(UserError, match=message) as raised:
        NextWordNll(**{"variants": VARIANTS, "contexts": 4, "length": 4, **changes})
    assert str(raised.value).startswith("callback.graphmax_trial.parts.likelihood") and "\n" not in str(raised.value)


# --- lit_ctg.papers.graphmax.trial_parts ----------------------------------------------------------------------------


def test_convergence_shows_what_each_step_moved(folds, module, published):
    numbers, _ = Convergence(contexts=4, length=5, strength=1.0, iterates=2).measure(folds[0], module)
    logits = contexts_of(folds[0], module, contexts=4, length=5).logits_NV
    ends = [
        graphmax(logits, folds[0].graph, 1.0, solver=replace(published, steps=steps)).probs_BV for steps in (2, 3)
    ]  # fmt: skip
    moved = float((ends[1] - ends[0]).norm(dim=-1).mean())
    assert numbers["convergence/shop/published/step_3"].value == pytest.approx(moved)
    assert numbers["convergence/shop/published/step_20"].value > 1e-4, "it never meets its own threshold"
    assert len([name for name in numbers if "published/step" in name]) == 40
    best = graphmax(logits, folds[0].graph, 1.0, tol=1e-9).probs_BV
    far = float((graphmax(logits, folds[0].graph, 1.0, solver=published).probs_BV - best).abs().sum(-1).mean()) / 2
    assert numbers["distance/shop/published/step_20"].value == pytest.approx(far, abs=1e-3)
    assert numbers["gap/shop/certified/iterate_2"].value <= 1e-6 < numbers["gap/shop/certified/iterate_1"].value + 1e-6
    assert 1 <= numbers["products/shop/certified"].value <= 5


def test_a_row_that_stopped_stays_where_it_stopped(folds, module, published, monkeypatch) -> None:
    """Moves of 1, 0.1 and more than 1 again: with a threshold of 0.5 the solver ends at the second step."""
    x = torch.zeros(3, len(module.table))
    x[0, 0] = x[1, 0] = x[2, 1] = 1.0
    x[1, 2] = 0.1

    def scripted(logits_BV, graph, strength, **settings):
        found = graphmax(logits_BV, graph, strength, **settings)
        solver = settings.get("solver")
        return found if solver is None else found._replace(probs_BV=x[solver.steps - 1].expand_as(found.probs_BV))

    monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.graphmax", scripted)
    fold = replace(folds[0], published=replace(published, steps=3, threshold=0.5))
    numbers, _ = Convergence(contexts=2, length=5, strength=1.0, iterates=1).measure(fold, module)
    assert numbers["stopped/shop/published"].value == 1.0
    moved = [numbers[f"convergence/shop/published/step_{step}"].value for step in (1, 2, 3)]
    assert moved == pytest.approx([1.0, 0.1, (2 + 0.01) ** 0.5])
    distance = [numbers[f"distance/shop/published/step_{step}"].value for step in (1, 2, 3)]
    assert distance[1] == distance[2] != distance[0]


def test_one_row_that_is_not_certified_does_not_end_the_run(folds, module, monkeypatch):
    fold = replace(folds[0], certificates=type(folds[0].certificates)())

    def poor(logits_BV, graph, strength, **settings):
        found = graphmax(logits_BV, graph, strength, **settings)
        return found._replace(converged_B=torch.arange(len(logits_BV)) > 0)

    monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.graphmax", poor)
    with pytest.warns(RuntimeWarning, match="certified 3 of 4 rows"):
        Convergence(contexts=4, length=5, strength=1.0).measure(fold, module)
    assert fold.certificates.certified == {"graphmax": 3}


def test_top_words_are_the_best_of_each_method(folds, module, vocabulary):
    methods = {
        "softmax": {"variant": "softmax"},
        "same": {"variant": "graphmax", "strength": 0.0},
        "copy": {"variant": "interpolation", "strength": 1e9},
    }
    numbers, samples = TopWords(methods=methods, contexts=["the food", "nice"], words=3).measure(folds[0], module)
    assert numbers["top_shared/shop/softmax"].value == numbers["top_shared/shop/same"].value == 1.0
    assert 0 <= numbers["top_shared/shop/copy"].value < 1
    words = {(s["method"], s["prompt"]): {pair.split()[0] for pair in s["text"].split(", ")} for s in samples}
    lists = {name: [words[f"top/{name}", prompt] for prompt in ("the food", "nice")] for name in methods}
    shared = [len(one & other) for one, other in zip(lists["copy"], lists["softmax"], strict=True)]
    assert numbers["top_shared/shop/copy"].value == pytest.approx(sum(shared) / 6) and 0 < sum(shared) < 6
    best = module.table[vocabulary.id("food")].softmax(-1).topk(3)
    first = ", ".join(
        f"{vocabulary.tokens[token]} {prob:.3f}"
        for token, prob in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    shown = [s for s in samples if s["method"] == "top/softmax"]
    assert [s["prompt"] for s in shown] == ["the food", "nice"] and shown[0]["text"] == first
    row = folds[0].graph.matrix[[vocabulary.id("food")]].toarray()[0]
    copied = next(s for s in samples if s["method"] == "top/copy")["text"].split()[0]
    assert row[vocabulary.id(copied)] == torch.tensor(row).max()
    assert TopWords(**WORDS).positions(vocabulary) == 2
    for changes, message in (
        ({"methods": {"g": {"variant": "softmx"}}}, "did you mean 'softmax'"),
        ({"contexts": ["the food", ""]}, "without a token"),
        ({"words": len(vocabulary) + 1}, r"top_words: words=\d+"),
    ):
        with pytest.raises(UserError, match=message):
            TopWords(**{**WORDS, **changes}).positions(vocabulary)


WORDS = {"methods": {"softmax": {"variant": "softmax"}}, "contexts": ["the food"], "words": 3}
