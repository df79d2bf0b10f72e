"""docs/own_words.md, run as it stands at size=smoke; and the other corpora and models it names."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import transformers

from lit_ctg.papers.semantic_fusion.bank import Feature

PAGE = Path(__file__).resolve().parents[3] / "docs" / "own_words.md"
SMOKE = ["size=smoke", "trainer.accelerator=cpu", "trainer.limit_train_batches=4", "trainer.limit_val_batches=2"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A scratch folder with the page's files, as the working directory."""
    (tmp_path / "words.csv").write_text(blocks("csv")[0])
    (tmp_path / "opinion.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(folder: Path, name: str) -> dict:
    (path,) = (folder / "outputs" / "semantic_fusion" / name).glob("*/run.json")
    return json.loads(path.read_text())


@pytest.mark.long
def test_the_page_runs_as_it_stands(here, run_cli):
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    assert [line.split()[1] for line in lines if line.startswith("lit-ctg")] == [
        "train",
        "generate",
        "generate",
        "train",
    ]
    printed = []
    for line in lines:
        if not line.startswith("lit-ctg "):
            subprocess.run(line, shell=True, check=True)
            continue
        code, out, err = run_cli(*shlex.split(line)[1:], *SMOKE, "output_root=outputs")
        assert code == 0, err
        printed.append(out)
    metrics = record(here, "reviews")["metrics"]
    assert {"control/channel/positive/polarity", "control/channel/negative/held_out_gain"} <= set(metrics)
    assert metrics["probe/causal"]["value"] == 1
    follows = r"(?i) ?the (food|music) (was|is)( \w+)? \w+ ?\."
    texts = [line for line in printed[2].splitlines() if line.lower().lstrip().startswith("the ")]
    assert len(texts) == 5 and all(re.fullmatch(follows, text) for text in texts), printed[2]
    assert record(here, "food")["config"]["model"]["bank"]["features"]["food"]["group"] == "food"


def test_the_class_on_the_page_is_a_feature():
    space: dict = {}
    exec(blocks("python")[0], space)
    assert issubclass(space["Shouting"], Feature)


@pytest.mark.long
def test_a_frozen_hugging_face_model_takes_the_adapter(here, run_cli):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    engine = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from tokenizers import decoders

    engine.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|endoftext|>")
    fast.save_pretrained("model")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": len(tokens)}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained("model")
    words = ["experiment=semantic_fusion/pretrained", "backbone.path=model", "output_root=outputs", *SMOKE]
    code, _, err = run_cli("train", *words)
    assert code == 0, err
    assert record(here, "pretrained")["metrics"]["probe/causal"]["value"] == 1


def test_the_clause_model_on_reviews_says_where_to_go(run_cli):
    code, _, err = run_cli("train", "experiment=semantic_fusion/main", "data=reviews", *SMOKE)
    assert code == 2 and "experiment=semantic_fusion/reviews" in err and len(err.strip().splitlines()) == 1


@pytest.mark.long
def test_words_of_ones_own_can_be_held_out_of_the_clause_corpus(here, run_cli):
    words = ["experiment=semantic_fusion/main", *SMOKE, "output_root=outputs", "callback.control_trial.n=2"]
    held_out = "data.held_out={positive:[superb],negative:[awful]}"
    code, _, err = run_cli("train", *words, held_out)
    assert code == 2 and "'+data.words.positive=[superb]'" in err
    more = ["+data.words.intensifier.incredibly=0.9", "+data.intensifier_weights.incredibly=2"]
    code, _, err = run_cli("train", *words, held_out, "+data.words.positive=[superb]", *more)
    assert code == 0, err
