"""The command line end to end: cells of the grids, resuming, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from lit_ctg.config import compose, config_folder
from lit_ctg.run.build import build, build_datamodule
from tests.pages import texts_of_the_tour

WORDS = ("size=smoke", "logger=none", "trainer.accelerator=cpu", "metric=[perplexity]")
CALLBACKS = "callback=[run_record,checkpoint,epoch_seed,finite_loss]"
CORPORA = ("books", "books2", "books3", "books6", "languages", "reviews", "scripts")


@pytest.mark.parametrize("corpus", CORPORA)
def test_corpora_say_how_many_codes_they_have(corpus):
    cfg = compose(["experiment=control_code/transformer", f"data=control_code/{corpus}", "size=paper"])
    assert cfg.model.corpus == corpus and cfg.name == f"transformer_{corpus}_l2_h128_neuron"
    names = {"reviews": 2, "scripts": 2}
    collections = cfg.data.get("collections", {})
    assert cfg.model.codes == names.get(corpus, len(collections.get(corpus, ())))
    assert cfg.trainer.max_epochs == (150 if corpus == "languages" else 50)


@pytest.mark.parametrize(("name", "cells"), [("transformer_grid", 160), ("gru_grid", 12), ("depth", 8)])
def test_grids_have_the_papers_cells(name, cells):
    path = config_folder() / "experiment" / "control_code" / f"{name}.yaml"
    params = yaml.safe_load(path.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]
    count = 1
    for values in params.values():
        count *= len(values.split(","))
    assert count == cells


def test_an_epoch_of_the_published_gru_has_the_batches_it_is_given():
    words = ("experiment=control_code/gru", "data=control_code/books", "regime=as_published", *WORDS)
    counts = [
        len(build_datamodule(compose([*words, f"data.steps_per_epoch={steps}"])).train_dataloader())
        for steps in (7, "null")
    ]
    assert counts[0] == 7 != counts[1]


@pytest.mark.parametrize(("texts", "least", "most"), [(30, 100, 100), (200, 60, 140), (40_000, 300, 4000)])
def test_a_few_texts_of_ones_own_are_read_often_enough(texts, least, most, tmp_path):
    """The steps of a run at size=small; many texts are read three times."""
    for label in ("harbour", "kitchen"):
        line = f"the {label} was quiet, and somebody had left the door of the old house open again\n"
        (tmp_path / f"{label}.txt").write_text(line * texts)
    cfg = compose(["experiment=control_code/transformer", "data=folder", f"data.root={tmp_path}", "size=small"])
    tokens = 2 * texts * len(line.split())
    steps = cfg.trainer.max_epochs * max(1, tokens // (cfg.data.length * cfg.data.batch_size))
    assert least <= steps <= most and cfg.trainer.max_epochs >= 3


def fit(folder, *words):
    experiment = build(compose([*WORDS, CALLBACKS, *words]), folder, loggers=False)
    experiment.trainer.fit(experiment.module, experiment.datamodule)
    return experiment


@pytest.mark.long
def test_the_network_learns_which_source_it_is_told(tmp_path):
    """After training the right code costs less than the wrong one."""
    experiment = fit(tmp_path, "experiment=control_code/transformer", "data.sample_size=3000", "trainer.max_epochs=3")
    module = experiment.module.eval()
    batch = next(iter(experiment.datamodule.val_dataloader()))
    swapped = {**batch, "control_code_B": 1 - batch["control_code_B"]}
    with torch.no_grad():
        assert float(module.losses(batch)["loss"]) < float(module.losses(swapped)["loss"])


@pytest.mark.long
def test_command_line(run_cli, tmp_path):
    words = ("experiment=control_code/gru", *WORDS, CALLBACKS, "data.sample_size=3000", "trainer.max_steps=2")
    code, out, err = run_cli("train", *words)
    assert code == 0, err
    record = json.loads((tmp_path / out.splitlines()[-1].removeprefix("record: ")).read_text(encoding="utf-8"))
    assert record["name"] == "gru_languages_h16_neuron" and record["metrics"]["val/perplexity"]["value"] > 1
    code, out, err = run_cli("generate", *words)
    assert code == 0 and len(out.strip().splitlines()) == 5, err
    code, _, err = run_cli("generate", *words, "control.source=nobody")
    assert code == 2 and "control.source=nobody: use one of city_romance, cuaderno" in err
    checkpoint = next(tmp_path.rglob("last.ckpt"))
    code, _, err = run_cli("generate", *words, f"ckpt_path={checkpoint}", "model.injection=prompt")
    assert code == 2 and "model.injection is neuron there and prompt here" in err
    code, _, err = run_cli("train", *words, "model.codes=3")
    assert code == 2 and "model.codes=3 but the corpus has 2 sources" in err


@pytest.mark.long
def test_text_too_short_for_the_trial_is_refused_before_training(run_cli, tmp_path: Path) -> None:
    texts_of_the_tour(tmp_path / "texts")
    words = ["experiment=control_code/transformer", "data=folder", "data.root=texts", "size=smoke", "data.length=16"]
    code, out, err = run_cli("train", *words, "trainer.accelerator=cpu")
    assert code == 2 and "'kitchen' has 19 tokens to prompt from" in err and "epoch" not in out
