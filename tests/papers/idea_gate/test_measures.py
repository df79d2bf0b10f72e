"""Measures without sampling noise: against a plain loop, by hand, and on texts whose answer is known."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.metric.bigram import Bigrams
from lit_ctg.papers.idea_gate.corpus import load_domain
from lit_ctg.papers.idea_gate.measures import (
    BigramLoss,
    GateContext,
    Held,
    HistoryCache,
    IdeaLoss,
    MassMean,
    TopicClassifier,
    TopicMass,
    about,
    term_ids,
)
from lit_ctg.papers.idea_gate.metrics import average_precision
from lit_ctg.papers.idea_gate.model import GateForm, IdeaGateOutput, distinct, future_window
from tests.llama import llama_tokenizer

SIZE = 12
TEXT = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 5, 5, 1, 6, 2, 3])


def batch_of(ids_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    mask = torch.ones_like(ids_BT[:, 1:], dtype=torch.bool)
    mask[-1, -3:] = False
    return {
        "input_ids_BT": ids_BT[:, :-1],
        "target_ids_BT": ids_BT[:, 1:],
        "mask_input_BT": mask,
        "mask_target_BT": mask,
    }


def data_of(train: np.ndarray, size: int = SIZE) -> SimpleNamespace:
    return SimpleNamespace(packed=SimpleNamespace(ids={"train": train}.__getitem__), vocabulary=range(size))


def test_the_margin_is_bigram_less_model_over_counted_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(torch.randint(SIZE, (3, 9), generator=generator))
    scores = torch.randn(3, 8, SIZE, generator=generator)
    metric = BigramLoss().bind(data_of(TEXT))
    # with the gate, as the model is used
    metric.update_from(IdeaGateOutput(scores, scores, torch.zeros_like(scores), scores), batch)
    result = metric.result()
    kept = batch["mask_target_BT"]
    first, second = batch["input_ids_BT"][kept].numpy(), batch["target_ids_BT"][kept].numpy()
    bigram = Bigrams(TEXT, SIZE).nll(first, second).mean()
    model = torch.nn.functional.cross_entropy(scores[kept].double(), batch["target_ids_BT"][kept]).item()
    assert result["loss"].value == pytest.approx(bigram) and result["loss"].n == 21
    assert result["margin"].value == pytest.approx(bigram - model, rel=1e-9)
    low, high = result["margin"].ci95
    assert low < result["margin"].value < high


def output_of(idea: torch.Tensor | None, token: torch.Tensor | None = None) -> IdeaGateOutput:
    token = torch.zeros(1, 1, SIZE) if token is None else token
    return IdeaGateOutput(token, token, token, idea)


def gate_module(stop=(), **changes):
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[list(stop)] = True
    form = GateForm(clamp="after_scaling", epsilon=1e-8)
    module = SimpleNamespace(
        vocabulary_size=SIZE,
        stopword_mask_V=mask,
        alpha=0.5,
        window=lambda ids, mask: future_window(ids, mask, size=4, start=1),
        gate=lambda logits: form(logits, 0.5, -2.0),
    )
    for name, value in changes.items():
        setattr(module, name, value)
    return module


def test_the_validation_idea_loss_is_that_of_training(make_module, batch) -> None:
    module = make_module(positive_weight=3.0).eval()
    module.stopword_mask_V[:9] = True
    mask = batch["mask_target_BT"].clone()
    mask[1, :3] = False  # targets that do not count need not be the last
    batch = {**batch, "mask_input_BT": mask, "mask_target_BT": mask}
    with torch.no_grad():
        output, expected = module(batch), module.losses(batch)["idea_loss"]
    metric = IdeaLoss().bind(None, module)
    for rows in (slice(0, 1), slice(1, 3)):
        part = {key: value[rows] for key, value in batch.items()}
        metric.update_from(output_of(output.idea_BTV[rows]), part)
    result = metric.result()
    assert result.value == pytest.approx(expected.item(), rel=1e-12) and result.n == int(batch["mask_target_BT"].sum())
    low, high = result.ci95
    assert low < result.value < high
    bare = IdeaLoss().bind(None, module)
    bare.update_from(output_of(None), batch)
    assert bare.result() == {}


def test_history_and_head_are_compared_position_by_position() -> None:
    generator = torch.Generator().manual_seed(1)
    module = gate_module(stop=[0, 1])
    batch = batch_of(torch.randint(SIZE, (2, 16), generator=generator))
    batch["mask_target_BT"][0, 5] = False  # a measured place with text behind it
    idea = torch.randn(2, 15, SIZE, generator=generator)
    metric = HistoryCache(stride=3).bind(data_of(TEXT), module)
    metric.update_from(output_of(idea), batch)
    windows = module.window(batch["target_ids_BT"], batch["mask_target_BT"])
    history, head = [], []
    for row in range(2):
        for place in range(2, 15, 3):
            wanted = distinct(windows[row, place : place + 1], module.stopword_mask_V)
            if not batch["mask_target_BT"][row, place] or not (wanted >= 0).any():
                continue
            counts = torch.bincount(batch["input_ids_BT"][row, : place + 1], minlength=SIZE)
            ranking = counts + torch.from_numpy(np.bincount(TEXT, minlength=SIZE) / 100).float()
            for scores, found in ((ranking, history), (idea[row, place], head)):
                masked = scores.masked_fill(module.stopword_mask_V, -torch.inf)[None]
                found.append(float(average_precision(masked, wanted)))
    result = metric.result()
    assert result["average_precision"].n == len(history) > 6
    assert result["average_precision"].value == pytest.approx(np.mean(history), rel=1e-6)
    assert result["head_gain"].value == pytest.approx(np.mean(head) - np.mean(history), rel=1e-6)
    bare = HistoryCache().bind(data_of(TEXT), module)
    bare.update_from(output_of(None), batch)
    assert bare.result() == {}
    module = gate_module(stop=[0])
    metric = HistoryCache(stride=3).bind(data_of(TEXT), module)
    ids = torch.tensor([7, 5, 5, 9, 7, 5])
    scores = metric.history(ids, torch.tensor([1, 4]))
    assert scores[0].argsort(descending=True)[:2].tolist() == [5, 7]  # 5 is commoner in the training text
    assert scores[1].argsort(descending=True)[:3].tolist() == [5, 7, 9]
    assert scores[1, 1] > scores[1, 11]


@pytest.mark.parametrize(("moves", "stands", "share"), [(0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (1.0, 1.0, None)])
def test_a_constant_gate_has_no_share_of_context_and_one_without_means_all(moves, stands, share) -> None:
    generator = torch.Generator().manual_seed(2)
    static_V = torch.randn(SIZE, generator=generator) * stands
    change_NV = torch.randn(4000, SIZE, generator=generator) * moves
    change_NV = change_NV - change_NV.mean(0)
    gate_BTV = (static_V + change_NV).view(4, 1000, SIZE)
    module = gate_module(stop=[3], gate=lambda logits: logits)
    metric = GateContext(stride=1).bind(None, module)
    mask = torch.ones(4, 1000, dtype=torch.bool)
    batch = {"target_ids_BT": torch.zeros(4, 1000, dtype=torch.long), "mask_target_BT": mask}
    for half in (slice(0, 2), slice(2, 4)):  # sums over batches, not means of shares
        part = {key: value[half] for key, value in batch.items()}
        metric.update_from(output_of(gate_BTV[half], torch.zeros_like(gate_BTV[half])), part)
    result = metric.result()
    kept = torch.arange(SIZE) != 3
    context = change_NV[:, kept].var(0, correction=0).mean()
    static = static_V[kept].var(correction=0)
    expected = float(context / (context + static)) if share is None else share
    assert result["context_share"].value == pytest.approx(expected, abs=1e-5)
    assert result["context_share"].n == 4000
    # all tokens alike under the token head, so the weights change nothing
    assert result["context_share_weighted"].value == pytest.approx(expected, abs=1e-5)


def test_the_weighted_share_is_by_the_token_head_over_every_stride_th_counted_position() -> None:
    generator = torch.Generator().manual_seed(3)
    gate_BTV, token_BTV = torch.randn(2, 2, 31, SIZE, generator=generator, dtype=torch.float64).unbind()
    gate_BTV = gate_BTV + torch.arange(SIZE) / 3
    module = gate_module(stop=[3], gate=lambda logits: logits)
    metric = GateContext(stride=3).bind(None, module)
    mask = torch.ones(2, 31, dtype=torch.bool)
    mask[1, 8:20] = False
    batch = {"target_ids_BT": torch.zeros(2, 31, dtype=torch.long), "mask_target_BT": mask}
    metric.update_from(IdeaGateOutput(gate_BTV, gate_BTV, token_BTV * 3, gate_BTV), batch)
    places = [(b, t) for b in range(2) for t in range(2, 31, 3) if mask[b, t]]
    gate_PV = torch.stack([gate_BTV[place] for place in places])
    weight_V = torch.stack([(token_BTV[place] * 3).softmax(-1) for place in places]).mean(0)
    weight_V[3] = 0.0
    weight_V /= weight_V.sum()
    context = (weight_V * gate_PV.var(0, correction=0)).sum()
    mean_V = gate_PV.mean(0)
    static = (weight_V * (mean_V - (weight_V * mean_V).sum()).square()).sum()
    result = metric.result()
    assert result["context_share_weighted"].value == pytest.approx(float(context / (context + static)), rel=1e-9)
    assert result["context_share_weighted"].value != pytest.approx(result["context_share"].value, abs=0.02)
    assert result["context_share"].n == len(places) == 16
    module = gate_module(alpha=0.0)
    metric = GateContext().bind(None, module)
    batch = {"target_ids_BT": torch.zeros(1, 8, dtype=torch.long), "mask_target_BT": torch.ones(1, 8, dtype=torch.bool)}
    metric.update_from(output_of(torch.zeros(1, 8, SIZE)), batch)
    assert metric.result() == {}


# held-out texts ----------------------------------------------------------------------------------------------------


class Packed:
    """A packed corpus of ``{split: [(source, ids)]}``."""

    def __init__(self, splits):
        self._splits = splits
        self.sources = tuple(dict.fromkeys(source for documents in splits.values() for source, _ in documents))

    def table(self, split, name):
        assert name == "source"
        return np.array([self.sources.index(source) for source, _ in self._splits[split]])

    def document(self, split, number):
        return np.array(self._splits[split][number][1])


def test_held_windows_lie_in_one_document_and_do_not_overlap() -> None:
    packed = Packed({"val": [("a", range(10)), ("b", range(9))], "test": [("a", range(100, 107))]})
    found = Held(packed).windows(lambda source: source == "a", 3)
    assert [(number, ids.tolist()) for number, ids in found] == [
        (0, [0, 1, 2]), (0, [3, 4, 5]), (0, [6, 7, 8]), (1, [100, 101, 102]), (1, [103, 104, 105])
    ]  # fmt: skip
    assert len(Held(packed).windows(lambda source: source == "a", 3, limit=1)) == 2
    assert about("computer_hardware", "hardware") and about("hardware", "hardware")
    assert not about("computer_hardware", "chemistry")


@pytest.fixture
def topical(make_module, vocabulary):
    """A small gated model, and a corpus of two documents of chemistry and two of sport."""
    module = make_module()
    generator = np.random.default_rng(0)

    def text():
        return generator.integers(0, len(vocabulary), 40)

    held = [("chemistry", text()), ("chemistry", text()), ("sport", text()), ("sport", text())]
    packed = Packed({"val": held, "test": []})
    data = SimpleNamespace(prepare=lambda: packed, vocabulary=vocabulary)
    return module.eval(), data, held


def test_mass_is_the_probability_of_the_terms_and_the_gate_is_what_moves_it(topical, vocabulary, monkeypatch) -> None:
    module, data, held = topical
    ids = torch.tensor([5, 77, 260])
    monkeypatch.setattr("lit_ctg.papers.idea_gate.measures.term_ids", lambda domain, vocabulary: ids)
    arms = {"gated": {}, "gate_off": {"alpha": 0.0}}
    trial = TopicMass(domains=["chemistry"], length=20, before=8, windows=3, arms=arms, batch_size=2)
    trial.run(module, data)
    assert module.alpha == 0.5, "the model has its own strength again"
    windows = [held[0][1][:20], held[0][1][20:], held[1][1][:20]]
    means, masses = {}, {}
    for alpha in (0.5, 0.0):
        module.alpha = alpha
        found = []
        for text in windows:
            with torch.no_grad():
                scores = module({"input_ids_BT": torch.from_numpy(text[None, :-1])}).scores_BTV[0]
            found.append(float(scores.softmax(-1)[8:, ids].sum(-1).mean()))
        masses[alpha], means[alpha] = found, np.mean(found)
    module.alpha = 0.5
    assert trial.results["mass/gated/chemistry/inside"]["value"] == pytest.approx(means[0.5], rel=1e-9)
    assert trial.results["mass/gate_off/chemistry/inside"]["value"] == pytest.approx(means[0.0], rel=1e-9)
    assert means[0.5] != pytest.approx(means[0.0], rel=1e-3)
    real = np.mean([np.isin(text[9:], ids.numpy()).mean() for text in windows])
    assert trial.results["mass/text/chemistry/inside"]["value"] == pytest.approx(real)
    kept = trial.results["mass/gated/chemistry/kept"]["value"]
    drifted, never = (trial.results[f"mass/gated/chemistry/{kind}"]["value"] for kind in ("drifted", "never"))
    assert kept == pytest.approx(drifted - never, abs=1e-12) and trial.results["mass/gated/all/kept"]["value"] == kept
    assert set(trial.results) == set(MASS_NAMES)
    # intervals are over documents: the first two windows are of one
    metric = MassMean(sync_on_compute=False)
    metric.update(masses[0.5][:2], 0)
    metric.update(masses[0.5][2:], 1)
    assert trial.results["mass/gated/chemistry/inside"]["ci95"] == pytest.approx(list(metric.number().ci95), rel=1e-9)
    # the whole general text was used: two windows of each of the two documents
    general = [(document, held[document][1][first : first + 20]) for document in (2, 3) for first in (0, 20)]
    texts = {
        kind: torch.from_numpy(np.stack(found))
        for kind, found in trial.texts([(0, w) for w in windows], general).items()
    }
    for kind in ("drifted", "never"):
        expected = [float(torch.isin(text[9:], ids).double().mean()) for text in texts[kind]]
        assert trial.results[f"mass/text/chemistry/{kind}"]["value"] == pytest.approx(np.mean(expected))
        expected = float(trial.mass(module, texts[kind], ids, {}).mean())
        assert trial.results[f"mass/gated/chemistry/{kind}"]["value"] == pytest.approx(expected, rel=1e-9)


def test_the_same_general_text_stands_behind_both_beginnings() -> None:
    trial = TopicMass(domains=["chemistry"], length=6, before=2, windows=3, arms={})
    own = [(0, np.arange(100, 106)), (0, np.arange(200, 206)), (1, np.arange(300, 306))]
    general = [(n, np.arange(10 * n, 10 * n + 6)) for n in range(4)]
    texts = {kind: [ids.tolist() for ids in found] for kind, found in trial.texts(own, general).items()}
    assert texts["inside"] == [ids.tolist() for _, ids in own]
    assert texts["drifted"] == [
        [100, 101, 102, 13, 14, 15], [200, 201, 202, 33, 34, 35], [300, 301, 302, 13, 14, 15]
    ]  # fmt: skip
    assert texts["never"] == [[0, 1, 2, 13, 14, 15], [20, 21, 22, 33, 34, 35], [0, 1, 2, 13, 14, 15]]


def test_arms_and_domains_without_text_are_left_out(topical) -> None:
    module, data, held = topical
    trial = TopicMass(domains=["chemistry", "war"], length=20, before=8, windows=3, arms={"gated": {}})
    trial.run(module, data)
    assert {name.split("/")[2] for name in trial.results} == {"chemistry", "all"}
    packed = Packed({"val": [held[0], ("sport", held[2][1][:39])], "test": []})
    trial.run(module, SimpleNamespace(prepare=lambda: packed, vocabulary=data.vocabulary))
    assert trial.results == {}
    module, data, _ = topical
    arms = {"gated": {}, "gate_off": {"alpha": 0.0}}
    trial = TopicMass(domains=["chemistry"], length=20, before=8, windows=1, arms=arms)
    trial.on_validation_end(SimpleNamespace(state=SimpleNamespace(fn="fit"), datamodule=data), module)
    assert trial.results == {}
    module.gated = False
    trial.run(module, data)
    assert {name.split("/")[1] for name in trial.results} == {"text", "gated"}


MASS_NAMES = [
    f"mass/{arm}/{domain}/{kind}"
    for arm in ("text", "gated", "gate_off")
    for domain in ("chemistry", "all")
    for kind in ("inside", "drifted", "never", "kept")
]


def test_terms_are_single_tokens_after_a_blank(vocabulary) -> None:
    domain = load_domain("finance")
    ids = term_ids(domain, vocabulary).tolist()
    texts = {vocabulary.decode([number]) for number in ids}
    assert " market" in texts and all(text.startswith(" ") and text[1:] in domain.terms["long"] for text in texts)
    every = WordTokenizer(eol=None)
    every.train(domain.terms["long"])
    single = [term for term in domain.terms["long"] if " " not in term]
    assert len(term_ids(domain, every)) == len(single) > len(domain.terms["short"])
    # where every term is several tokens there are none, and their mass is 0
    letters = TrainedBPETokenizer(size=257)
    letters.train(["a"])
    none = term_ids(domain, letters)
    assert none.tolist() == [] and none.dtype == torch.long


def test_the_classifier_knows_its_domains_and_says_how_well() -> None:
    generator = np.random.default_rng(3)

    def documents(low, count):
        """Texts of common tokens 0 .. 9 and some of low .. low + 5."""
        draws = [np.where(generator.random(60) < 0.5, generator.integers(0, 10, 60), low + generator.integers(0, 5, 60))
                 for _ in range(count)]  # fmt: skip
        return draws

    places = {"chemistry": 10, "war": 20, "sport": 30}
    splits = {
        split: [(name, text) for name, low in places.items() for text in documents(low, count)]
        for split, count in (("train", 20), ("val", 6), ("test", 6))
    }
    judge = TopicClassifier(domains=["chemistry", "war"], tokens=20, pieces=30).fit(Packed(splits), 40)
    hits, trials = judge.accuracy
    assert trials == 3 * 12 * 3 and hits / trials > 0.95
    assert set(judge.real) == {"chemistry", "war", "other"} and judge.real["war"][1] == 36
    fresh = [documents(low, 1)[0][:20] for low in (10, 20, 30)]
    assert judge.classes(fresh).tolist() == [0, 1, 2]
    # what it has not seen decides nothing by itself: the same tokens in another order are the same text
    assert judge.classes([fresh[1][::-1]]).tolist() == [1]
    with pytest.raises(UserError, match="no training text about 'finance'"):
        TopicClassifier(domains=["finance"], tokens=20).fit(Packed(splits), 40)
    # square roots of 4, 1 and 0 tokens, of length 1
    features = judge.features([[7, 7, 3, 7, 7]]).toarray()[0]
    assert features[[7, 3, 1]].tolist() == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5), 0.0])
    # it learns from the training split alone
    without = Packed({**splits, "val": [], "test": [text for text in splits["test"] if text[0] != "war"]})
    judge = TopicClassifier(domains=["chemistry", "war"], tokens=20, pieces=30).fit(without, 40)
    assert judge.real["war"] == (0, 0) and judge.classes(fresh).tolist() == [0, 1, 2]


@pytest.mark.parametrize("normalised", [True, False])
def test_terms_of_the_family_of_llama(normalised: bool) -> None:
    """Read alone, " market" had a token for a second space, so that no domain had a term."""
    tokenizer = HuggingFaceTokenizer.of(llama_tokenizer([" the market and money" * 20], normalised))
    ids = term_ids(load_domain("finance"), tokenizer).tolist()
    assert {tokenizer.tokens[number] for number in ids} == {"\u2581market", "\u2581money"}
