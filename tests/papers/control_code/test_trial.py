"""Prompts, judge and training curve; the trials on models whose generations are known."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from types import SimpleNamespace

import lightning
import numpy as np
import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.core.metric import token_nll
from lit_ctg.core.model import LMOutput
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.metrics import CodeSwapGap
from lit_ctg.papers.control_code.trial import (
    CodeTrial,
    TrainingCurve,
    cut,
    frequency_nats,
    prompts_of,
    source_texts,
    train_judge,
    unigram_nats,
)
from lit_ctg.run.build import build_datamodule


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """News and blog of the sample; a few hundred held-out tokens each."""
    root = tmp_path_factory.mktemp("cache")
    words = ["data=scripts", "size=smoke", "data.length=32", f"+data.cache_root={root}"]
    datamodule = build_datamodule(compose(words, experiment=False))
    datamodule.setup()
    return datamodule


def test_published_prompts_come_from_training_text_and_held_out_ones_do_not(corpus):
    """Deviation 3."""
    training = source_texts(corpus, "train")
    shares = {}
    for prompts_from in ("held_out", "whole_text"):
        prompts = prompts_of(corpus, n=200, prompt_tokens=4, new_tokens=12, prompts_from=prompts_from)
        joined = {source: " ".join(map(str, ids.tolist())) for source, ids in training.items()}
        texts = [" ".join(map(str, prompt.ids + prompt.reference)) for prompt in prompts]
        shares[prompts_from] = np.mean([t in joined[p.source] for t, p in zip(texts, prompts, strict=True)])
        assert {prompt.source for prompt in prompts} == {0, 1}
        assert all(len(prompt.ids) == 4 and len(prompt.reference) == 12 for prompt in prompts)
    # the sample's grammar says a few sentences twice
    assert shares["held_out"] < 0.1 and shares["whole_text"] > 0.8


def test_word_frequencies_give_the_reference(corpus):
    nats, tokens = unigram_nats(corpus)
    packed, size = corpus.prepare(), len(corpus.vocabulary)
    train, held_out = packed.ids("train").tolist(), packed.ids("val").tolist()
    total = len(train) + size
    slow = -sum(math.log((train.count(token) + 1) / total) for token in held_out[:50]) / 50
    assert tokens == len(held_out) and 2 < nats < math.log(size)
    counts = np.bincount(train, minlength=size) + 1
    assert slow == pytest.approx(float(-np.log(counts[held_out[:50]] / total).mean()))
    assert nats == pytest.approx(float(-np.log(counts[held_out] / total).mean()))
    judge, accuracy = train_judge(corpus, chunks=100, length=12)
    assert corpus.vocabulary.unknown_id in judge.ignored.tolist()
    assert accuracy.result().value > 0.9 and accuracy.result().ci95 is not None
    with pytest.raises(UserError, match="fewer than 4 \\+ 1000000"):
        prompts_of(corpus, n=2, prompt_tokens=4, new_tokens=1000000, prompts_from="held_out")
    ids_T = np.arange(100)
    windows = cut(ids_T, 5, 20)
    assert [int(w[0]) for w in windows] == [0, 20, 40, 60, 80] and all(len(w) == 20 for w in windows)
    assert len(cut(np.arange(39), 5, 20)) == 1 and cut(np.arange(19), 5, 20) == []
    crowded = cut(np.arange(97), 50, 20)
    assert len(crowded) == 4 and len(np.unique(np.concatenate(crowded))) == 80


class Parts:
    """A data module of ``{split: [ids of each source]}``."""

    sources = ("a", "b")

    def __init__(self, splits):
        self.splits = {name: [np.asarray(part) for part in parts] for name, parts in splits.items()}
        self.vocabulary = Vocabulary()

    def batches(self, split):
        edges = np.cumsum([0, *map(len, self.splits[split])]).tolist()
        ranges = [(source, first, stop) for source, (first, stop) in enumerate(itertools.pairwise(edges))]
        packed = SimpleNamespace(ids=lambda name: np.concatenate(self.splits[name]))
        return SimpleNamespace(packed=packed, source_ranges=lambda: ranges)


class Vocabulary:
    unknown_id, eos_id, pad_id = 0, 1, 2

    def __len__(self):
        return 400


def test_a_prompt_goes_on_in_its_reference_and_whole_text_begins_in_training_and_ends_in_held_out_text():
    data = Parts({"train": [range(40), range(100, 140)], "val": [range(200, 210), range(300, 310)]})
    settings = {"prompt_tokens": 2, "new_tokens": 3}
    held_out = prompts_of(data, n=4, prompts_from="held_out", **settings)
    assert [(prompt.ids, prompt.reference, prompt.source) for prompt in held_out] == [
        ([200, 201], [202, 203, 204], 0), ([205, 206], [207, 208, 209], 0),
        ([300, 301], [302, 303, 304], 1), ([305, 306], [307, 308, 309], 1),
    ]  # fmt: skip
    whole = prompts_of(data, n=4, prompts_from="whole_text", **settings)
    assert [(prompt.ids, prompt.reference, prompt.source) for prompt in whole] == [
        ([0, 1], [2, 3, 4], 0), ([205, 206], [207, 208, 209], 0),
        ([100, 101], [102, 103, 104], 1), ([305, 306], [307, 308, 309], 1),
    ]  # fmt: skip
    assert [prompt.source for prompt in prompts_of(data, n=1, prompts_from="held_out", **settings)] == [0, 1]


def test_the_judge_is_tried_on_held_out_text_and_reads_no_special_token():
    rng = np.random.default_rng(0)
    one, other = rng.integers(10, 20, 200), rng.integers(30, 40, 200)
    # on held-out text each source writes as the other did
    judge, accuracy = train_judge(Parts({"train": [one, other], "val": [other, one]}), chunks=10, length=10)
    assert judge.ignored.tolist() == [0, 1, 2]
    assert (accuracy.result().value, accuracy.result().n) == (0.0, 20)


class Toy(lightning.LightningModule):
    """Word frequencies of the source its code names (``gain`` of them), whatever stands before."""

    def __init__(self, datamodule, gain: float = 1.0):
        super().__init__()
        size = len(datamodule.vocabulary)
        counts = [
            np.bincount(ids, minlength=size) + 0.1 for _, ids in sorted(source_texts(datamodule, "train").items())
        ]
        self.log_SV = torch.tensor(np.log([c / c.sum() for c in counts])).float()
        self.gain, self.weight, self.passes = gain, torch.nn.Parameter(torch.zeros(())), 0

    def forward(self, batch):
        self.passes += 1
        scores_BV = self.gain * self.log_SV[batch["control_code_B"]] + self.weight
        return LMOutput(scores_BV[:, None].expand(-1, batch["input_ids_BT"].shape[1], -1), scores_BV)

    def training_step(self, batch, batch_idx):
        return self(batch).scores_BTV.mean() * torch.rand(())  # reads the global random state

    def validation_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Decoding:
    """Draws independent tokens from the toy's frequencies; a prompt is handed back before its continuation."""

    def generator(self, module, datamodule):
        self.evaluated = not module.training
        return SimpleNamespace(continue_ids=lambda *args, **options: self.continue_ids(module, *args, **options))

    def continue_ids(self, module, prompts, codes_BS, *, seed, max_new_tokens):
        probs_BV = (module.gain * codes_BS @ module.log_SV).softmax(-1)
        if seed is None:
            new_BT = probs_BV.argmax(-1, keepdim=True).expand(-1, max_new_tokens)
        else:
            generator = torch.Generator().manual_seed(seed)
            new_BT = torch.multinomial(probs_BV, max_new_tokens, replacement=True, generator=generator)
        return [[*prompt, *new] for prompt, new in zip(prompts, new_BT.tolist(), strict=True)]


def trial(**overrides) -> CodeTrial:
    options = {"prompts": 20, "prompt_tokens": 4, "new_tokens": 12, "prompts_from": "held_out", "seed": 3}
    options |= {"bleu_references": "aligned", "decoding": Decoding(), "judge_chunks": 200}
    return CodeTrial(**(options | overrides))


def validate(trainer_of, corpus, callback, gain=1.0):
    module = Toy(corpus, gain)
    trainer = trainer_of(callback)
    trainer.validate(module, datamodule=corpus, verbose=False)
    return module


def test_a_model_that_heeds_its_code_pays_for_a_wrong_one_and_is_recognised(trainer_of, corpus):
    callback = trial()
    module = validate(trainer_of, corpus, callback)
    results = callback.results
    assert results["code_swap/nats"]["ci95"][0] > 0 and results["code_swap/perplexity"]["ci95"][0] > 0
    assert results["classifier/accuracy"]["value"] > 0.9
    accuracy = results["trial/sampled/source_accuracy"]
    assert accuracy["value"] > 0.9 and accuracy["n"] == 40  # 20 prompts under 2 codes
    assert {f"trial/sampled/source_accuracy/{source}" for source in corpus.sources} <= set(results)
    assert results["trial/learned"]["value"] == 1 and callback.decoding.evaluated
    batches = len(corpus.batches("val"))
    assert module.passes == 2 * batches  # one extra pass for the one wrong code
    json.dumps(results)


def test_a_model_that_ignores_its_code_has_no_gap_and_half_of_the_sources_right(trainer_of, corpus):
    callback = trial()
    validate(trainer_of, corpus, callback, gain=0.0)
    gap = callback.results["code_swap/nats"]
    assert gap["value"] == 0 and gap["ci95"] == [0, 0]
    assert callback.results["trial/greedy/source_accuracy"]["value"] == 0.5
    assert callback.results["trial/learned"]["value"] == 0
    # the same token over and over
    assert callback.results["trial/greedy/degeneracy"]["value"] == 12
    assert callback.results["trial/greedy/variation"]["value"] == pytest.approx(1 / 12)


def costs(module, corpus, split) -> tuple[float, float]:
    """The mean cost of a split's tokens under their code, and under the other one."""
    wrong = right = tokens = 0.0
    for i in range(len(corpus.batches(split))):
        batch = corpus.batches(split)[0, i]
        for code, sign in ((batch["control_code_B"], 0), (1 - batch["control_code_B"], 1)):
            scores_BTV = module({**batch, "control_code_B": code}).scores_BTV.detach()
            cost = float(token_nll(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"]).sum())
            wrong, right = wrong + sign * cost, right + (1 - sign) * cost
        tokens += float(batch["mask_target_BT"].sum())
    return right / tokens, wrong / tokens


def test_the_gap_is_the_cost_under_the_other_code(trainer_of, corpus):
    callback = trial(test=True)
    module = validate(trainer_of, corpus, callback)
    found = {name: result["value"] for name, result in callback.results.items()}
    for prefix, split in (("", "val"), ("test/", "test")):
        right, wrong = costs(module, corpus, split)
        assert found[f"{prefix}code_swap/nats"] == pytest.approx(wrong - right, rel=1e-6)
        assert found[f"{prefix}code_swap/perplexity"] == pytest.approx(math.exp(wrong) - math.exp(right), rel=1e-6)
    assert found["test/cross_entropy"] == pytest.approx(right, rel=1e-6)
    assert found["test/perplexity"] == pytest.approx(math.exp(right), rel=1e-6)


def test_text_measures_are_of_right_codes_only_and_real_text_stands_beside_them(trainer_of, corpus):
    class Echo(Decoding):
        """The real continuation under the right code, one token over and over under the wrong one."""

        def continue_ids(self, module, prompts, codes_BS, *, seed, max_new_tokens):
            known = prompts_of(corpus, n=20, prompt_tokens=4, new_tokens=12, prompts_from="held_out")
            pairs = [(prompt, code) for prompt in known for code in range(2)]
            return [prompt.ids + (prompt.reference if code == prompt.source else [5] * 12) for prompt, code in pairs]

    callback = trial(decoding=Echo())
    validate(trainer_of, corpus, callback)
    results = callback.results
    assert results["trial/greedy/bleu"]["value"] == pytest.approx(100) and results["trial/greedy/bleu"]["n"] == 20
    for name in ("variation", "degeneracy"):
        assert results[f"trial/greedy/{name}"] == results[f"reference/{name}"]
    assert results["trial/greedy/source_accuracy"]["n"] == 40 and results["reference/source_accuracy"]["n"] == 20
    flat = trial(decoding=Echo(), bleu_references="flat")
    validate(trainer_of, corpus, flat)
    assert flat.results["trial/greedy/bleu"]["value"] < 5  # deviation 2: identical texts, letters as references


def test_trials_are_a_function_of_the_seed_and_leave_training_alone(trainer_of, corpus):
    def fit(*callbacks):
        lightning.seed_everything(0, verbose=False)
        module = Toy(corpus)
        trainer_of(*callbacks, max_epochs=2, limit_train_batches=2).fit(module, datamodule=corpus)
        return module

    callback, again = trial(epochs=[2]), trial(epochs=[2])
    assert torch.equal(fit(callback).weight, fit().weight)
    fit(again)
    assert callback.history == again.history and not callback.results.get("code_swap/nats")
    assert callback.history["trial/sampled/bleu"][0][0] == 2 and len(callback.history["trial/sampled/bleu"]) == 1
    other = trial(epochs=[2], seed=4)
    fit(other)
    assert other.history["trial/sampled/variation"] != callback.history["trial/sampled/variation"]
    resumed = trial()
    resumed.load_state_dict(json.loads(json.dumps(callback.state_dict())))
    assert resumed.history == callback.history


def test_samples_name_source_and_code_and_tell_what_is_missing(trainer_of, corpus):
    callback = trial(samples_kept=2)
    validate(trainer_of, corpus, callback)
    validate(trainer_of, corpus, callback)  # a second run replaces them
    kept = [sample for sample in callback.samples if sample["mode"] != "note"]
    assert len(kept) == 2 * 2 * 2 * 2
    callback.run(Toy(corpus), corpus)
    assert len(callback.samples) == len(kept) + 1, "the note stays, generations are replaced"
    assert {(s["source"], s["code"]) for s in kept} == {(a, b) for a in corpus.sources for b in corpus.sources}
    assert all(s["text"] and s["prompt"] for s in kept)
    notes = [sample["text"] for sample in callback.samples if sample["mode"] == "note"]
    assert notes == ["BERTScore not measured: no folder of an encoder given (bertscore.path)"]
    assert not any("bertscore" in name for name in callback.results)


def test_the_wrong_cost_is_the_mean_over_every_other_code():
    callback = trial()
    callback.gap = CodeSwapGap(sources=list("abc"), sync_on_compute=False)
    costs = torch.tensor([1.0, 2.0, 4.0])

    def scored(batch):
        """Two tokens; the target costs as much as the code says."""
        p_B = (-costs[batch["control_code_B"]]).exp()
        return LMOutput(torch.stack((p_B, 1 - p_B), dim=1).log()[:, None].expand(-1, 3, -1), None)

    codes = torch.tensor([0, 1, 2])
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    batch = {"control_code_B": codes, "target_ids_BT": torch.zeros(3, 3, dtype=torch.long), "mask_target_BT": mask}
    trainer = SimpleNamespace(precision_plugin=SimpleNamespace(forward_context=contextlib.nullcontext))
    callback.on_validation_batch_end(trainer, scored, scored(batch), batch, 0)
    gaps = {name: entry.value for name, entry in callback.gap.named().items() if name.startswith("nats/")}
    assert gaps == pytest.approx({"nats/a": 3.0 - 1.0, "nats/b": 2.5 - 2.0, "nats/c": 1.5 - 4.0}, rel=1e-5)
    assert callback.gap.named()["nats"].n == 6


def test_the_gap_is_measured_at_the_end_and_between_two_codes_or_more_and_sanity_checks_generate_nothing(corpus):
    callback = trial(epochs=[1], decoding=None)
    for sources, fn, measured in (
        (("a", "b"), "validate", True),
        (("a",), "validate", False),
        (("a", "b"), "fit", False),
    ):
        data = SimpleNamespace(sources=sources)
        callback.on_validation_epoch_start(SimpleNamespace(datamodule=data, state=SimpleNamespace(fn=fn)), None)
        assert (callback.gap is not None) == measured
    state = SimpleNamespace(fn="fit")
    callback.on_validation_end(
        SimpleNamespace(datamodule=corpus, state=state, sanity_checking=True, current_epoch=0), None
    )
    assert callback.history == {} and callback.samples == []


def test_the_training_curve_is_the_mean_and_what_the_authors_log():
    """Deviation 9: the authors divide the sum of n batch losses by n - 1."""
    curve = TrainingCurve()
    for loss, tokens in ((2.0, 10), (4.0, 30)):
        curve.add(torch.tensor(loss), torch.tensor(tokens))
    resumed = TrainingCurve()
    resumed.load_state_dict(json.loads(json.dumps(curve.state_dict())))
    resumed.add(torch.tensor(3.0), torch.tensor(20))
    one_process = SimpleNamespace(reduce=lambda sums, reduce_op: {"sum": sums}[reduce_op])
    found = resumed.close(one_process)
    nats, logged = (2 * 10 + 4 * 30 + 3 * 20) / 60, (2 + 4 + 3) / 2
    expected = {
        "train/cross_entropy": nats,
        "train/perplexity": math.exp(nats),
        "train/logged_loss": logged,
        "train/logged_perplexity": math.exp(logged),
    }
    assert found == pytest.approx(expected)
    resumed.add(torch.tensor(1000.0), torch.tensor(5))
    assert resumed.close(one_process)["train/perplexity"] == math.inf, "begins anew, and does not overflow"


def test_the_training_curve_is_of_whole_losses_where_a_step_adds_up_batches():
    """Lightning hands over the loss divided by their number."""
    callback, batch = trial(), {"mask_target_BT": torch.ones(2, 3, dtype=torch.bool)}
    callback.on_train_batch_end(
        SimpleNamespace(accumulate_grad_batches=4), None, {"loss": torch.tensor(1.25)}, batch, 0
    )
    found = callback.curve.close(SimpleNamespace(reduce=lambda sums, reduce_op: sums))
    assert found["train/cross_entropy"] == 5.0


def test_of_one_source_nothing_is_told_apart(trainer_of, tmp_path):
    (tmp_path / "text" / "news").mkdir(parents=True)
    for number in range(40):
        words = " ".join(f"w{(number * 7 + place * place) % 37}" for place in range(100))
        (tmp_path / "text" / "news" / f"{number}.txt").write_text(words, encoding="utf-8")
    options = ["data=folder", "size=smoke", f"data.root={tmp_path}/text", "data.length=32", "data.by_source=true"]
    datamodule = build_datamodule(compose([*options, f"+data.cache_root={tmp_path}/cache"], experiment=False))
    datamodule.setup()
    assert datamodule.sources == ("news",)
    callback = trial(prompts=4)
    validate(trainer_of, datamodule, callback)
    assert "trial/greedy/bleu" in callback.results
    assert not any("accuracy" in name for name in callback.results)


def test_breakthrough_is_the_epoch_from_which_on_context_is_used(corpus, trainer_of):
    # Costs of training text against word frequencies of each source, the best without context.
    floor = frequency_nats(corpus)
    counts = [np.bincount(ids) for ids in source_texts(corpus, "train").values()]
    shares = [count[count > 0] / count.sum() for count in counts]
    sizes = np.array([count.sum() for count in counts])
    entropies = np.array([-(share * np.log(share)).sum() for share in shares])
    assert floor == pytest.approx((sizes * entropies).sum() / sizes.sum())
    for offsets, expected in (((1, -1, 1, -1, -1), 4), ((-1, -1), 1), ((-1, 1), math.inf), ((0,), math.inf)):
        callback = trial()
        costs = [[epoch, floor + offset] for epoch, offset in enumerate(offsets, start=1)]
        callback.history = dict.fromkeys(("train/cross_entropy", "train/perplexity"), costs)
        callback.history |= dict.fromkeys(("train/logged_loss", "train/logged_perplexity"), costs)
        callback._keep_curve(corpus)
        assert callback.results["trial/breakthrough_epoch"]["value"] == expected
        assert callback.results["train/cross_entropy"]["value"] == costs[-1][1]
    callback = trial(prompts=2)
    trainer = trainer_of(callback, max_epochs=2)
    module = Toy(corpus)
    trainer.fit(module, corpus)
    assert [epoch for epoch, _ in callback.history["train/cross_entropy"]] == [1, 2]
    trainer.validate(module, corpus, verbose=False)
    for name in ("train/cross_entropy", "train/logged_perplexity", "trial/breakthrough_epoch"):
        assert name in callback.results
