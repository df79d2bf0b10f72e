"""What is checked while a run's objects are built."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lit_ctg.config import compose
from lit_ctg.control.bundle import fingerprint
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.run import build
from lit_ctg.run.build import build_datamodule, build_model, check_tokenizer
from tests.conftest import make_model


def test_a_corpus_speaks_the_models_tokenizer(tmp_path: Path, word_model: Any, word_tokenizer: Any) -> None:
    place = str(tmp_path / "model")
    word_model.save_pretrained(place)
    tokens = list(HuggingFaceTokenizer.of(word_tokenizer).tokens)
    assert fingerprint(tokens) == fingerprint(word_tokenizer)
    other = SimpleNamespace(tokens=tokens[::-1])  # as many tokens, with other ids
    check_tokenizer(place, None, other)  # nothing to compare with
    word_tokenizer.save_pretrained(place)
    check_tokenizer(place, None, SimpleNamespace(tokens=tokens))
    with pytest.raises(
        UserError, match=rf"backbone\.path={place}: .* data/tokenizer=huggingface data\.tokenizer\.path="
    ):
        check_tokenizer(place, None, other)


def test_a_small_vocabulary_of_another_kind_is_refused_too(
    tmp_path: Path, word_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enough rows for the corpus' tokens are not enough: each would be some other word."""
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "model"
    make_model(500).save_pretrained(place)
    word_tokenizer.save_pretrained(place)
    words = ["backbone=huggingface", f"backbone.path={place}", "size=smoke", "data.sample_size=3000"]
    cfg = compose(["experiment=idea_gate/main", *words])
    with pytest.raises(UserError, match="the model has another tokenizer than the corpus"):
        build_model(cfg, build_datamodule(cfg))


def test_a_part_that_is_null_is_left_out(tmp_path: Path) -> None:
    words = ["callback.causality_probe=null", "metric.perplexity=null", "logger=csv", "logger.csv=null"]
    plain = compose(["experiment=semantic_fusion/main", "size=smoke", "logger=csv"])
    cfg = compose(["experiment=semantic_fusion/main", "size=smoke", *words])
    names = [type(callback).__name__ for callback in build._callbacks(plain, tmp_path)]
    left = [type(callback).__name__ for callback in build._callbacks(cfg, tmp_path)]
    names.remove("CausalityProbe")
    assert left == names
    assert len(build._loggers(plain, tmp_path)) == 1 and build._loggers(cfg, tmp_path) == []
    metrics = [set(build._callbacks(each, tmp_path)[0].metrics) for each in (plain, cfg)]
    assert metrics[0] - metrics[1] == {"perplexity"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_BASE_URL", "nonsense"),
        ("WANDB_SILENT", "nonsense"),
        ("WANDB_RUN_ID", "a/b"),
        ("WANDB_TAGS", ""),
        ("WANDB_API_KEY", "a short secret"),
    ],
)
def test_nonsense_in_the_environment_of_wandb_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    import wandb

    wandb.teardown()  # it reads the environment once
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv(name, value)
    words = ["logger.wandb.offline=false"] if name == "WANDB_API_KEY" else []
    cfg = compose(["experiment=semantic_fusion/main", "size=smoke", "logger=wandb", *words])
    with pytest.raises(UserError, match=rf"logger=wandb: .*check {name} in the environment") as error:
        build._loggers(cfg, tmp_path)
    wandb.teardown()
    assert len(str(error.value).splitlines()) == 1 and "secret" not in str(error.value)
