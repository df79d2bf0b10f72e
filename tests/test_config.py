"""Composition: regimes, sizes, one-line errors, free text."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lit_ctg.config import (
    Regime,
    Size,
    changed,
    check,
    compose,
    config_folder,
    experiments,
    is_free_text,
    plain,
    prepare_overrides,
    quoted,
    variants,
)
from lit_ctg.errors import UserError
from lit_ctg.results.record import config_hash
from lit_ctg.run.build import build_datamodule

MAIN = "experiment=semantic_fusion/main"
ORACLE = Path(__file__).parent / "oracle" / "configs.txt"
# (experiment, regime, size) -> hash of its configuration
HASHES = {
    tuple(words[:3]): words[3]
    for words in map(str.split, ORACLE.read_text(encoding="utf-8").splitlines())
    if not words[0].endswith("paper.yaml")
}


def test_corrected_is_the_default_and_the_regime_changes_the_model() -> None:
    corrected = plain(compose([MAIN]))
    published = plain(compose([MAIN, "regime=as_published"]))
    assert corrected["regime"] == "corrected"
    assert corrected["model"]["causal"] is True
    assert published["model"]["causal"] is False
    assert corrected["model"] != published["model"]


def test_size_changes_the_corpus_and_an_override_wins() -> None:
    assert plain(compose([MAIN, "size=paper"]))["data"]["train_size"] == 8000
    assert plain(compose([MAIN, "size=paper", "data.train_size=7"]))["data"]["train_size"] == 7


def test_seed_zero_is_a_seed() -> None:
    assert plain(compose([MAIN, "seed=0"]))["seed"] == 0


@pytest.mark.parametrize(
    "name", ["semantic_fusion/main", "control_code/transformer", "idea_gate/main", "graphmax/main"]
)
def test_a_training_seed_leaves_a_drawn_corpus_alone(name: str) -> None:
    plain_cfg, own = (plain(compose([f"experiment={name}", "seed=5", *more])) for more in ([], ["training_seed=8"]))
    assert own["seed"] == plain_cfg["seed"] == 5
    assert [cfg["callback"]["epoch_seed"]["seed"] for cfg in (plain_cfg, own)] == [5, 8]
    order = "order_seed" if "order_seed" in own["data"] else "seed"
    assert own["data"][order] == 8
    assert {key for key, value in own["data"].items() if plain_cfg["data"][key] != value} == {order}


def test_a_seed_of_ones_own_depends_on_the_runs_seed() -> None:
    cfg, seeds = compose([MAIN, "regime=as_published"]), []
    for cfg.seed in range(50):  # values are resolved last
        seeds.append(cfg.training_seed)
    assert len(set(seeds)) == 50 and not set(seeds) & set(range(50))
    assert compose([MAIN, "regime=as_published", "training_seed=null"]).training_seed is None


def test_trials_of_a_finished_run_follow_its_decoding() -> None:
    """``lit-ctg evaluate <run> decoding.temperature=...`` reads a configuration in which nothing refers to anything."""
    run = plain(compose(["experiment=idea_gate/main", "callback=[topic_trial,topic_trial_without_penalty]"]))
    own, other = "callback.topic_trial.decoding", "callback.topic_trial_without_penalty.decoding"

    def told(*words: str) -> list[float]:
        callbacks = changed(run, words).callback
        return [
            getattr(callbacks[name].decoding, key)
            for key in ("temperature", "repetition_penalty")
            for name in ("topic_trial", "topic_trial_without_penalty")
        ]

    temperature, penalty = run["decoding"]["temperature"], run["decoding"]["repetition_penalty"]
    assert told() == [temperature, temperature, penalty, 1.0] and penalty != 1.0
    assert told("decoding.temperature=0.3") == [0.3, 0.3, penalty, 1.0]
    assert told("decoding.repetition_penalty=1.5") == [temperature, temperature, 1.5, 1.0]
    assert told("decoding.temperature=0.3", f"{own}.temperature=0.4") == [0.4, 0.3, penalty, 1.0]
    assert told(f"{other}.repetition_penalty=1.1") == [temperature, temperature, penalty, 1.1]


def swept_name(name: str) -> bool:
    """Say whether an experiment (or the one it builds on) is named after its values: every cell of a grid is a run."""
    if name in variants():
        return "${" in variants()[name]["set"].get("name", "")
    raw = yaml.safe_load((config_folder() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    if "name" in raw:
        return "${" in raw["name"]
    parents = [entry for entry in raw["defaults"] if isinstance(entry, str) and entry.startswith("/experiment/")]
    return any(swept_name(parent.removeprefix("/experiment/")) for parent in parents)


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes(name: str) -> None:
    assert resolved(name, [(Regime.as_published, Size.paper)]) == [(name.partition("/")[0], "as_published", "paper")]


@pytest.mark.long
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes_in_every_regime_and_size(name: str) -> None:
    every = list(itertools.product(Regime, Size))
    paper = name.partition("/")[0]
    assert resolved(name, every) == [(paper, regime.name, size.name) for regime, size in every]


def test_every_experiment_of_the_oracle_is_there() -> None:
    assert {name for name, *_ in HASHES} <= set(experiments())


def test_a_variant_is_its_parent_with_the_settings_that_it_names() -> None:
    """Sweeps, a value on the command line and a choice of a group work as they do for a file."""
    base, own = (plain(compose([f"experiment=semantic_fusion/{name}"])) for name in ("main", "ablation_no_gate"))
    assert own == {**base, "name": "ablation_no_gate", "model": {**base["model"], "gate": False}}
    assert compose(["experiment=semantic_fusion/coupled", "data=clause"]).data == compose([MAIN]).data
    assert (
        compose(["experiment=semantic_fusion/uniformizer_050", "model.uniformizer_weight=0.2"]).name
        == "uniformizer_050"
    )
    with pytest.raises(UserError, match="did you mean 'semantic_fusion/coupled'"):
        compose(["experiment=semantic_fusion/couple"])


def resolved(name: str, wanted: Iterable[tuple[Regime, Size]]) -> list[tuple[str, str, str]]:
    """Return (paper, regime, size) of an experiment's configuration in each of some regimes and sizes."""
    # what is chosen by regime and size are values, resolved last: one composition serves all
    cfg = compose([f"experiment={name}"])
    found = []
    for regime, size in wanted:
        cfg.regime, cfg.size = regime, size
        made = plain(check(cfg))
        assert made["name"] == name.partition("/")[2] or swept_name(name)
        known = HASHES.get((name, regime.name, size.name))
        # a run that was made before would not be found
        assert known in (None, config_hash(made)[:16]), "another configuration: python tools/oracle.py configs"
        if "path" not in (made["data"].get("tokenizer") or {}):  # those need a tokenizer's files
            build_datamodule(cfg)  # tests train at size=smoke only: what a corpus refuses at another size is seen here
        found.append((made["paper"], made["regime"], made["size"]))
    return found


def test_no_option_is_chosen_by_regime_or_size() -> None:
    """So a composed configuration can be changed to another regime or size."""
    for path in config_folder().rglob("*.yaml"):
        for entry in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("defaults", []):
            assert "${" not in str(entry), path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "no experiment chosen"),
        (["experiment=semantic_fusion/mian"], "did you mean 'semantic_fusion/main'"),
        ([MAIN, "modle.causal=true"], "modle"),
        ([MAIN, "model.casual=true"], "casual"),
        ([MAIN, "seed=abc"], "seed"),
        ([MAIN, "seed=-1"], "seed=-1: pass"),
        ([MAIN, "+nonsense=1"], "unknown key 'nonsense'"),
        ([MAIN, "+trainor=1"], "did you mean 'trainer'"),
        ([MAIN, "data=1"], "data=1"),
        ([MAIN, "logger=-inf"], "logger=-inf"),
        ([MAIN, "size=smal"], "size=smal; did you mean 'small'?; one of smoke, small, paper"),
        ([MAIN, "regime=Corrected"], "regime=Corrected; did you mean 'corrected'?; one of as_published, corrected"),
        ([MAIN, "seed=0,1"], "seed=0,1': several values are a sweep, lit-ctg train -m ...; a list is"),
        ([MAIN, "backbone=huggingface"], "backbone.path has no value: pass backbone.path=..."),
        (
            ["experiment=idea_gate/main", "backbone=transformer"],
            "backbone.causal is taken from model.causal, which this experiment does not have; choose another backbone=",
        ),
        (
            ["experiment=control_code/transformer", "backbone=gpt2"],
            "name is taken from backbone.feedforward_dim, which",
        ),
        ([MAIN, "data=claus"], "clause"),
        ([MAIN, "model.causal=[1"], "model.causal"),
        ([MAIN, "skip_completed=maybe"], "skip_completed"),
        ([MAIN, "="], "="),
    ],
)
def test_bad_input_is_one_line_that_names_it(words: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(words)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_free_text_needs_no_quoting() -> None:
    cfg = compose([MAIN, "prompt=Carol starts the model,", "control.pos_high=0.95"])
    assert cfg.prompt == "Carol starts the model,"
    assert cfg.control.pos_high == 0.95
    assert compose([MAIN, "prompt=it's, a {b}: c=d"]).prompt == "it's, a {b}: c=d"
    assert compose([MAIN, "ckpt_path=a folder/epoch=3.ckpt"]).ckpt_path == "a folder/epoch=3.ckpt"


FREE_TEXTS = (
    "a\\b",
    "C:\\new\\",
    '"Hi," he said',
    '"Hi," he said, "bye"',
    "'Twas",
    "it\\'s",
    "one\ntwo",
    "one\ttwo",
    " a ",
    "'",
)


@pytest.mark.parametrize("text", FREE_TEXTS)
def test_free_text_arrives_as_it_was_typed(text: str) -> None:
    for key, value in (("prompt", text), ("data.root", text)):
        for form in (value, quoted(value)):
            (override,) = OverridesParser.create().parse_overrides(prepare_overrides([f"{key}={form}"]))
            assert override.value() == value
    assert compose([MAIN, f"prompt={text}"]).prompt == text


def test_quoted_values_can_be_swept_over() -> None:
    words = ["data.root='a, b','c'", 'prompt="it\'s"']
    assert prepare_overrides(words) == words
    assert [is_free_text(value) for value in ("", "null", "'a'", "'a', \"b\"", "'a' b")] == [False] * 4 + [True]


def test_a_plus_adds_a_key_and_changes_one_that_is_there() -> None:
    assert plain(compose([MAIN, "+data.num_workers=2"]))["data"]["num_workers"] == 2
    assert plain(compose([MAIN, "data.num_workers=2"]))["data"]["num_workers"] == 2
    assert plain(compose([MAIN, "+data.crop=false"]))["data"]["crop"] is False
    assert prepare_overrides(["+callback=x", "+a/b@c.d=e"]) == ["+callback=x", "+a/b@c.d=e"], "groups know no ++"


def test_a_path_that_is_not_utf8_is_refused_before_anything_runs(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"the override 'data.root=caf\\udce9' is not UTF-8"):
        compose([MAIN, os.fsdecode(b"data.root=caf\xe9")])
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"the current folder .* is not UTF-8"):
        compose([MAIN])


def test_preparing_leaves_other_overrides_alone() -> None:
    words = ["model.causal=true", "-m", "seed=1,2", "ckpt_path=null", "prompt='quoted already'"]
    assert prepare_overrides(words) == words


@pytest.mark.parametrize(
    "word",
    [
        "model.neutral_stopwords=true",
        "model.fast=never",
        "decoding.penalty_on=log_probabilities",
    ],
)
def test_an_option_without_a_value_in_the_configuration_is_named_with_its_plus_sign(word) -> None:
    """The pages print such options with it."""
    with pytest.raises(
        UserError, match=rf"{re.escape(word.partition('.')[0])} has this option.*: write \+{re.escape(word)}"
    ):
        compose(["experiment=idea_gate/main", word])
    assert OmegaConf.select(compose(["experiment=idea_gate/main", f"+{word}"]), word.partition("=")[0]) is not None
    with pytest.raises(UserError, match="did you mean 'stopwords'"):
        compose(["experiment=idea_gate/main", "model.stopword=authors"])
