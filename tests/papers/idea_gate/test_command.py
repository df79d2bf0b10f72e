"""`lit-ctg data export-base`: the folder is a stock GPT-2 with our logits and tokens, and a model can start from it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.cli import dispatch
from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.idea_gate import IdeaGateModule
from lit_ctg.papers.idea_gate.command import only_plain
from lit_ctg.papers.idea_gate.portable import portable
from lit_ctg.papers.idea_gate.verify import recompute
from lit_ctg.results.record import load_record
from lit_ctg.results.verify import verify
from lit_ctg.run import export_model
from lit_ctg.run.corpus import given_weights
from tests.papers.idea_gate.conftest import SETTINGS, TEXT


def export(module, folder) -> None:
    """What the command does with the model of a run."""
    made = portable(module, None)
    only_plain(made)
    with torch.no_grad():
        export_model.put(made, module, folder, {}, None)


@pytest.fixture
def plain(make_module):
    """A trained-like plain model: float32, weights large enough to matter."""
    return make_module(double=False, gated=False).eval()


def test_a_run_names_the_weights_that_it_was_given(plain, vocabulary, tmp_path) -> None:
    export(plain, tmp_path)

    def given(**settings):
        backbone = GPT2Backbone(dim=16, layers=2, heads=2, context=32, dropout=0.0)
        return given_weights(IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **SETTINGS, **settings))

    digest = given(start_from=str(tmp_path))
    assert given() == {} and digest == given_weights(HuggingFaceBackbone(path=str(tmp_path)))
    with torch.no_grad():
        plain.backbone.ln_f.bias += 1e-3
    export(plain, tmp_path)
    assert set(given(start_from=str(tmp_path))) == {"weights"} and given(start_from=str(tmp_path)) != digest
    export(plain, tmp_path)
    backbone = GPT2Backbone(dim=16, layers=2, heads=2, context=32, dropout=0.0)
    module = IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **SETTINGS, start_from=str(tmp_path)).eval()
    batch = {"input_ids_BT": torch.tensor([vocabulary.encode(TEXT)[:20]])}
    with torch.no_grad():
        output, before = module(batch), plain(batch)
    assert torch.allclose(output.token_BTV, before.scores_BTV, atol=1e-5)
    assert not torch.allclose(output.scores_BTV, before.scores_BTV, atol=1e-2), "the gate is a new one"


def test_what_cannot_be_started_from(plain, make_module, vocabulary, tmp_path) -> None:
    from lit_ctg.data.byte_pair import TrainedBPETokenizer

    export(plain, tmp_path)

    def start(words=vocabulary, dim=16, path=tmp_path):
        backbone = GPT2Backbone(dim=dim, layers=2, heads=2, context=32, dropout=0.0)
        IdeaGateModule(vocabulary=words, backbone=backbone, **SETTINGS, start_from=str(path))

    other = TrainedBPETokenizer(size=290)
    other.train([TEXT])
    # a folder of export-model: its token head has left part of the topic to the gate
    with torch.no_grad():
        gated = make_module(double=False).eval()
        export_model.put(portable(gated, None), gated, tmp_path / "gated", {}, None)
    cases = ({"dim": 32}, {"path": tmp_path / "none"}, {"words": other}, {"path": tmp_path / "gated"})
    reasons = ("another shape", "cannot be loaded", "other tokens than the corpus", r"not a plain GPT-2 \(idea_head\.")
    for case, reason in zip(cases, reasons, strict=True):
        with pytest.raises(UserError, match=rf"model\.start_from=.*{reason}"):
            start(**case)


def test_the_command_refuses_a_gated_run_before_it_writes(make_module, tmp_path, monkeypatch) -> None:
    gated = make_module(double=False).eval()
    checkpoint = SimpleNamespace(
        path=tmp_path / "run" / "checkpoints" / "last.ckpt", config={"paper": "idea_gate"}, load_into=lambda *_: None
    )
    monkeypatch.setattr(export_model, "read", lambda path: checkpoint)
    monkeypatch.setattr(export_model, "build_datamodule", lambda cfg: None)
    monkeypatch.setattr(export_model, "build_model", lambda cfg, datamodule: gated)
    with pytest.raises(UserError, match="only a model without a gate"):
        dispatch(["data", "export-base", f"ckpt_path={checkpoint.path}", f"out={tmp_path / 'base'}"])
    assert not (tmp_path / "base").exists()
    assert export_model.main(str(checkpoint.path), str(tmp_path / "base")) == tmp_path / "base", (
        "it is only refused here"
    )


@pytest.mark.long
def test_a_run_is_exported_into_its_directory(tmp_path, monkeypatch) -> None:
    from lit_ctg.config import compose
    from lit_ctg.run.train import train

    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    words = ["experiment=idea_gate/base", "size=smoke", f"output_root={tmp_path}"]
    folder = train(compose([*words, "trainer.limit_val_batches=1"])).folder
    assert dispatch(["data", "export-base", f"ckpt_path={folder}/checkpoints/last.ckpt"]) == 0
    base = folder / "export"
    names = {path.name for path in base.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    # the paper's gate goes on from it, and the second version's adapters are trained on it
    starts = {"branch": f"model.start_from={base}", "pretrained": f"backbone.path={base}",
              "pretrained_baseline": f"backbone.path={base}", "pretrained_frozen": f"backbone.path={base}"}  # fmt: skip
    for name, start in starts.items():
        words[0] = f"experiment=idea_gate/{name}"
        folder = train(compose([*words, start, "trainer.limit_val_batches=1"])).folder
        record = load_record(folder / "run.json")
        assert record.corpus["weights"] == given_weights(HuggingFaceBackbone(path=str(base)))["weights"]
        assert record.status == "DONE" and math.isfinite(record.metrics["val/gated/loss"]["value"])
        # what the record says twice agrees, the new names among it
        found = verify([record], recompute)
        assert found.differences == () and found.recomputed > 5
        checks = {"val/bigram/margin", "val/history/head_gain", "val/gate/context_share"}
        wanted = checks if name != "pretrained_baseline" else {"val/bigram/margin"}
        assert wanted <= set(record.metrics)
        if name == "branch":
            kept = ("mass/gated/all/kept", "topic/gated/all/classified", "topic_long/gated/finance/long/drift/21-40")
            assert "val/idea_loss" in record.history
            assert {*kept, "topic_without_penalty/gate_gain/all/long/stickiness"} <= set(record.metrics)
