"""Micro-models beside a pretrained model: members of several tokens, their weights, and what the trial reports."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lit_ctg.config import compose
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.nslm import make_recogniser, pretrained
from lit_ctg.papers.nslm.pretrained import ARMS, MicroModelTrial, PretrainedModel, Read, readable
from lit_ctg.run.train import train
from tests.papers.nslm.test_from_text import TEXTS, YEAR, model, tokenizer  # noqa: F401


@pytest.fixture(scope="module")
def folder(model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def module(folder: Path) -> PretrainedModel:
    vocabulary = HuggingFaceTokenizer.of(transformers.AutoTokenizer.from_pretrained(folder))
    return PretrainedModel(vocabulary=vocabulary, backbone=HuggingFaceBackbone(path=str(folder))).eval()


@pytest.fixture(scope="module")
def trial(module: PretrainedModel) -> Any:
    """The trial after a run, with the readings of its test text; classes are read in several trees."""
    made = MicroModelTrial(
        classes={"year": make_recogniser("year", YEAR)},
        total="years", weight=0.5, rarity=[0, 1, 2], length=60, fitted_on=None, folds=2,
    )  # fmt: skip
    parts = {"train": TEXTS[::2], "val": TEXTS[1::2], "test": TEXTS[2:14]}
    data: Any = SimpleNamespace(documents=lambda split: [SimpleNamespace(text=text) for text in parts[split]])
    trainer: Any = SimpleNamespace(precision_plugin=SimpleNamespace(forward_context=contextlib.nullcontext))
    kept: list[Read] = []
    measure = made._measure

    def keep(reads: Any, *rest: Any) -> None:
        kept.extend(reads)
        measure(reads, *rest)

    inside, readers = made._inside, []

    def note(module: Any, reader: Any, reads: Any) -> Any:
        readers.append(reader)
        return inside(module, reader, reads)

    made._measure = keep  # type: ignore[method-assign]
    made._inside = note  # type: ignore[method-assign]
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "TREE", 7)
        made.run(trainer, module, data)
    return SimpleNamespace(results=made.results, reads=kept, texts=parts["test"], reader=readers[0])


def test_a_member_has_the_product_of_its_tokens_and_of_its_end(trial: Any, module: PretrainedModel) -> None:
    """Against scores of every prefix, read anew; the model alone is weight 0."""
    engine = module.vocabulary.engine  # type: ignore[attr-defined]
    digits = {engine.convert_tokens_to_ids(str(digit)) for digit in range(10)}
    for read, text in list(zip(trial.reads, trial.texts, strict=True))[:3]:
        ids = engine(text).input_ids
        spelled = [engine.decode(ids[each.begin : each.stop]).strip() for each in read.members]
        assert spelled == [word.strip(".") for word in text.split() if word[0].isdigit()]
        ids_1T = torch.tensor([ids])
        batch = {"input_ids_BT": ids_1T, "target_ids_BT": ids_1T, "mask_target_BT": torch.ones_like(ids_1T)}
        with torch.inference_mode():
            log_TV = module(batch).scores_BTV[0].double().log_softmax(-1)
        assert np.allclose(read.own_N, log_TV[:-1].gather(1, ids_1T[0, 1:, None])[:, 0], atol=1e-5)
        found = read.member(0, 0.0)
        for each, nats in zip(read.members, found, strict=True):
            path = sum(float(log_TV[place - 1, ids[place]]) for place in range(each.begin, each.stop))
            over = [number for number in range(log_TV.shape[1]) if engine.decode([number])[:1].isalnum()]
            goes_on = log_TV[each.stop - 1].exp()[over].sum()
            assert digits <= set(over)
            assert nats == pytest.approx(path + float((1 - goes_on).log()), abs=1e-4)


def test_a_class_is_enumerated_exactly(trial: Any, module: PretrainedModel) -> None:
    """Against a reading of every member by itself; the perplexity given the class is that of these."""
    engine, total, members = module.vocabulary.engine, [], 0  # type: ignore[attr-defined]
    reader = trial.reader
    over = torch.tensor([engine.decode([number])[:1].isalnum() for number in range(len(engine))])
    for read in trial.reads:
        for place, each in enumerate(read.members):
            logs = []
            for text in reader.classes[0].texts:
                spelled = engine(("", " ")[read.forms[place] == 0] + text).input_ids
                with torch.inference_mode():
                    hidden_1TD = module.hidden(torch.tensor([read.ids[: each.begin] + spelled]))
                    log_TV = module.backbone.head(hidden_1TD)[0].double().log_softmax(-1)
                path = log_TV[each.begin - 1 : -1].gather(1, torch.tensor(spelled)[:, None]).sum()
                logs.append(float(path + log_TV[-1, ~over].logsumexp(0)))
            total.append(logs[each.index] - np.logaddexp.reduce(logs))
            assert read.pieces[place][0].sum() == pytest.approx(logs[each.index], abs=1e-4)
            members += 1
    assert members > 5
    assert trial.results["inside/bare/year"]["value"] == pytest.approx(np.exp(-np.mean(total)), rel=1e-4)
    assert trial.results["inside/nslm/year"]["n"] == members


def test_the_weight_mixes_and_0_is_the_model(trial: Any) -> None:
    read = trial.reads[0]
    assert np.array_equal(read.token(0, 0.0), read.own_N)
    half = np.log(0.5 * np.exp(read.log_AN[0]) + 0.5 * np.exp(read.own_N))
    assert np.allclose(read.token(0, 0.5), half)
    assert (read.log_AN[0] != read.own_N).any(), "the micro-models change something"


def test_results_of_a_trained_pattern(trial: Any) -> None:
    """A random model knows no years: the micro-models save much of them, and more at their own weight than at 0.5."""
    results = trial.results
    assert {f"weight/{name}" for name in ARMS} <= set(results)
    bare, ours, half = (results[f"test/{name}/year"] for name in ("bare", "nslm", "nslm_published"))
    assert ours["value"] < half["value"] < bare["value"]
    assert bare["n"] == sum(len(read.members) for read in trial.reads) == results["test/bare/years"]["n"]
    assert len(bare["folds"]) == 2
    change = results["change/test/nslm/bare/year"]
    assert change["value"] == pytest.approx(100 * (ours["value"] / bare["value"] - 1))
    assert change["ci95"][1] < 0
    assert results["test/bare/first"]["n"] + results["test/bare/later"]["n"] == bare["n"]
    assert sum(value["n"] for key, value in results.items() if key.startswith("test/bare/rarity")) == bare["n"]


def test_readable_text_of_wikitext() -> None:
    assert readable("in 1 @,@ 234 ( 3 @.@ 5 km ) , a well @-@ known man .") == "in 1,234 (3.5 km), a well-known man."


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "total"), [("pretrained", "numbers"), ("pretrained_places", "places"), ("pretrained_younger", "numbers")]
)
def test_a_run_of_the_experiment_leaves_a_record(name: str, total: str, folder: Path, tmp_path: Path) -> None:
    words = [f"experiment=nslm/{name}", "size=smoke", f"output_root={tmp_path}", f"backbone.path={folder}"]
    cfg = compose([*words, "trainer.accelerator=cpu"])
    assert cfg.callback.nslm_members.total == total
    outcome = train(cfg)
    metrics = json.loads((outcome.folder / "run.json").read_text(encoding="utf-8"))["metrics"]
    assert outcome.status == "DONE"
    # 64 letters of an article, which is what the tiny model reads, may hold no member
    assert {f"weight/{arm}" for arm in ARMS} <= set(metrics)
    assert metrics["test/bare/global"]["n"] > 0 and metrics["test/bare/global"]["value"] > 1
