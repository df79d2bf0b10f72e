"""experiment=graphmax/pretrained: a pretrained model (here a tiny one, built on the spot) in the review trial."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import CTRLConfig, CTRLLMHeadModel, GPT2LMHeadModel

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.graphmax.decode import GraphmaxDecoding
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.train import train
from tests.tiny import make_gpt2, make_tokenizer

QUICK = ("size=smoke", "logger=none", "trainer.accelerator=cpu")
TEXT = ["the food was good and the staff was nice", "The river rises in the north, and the town stands on it."] * 3


def save(folder: Path, kind: str = "gpt2") -> str:
    """Write tokenizer and model; the model has more rows than the tokenizer has tokens, as many have."""
    words = make_tokenizer(TEXT, 290)
    words.save_pretrained(folder)
    if kind == "gpt2":
        model = make_gpt2(len(words) + 3, layers=1, dim=16, heads=2, positions=64, end=words.eos_token_id, seed=0)
    else:
        torch.manual_seed(0)
        model = CTRLLMHeadModel(
            CTRLConfig(vocab_size=len(words) + 3, n_positions=64, n_embd=16, n_layer=1, n_head=2, dff=32)
        )
        torch.nn.init.normal_(model.lm_head.bias)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return save(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.long
@pytest.mark.parametrize("regime", ["corrected", "as_published"])
def test_the_trial_without_training(path, regime, tmp_path: Path) -> None:
    scenes = "callback.graphmax_trial.scenes"
    words = [
        "experiment=graphmax/pretrained", f"backbone.path={path}", "name=pretrained_tiny", f"regime={regime}", *QUICK,
        f"callback.graphmax_trial.parts.generation.judge_path={path}", f"output_root={tmp_path}",
        f"{scenes}.yelp.max_documents=20", f"{scenes}.amazon=null", "callback.graphmax_trial.parts.convergence=null",
    ]  # fmt: skip
    record = json.loads((train(compose(words)).folder / "run.json").read_text(encoding="utf-8"))
    numbers = record["metrics"]
    assert (record["status"], record["name"]) == ("DONE", "pretrained_tiny")
    for name in ("val/perplexity", "nll/yelp/graphmax/1", "bleu/yelp/graphmax/bleu_2", "time_ratio/yelp/graphmax"):
        assert math.isfinite(numbers[name]["value"]), name
    # the judge is the model itself here, apart from the <bos> that only the judge reads
    judged, own = (numbers[f"perplexity_{judge}/yelp/softmax"]["value"] for judge in ("pretrained_judge", "lm"))
    assert judged == pytest.approx(own, rel=0.05) and judged != own
    frozen = GPT2LMHeadModel.from_pretrained(path).num_parameters()
    assert record["parameters"] == frozen and record["tokens_per_s"] == 0
    assert not list(tmp_path.rglob("*.ckpt")), "nothing was trained, so nothing is kept"


@pytest.mark.long
def test_a_pretrained_model_goes_on_learning_in_the_domain(path, tmp_path: Path) -> None:
    words = ["experiment=graphmax/in_domain_pretrained", f"backbone.path={path}", *QUICK, f"output_root={tmp_path}"]
    records = {}
    for name, limit in (("learnt", "trainer.max_steps=4"), ("as_it_is", "trainer.limit_train_batches=0")):
        folder = train(compose([*words, f"name={name}", "model.learning_rate=0.01", limit])).folder
        records[name] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    learnt, before = (records[name]["metrics"] for name in ("learnt", "as_it_is"))
    assert records["learnt"]["status"] == records["as_it_is"]["status"] == "DONE"
    assert learnt["nll/yelp/softmax"]["value"] < before["nll/yelp/softmax"]["value"]
    # neither knows the model, and both are of the same folds
    for name in ("unigram", "trigram"):
        assert learnt[f"nll/yelp/{name}"]["value"] == before[f"nll/yelp/{name}"]["value"]


def test_scores_are_the_models_own_for_the_tokens_of_its_tokenizer(path) -> None:
    cfg = compose(["experiment=graphmax/pretrained", f"backbone.path={path}", *QUICK])
    data = build_datamodule(cfg)
    module = build_model(cfg, data).eval()
    model = GPT2LMHeadModel.from_pretrained(path).eval()
    ids_BT = torch.tensor([data.vocabulary.encode("the food was good")])
    mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    with torch.no_grad():
        expected_BTV = model(input_ids=ids_BT).logits[..., : len(data.vocabulary)]
        scores_BTV = module({"input_ids_BT": ids_BT, "mask_input_BT": mask_BT}).scores_BTV
    torch.testing.assert_close(scores_BTV, expected_BTV, atol=1e-5, rtol=1e-4)
    decoding = GraphmaxDecoding(variant="softmax", strength=1.0, max_new_tokens=6)
    found = decoding.generator(module, data).generate(1, prompt="the food", seed=None)[0]
    start = torch.tensor([[0, *data.vocabulary.encode("the food")]])
    theirs = start
    with torch.no_grad():
        for _ in range(6):
            best = model(input_ids=theirs).logits[:, -1, : len(data.vocabulary)].argmax(-1, keepdim=True)
            theirs = torch.cat([theirs, best], dim=1)
            if int(best) == 0:
                break
    assert list(found.ids) == theirs[0].tolist()


def test_a_head_with_a_bias_is_taken_where_it_may(tmp_path: Path) -> None:
    """CTRL has one: logits are its own, with and without cache."""
    path = save(tmp_path, "ctrl")
    with pytest.raises(UserError, match="a bias"):
        HuggingFaceBackbone(path=path, plain_head=True)
    backbone = HuggingFaceBackbone(path=path)
    model = CTRLLMHeadModel.from_pretrained(path).eval()
    ids_BT = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected_BTV = model(input_ids=ids_BT).logits
        torch.testing.assert_close(backbone.head(backbone(backbone.embed(ids_BT))), expected_BTV, atol=1e-5, rtol=1e-4)
        cache = None
        for place in range(4):
            hidden_BD, cache = backbone.step(backbone.embed(ids_BT[:, place]), cache)
            torch.testing.assert_close(backbone.head(hidden_BD), expected_BTV[:, place], atol=1e-5, rtol=1e-4)
