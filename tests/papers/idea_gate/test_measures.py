"""Measures without sampling noise: against a plain loop, by hand, and on texts whose answer is known."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.metric.bigram import Bigrams
from lit_ctg.papers.idea_gate.corpus import load_domain
from lit_ctg.papers.idea_gate.measures import (
    BigramLoss,
    GateContext,
    Held,
    HistoryCache,
    IdeaLoss,
    TopicClassifier,
    TopicMass,
    about,
    term_ids,
)
from lit_ctg.papers.idea_gate.metrics import average_precision
from lit_ctg.papers.idea_gate.model import GateForm, IdeaGateOutput, distinct, future_window

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
    return SimpleNamespace(packed=SimpleNamespace(ids=lambda split: train), vocabulary=range(size))


def test_the_margin_is_bigram_less_model_over_counted_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(torch.randint(SIZE, (3, 9), generator=generator))
    scores = torch.randn(3, 8, SIZE, generator=generator)
    metric = BigramLoss().bind(data_of(TEXT))
    metric.update_from(output_of(None, scores), batch)
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


def test_a_history_ranks_what_was_read_and_frequency_decides_the_rest() -> None:
    module = gate_module(stop=[0])
    metric = HistoryCache(stride=3).bind(data_of(TEXT), module)
    ids = torch.tensor([7, 5, 5, 9, 7, 5])
    scores = metric.history(ids, torch.tensor([1, 4]))
    assert scores[0].argsort(descending=True)[:2].tolist() == [5, 7]  # 5 is commoner in the training text
    assert scores[1].argsort(descending=True)[:3].tolist() == [5, 7, 9]
    assert scores[1, 1] > scores[1, 11]


def test_history_and_head_are_compared_position_by_position() -> None:
    generator = torch.Generator().manual_seed(1)
    module = gate_module(stop=[0, 1])
    batch = batch_of(torch.randint(SIZE, (2, 16), generator=generator))
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


def test_without_strength_the_gate_has_no_variance_to_share() -> None:
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


def test_which_source_is_about_a_domain() -> None:
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
    windows = [held[0][1][:20], held[0][1][20:], held[1][1][:20]]
    means = {}
    for alpha in (0.5, 0.0):
        module.alpha = alpha
        found = []
        for text in windows:
            with torch.no_grad():
                scores = module({"input_ids_BT": torch.from_numpy(text[None, :-1])}).scores_BTV[0]
            found.append(float(scores.softmax(-1)[8:, ids].sum(-1).mean()))
        means[alpha] = np.mean(found)
    module.alpha = 0.5
    assert trial.results["mass/gated/chemistry/inside"]["value"] == pytest.approx(means[0.5], rel=1e-9)
    assert trial.results["mass/gate_off/chemistry/inside"]["value"] == pytest.approx(means[0.0], rel=1e-9)
    assert means[0.5] != pytest.approx(means[0.0], rel=1e-3)
    real = np.mean([np.isin(text[9:], ids.numpy()).mean() for text in windows])
    assert trial.results["mass/text/chemistry/inside"]["value"] == pytest.approx(real)
    kept = trial.results["mass/gated/chemistry/kept"]["value"]
    drifted, never = (trial.results[f"mass/gated/chemistry/{kind}"]["value"] for kind in ("drifted", "never"))
    assert kept == pytest.approx(drifted - never, abs=1e-12) and trial.results["mass/gated/all/kept"]["value"] == kept
    # the same general text behind both beginnings
    texts = trial.texts([(0, text) for text in windows], [(2, held[2][1][:20]), (3, held[3][1][:20])])
    for ours, own, other in zip(windows, texts["drifted"], texts["never"], strict=True):
        assert (own[:9] == ours[:9]).all() and (own[9:] == other[9:]).all() and (other[:9] != ours[:9]).any()
    assert set(trial.results) == set(MASS_NAMES)


MASS_NAMES = [
    f"mass/{arm}/{domain}/{kind}"
    for arm in ("text", "gated", "gate_off")
    for domain in ("chemistry", "all")
    for kind in ("inside", "drifted", "never", "kept")
]


def test_a_beginning_must_leave_something_to_measure() -> None:
    with pytest.raises(UserError, match=r"topic_mass\.before=19"):
        TopicMass(domains=["chemistry"], length=20, before=19, windows=1, arms={})


def test_terms_are_single_tokens_after_a_blank(vocabulary) -> None:
    domain = load_domain("finance")
    ids = term_ids(domain, vocabulary).tolist()
    texts = {vocabulary.decode([number]) for number in ids}
    assert " market" in texts and all(text.startswith(" ") and text[1:] in domain.terms["long"] for text in texts)


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
    assert math.isclose(float(judge.features([fresh[0]]).power(2).sum()), 1.0)
