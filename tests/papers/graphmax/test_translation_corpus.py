"""Translation: pairs stay aligned, batches are shifted and masked, no source sentence is evaluated and trained on."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.translation_corpus import TranslationDataModule

REVISION = "0123456789abcdef0123456789abcdef01234567"
SPECIALS = ("<unk>", "<pad>", "<bos>", "<eos>")
PAIRS = [(f"propoziția numărul n{n} " + "foarte " * (n % 4), f"sentence number n{n}") for n in range(50)]


def module(tmp_path: Path, **changes: Any) -> TranslationDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache", "source_language": "ro",
        "target_language": "en", "val_fraction": 0.1, "test_fraction": 0.1, "length": 16, "batch_size": 8, "seed": 0,
        "tokenizer": WordTokenizer(eol=None, specials=SPECIALS), "repository": "some/wmt", "revision": REVISION,
    }  # fmt: skip
    return TranslationDataModule(**{**options, **changes})


def write(root: Path, stem: str, pairs: list[tuple[str, str]]) -> None:
    root.mkdir(exist_ok=True)
    for side, language in enumerate(("ro", "en")):
        (root / f"{stem}.{language}").write_text("\n".join(pair[side] for pair in pairs) + "\n", encoding="utf-8")


def read_back(data: TranslationDataModule, loader: Any) -> list[str]:
    """Check every batch and return the number words of its pairs."""
    words, found = data.vocabulary, []
    for batch in loader:
        assert batch["source_ids_BS"].shape == batch["mask_source_BS"].shape
        for row in range(len(batch["input_ids_BT"])):
            source = batch["source_ids_BS"][row][batch["mask_source_BS"][row]].tolist()
            inputs = batch["input_ids_BT"][row][batch["mask_input_BT"][row]].tolist()
            target = batch["target_ids_BT"][row][batch["mask_target_BT"][row]].tolist()
            assert inputs[0] == words.bos_id and source[-1] == target[-1] == words.eos_id
            assert inputs[1:] == target[:-1]
            found.append(words.decode(target[:-1]).split()[-1])
            assert words.decode(source[:-1]).split()[2] == found[-1]
        outside = ~batch["mask_target_BT"]
        assert (batch["target_ids_BT"][outside] == words.pad_id).all()
    return found


def test_pairs_stay_together(tmp_path: Path) -> None:
    write(tmp_path / "text", "train", PAIRS)
    data = module(tmp_path, vocabulary_splits=("train", "val", "test"))
    found = [read_back(data, loader()) for loader in (data.train_dataloader, data.val_dataloader, data.test_dataloader)]
    assert found == [[f"n{n}" for n in part] for part in (range(40), range(40, 45), range(45, 50))]
    mixed = module(tmp_path, shuffle=True, vocabulary_splits=("train", "val", "test"))
    loader = mixed.train_dataloader()
    first = read_back(mixed, loader)
    loader.sampler.set_epoch(1)
    second = read_back(mixed, loader)
    assert first != second and sorted(first) == sorted(second) == sorted(found[0])


def test_own_files_are_own_splits(tmp_path: Path) -> None:
    write(tmp_path / "text", "train", [*PAIRS[:30], PAIRS[45]])
    write(tmp_path / "text", "newsdev2016", PAIRS[30:45])
    write(tmp_path / "text", "newstest2016", PAIRS[45:])
    splits = module(tmp_path).prepare().meta["splits"]
    assert {name: splits[f"{name}.source"]["documents"] for name in ("train", "val", "test")} == {
        "train": 30, "val": 15, "test": 5}  # fmt: skip
    assert splits["train.target"]["documents"] == 30, "the pair that is tested on is not trained on"


def test_splits_without_files_are_cut_from_the_others(tmp_path: Path) -> None:
    write(tmp_path / "only", "newsdev2016", PAIRS)
    splits = module(tmp_path, root=tmp_path / "only").prepare().meta["splits"]
    assert [splits[f"{name}.source"]["documents"] for name in ("train", "val", "test")] == [40, 5, 5]
    write(tmp_path / "valid", "train", PAIRS[:30])
    write(tmp_path / "valid", "valid", PAIRS[30:])
    data = module(tmp_path, root=tmp_path / "valid", vocabulary_splits=("train", "val"))
    assert read_back(data, data.test_dataloader()) == [f"n{n}" for n in range(30, 50)]
    write(tmp_path / "text", "train", PAIRS[:40])
    write(tmp_path / "text", "test", PAIRS[40:])
    data = module(tmp_path, vocabulary_splits=("train", "val", "test"))
    found = [read_back(data, loader()) for loader in (data.train_dataloader, data.val_dataloader, data.test_dataloader)]
    assert found == [[f"n{n}" for n in part] for part in (range(36), range(36, 40), range(40, 50))]
    # another cut is another packed corpus: none that was packed while the test file was ignored is read
    assert data.options()["fractions"] == [0.1, 0.0]


def test_processes_share_the_batches(tmp_path: Path) -> None:
    write(tmp_path / "text", "train", PAIRS)
    data, found = module(tmp_path, vocabulary_splits=("train", "val", "test"), batch_size=2), {}
    for rank in (0, 1):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)
        loaders = {"train": data.train_dataloader, "val": data.val_dataloader, "test": data.test_dataloader}
        found |= {(name, rank): read_back(data, loader()) for name, loader in loaders.items()}
    assert not set(found["train", 0]) & set(found["train", 1])
    assert len(found["train", 0]) == len(found["train", 1]), "as many steps in both"
    for name, part in (("val", range(40, 45)), ("test", range(45, 50))):
        assert sorted(found[name, 0] + found[name, 1]) == [f"n{n}" for n in part]


def test_hub_rows(network, tmp_path: Path, monkeypatch) -> None:
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setenv("HF_ENDPOINT", network.address)
    files = {}
    for name, pairs in (("train", PAIRS[:30]), ("validation", PAIRS[30:40]), ("test", PAIRS[40:])):
        table = pyarrow.table({"translation": [{"en": english, "ro": romanian} for romanian, english in pairs]})
        pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
        files[f"ro-en/{name}-00000-of-00001.parquet"] = (tmp_path / "x.parquet").read_bytes()
    network.add_dataset("some/wmt", files)
    data = module(tmp_path, source="hub", vocabulary_splits=("train", "val", "test"))
    assert read_back(data, data.train_dataloader()) == [f"n{n}" for n in range(30)]
    assert read_back(data, data.test_dataloader()) == [f"n{n}" for n in range(40, 50)]


def test_long_sentences_are_cut_and_still_end(tmp_path: Path) -> None:
    write(tmp_path / "text", "train", [(f"a b n{n} " + "c " * 50, "d " * 50 + f"n{n}") for n in range(50)])
    batch = next(iter(module(tmp_path, length=10).train_dataloader()))
    assert batch["input_ids_BT"].shape == batch["source_ids_BS"].shape == (8, 10)
    assert (batch["target_ids_BT"][:, -1] == torch.tensor(3)).all()


def test_wrong_input_is_named(tmp_path: Path) -> None:
    write(tmp_path / "text", "train", PAIRS)
    (tmp_path / "text" / "train.en").write_text("one line only\n")
    with pytest.raises(UserError, match=r"train\.en ends before line 2.*not aligned"):
        module(tmp_path).prepare()
    (tmp_path / "text" / "train.en").unlink()
    with pytest.raises(UserError, match=r"has train\.ro but no train\.en"):
        module(tmp_path).prepare()
    (tmp_path / "text" / "train.ro").unlink()
    with pytest.raises(UserError, match="holds no parallel text"):
        module(tmp_path).prepare()
    with pytest.raises(UserError, match="translation needs <pad>"):
        module(tmp_path, source="sample", sample_size=2000, tokenizer=WordTokenizer(eol=None)).train_dataloader()


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
def test_real_sentences_load(tmp_path: Path) -> None:
    data = module(tmp_path, root=Path(os.environ["LIT_CTG_DATA"]) / "wmt16_ro_en")
    splits = data.prepare().meta["splits"]
    assert sum(splits[f"{name}.source"]["documents"] for name in ("train", "val", "test")) >= 1_990
