"""`lit-ctg memory build|fit` on a folder of texts and a tiny GPT-2."""

from __future__ import annotations

import json
import random
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.cli import dispatch
from lit_ctg.cli import main as lit_ctg
from lit_ctg.control import Control
from lit_ctg.control.memory import Memory
from lit_ctg.errors import UserError
from lit_ctg.run.memory import corpus_of, texts_of
from tests.conftest import make_tokenizer


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, word_model: Any, word_tokenizer: Any) -> tuple[Path, Path]:
    """A random model with its tokenizer, and a folder of sentences that it knows nothing of."""
    folder = tmp_path_factory.mktemp("memory")
    word_model.save_pretrained(folder / "model")
    word_tokenizer.save_pretrained(folder / "model")
    rng = random.Random(0)
    (folder / "texts").mkdir()
    lines = []
    for _ in range(300):
        first = rng.choice(["the war began in 1914 .", "a war began in 1939 .", "the acid good ."])
        lines.append(f"{first} {rng.choice(['bad', 'good'])} metal {rng.randrange(10**6)}\n\n")
    (folder / "texts" / "war.txt").write_text("".join(lines))
    return folder / "model", folder / "texts"


def test_build_and_fit_tell_what_is_saved(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")  # a table of one line a row
    model, texts = places
    known: list[str] = []
    monkeypatch.setattr("lit_ctg.control.bundle.register_ours", lambda model: known.append(model))
    words = [f"model={model}", f"data.root={texts}"]
    assert lit_ctg(["memory", "build", *words, f"out={tmp_path / 'memory'}", "order=4"]) == 0
    built = Control.from_pretrained(str(tmp_path / "memory"))
    assert isinstance(built, Memory) and not built.fitted and built.ngram.order == 4
    assert lit_ctg(["memory", "fit", *words, f"memory={tmp_path / 'memory'}", f"out={tmp_path / 'fitted'}"]) == 0
    assert len(known) == 2
    told = capsys.readouterr().out
    assert "model alone" in told and "n-grams alone" in told and "(chosen)" in told and "+" in told
    record = json.loads((tmp_path / "fitted" / "fit.json").read_text(encoding="utf-8"))
    found = record["metrics"]
    rows = {"model": "model alone", "ngram": "n-grams alone", "linear": "linear", "product": "product"}
    for name, title in rows.items():
        cells = [f"{found[f'nats/{name}']['value']:.4f}"]
        for side in ("model", "ngram") if name in ("linear", "product") else ():
            saved = found[f"saved/{name}/against_{side}"]
            cells += ["{:+.4f} [{:+.4f}, {:+.4f}]".format(saved["value"], *saved["ci95"])]
            assert saved["direction"] == "higher"
        assert re.search(rf"^\W*{title}\b.*" + ".*".join(map(re.escape, cells)), told, re.MULTILINE), "as printed"
    assert f"fitted on {record['fitted_on']:,} tokens" in told and f"{record['chosen']} (chosen)" in told
    assert f"measured on {record['metrics']['nats/model']['n']:,} others" in told
    given = {"model": str(model), "memory": str(tmp_path / "memory"), "context": 64, "tokens": None}
    assert given.items() <= record["settings"].items() and f"data.root={texts}" in record["settings"]["overrides"]
    assert record["corpus"]["text"] == built.text and record["versions"]["torch"] == metadata.version("torch")
    fitted = Memory.from_pretrained(str(tmp_path / "fitted"))
    assert fitted.origin is not None and record["memory"] == fitted.origin.checksum, "the memory it is about"
    assert not (tmp_path / "memory" / "fit.json").exists()
    assert fitted.fitted and max(fitted.weights["linear"].tolist()) > 0.5
    assert not Memory.from_pretrained(str(tmp_path / "memory")).fitted, "out= leaves the old one as it was"
    # held out: another text than the counted one is told of
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("the metal was good .\n\n" * 3 + "a war began .\n" * 200)
    lit_ctg(["memory", "fit", f"model={model}", f"data.root={tmp_path / 'other'}", f"memory={tmp_path / 'memory'}",
             "tokens=50"])  # fmt: skip
    assert "another text than the counted one" in capsys.readouterr().out


def test_a_model_is_measured_as_it_decodes(places: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """Its tokenizer begins a text with a token of its own, without which the model would be a worse one."""
    from tokenizers.processors import TemplateProcessing

    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    model, texts = places
    begun = make_tokenizer()
    begun.backend_tokenizer.post_processor = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 0)])
    words = [f"data.root={texts}"]
    found = {}
    for name, tokenizer in (("plain", make_tokenizer()), ("begun", begun)):
        transformers.GPT2LMHeadModel.from_pretrained(model).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        own = [f"model={tmp_path / name}", *words]
        assert lit_ctg(["memory", "build", *own, f"out={tmp_path / name / 'memory'}"]) == 0
        assert lit_ctg(["memory", "fit", *own, f"memory={tmp_path / name / 'memory'}"]) == 0
        found[name] = json.loads((tmp_path / name / "memory" / "fit.json").read_text(encoding="utf-8"))["metrics"]
    assert found["plain"]["nats/ngram"]["n"] == found["begun"]["nats/ngram"]["n"]
    datamodule = corpus_of(str(tmp_path / "begun"), words)
    total, count = 0.0, 0
    network = transformers.GPT2LMHeadModel.from_pretrained(model).eval()
    for ids in texts_of(datamodule, "test"):
        if len(ids) > 1:
            assert len(ids) < 60, "one window"
            with torch.no_grad():
                log_p = network(torch.tensor([[0, *ids.tolist()]])).logits[0, 1:-1].log_softmax(-1)
            total -= float(log_p.gather(1, torch.tensor(ids[1:, None].astype(int))).sum())
            count += len(ids) - 1
    assert found["begun"]["nats/model"]["value"] == pytest.approx(total / count, rel=1e-4)
    assert abs(found["plain"]["nats/model"]["value"] - total / count) > 1e-3


@pytest.mark.parametrize(("words", "line"), [
    ([], "build.*fit"),
    (["bild"], "did you mean 'build'"),
    (["build", "model=x"], "give out="),
    (["fit", "model=x"], "give memory="),
    (["build", "model=nowhere/at/all", "out=x", "data.root=."], "nowhere/at/all"),
    (["build", "model=x", "out=y", "order=1"], "order=1: pass a whole number from 2"),
])  # fmt: skip
def test_mistakes_are_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        dispatch(["memory", *words])
