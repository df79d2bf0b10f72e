"""Scripts: two styles, texts or rows; nothing is fetched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.scripts import ScriptsDataModule

NEWS = "".join(f"Firm {number} grew.\n\n" for number in range(100))
BLOG = [{"title": f"Day {number}", "text": f"I slept {number} hours.", "id": number} for number in range(40)]


def module(tmp_path: Path, **changes: Any) -> ScriptsDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache",
        "tokenizer": WordTokenizer(eol=None), "val_fraction": 0.1, "test_fraction": 0.1, "batching": "chunks",
        "length": 8, "batch_size": 4, "seed": 0, "by_source": True,
    }  # fmt: skip
    return ScriptsDataModule(**{**options, **changes})


def test_texts_are_cut_and_rows_are_documents(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "style_news.txt").write_text("<news>\n" + NEWS)
    (tmp_path / "text" / "blog.jsonl").write_text("\n".join(map(json.dumps, BLOG)))
    data = module(tmp_path)
    splits = data.prepare().meta["splits"]
    assert data.sources == ("news", "blog")
    assert [splits[name]["documents"] for name in ("train", "val", "test")] == [1 + 32, 1 + 4, 1 + 4]
    news = [document.text for name in ("train", "val", "test") for document in data.documents(name)
            if document.source == "news"]  # fmt: skip
    assert "".join(news) == NEWS
    assert [document.text for document in data.documents("test")][1] == "Day 36\n\nI slept 36 hours.\n"


def test_sample_has_both_styles(tmp_path: Path) -> None:
    data = module(tmp_path, source="sample", sample_size=4000)
    codes = {int(code) for batch in data.train_dataloader() for code in batch["control_code_B"]}
    assert data.sources == ("news", "blog") and codes == {0, 1}


def test_the_hub_is_refused_with_the_alternatives(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no hub.*data\.source=local data\.root=.*data\.source=sample"):
        module(tmp_path, source="hub").prepare()


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
def test_the_published_token_count_is_95_percent_of_all_tokens(tmp_path: Path) -> None:
    data = module(
        tmp_path, root=Path(os.environ["LIT_CTG_DATA"]) / "control_code", val_fraction=0.05, test_fraction=0.0,
        tokenizer=SpacyTokenizer(whitespace=True, lower=False),
    )  # fmt: skip
    total = sum(split["tokens"] for split in data.prepare().meta["splits"].values())
    # control-code paper, Table 2: 115,286
    assert abs(0.95 * total / 115_286 - 1) < 1e-3
