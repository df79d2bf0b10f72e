"""Topic trials, the tables made of them, the X-ray of the gate."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import WandbLogger
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from lit_ctg.config import compose, plain
from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate import GateForm, metrics
from lit_ctg.papers.idea_gate.corpus import known_domains, load_domain
from lit_ctg.papers.idea_gate.metrics import authors_words, grouped_bootstrap
from lit_ctg.papers.idea_gate.model import IdeaGateOutput
from lit_ctg.papers.idea_gate.trial import ALL, Sample, TopicTrial, XRay, figure, first_token, look, readable, shown
from lit_ctg.run.build import build_datamodule
from lit_ctg.statistics import wilson_interval
from tests.llama import llama_tokenizer
from tests.offline_wandb import finished

# topic_trial: Topic trials with a generator that writes what it is told to: places, arms, pairing, records


FUNCTION_WORDS = ("the", "of", "and")
DOMAINS = ("chemistry", "war")


@dataclass
class Text:
    ids: Sequence[int]
    prompt_length: int


@pytest.fixture(scope="module")
def vocabulary():
    """A byte-level tokenizer of the prompts and continuations used here."""
    tokenizer = TrainedBPETokenizer(size=400)
    prompts = [prompt for name in DOMAINS for prompt in load_domain(name).prompts]
    tokenizer.train([*prompts, " acid army king river" * 20])
    return tokenizer


class Author:
    """Continues prompts with ``continuation(control, row)``, remembering how it was called."""

    def __init__(self, vocabulary, continuation):
        self.vocabulary, self.continuation, self.calls = vocabulary, continuation, []

    def generator(self, module, datamodule):
        return self

    def generate(self, n, prompt, control, *, seed, rows, max_new_tokens):
        assert len(prompt) == len(rows) == n
        self.calls.append((list(prompt), dict(control), seed, list(rows), max_new_tokens))
        texts = []
        for start, row in zip(map(self.vocabulary.encode, prompt), rows, strict=True):
            new = self.vocabulary.encode(self.continuation(control, row))
            texts.append(Text((*start, *new[:max_new_tokens]), len(start)))
        return texts


def trial(author, **options):
    settings = {
        "domains": DOMAINS,
        "samples": 4,
        "prompts": 2,
        "scored_tokens": 10,
        "spans": [[1, 5], [6, 10], [11, 20]],
        "function_words": FUNCTION_WORDS,
        "arms": {"gated": {}, "gate_off": {"alpha": 0.0}},
        "decoding": author,
        "seed": 3,
    }
    return TopicTrial(**{**settings, **options})


def run(author, gated=True, **options):
    callback = trial(author, **options)
    callback.run(SimpleNamespace(gated=gated), SimpleNamespace(vocabulary=author.vocabulary))
    return callback


def on_topic(control, row):
    """Acid with the gate, kings without."""
    return (" king" if control else " acid") * 30


def test_stickiness_of_each_arm_and_the_gain(vocabulary) -> None:
    results = run(Author(vocabulary, on_topic)).results
    assert results["topic/gated/chemistry/short/stickiness"]["value"] == 1.0
    assert results["topic/gate_off/chemistry/short/stickiness"]["value"] == 0.0
    # acid is no term of war
    assert results["topic/gated/war/long/stickiness"]["value"] == 0.0
    assert results["topic/gated/all/short/stickiness"]["value"] == 0.5
    gain = results["topic/gate_gain/chemistry/short/stickiness"]
    assert gain["value"] == 1.0 and gain["ci95"] == [1.0, 1.0] and gain["n"] == 4
    assert results["topic/gate_gain/war/short/stickiness"]["value"] == 0.0
    assert results["topic/gated/chemistry/short/stickiness"]["n"] == 4
    assert results["topic/gated/all/short/stickiness"]["n"] == 8
    callback = run(Author(vocabulary, on_topic))
    callback.run(SimpleNamespace(gated=False), SimpleNamespace(vocabulary=vocabulary))
    assert {key.split("/")[1] for key in callback.results} == {"gated"}
    assert {sample["path"] for sample in callback.samples} == {"gated"}


def test_the_prompt_is_left_out_and_its_own_reading_kept(vocabulary) -> None:
    results = run(Author(vocabulary, lambda *_: " king" * 30)).results
    assert results["topic/gated/chemistry/long/stickiness"]["value"] == 0.0
    assert results["topic/gated/chemistry/long/stickiness_with_prompt"]["value"] > 0.1
    assert results["topic/gated/chemistry/long/density"]["value"] == 0.0
    assert results["topic/gated/chemistry/long/density_with_prompt"]["value"] > 0.0


def test_the_authors_measure_is_theirs(vocabulary) -> None:
    """Deviation 10: their lists, function words and splitting, the prompt counted; a text without content is 0."""
    callback = run(Author(vocabulary, lambda _, row: [" acid", " the", " reaction (", " gases, gas."][row % 4] * 30))
    domain, shares = load_domain("chemistry"), []
    texts = [s for s in callback.samples if s["path"] == "gated" and s["setting"] == "chemistry"]
    stop = {"the", "a", "an", "and", "or", "but", "in", "on", "at", "to", "for", "of", "with", "is", "was"}
    for sample in texts:
        found = [w for w in sample["text"].lower().replace(".", "").replace(",", "").split() if w not in stop]
        shares.append(sum(w in domain.terms["authors"] for w in found) / len(found) if found else 0.0)
    assert len(texts) == 4 and len(set(shares)) == 4
    kept = callback.results["topic/gated/chemistry/authors/stickiness_with_prompt"]
    assert kept["n"] == 4
    # one text of only function words, which counts 0, one with a term among three words
    empty, half = (Sample("", 3, [], [], authors_words(text), [], []) for text in ("The, the.", "Acid (acid) acid,"))
    for texts, expected in ([empty, half], 1 / 3), ([empty], 0.0):
        assert float(TopicTrial._authors([domain], {"chemistry": [texts]}).compute()) == pytest.approx(expected)
    assert {name: len(load_domain(name).terms["authors"]) for name in known_domains()} == {
        "medicine": 25, "chemistry": 24, "hardware": 18, "finance": 19, "war": len(load_domain("war").terms["short"])
    }  # fmt: skip


def test_only_scored_tokens_count_and_spans_see_where_words_stand(vocabulary) -> None:
    acid, king = (vocabulary.encode(word) for word in (" acid", " king"))
    assert len(acid) == len(king) == 1, "one token a word makes places plain"
    results = run(Author(vocabulary, lambda *_: " acid" * 5 + " king" * 5 + " acid" * 10)).results
    name = "topic/gated/chemistry/short"
    drift = {span: results[f"{name}/drift/{span}"]["value"] for span in ("1-5", "6-10", "11-20", "fall")}
    assert drift == {"1-5": 1.0, "6-10": 0.0, "11-20": 1.0, "fall": 0.0}
    assert results[f"{name}/stickiness"]["value"] == 0.5
    # one different term in ten tokens
    assert results[f"{name}/density"]["value"] == pytest.approx(10.0)
    # ten words, two of nine pairs new each time: (a a), (a k), (k k)
    assert results["topic/gated/chemistry/distinct_2"]["value"] == pytest.approx(3 / 9)
    # Terms at the edges of spans alone: a span that begins or ends a token too early or too late has another share.
    names = ["king"] * 20
    for place in (1, 5, 6, 20):
        names[place - 1] = "acid"
    results = run(Author(vocabulary, lambda *_: " " + " ".join(names))).results
    name = "topic/gated/chemistry/short/drift"
    assert [results[f"{name}/{span}"]["value"] for span in ("1-5", "6-10", "11-20")] == [2 / 5, 1 / 5, 1 / 10]
    long = vocabulary.encode(" acids")
    assert 2 <= len(long) <= 5 and "acids" in load_domain("chemistry").terms["long"]
    # its first token is the fifth new one
    results = run(Author(vocabulary, lambda *_: " king" * 4 + " acids" + " king" * 20)).results
    name = "topic/gated/chemistry/long/drift"
    assert results[f"{name}/1-5"]["value"] == 1 / 5
    assert results[f"{name}/6-10"]["value"] == 0.0


def test_prompts_and_arms_share_out_and_pair(vocabulary) -> None:
    author = Author(vocabulary, on_topic)
    callback = run(author, samples_kept=1)
    gated, off = author.calls[:2], author.calls[2:]
    # the same prompts, seeds and rows in both arms: the same draws
    assert [call[:1] + call[2:] for call in gated] == [call[:1] + call[2:] for call in off]
    assert [call[1] for call in author.calls] == [{}, {}, {"alpha": 0.0}, {"alpha": 0.0}]
    # every row of every domain has draws of its own
    rows = [row for call in gated for row in call[3]]
    assert rows == list(range(8))
    first, second = load_domain("chemistry").prompts[:2]
    assert gated[0][0] == [first, first, second, second]
    assert all(call[2] == 3 and call[4] == 20 for call in author.calls)
    assert len(callback.samples) == 2 * 2 * 2
    assert all(sample["text"].startswith(sample["prompt"]) for sample in callback.samples)


def test_runs_in_validation_alone(vocabulary, tiny, trainer_of) -> None:
    callback = trial(Author(vocabulary, on_topic))
    module, data = tiny()
    data.vocabulary, module.gated = vocabulary, True
    trainer = trainer_of(callback)
    trainer.fit(module, data)
    assert not callback.results
    trainer.validate(module, data, verbose=False)
    assert callback.results and callback.samples


def sample(scored, last_ids=()):
    return Sample("", 10, scored, scored, scored, [scored] * 3, list(last_ids))


# two prompts whose samples are alike among themselves: over samples alone the intervals would be narrower
ALIKE = [[sample(["acid"] * 10, [0])] * 8, [sample(["king", "army", "river"] * 3, [1])] * 8]


def of_groups(first, second):
    """The interval of two prompts' samples."""
    expected = grouped_bootstrap([first] * 8 + [second] * 8, [0] * 8 + [1] * 8)
    assert expected != grouped_bootstrap([first] * 8 + [second] * 8, [0] * 16)
    return pytest.approx(list(expected))


def test_intervals_are_over_prompts_and_their_samples(vocabulary, monkeypatch) -> None:
    callback = trial(None, domains=["chemistry"])
    callback._measure("gated", {"chemistry": ALIKE})
    results, name = callback.results, "topic/gated/chemistry/short"
    for key in ("stickiness", "stickiness_with_prompt", "drift/1-5"):
        assert results[f"{name}/{key}"]["value"] == 0.5 and results[f"{name}/{key}"]["ci95"] == of_groups(1.0, 0.0)
    assert results[f"{name}/density"]["ci95"] == of_groups(10.0, 0.0)
    assert results["topic/gated/chemistry/distinct_2"]["ci95"] == of_groups(1 / 9, 3 / 8)
    # the gain of a gate without which no text keeps to its topic; a text without a content word has none
    words = [[sample(["the"]), *ALIKE[0][1:]], ALIKE[1]]
    on, less, off = (
        callback._metrics(callback.domains, {"chemistry": texts}, "short")
        for texts in (ALIKE, words, [ALIKE[1], ALIKE[1]])
    )
    for name, metrics_on in (("whole", on), ("less", less)):
        callback._gain({name: metrics_on["stickiness"]}, {name: off["stickiness"]})
    assert results["topic/gate_gain/whole"]["ci95"] == of_groups(1.0, 0.0)
    assert results["topic/gate_gain/less"]["n"] == 15
    assert results["topic/gate_gain/less"]["value"] == pytest.approx(7 / 15)
    callback = trial(None)
    judge = SimpleNamespace(classes=lambda texts: np.array([ids[0] for ids in texts]))
    callback._classify(judge, "gated", dict.fromkeys(DOMAINS, ALIKE))
    values = {domain: callback.results[f"topic/gated/{domain}/classified"] for domain in (*DOMAINS, ALL)}
    assert values["chemistry"]["ci95"] == of_groups(1.0, 0.0) and values["war"]["ci95"] == of_groups(0.0, 1.0)
    expected = grouped_bootstrap([*[1.0] * 8, *[0.0] * 16, *[1.0] * 8], [group for group in range(4) for _ in range(8)])
    assert values[ALL]["value"] == 0.5 and values[ALL]["ci95"] == pytest.approx(list(expected))
    groups = set()
    monkeypatch.setattr(metrics, "grouped_bootstrap", lambda values, group_N: groups.add(len(set(group_N))))
    data = SimpleNamespace(vocabulary=vocabulary, prepare=lambda: corpus_of(vocabulary))
    results = trial(None).text_references(data)
    # two held-out documents of each domain; of the other subjects two, seen by both lists of terms
    assert results["topic/text/all/short/stickiness"]["n"] > 4 and groups == {2, 4}


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        # a word that the prompt began is not a word of the continuation
        ("xyz acid", "chemistry", {"short/stickiness": 1.0}),
        # a short text has its own number of tokens and no far span
        (" acid", "chemistry", {"short/density": 100.0, "short/drift/11-20": None}),
        # each list counts its own terms
        (" alcohol" * 10, "chemistry", {"long/stickiness": 1.0, "short/stickiness": 0.0}),
    ],
)
def test_words_of_a_text_are_counted_once(vocabulary, text, name, values) -> None:
    results = run(Author(vocabulary, lambda *_: text), gated=False).results
    for key, value in values.items():
        entry = results[f"topic/gated/{name}/{key}"]
        assert entry["n"] == 0 if value is None else entry["value"] == pytest.approx(value)


def test_the_last_span_s_tokens_are_those_that_it_names(vocabulary) -> None:
    start, new = vocabulary.encode("The war"), [vocabulary.id(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    callback = trial(None, spans=[[1, 5], [11, 20]])
    sample = callback.read(Text((*start, *new), len(start)), vocabulary)
    assert sample.last_ids == new[10:20] and sample.new_tokens == 10
    short = callback.read(Text((*start, *new[:7]), len(start)), vocabulary)
    assert short.last_ids == [] and short.new_tokens == 7


@pytest.mark.parametrize(
    "options",
    [
        {"arms": {"gate_off": {"alpha": 0.0}}},
        {"arms": {"gated": {"alpha": 1.0}}},
        {"samples": 5},
        {"prompts": 40, "samples": 40},
        {"spans": [[5, 2]]},
        {"spans": [[0, 5]]},
        {"spans": []},
        {"domains": ["alchemy"]},
    ],
)
def test_bad_settings_are_named(vocabulary, options) -> None:
    with pytest.raises(UserError, match=next(iter(options)).removesuffix("s")):
        trial(Author(vocabulary, on_topic), **options)


def corpus_of(vocabulary):
    """A packed corpus: chemistry writes of acids, war of armies, the rest of rivers, every other word."""
    subjects = {"chemistry": " acid king", "war": " army king", "sport": " river king"}
    texts = {name: vocabulary.encode(words * 60) for name, words in subjects.items()}
    splits = {split: list(texts) * count for split, count in (("train", 4), ("val", 1), ("test", 1))}
    return SimpleNamespace(
        sources=tuple(texts),
        table=lambda split, _: np.array([list(texts).index(name) for name in splits[split]]),
        document=lambda split, number: np.array(texts[splits[split][number]]),
    )


def test_a_classifier_of_real_text_judges_the_last_span(vocabulary) -> None:
    packed = corpus_of(vocabulary)
    # on the topic of the prompt in the last span only with the gate off
    author = Author(vocabulary, lambda control, row: " river" * 10 + (" acid" if control else " river") * 20)
    callback = trial(author, classifier={"tokens": 10, "pieces": 20}, prefix="tried")
    data = SimpleNamespace(vocabulary=vocabulary, prepare=lambda: packed)
    callback.run(SimpleNamespace(gated=True), data)
    results = callback.results
    assert results["tried/classifier/accuracy"]["value"] == 1.0 and results["tried/classifier/war"]["value"] == 1.0
    assert results["tried/gate_off/chemistry/classified"]["value"] == 1.0
    assert results["tried/gated/chemistry/classified"]["value"] == 0.0
    assert results["tried/gate_off/war/classified"]["value"] == 0.0
    assert (
        results["tried/gate_off/all/classified"]["value"] == 0.5 and results["tried/gate_off/all/classified"]["n"] == 8
    )
    accuracy = results["tried/classifier/accuracy"]
    assert accuracy["ci95"] == list(wilson_interval(accuracy["n"], accuracy["n"]))
    assert {name.split("/")[0] for name in results} == {"tried"}
    assert {sample["path"] for sample in callback.samples} == {"tried/gated", "tried/gate_off"}


def test_references_are_real_texts_and_arms_are_counted_in_random_ones(vocabulary) -> None:
    packed = corpus_of(vocabulary)
    packed.document = lambda split, number: np.array(
        vocabulary.encode((" acid king", " army king", " acid king king king")[number % 3] * 60)
    )
    callback = trial(Author(vocabulary, on_topic), references=True)
    callback.run(SimpleNamespace(gated=True), SimpleNamespace(vocabulary=vocabulary, prepare=lambda: packed))
    results = callback.results
    assert results["topic/text/chemistry/short/stickiness"]["value"] == pytest.approx(0.5, abs=0.01)
    assert results["topic/text/all/short/stickiness"]["n"] == 2 * results["topic/text/chemistry/short/stickiness"]["n"]
    # three bigrams of two words in pieces of some tokens; one word of the list in each piece of the other subjects
    assert 0 < results["topic/text/chemistry/distinct_2"]["value"] < 1
    assert results["topic/text/all/distinct_2"]["n"] == 2 * results["topic/text/chemistry/distinct_2"]["n"]
    pieces = callback.scored_tokens
    assert results["topic/text/chemistry/short/density"]["value"] == pytest.approx(100 / pieces)
    assert results["topic/random/war/short/density"]["value"] == 0.0
    random = results["topic/random/chemistry/short/stickiness"]["value"]
    assert random == pytest.approx(0.25, abs=0.03)
    times = results["topic/gated/chemistry/short/times_random"]
    assert times["value"] == pytest.approx(1.0 / random)
    assert times["n"] == results["topic/random/chemistry/short/stickiness"]["n"]
    # no army in the other subjects: nothing to be counted in
    assert results["topic/random/war/short/stickiness"]["value"] == 0.0
    assert "topic/gated/war/short/times_random" not in results


@pytest.mark.parametrize("regime", ["as_published", "corrected"])
@pytest.mark.parametrize("size", ["smoke", "small", "paper"])
def test_the_configured_trials_are_accepted_and_fit_the_context(regime, size) -> None:
    cfg = plain(compose(["experiment=idea_gate/main", f"size={size}", f"regime={regime}"]))
    options = {
        key: value for key, value in cfg["callback"]["topic_trial"].items() if key not in ("_target_", "decoding")
    }
    trial = TopicTrial(**options, decoding=None)
    assert trial.prompts == (1 if regime == "as_published" else 5)
    assert len(trial.function_words) == 15
    # the rest of the context is for the prompt
    assert trial.max_new_tokens <= 0.8 * cfg["backbone"]["context"]


# xray: X-ray: factors against the equations in float64, files on disk, W&B after them


PROMPT = "the market is"
ALPHA, BETA = 0.5, -2.0


@pytest.fixture(scope="module")
def xray_vocabulary():
    tokenizer = TrainedBPETokenizer(size=300)
    tokenizer.train([" the market is a king and a river of $ money" * 10])
    return tokenizer


@pytest.fixture
def gated(tiny):
    """Return (module, data) whose module has token and idea logits and the paper's gate."""

    def make(xray_vocabulary, has_gate=True):
        module, data = tiny()
        size = len(xray_vocabulary)
        generator = torch.Generator().manual_seed(1)
        token_V = torch.randn(size, generator=generator)
        idea_V = torch.randn(size, generator=generator) * 4 - 4
        module.form, module.alpha, module.beta = GateForm(clamp="after_scaling", epsilon=1e-8), ALPHA, BETA
        module.base_rate = None
        module.gate = lambda idea: module.form(idea, module.alpha, module.beta)

        def forward(batch):
            shape = (*batch["input_ids_BT"].shape, size)
            token, idea = token_V.expand(shape).clone(), idea_V.expand(shape).clone()
            # the tables are of the newest position alone
            token[:, :-1], idea[:, :-1] = token_V.flip(0), idea_V.flip(0)
            scores = token + module.gate(idea) if has_gate else token
            return IdeaGateOutput(scores, scores, token, idea if has_gate else None)

        module.forward = forward
        module.tables = (token_V.double(), idea_V.double())
        data.vocabulary = xray_vocabulary
        return module, data

    return make


def xray(**options):
    prompts = {"stock_market": {"prompt": PROMPT, "words": ["market", "king"]}}
    return XRay(**{"prompts": prompts, "top": 5, "minimum": 1e-3, **options})


def test_factors_are_the_equations(gated, xray_vocabulary) -> None:
    module, _ = gated(xray_vocabulary)
    token_V, idea_V = module.tables
    gates = [max(ALPHA * math.log(1 / (1 + math.exp(-z)) + 1e-8), BETA) for z in idea_V.tolist()]
    before = [math.exp(z) for z in token_V.tolist()]
    after = [b * math.exp(g) for b, g in zip(before, gates, strict=True)]
    picture = look(module, xray_vocabulary.encode(PROMPT))
    for number in range(len(gates)):
        factor = (after[number] / math.fsum(after)) / (before[number] / math.fsum(before))
        assert float(picture.factor_V[number]) == pytest.approx(factor, rel=1e-5)
        assert float(picture.idea_V[number]) == pytest.approx(1 / (1 + math.exp(-idea_V[number])), rel=1e-5)
    assert picture.clamped == pytest.approx(sum(g == BETA for g in gates) / len(gates))
    assert 0 < picture.clamped < 1
    assert float(picture.after_V.sum()) == pytest.approx(1.0) == float(picture.before_V.sum())


@pytest.mark.parametrize("lift", [False, True])
@pytest.mark.parametrize("clamp", ["after_scaling", "before_scaling"])
@pytest.mark.parametrize(("alpha", "beta"), [(ALPHA, BETA), (0.0, -2.0), (0.0, 0.0), (0.5, -1e3)])
def test_clamped_is_the_share_of_tokens_at_the_bound(gated, xray_vocabulary, clamp, alpha, beta, lift) -> None:
    """The published clamp holds from log p = beta down, Eq. 4 and 5 from log p = beta / alpha: fewer tokens."""
    module, _ = gated(xray_vocabulary)
    module.form, module.alpha, module.beta = GateForm(clamp=clamp, epsilon=1e-8), alpha, beta
    log_p = module.tables[1].sigmoid().log()
    if lift:
        module.base_rate = torch.linspace(-5.0, -0.1, len(xray_vocabulary))
        log_p = log_p - module.base_rate
        module.gate = lambda idea: module.form(idea, module.alpha, module.beta, module.base_rate)
    picture = look(module, xray_vocabulary.encode(PROMPT))
    bound = beta / alpha if clamp == "after_scaling" and alpha else beta
    assert picture.clamped == pytest.approx(float((log_p <= bound).double().mean()) if alpha else 0.0)
    if alpha == 0:
        assert float((picture.factor_V - 1).abs().max()) < 1e-6


def test_the_gate_never_raises_a_score_and_boosts_all_the_same(gated, xray_vocabulary) -> None:
    """Deviation 8: "boosted" is after renormalisation, by exp(-beta) at most."""
    module, _ = gated(xray_vocabulary)
    picture = look(module, xray_vocabulary.encode(PROMPT))
    assert float(module.gate(module.tables[1]).max()) <= 0
    assert 1 < float(picture.factor_V.max()) <= math.exp(-BETA)
    # probability moves, none is made
    assert float((picture.before_V * picture.factor_V).sum()) == pytest.approx(1.0)


def test_ranking_names_and_records(gated, xray_vocabulary) -> None:
    module, _ = gated(xray_vocabulary)
    callback = xray()
    callback.run(module, xray_vocabulary)
    by_kind = {
        kind: [row for row in callback.rows if row["kind"] == kind] for kind in ("boosted", "suppressed", "named")
    }
    factors = [row["factor"] for row in by_kind["boosted"]]
    assert len(factors) == 5 and factors == sorted(factors, reverse=True)
    assert all(row["probability_before"] >= 1e-3 for row in by_kind["boosted"] + by_kind["suppressed"])
    low = [row["factor"] for row in by_kind["suppressed"]]
    assert len(low) == 5 and low == sorted(low) and max(low) < min(factors), "the most suppressed first"
    picture = look(module, xray_vocabulary.encode(PROMPT))
    for row in callback.rows:
        assert row["probability_before"] == float(picture.before_V[row["id"]])
        assert row["probability_after"] == float(picture.after_V[row["id"]])
        assert row["idea_probability"] == float(picture.idea_V[row["id"]])
    assert callback.results["xray/stock_market/market"]["value"] == by_kind["named"][0]["factor"]
    assert {"xray/stock_market/king", "xray/stock_market/clamped"} <= set(callback.results)
    (sample,) = callback.samples
    first = by_kind["boosted"][0]["token"]
    assert sample["prompt"] == PROMPT and sample["text"].startswith(f"boosted {first} x")
    assert "; suppressed " in sample["text"]
    module, _ = gated(xray_vocabulary)
    before_V = look(module, xray_vocabulary.encode(PROMPT)).before_V
    # three tokens are likely enough to be ranked, or one: then nothing is compared
    for likely, expected in ((3, 1), (1, 0)):
        callback = xray(top=5, minimum=float(before_V.topk(likely).values[-1]))
        callback.run(module, xray_vocabulary)
        ends = [[row["id"] for row in callback.rows if row["kind"] == kind] for kind in ("boosted", "suppressed")]
        assert [len(ids) for ids in ends] == [expected, expected] and not set(ends[0]) & set(ends[1])


def test_a_word_is_looked_up_as_inside_a_sentence(xray_vocabulary) -> None:
    assert xray_vocabulary.decode([first_token(xray_vocabulary, "market")]) == " market"
    # of several tokens the first counts
    assert len(xray_vocabulary.encode(" marketing")) > 1
    assert xray_vocabulary.decode([first_token(xray_vocabulary, "marketing")]).startswith(" m")
    for normalised in (True, False):  # of the family of Llama, where a space is a token of its own
        tokenizer = HuggingFaceTokenizer.of(llama_tokenizer([" the market is a king" * 20], normalised))
        names = [tokenizer.tokens[first_token(tokenizer, word)] for word in ("market", "king")]
        assert names == ["\u2581market", "\u2581king"]
    size = len(xray_vocabulary)
    assert shown(xray_vocabulary, size) == f"<id {size}>"
    assert shown(xray_vocabulary, first_token(xray_vocabulary, "market")) == "\u2423market"


def test_every_token_is_drawn_once_and_as_in_the_table(gated, xray_vocabulary, tmp_path) -> None:
    """Two tokens that look the same are two bars; one that is named and boosted is one."""
    module, _ = gated(xray_vocabulary)
    callback = xray(top=200, minimum=0.0)
    callback.run(module, xray_vocabulary)
    callback.rows[3]["token"] = callback.rows[4]["token"] = "=1+1"
    expected = {row["id"]: row["factor"] for row in callback.rows}
    assert len({row["token"] for row in callback.rows}) < len(expected) < len(callback.rows), "no case to be tested"
    callback.write_files(tmp_path)
    with open(tmp_path / "xray.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    table = {int(row["id"]): float(row["factor"]) for row in read}
    assert read[3]["token"] == "'=1+1", "a spreadsheet would run it"
    assert table == expected
    axes = figure(callback.rows, PROMPT).on(Figure().add_subplot())[1]
    labels = [text.get_text() for text in axes.texts if text.get_weight() == "normal"][::2]
    assert len(labels) == len(set(labels)) == len(expected)
    assert PROMPT in axes.get_title(loc="left")
    # bars begin at 1
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert {bar.get_x() for bar in axes.patches} == {1.0} and sorted(ends) == pytest.approx(sorted(expected.values()))


@pytest.mark.parametrize(
    ("token", "raw", "label"),
    [
        (" market", "\u0120market", "\u2423market"),
        ("\n", "\u010a", "\\n"),
        ("\ufffd", "\u00e2\u0122", "bytes e2 80"),
        ("\u200b", "\u00e2\u0122\u012d", "\\u200b"),
        ("\u00e9", "\u00c3\u00a9", "\u00e9"),
        ("", "<|endoftext|>", "<|endoftext|>"),
    ],
)
def test_unprintable_tokens_are_readable(token: str, raw: str, label: str) -> None:
    assert readable(token, raw) == label


def test_without_a_gate_there_is_nothing(gated, xray_vocabulary, trainer_of, tmp_path) -> None:
    module, data = gated(xray_vocabulary, has_gate=False)
    callback = xray()
    trainer_of(callback).validate(module, data, verbose=False)
    assert not callback.results and not callback.rows and not list(tmp_path.glob("xray*"))
    module, data = gated(xray_vocabulary)  # in training, too
    callback.on_validation_end(SimpleNamespace(state=SimpleNamespace(fn="fit"), datamodule=data), module)
    assert callback.results == {} and callback.rows == []


@pytest.mark.long
def test_files_are_written_and_logged(gated, xray_vocabulary, trainer_of, tmp_path) -> None:
    import wandb

    module, data = gated(xray_vocabulary)
    callback = xray()
    logger = WandbLogger(project="test", save_dir=str(tmp_path), offline=True)
    try:
        trainer_of(callback, logger=logger).validate(module, data, verbose=False)
    finally:
        wandb.finish()
    with open(tmp_path / "xray.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["factor"]) for row in rows] == [row["factor"] for row in callback.rows]
    assert PROMPT in (tmp_path / "xray.svg").read_text(encoding="utf-8")
    logged = b"".join(entry.SerializeToString() for entry in finished(tmp_path))
    assert b"xray/table" in logged and b"xray/stock_market" in logged


def test_bars_stand_by_kind_the_largest_first_and_a_token_stands_once() -> None:
    def row(number, kind, factor):
        return {"id": number, "token": f"t{number}", "kind": kind, "factor": factor}

    rows = [
        row(5, "named", 3.0), row(4, "named", 0.9), row(7, "named", 0.0),
        row(1, "boosted", 2.0), row(5, "boosted", 3.0), row(2, "suppressed", 0.1), row(3, "suppressed", 0.4),
    ]  # fmt: skip
    axes = figure(rows, "p").on(Figure().add_subplot())[1]
    labels = [text.get_text() for text in axes.texts if text.get_text().startswith("t")]
    assert labels == ["t5", "t1", "t4", "t7", "t3", "t2"]
    assert [bar.get_gid() for bar in axes.patches] == [f"series{number}" for number in (0, 0, 1, 1, 2, 2)]


# --- configurations: what long texts and validation are in each regime ----------------------------------------------


REGIMES = ("as_published", "corrected")


@pytest.mark.parametrize("regime", REGIMES)
def test_long_texts_are_drawn_as_the_others_are(regime) -> None:
    """Case study 2 has the run's own penalty, deviations 13 and 14 included."""
    for words in ([], ["+decoding.penalty_on=log_probabilities", "decoding.repetition_penalty=1.3"]):
        cfg = compose(["experiment=idea_gate/branch", f"regime={regime}", "size=small", *words])
        longer = OmegaConf.to_container(cfg.callback.topic_long.decoding, resolve=True)
        ours = OmegaConf.to_container(cfg.decoding, resolve=True) | {"max_new_tokens": 500, "slide": 128}
        assert {key: value for key, value in longer.items() if value is not None} == {
            key: value for key, value in ours.items() if value is not None
        }


@pytest.mark.long
def test_published_validation_is_five_random_batches_and_corrected_the_whole_split(tmp_path) -> None:
    def validation(regime: str, seed: int = 0) -> tuple[float, list[int]]:
        words = ["experiment=idea_gate/main", f"regime={regime}", f"seed={seed}", f"+data.cache_root={tmp_path}"]
        cfg = compose([*words, "size=smoke", "data.steps_per_epoch=5"])
        batches = list(build_datamodule(cfg).val_dataloader())
        return cfg.trainer.limit_val_batches, [int(batch["input_ids_BT"][0, 0]) for batch in batches]

    limit, published = validation("as_published")
    assert limit == 5 and len(published) == 5 and published != validation("as_published", seed=1)[1]
    limit, corrected = validation("corrected")
    assert limit == 1.0 and isinstance(limit, float) and corrected == validation("corrected", seed=1)[1]
    assert published != corrected[:5]
