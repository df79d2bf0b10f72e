"""The sample text: whole, clean, repeatable, apart by split, and enough for what the configurations ask."""

from __future__ import annotations

import re

import pytest
from hydra.utils import instantiate

from lit_ctg.config import compose
from lit_ctg.data.sample_text import FOLDER, _documents, sample_documents, sample_file
from lit_ctg.errors import UserError
from lit_ctg.field.command import complete
from lit_ctg.field.command import compose as compose_field

NAMES = sorted(path.name.removesuffix(".jsonl.xz") for path in FOLDER.iterdir())
CORPORA = ("gutenberg", "reviews", "scripts", "translation", "wikipedia", "wikitext")
TASKS = complete()


def test_the_files_are_the_texts_of_the_corpora_and_small() -> None:
    assert NAMES == ["books", "encyclopedia", "parallel", "reviews", "scripts"]
    assert sum(sample_file(name).stat().st_size for name in NAMES) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_stored_documents_are_clean_and_in_one_split(name: str) -> None:
    splits = {split: {each.text for each in documents} for split, documents in _documents(name).items()}
    assert list(splits) == ["train", "val", "test"]
    assert not splits["train"] & splits["val"] and not (splits["train"] | splits["val"]) & splits["test"]
    for text in set.union(*splits.values()):
        assert text.endswith("\n") and text.strip()
        assert not re.search(r"[{}|]|@a |  ", text), text


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_and_a_size_take_a_slice(name: str) -> None:
    source = _documents(name)["train"][0].source

    def texts(seed: int, size: int = 5000) -> list[str]:
        found = list(sample_documents(name, "train", size=size, seed=seed, source=source))
        assert {each.source for each in found} == {source}
        return [each.text for each in found]

    first, other = texts(0), texts(1)
    assert first == texts(0) and first[:-1] == texts(0, 9000)[: len(first) - 1]
    assert first != other and len(set(first) & set(other)) < len(first)
    for size, found in ((5000, first), (5000, other), (1000, texts(0, 1000))):
        assert abs(sum(len(text.split()) for text in found) - size) <= size / 10
    # behind the end it continues at the beginning, and nothing comes twice
    words = sum(len(each.text.split()) for each in _documents(name)["val"] if each.source == source)
    everything = [each.text for each in sample_documents(name, "val", size=words, seed=5, source=source)]
    assert sorted(everything) == sorted(each.text for each in _documents(name)["val"] if each.source == source)
    with pytest.raises(UserError, match=r"data\.sample_size .*data\.source=local"):
        list(sample_documents(name, "val", size=words + 1, source=source))


def test_a_size_that_the_text_does_not_have_is_refused(tmp_path) -> None:
    cfg = compose(["data=wikitext", "size=paper", f"data.cache_root={tmp_path}"], experiment=False)
    with pytest.raises(UserError, match=r"data\.sample_size"):
        instantiate(cfg.data).prepare()
    assert not [path for path in tmp_path.rglob("*") if path.suffix != ".lock" and path.is_file()]


@pytest.mark.long
@pytest.mark.parametrize("word", [*(f"data={name}" for name in CORPORA), *(f"task={name}" for name in TASKS)])
def test_small_runs_have_enough_text(word: str) -> None:
    cfg = compose_field([word]) if word.startswith("task=") else compose([word], experiment=False)
    cfg.size = "small"
    data = instantiate(cfg.data)
    words = sum(len(each.text.split()) for split in data.splits for each in data.documents(split))
    assert words > data.sample_size
