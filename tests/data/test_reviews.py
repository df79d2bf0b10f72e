"""Reviews: topics and stars from every format, whole reviews in one split each."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.data.packing import MISSING
from lit_ctg.data.reviews import ReviewsDataModule
from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer

REVISION = "0123456789abcdef0123456789abcdef01234567"
HUB = {
    "topics": {"repository": "some/amazon", "revision": REVISION,
               "files": {"garden": "raw/Garden.jsonl", "music": "raw/Music.jsonl"}},
    "amazon": {"repository": "some/amazon", "revision": REVISION, "files": {"amazon": "raw/Music.jsonl"}},
    "yelp": {"repository": "some/yelp", "revision": REVISION, "files": {"yelp": "full/train-*.parquet"}},
}  # fmt: skip
GARDEN = [f"The hose number {number} is fine." for number in range(60)]
MUSIC = [f"A string no {number} broke." for number in range(40)]


def module(tmp_path: Path, **changes: Any) -> ReviewsDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache", "corpus": "topics", "hub": HUB,
        "tokenizer": WordTokenizer(eol=None), "val_fraction": 0.1, "test_fraction": 0.05, "batching": "chunks",
        "length": 8, "batch_size": 4, "seed": 0, "by_source": True,
    }  # fmt: skip
    return ReviewsDataModule(**{**options, **changes})


def write_topics(root: Path) -> None:
    root.mkdir()
    (root / "reviews_garden.txt.xz").write_bytes(lzma.compress(("<garden>\n" + "\n\n".join(GARDEN)).encode()))
    rows = [{"reviewText": text, "overall": number % 5 + 1.0} for number, text in enumerate(MUSIC)]
    (root / "music.jsonl").write_text("\n".join(map(json.dumps, rows)))


def stars(data: ReviewsDataModule, split: str) -> list[int]:
    return data.prepare().table(split, "stars").tolist()


def test_topics_from_lines_and_rows(tmp_path: Path) -> None:
    write_topics(tmp_path / "text")
    data = module(tmp_path)
    splits = data.prepare().meta["splits"]
    assert data.sources == ("garden", "music")
    assert [splits[name]["documents"] for name in ("train", "val", "test")] == [51 + 34, 6 + 4, 3 + 2]
    texts = [document.text.strip() for split in ("train", "val", "test") for document in data.documents(split)]
    assert sorted(texts) == sorted(GARDEN + MUSIC)
    assert stars(data, "train")[:51] == [MISSING] * 51 and stars(data, "train")[51:56] == [1, 2, 3, 4, 5]
    assert len(list(module(tmp_path, test_fraction=0.0).test_dataloader()))


def test_hub_rows_with_stars(network, tmp_path: Path, monkeypatch) -> None:
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setenv("HF_ENDPOINT", network.address)
    rows = [{"rating": 4.0, "text": text, "title": "x"} for text in MUSIC]
    garden = [{"rating": 2.0, "text": text, "title": "x"} for text in GARDEN]
    network.add_dataset("some/amazon", {"raw/Music.jsonl": "\n".join(map(json.dumps, rows)).encode(),
                                        "raw/Garden.jsonl": "\n".join(map(json.dumps, garden)).encode()})  # fmt: skip
    table = pyarrow.table({"label": [0, 4, 2] * 10, "text": GARDEN[:30]})
    pyarrow.parquet.write_table(table, tmp_path / "y.parquet")
    network.add_dataset("some/yelp", {"full/train-00000.parquet": (tmp_path / "y.parquet").read_bytes()})
    topics, amazon = module(tmp_path, source="hub"), module(tmp_path, source="hub", corpus="amazon")
    assert set(stars(topics, "train")) == {2, 4} and topics.sources == ("garden", "music")
    assert set(stars(amazon, "train")) == {4} and amazon.sources == ("amazon",)
    yelp = module(tmp_path, source="hub", corpus="yelp")
    assert stars(yelp, "train")[:3] == [1, 5, 3]
    few = module(tmp_path, source="hub", corpus="yelp", max_documents=20)
    assert [few.prepare().meta["splits"][split]["documents"] for split in ("train", "val", "test")] == [17, 2, 1]


def test_stars_may_begin_after_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    rows = ['{"text": "a garden in the rain"}', *(f'{{"text": "pot {n}", "stars": 4}}' for n in range(20))]
    (tmp_path / "text" / "yelp.jsonl").write_text("\n".join(rows))
    assert stars(module(tmp_path, corpus="yelp", val_fraction=0.2), "train") == [MISSING, *[4] * 15]


def test_sample_has_stars(tmp_path: Path) -> None:
    for corpus, sources in (("topics", ("garden", "music")), ("amazon", ("amazon",)), ("yelp", ("yelp",))):
        data = module(tmp_path, source="sample", corpus=corpus, sample_size=5000)
        assert data.sources == sources and set(stars(data, "train")) == {1, 2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
def test_the_published_token_count_is_95_percent_of_all_tokens(tmp_path: Path) -> None:
    data = module(
        tmp_path, root=Path(os.environ["LIT_CTG_DATA"]) / "control_code", val_fraction=0.05, test_fraction=0.0,
        tokenizer=SpacyTokenizer(whitespace=True),
    )  # fmt: skip
    total = sum(split["tokens"] for split in data.prepare().meta["splits"].values())
    # control-code paper, Table 2: 1,183,235
    assert abs(0.95 * total / 1_183_235 - 1) < 1e-3
    yelp = module(tmp_path, root=Path(os.environ["LIT_CTG_DATA"]) / "yelp", corpus="yelp")
    assert sum(split["documents"] for split in yelp.prepare().meta["splits"].values()) > 9_900
