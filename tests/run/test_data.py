"""`lit-ctg data`: what is printed, and that it is true."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.data.wikitext import WikiTextDataModule
from lit_ctg.errors import UserError
from lit_ctg.run.data import describe, run
from lit_ctg.terminal import Console


def module(tmp_path: Path, **changes: Any) -> WikiTextDataModule:
    options: dict[str, Any] = {
        "source": "sample", "cache_root": tmp_path, "tokenizer": WordTokenizer(), "version": 2, "raw": False,
        "batching": "streams", "length": 5,
        "batch_size": 2, "seed": 0, "sample_size": 5000,
    }  # fmt: skip
    return WikiTextDataModule(**{**options, **changes})


def printed(action: str, data: Any, **options: Any) -> str:
    stream = io.StringIO()
    run(action, data, console=Console(file=stream, width=100), **options)
    return stream.getvalue()


def test_info_is_what_the_corpus_is(tmp_path: Path) -> None:
    data = module(tmp_path)
    out, facts = printed("info", data), describe(data)
    lines = [line for document in data.documents("val") for line in document.text.splitlines()]
    words = [word for line in lines for word in [*line.split(), "<eos>"]]
    assert facts["splits"]["val"]["tokens"] == len(words) and f"{len(words):,}" in out
    unknown = sum(word not in data.vocabulary.tokens for word in words) / len(words)
    assert facts["splits"]["val"]["unknown_rate"] == pytest.approx(unknown) and f"{unknown:.3%}" in out
    assert list(facts["splits"]) == ["train", "val", "test"]
    for word in ("word", f"{len(data.vocabulary):,} tokens", data.packed.meta["identity"]["corpus"], "medicine"):
        assert word in out


def test_sample_shows_documents_as_the_model_reads_them(tmp_path: Path) -> None:
    data = module(tmp_path)
    out = printed("sample", data, n=3)
    assert sum(f"[{source} " in line for line in out.splitlines() for source in data.sources) == 3
    heading = next(data.documents("train")).text.splitlines()[1].strip()
    assert heading.startswith("= ") and heading in out
    assert printed("sample", data, n=10_000).count("\n[") < 200


def test_a_sample_shows_what_would_reach_the_terminal(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(f"\n = T = \n\n red \x1b[31m and {split} \n", encoding="utf-8")
    out = printed("sample", module(tmp_path / "cache", source="local", root=tmp_path), n=1)
    assert "\\x1b" in out and "\x1b" not in out


def test_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a text corpus"):
        printed("info", object())


@pytest.mark.long
def test_the_command_line(run_cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    code, out, err = run_cli("data", "prepare", "data=scripts", "size=smoke")
    assert code == 0 and "tokens in" in out and err == ""
    code, out, _ = run_cli("data", "info", "data=scripts", "size=smoke")
    assert code == 0 and "train" in out and "vocabulary" in out
    code, out, _ = run_cli("data", "sample", "data=scripts", "size=smoke", "-n", "2")
    assert code == 0 and out.count("[news ") + out.count("[blog ") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("info",), "data has no value"),
        (("info", "data=wikitex"), "did you mean 'wikitext'"),
        (("info", "data=wikitext", "data.source=local"), "data.root=<folder>"),
        (("info", "data=wikitext", "data.source=local", "data.root=nowhere"), "nowhere cannot be read"),
        (("info", "data=wikitext", "data.source=hub", "data.revision=main"), "pin it"),
        (("info", "data=wikitext", "data.source=hub"), "HF_HUB_OFFLINE=1"),
        (("info", "data=gutenberg", "data.source=hub"), "HF_HUB_OFFLINE=1"),
        (("info", "data=scripts", "data.source=hub"), "data.source=sample"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run_cli, tmp_path: Path, monkeypatch, words, message: str) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = run_cli("data", *words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1
    assert not list((tmp_path / "cache").rglob("meta.json"))


def test_generated_corpora_show_their_floors_and_sentences(run_cli) -> None:
    code, out, _ = run_cli("data", "info", "data=clause", "size=paper")
    assert code == 0 and "8,000 sentences" in out and "2.8695" in out
    code, out, _ = run_cli("data", "sample", "data=clause_coupled", "-n", "3")
    assert code == 0 and len(out.strip().splitlines()) == 3
