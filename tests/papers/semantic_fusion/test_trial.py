"""Control trials, prefix evaluation and the floor as callbacks."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import hydra
import lightning
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_ctg.config import config_folder, register
from lit_ctg.core.model import LMOutput
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon
from lit_ctg.papers.semantic_fusion.trial import (
    NAME,
    ControlTrial,
    EntropyFloorCallback,
    LexiconTrial,
    MembershipRecord,
    PrefixEvaluation,
    prefix_scores,
)
from lit_ctg.statistics import newcombe_interval, wilson_interval

V = ClauseVocabulary()
HELD_OUT = tuple(V.id(w) for w in ("wonderful", "excellent", "great", "terrible", "awful", "unpleasant"))
CORPUS = SimpleNamespace(vocabulary=V, held_out_ids=HELD_OUT)


class Toy(lightning.LightningModule):
    """Learns nothing useful; generates from a table, and follows pos_* and neg_* when the channel is set."""

    def __init__(self, fusion: bool = True):
        super().__init__()
        self.fusion = self.has_channel = fusion
        self.scores = nn.Parameter(torch.randn(len(V), len(V), generator=torch.Generator().manual_seed(0)))

    def start(self, batch_size, controls):
        if controls is None:
            return torch.zeros(batch_size, 1)
        return torch.tensor([[c.get("pos_high", 0.0) - c.get("neg_high", 0.0)] for c in controls])

    def step(self, ids_B1, state):
        sign_V = torch.tensor([float(V.polarity.get(token, 0)) for token in V.tokens])
        return self.scores[ids_B1[:, 0]] + 3 * state * sign_V, state

    def training_step(self, batch, batch_idx):
        return self.scores.square().mean() * torch.rand(())  # reads the global random state

    def validation_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Corpus(lightning.LightningDataModule):
    vocabulary, held_out_ids = V, HELD_OUT

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(2, 1)), batch_size=2)


def trial(**overrides) -> ControlTrial:
    """As conf/ composes it (regime corrected, size smoke)."""
    register()
    load = {
        name: OmegaConf.load(config_folder() / path)
        for name, path in {
            "decoding": "decoding/semantic_fusion.yaml", "callback": "callback/control_trial.yaml",
        }.items()
    }  # fmt: skip
    cfg = OmegaConf.create({"regime": "corrected", "size": "smoke", "seed": 3, **load})
    return hydra.utils.instantiate(cfg.callback.control_trial, _convert_="all", **{"prompt": "", **overrides})


def run(callback: ControlTrial, model: nn.Module, prefix: str = "") -> dict:
    callback.run(SimpleNamespace(datamodule=CORPUS), model, prefix=prefix)
    return callback.results


def fit(trainer_of, callback, *, epochs=1, ckpt_path=None):
    lightning.seed_everything(0, verbose=False)
    trainer = trainer_of(*([callback] if callback else []), max_epochs=epochs, num_sanity_val_steps=2)
    model = Toy()
    trainer.fit(model, datamodule=Corpus(), ckpt_path=ckpt_path, weights_only=True)
    if callback:
        trainer.validate(model, datamodule=Corpus(), verbose=False)
    return trainer, model


def test_every_controlled_rate_has_its_base_rate_and_interval_beside_it():
    results = run(trial(n=40), Toy())
    kinds = {
        "positive": {"adjective", "punctuation", "strong", "ood_hit"},
        "negative_question": {"adjective", "punctuation", "ood_hit"},
        "negative": {"adjective", "ood_hit"},
    }
    expected = set()
    for path in ("off", "hard", "soft", "channel"):
        for setting, names in kinds.items():
            expected |= {f"control/{path}/{setting}/{kind}" for kind in names}
            if path != "off":
                expected |= {f"control/{path}/{setting}/{kind}_gain" for kind in names - {"ood_hit"}}
        for intended in ("positive", "negative"):
            expected |= {
                f"control/{path}/confusion/{intended}/{realized}" for realized in ("positive", "negative", "other")
            }
    assert set(results) == expected
    json.dumps(results)
    off, hard = results["control/off/positive/adjective"], results["control/hard/positive/adjective"]
    gain = results["control/hard/positive/adjective_gain"]
    hits = round(off["value"] * 40)
    assert hard["value"] == 1.0 and 0 < hits < 40 and off["n"] == hard["n"] == 40
    assert off["ci95"] == pytest.approx(wilson_interval(hits, 40))
    assert gain["value"] == pytest.approx(1 - off["value"])
    assert gain["ci95"] == pytest.approx(newcombe_interval(40, 40, hits, 40))
    assert (off["unit"], off["direction"]) == ("rate", "higher")
    for intended, other in (("positive", "negative"), ("negative", "positive")):
        assert results[f"control/hard/confusion/{intended}/{intended}"]["value"] == 40
        assert results[f"control/hard/confusion/{intended}/{other}"]["value"] == 0
    off = [results[f"control/off/confusion/positive/{realized}"]["value"] for realized in ("positive", "negative")]
    assert min(off) > 0 and sum(off) == 40
    results = run(trial(), Toy(fusion=False))
    assert {name.split("/")[1] for name in results} == {"off", "hard", "soft"}


def test_held_out_hits_count_the_asked_polarity_only():
    class Praise(Toy):
        """Only ever says "great" (held out, positive)."""

        def step(self, ids_B1, state):
            return torch.eye(len(V))[V.id("great")].expand(len(ids_B1), -1) * 50, state

    results = run(trial(n=10), Praise())
    assert results["control/off/positive/ood_hit"]["value"] == 1.0
    assert results["control/off/negative/ood_hit"]["value"] == 0.0
    assert results["control/off/negative/adjective"]["value"] == 0.0


def test_trials_are_a_function_of_the_seed_and_no_two_share_their_noise():
    first, again, other = (trial(n=15, seed=s) for s in (3, 3, 4))
    for callback in (first, again, other):
        run(callback, Toy())
    assert first.samples == again.samples != other.samples and first.results == again.results
    off = [[s["text"] for s in first.samples if (s["path"], s["setting"]) == ("off", name)] for name in first.settings]
    assert len(off) == 3 and all(len(texts) == 15 for texts in off)
    assert off[0] != off[1] != off[2] != off[0]


def test_samples_are_kept_by_path_and_setting():
    callback = trial(n=8, samples_kept=2)
    run(callback, Toy())
    assert [(s["path"], s["setting"]) for s in callback.samples[:6]] == [
        ("off", name) for name in ("positive", "negative_question", "negative") for _ in range(2)
    ]
    run(callback, Toy(), prefix="untrained/")
    for prefix in ("", "untrained/"):  # another run replaces its own samples only
        run(callback, Toy(), prefix=prefix)
        untrained = [s["path"].startswith("untrained/") for s in callback.samples]
        assert (sum(untrained), len(untrained)) == (4 * 3 * 2, 2 * 4 * 3 * 2)
    hard = [s["text"] for s in callback.samples if s["path"] == "hard" and s["setting"] == "negative_question"]
    assert all(text.endswith("?") for text in hard)


class Clerk:
    """A generator that keeps what it is asked for; its texts end in "." and "?" by turns."""

    has_channel = True

    def __init__(self) -> None:
        self.asked = []

    def generate(self, n, prompt="", *, control, routes, seed, rows):
        self.asked.append(SimpleNamespace(n=n, prompt=prompt, control=control, routes=routes, seed=seed, rows=rows))
        return [
            SimpleNamespace(
                text=f"{prompt}{row}", polarity="positive", adjective_id=V.id("good"), punctuation=".?"[row % 2]
            )
            for row in rows
        ]


def test_every_path_has_its_own_draws_and_the_requests_of_its_settings():
    clerk, one, two = Clerk(), {"pos_high": 1.0}, {"neg_high": 1.0}
    settings = {"one": {"control": one, "adjective": "positive"}, "two": {"control": two, "punctuation": "?"}}
    paths = {"hard": {"hard": True, "channel": False}, "off": {"hard": False, "channel": False}}
    callback = ControlTrial(
        n=2, settings=settings, confusion=["one"], paths=paths, prompt="Eve", samples_prompted=3, seed=9,
        decoding=SimpleNamespace(generator=lambda module, data: clerk),
    )  # fmt: skip
    results = run(callback, None)
    trials = [asked for asked in clerk.asked if not asked.prompt]
    # off comes first, wherever it is listed: the gains are relative to it
    assert [(list(asked.routes), list(asked.control), asked.n) for asked in trials] == [
        ([], [{}] * 4, 4), (["hard"], [one, one, two, two], 4),
    ]  # fmt: skip
    assert not set(trials[0].rows) & set(trials[1].rows) and {asked.seed for asked in clerk.asked} == {9}
    prompted = [asked for asked in clerk.asked if asked.prompt]
    assert [(asked.prompt, asked.control, list(asked.routes)) for asked in prompted] == [
        ("Eve", {}, []), ("Eve", {}, []), ("Eve", one, ["hard"]), ("Eve", two, ["hard"]),
    ]  # fmt: skip
    assert all((asked.n, list(asked.rows)) == (3, [0, 1, 2]) for asked in prompted)
    assert results["control/hard/two/punctuation"]["value"] == 0.5
    assert results["control/hard/one/adjective_gain"]["value"] == results["control/hard/two/punctuation_gain"]["value"]


class Doser:
    """Row r of ten is strong, or positive, if r / 10 is below the dose; ``turn`` is where the response turns back."""

    has_channel = False

    def __init__(self, turn: float = 9.0) -> None:
        self.turn, self.rows = turn, []

    def generate(self, n, prompt="", *, control, routes, seed, rows):
        self.rows.append((tuple(control[0].items()), tuple(rows)))
        found = []
        for row, one in zip(rows, control, strict=True):
            (name, dose) = next(iter(one.items()), ("", 0.0))
            hit = row % 10 / 10 < (dose if dose <= self.turn else 2 * self.turn - dose)
            word, polarity = ("very" if hit and name == "str_high" else "slightly"), ("positive" if hit else "other")
            found.append(
                SimpleNamespace(text=f"It is {word} good.", polarity=polarity, adjective_id=-1, punctuation=".")
            )
        return found


DOSES = {"str_high": [0.05, 0.25, 0.5, 0.75, 1.0], "pos_high": [1.0, 0.5]}


@pytest.mark.parametrize(("turn", "fall", "last"), [(9.0, 0.0, 1.0), (0.75, 0.3, 0.5)])
def test_responses_to_growing_doses(turn: float, fall: float, last: float) -> None:
    doser = Doser(turn)
    settings = {"one": {"control": {"str_high": 0.5}, "adjective": "positive"}}
    callback = ControlTrial(
        n=10, settings=settings, confusion=[], paths={"off": {}, "soft": {"soft": True}}, seed=9, doses=DOSES,
        decoding=SimpleNamespace(generator=lambda module, data: doser),
    )  # fmt: skip
    results = run(callback, None)
    dose = {
        name.removeprefix("control/soft/dose/"): result["value"] for name, result in results.items() if "dose" in name
    }
    assert {name for name in results if "/dose/" in name} == {f"control/soft/dose/{name}" for name in dose}, "not off"
    shares = [dose[f"str_high/{value:g}"] for value in (0, 0.05, 0.25, 0.5, 0.75)]
    assert shares == [0.0, 0.1, 0.3, 0.5, 0.8] and dose["str_high/1"] == pytest.approx(last)
    assert dose["str_high/rise"] == pytest.approx(last) and dose["str_high/fall"] == pytest.approx(fall)
    assert dose["str_high/largest_step"] == pytest.approx(0.3 / last)
    assert dose["pos_high/rise"] == (1.0 if turn > 1 else 0.5)
    assert results["control/soft/dose/str_high/0.5"]["ci95"] == list(wilson_interval(5, 10))
    assert results["control/soft/one/strong"]["value"] == 0.5 and results["control/off/one/strong"]["value"] == 0.0
    own = [rows for control, rows in doser.rows if control and control[0][0] == "str_high"][1:]
    assert len(set(own)) == 1, "all doses of a control share their noise"
    assert not set(own[0]) & set(doser.rows[-1][1]), "two controls do not"


def test_training_tries_the_untrained_and_the_trained_model(trainer_of, monkeypatch):
    callback, runs = trial(), []
    plain = ControlTrial.run
    monkeypatch.setattr(ControlTrial, "run", lambda *a, prefix="": (runs.append(prefix), plain(*a, prefix=prefix))[1])
    _, model = fit(trainer_of, callback)
    assert runs == ["untrained/", ""]
    untrained = {name.removeprefix("untrained/") for name in callback.results if name.startswith("untrained/")}
    assert untrained == {name for name in callback.results if not name.startswith("untrained/")} != set()
    fresh, trained = trial(), trial()
    run(fresh, Toy(), prefix="untrained/")
    run(trained, model)
    assert callback.results == fresh.results | trained.results
    assert [s for s in callback.samples if s["path"].startswith("untrained/")] == fresh.samples


def test_trials_do_not_touch_training(trainer_of):
    _, with_trials = fit(trainer_of, trial())
    _, without = fit(trainer_of, None)
    assert torch.equal(with_trials.scores, without.scores)
    assert with_trials.training


def test_a_resumed_run_keeps_what_the_untrained_model_did(trainer_of, tmp_path, monkeypatch):
    whole = trial()
    fit(trainer_of, whole, epochs=2)
    stopped, resumed = trial(), trial()
    trainer, _ = fit(trainer_of, stopped, epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    runs, plain = [], ControlTrial.run
    monkeypatch.setattr(ControlTrial, "run", lambda *a, prefix="": (runs.append(prefix), plain(*a, prefix=prefix))[1])
    fit(trainer_of, resumed, epochs=2, ckpt_path=tmp_path / "one.ckpt")
    assert runs == [""]
    untrained = {name: r for name, r in whole.results.items() if name.startswith("untrained/")}
    assert untrained and untrained.items() <= resumed.results.items()
    assert set(resumed.results) == set(whole.results)
    assert [s for s in resumed.samples if s["path"].startswith("untrained/")] == [
        s for s in whole.samples if s["path"].startswith("untrained/")
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"paths": {"hard": {"hard": True}}},
        {"paths": {"off": {"hard": True}}},
        {"confusion": ["nothing"]},
        {"settings": {"one": {"control": {}, "adjective": "postive"}}},
        {"doses": {"str_hi": [0.5]}},
        {"doses": {"str_high": [1.5]}},
    ],
)
def test_wrong_settings_are_refused(change):
    usual = {"n": 1, "settings": {}, "confusion": [], "paths": {"off": {}}, "decoding": None, "seed": 0}
    with pytest.raises(UserError, match=next(iter(change))):
        ControlTrial(**usual | change)


PERCENT = {"positive": {"control": {"pos_high": 1.0}, "adjective": "positive", "punctuation": "%"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "Carol eats the model"}, r"callback\.control_trial\.prompt: .*'eats'"),
        ({"prompt": "Carol starts the good"}, r"callback\.control_trial\.prompt: .*good"),
        ({"settings": PERCENT, "confusion": []}, r"settings\.positive\.punctuation=%"),
    ],
)
def test_a_request_that_cannot_be_met_ends_before_the_first_step(changes, message, trainer_of):
    trainer = trainer_of(trial(**changes), max_epochs=1)
    with pytest.raises(UserError, match=message):
        trainer.fit(Toy(), datamodule=Corpus())
    assert trainer.global_step == 0


VOCABULARY, PAD = 9, 0


class Fixed(lightning.LightningModule):
    """Scores from the mean embedding of the prefix, or of the whole input where it looks ahead."""

    def __init__(self, looks_ahead: bool) -> None:
        super().__init__()
        self.looks_ahead = looks_ahead
        self.embedding = nn.Embedding(VOCABULARY, 6)

    def scores(self, ids_BT):
        embedded = self.embedding(ids_BT)
        counts = torch.arange(1, ids_BT.shape[1] + 1)[:, None]
        hidden = embedded.mean(1, keepdim=True).expand_as(embedded) if self.looks_ahead else embedded.cumsum(1) / counts
        return 3.0 * hidden @ self.embedding.weight.T

    def forward(self, batch):
        scores = self.scores(batch["input_ids_BT"])
        return LMOutput(scores, scores)

    def start(self, batch_size, controls):
        assert controls is None
        return torch.zeros(batch_size, 0, dtype=torch.long)

    def step(self, ids_B1, state):
        prefix = torch.cat((state, ids_B1), 1)
        return self.scores(prefix)[:, -1], prefix

    def training_step(self, batch, batch_idx):
        return self(batch).scores_BTV.sum() * 0.0

    def validation_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    made = []
    for _ in range(3):
        ids = torch.randint(1, VOCABULARY, (4, 8))
        ids[1, 5:] = PAD
        made.append({"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_target_BT": ids[:, 1:] != PAD})
    return made


@torch.no_grad()
def by_hand(model: Fixed) -> tuple[float, int]:
    """exp of the mean cross-entropy, one prefix at a time."""
    nats, count = 0.0, 0
    for batch in batches():
        for ids, targets in zip(batch["input_ids_BT"], batch["target_ids_BT"], strict=True):
            for t, target in enumerate(targets):
                if target != PAD:
                    scores = model.double().scores(ids[None, : t + 1])[0, -1]
                    nats -= float(scores.log_softmax(-1)[target])
                    count += 1
    return math.exp(nats / count), count


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_equals_one_prefix_at_a_time(looks_ahead, trainer_of):
    model, callback = Fixed(looks_ahead), PrefixEvaluation()
    for _ in range(2):  # the second is not added to the first
        trainer_of(callback).validate(model, DataLoader(batches(), batch_size=None), verbose=False)
    expected, count = by_hand(model)
    assert callback.results[NAME]["value"] == pytest.approx(expected, rel=1e-5)
    assert callback.results[NAME]["n"] == count


def test_for_a_causal_model_it_is_the_ordinary_perplexity_and_for_the_other_it_is_not():
    for looks_ahead in (False, True):
        model = Fixed(looks_ahead)
        ids = batches()[0]["input_ids_BT"]
        same = torch.allclose(prefix_scores(model, ids), model.scores(ids), atol=1e-5)
        assert same != looks_ahead


@pytest.mark.parametrize("options", [{"max_epochs": 3}, {"max_steps": 9, "max_epochs": -1}])
def test_runs_on_the_last_validation_of_a_training_run_only(options, trainer_of, monkeypatch):
    epochs = []
    plain = Fixed.start
    monkeypatch.setattr(Fixed, "start", lambda self, *a: (epochs.append(self.current_epoch), plain(self, *a))[1])
    callback = PrefixEvaluation()
    loader = DataLoader(batches(), batch_size=None)
    trainer = trainer_of(callback, num_sanity_val_steps=2, **options)
    trainer.fit(Fixed(False), loader, loader)
    assert epochs == [2, 2, 2]
    assert float(trainer.callback_metrics[NAME]) == pytest.approx(callback.results[NAME]["value"], rel=1e-6)


def test_floors_of_the_data_module_go_into_the_record(tiny, trainer_of) -> None:
    module, data = tiny()
    real = EntropyFloorCallback()  # real text has no floor
    trainer_of(real).validate(module, data, verbose=False)
    assert real.results == {}
    data.entropy_floor = lambda split: SimpleNamespace(
        metrics=lambda: {"floor/perplexity": 2.5 if split == "val" else 0}
    )
    data.floor_given_polarity_unknown = lambda split: SimpleNamespace(metrics=lambda: {"perplexity": 3.5})
    callback = EntropyFloorCallback()
    trainer_of(callback).validate(module, data, verbose=False)
    assert {name: entry["value"] for name, entry in callback.results.items()} == {
        "floor/perplexity": 2.5,
        "floor_polarity_unknown/perplexity": 3.5,
    }
    entry = callback.results["floor/perplexity"]
    assert (entry["value"], entry["direction"], entry["ci95"]) == (2.5, "none", None)


def test_learned_memberships_go_into_the_record_and_a_baseline_is_refused(make_module):
    callback, module = MembershipRecord(), make_module(learnable_memberships=True)
    callback.on_validation_end(None, module)
    values = {name: result["value"] for name, result in callback.results.items()}
    assert values["membership/strength/med"] == pytest.approx(0.6) and len(values) == 12
    assert values["membership/positive/temperature"] == pytest.approx(0.35)
    with torch.no_grad():
        for parameter in module.memberships.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    callback.on_validation_end(None, module)
    centres_33, temperature_31 = module.memberships.centres_33, module.memberships.temperature_31
    for row, scalar in enumerate(("positive", "negative", "strength")):
        own = {name: callback.results[f"membership/{scalar}/{name}"]["value"] for name in ("low", "med", "high")}
        assert list(own.values()) == pytest.approx(centres_33[row].tolist())
        temperature = callback.results[f"membership/{scalar}/temperature"]["value"]
        assert temperature == pytest.approx(float(temperature_31[row]))
    assert len({round(entry["value"], 4) for entry in callback.results.values()}) == 12
    with pytest.raises(UserError, match="no memberships"):
        MembershipRecord().on_validation_end(None, make_module(fusion=False))


def test_texts_are_judged_by_the_sign_of_their_words():
    """Off, then each setting; a held-out word counts for the sign that it has."""
    lexicon = Lexicon.of(
        ["superb", "nice", "lousy", "poor"], {"polarity": [1, 0.5, -1, -0.5]}, [""] * 4, ["superb", "lousy"]
    )
    said = {0: [("superb",), (), ("poor",)], 1: [("superb", "nice"), ("superb",), ("lousy", "superb")],
            2: [("lousy",), ("poor", "nice"), ("poor",)]}  # fmt: skip
    asked = []

    def generate(n, prompt, controls, *, seed, rows):
        asked.append((n, prompt, list(controls), seed, list(rows)))
        polarity = dict(zip(lexicon.words, lexicon.column("polarity"), strict=True))
        return [
            SimpleNamespace(text=" ".join(hits), hits=hits, polarity=sum(polarity[word] for word in hits))
            for hits in said[rows[0] // n]
        ]

    praise, blame = {"pos_high": 1.0}, {"neg_high": 1.0}
    trial = LexiconTrial(
        n=3, settings={"praise": {"control": praise, "sign": 1}, "blame": {"control": blame, "sign": -1}}, seed=8,
        prompt="so", samples_kept=2,
        decoding=SimpleNamespace(generator=lambda module, data: SimpleNamespace(generate=generate)),
    )  # fmt: skip
    module = SimpleNamespace(has_channel=True, bank=SimpleNamespace(lexicon=lexicon))
    for _ in range(2):
        asked.clear()
        trial.run(module, None)
    assert asked == [
        (3, "so", [{}] * 3, 8, [0, 1, 2]),
        (3, "so", [praise] * 3, 8, [3, 4, 5]),
        (3, "so", [blame] * 3, 8, [6, 7, 8]),
    ]
    found = {name.removeprefix("control/"): round(3 * entry["value"], 6) for name, entry in trial.results.items()}
    assert found == {
        "off/praise/mean_polarity": 0.5, "off/blame/mean_polarity": -0.5,
        "channel/praise/mean_polarity": 2.5, "channel/blame/mean_polarity": 1.5,
        "off/praise/polarity": 1, "off/praise/held_out": 1, "off/blame/polarity": 1, "off/blame/held_out": 0,
        "channel/praise/polarity": 2, "channel/praise/held_out": 3, "channel/praise/polarity_gain": 1,
        "channel/praise/held_out_gain": 2, "channel/blame/polarity": 2, "channel/blame/held_out": 1,
        "channel/blame/polarity_gain": 1, "channel/blame/held_out_gain": 1,
    }  # fmt: skip
    told = [(sample["path"], sample["setting"], sample["text"]) for sample in trial.samples]
    assert told == [
        ("off", "praise", "superb"), ("off", "praise", ""), ("channel", "praise", "superb nice"),
        ("channel", "praise", "superb"), ("channel", "blame", "lousy"), ("channel", "blame", "poor nice"),
    ]  # fmt: skip
    trial.on_validation_end(SimpleNamespace(state=SimpleNamespace(fn="fit")), None)  # nothing to do in training
