"""lit_ctg.data.huggingface_tokenizer: a pretrained model's ids, with and without a fast tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CTRLTokenizer, PreTrainedTokenizerFast

from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.reviews import ReviewsDataModule
from lit_ctg.errors import UserError

TEXTS = ["The food was good.", "", "Größe zählt: 3,50 €!\n\nsaid the cook", "food food"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Byte-level BPE that puts <s> and </s> around every text unless told not to."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "</s>", "<pad>", "<unk>"]
    engine.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=280, special_tokens=specials,
                                                          initial_alphabet=alphabet, show_progress=False))  # fmt: skip
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    path = tmp_path_factory.mktemp("tokenizer")
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), specials, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=engine, **names).save_pretrained(path)
    return path


def ready(path: Path) -> HuggingFaceTokenizer:
    found = HuggingFaceTokenizer(path=str(path))
    found.train([])
    return found


def test_ids_are_the_models_own_without_specials(folder) -> None:
    words = ready(folder)
    assert len(words) == 280 and words.tokens[0] == "<s>" and words.id("<pad>") == 2
    assert (words.bos_id, words.eos_id, words.pad_id, words.unknown_id) == (0, 1, 2, 3)
    for text in TEXTS:
        assert words.decode(words.encode(text)) == text
        assert not {0, 1} & set(words.encode(text))
        assert words.engine(text)["input_ids"] == [0, *words.encode(text), 1]
    ids_T, counts_N = words.encode_many(TEXTS)
    assert ids_T.dtype == words.dtype
    parts = np.split(ids_T, np.cumsum(counts_N)[:-1])
    assert [part.tolist() for part in parts] == [words.encode(text) for text in TEXTS]
    assert len(words.encode_many([])[0]) == 0
    bare = HuggingFaceTokenizer(path=str(folder), strip=True)
    bare.train([])
    assert bare.encode(" food\n") == words.encode("food") == bare.encode_many([" food\n"])[0].tolist()


def test_a_corpus_is_packed_in_it_and_read_again(folder, tmp_path: Path) -> None:
    def corpus() -> ReviewsDataModule:
        return ReviewsDataModule(
            source="sample", hub={"yelp": {}}, tokenizer=HuggingFaceTokenizer(path=str(folder)), corpus="yelp",
            val_fraction=0.2, test_fraction=0.0, batching="chunks", length=16, batch_size=4, sample_size=2000, seed=0,
            cache_root=tmp_path,
        )  # fmt: skip

    first, again = corpus(), corpus()
    batch = next(iter(first.val_dataloader()))
    assert batch["input_ids_BT"].equal(next(iter(again.val_dataloader()))["input_ids_BT"])
    document = next(iter(first.documents("train")))
    packed = first.prepare().document("train", 0)
    assert packed.tolist()[:5] == ready(folder).encode(document.text)[:5]


def test_one_without_a_fast_version(tmp_path: Path) -> None:
    """CTRL's runs in Python."""
    pieces = ["<unk>", "f@@", "o@@", "d", "o", "fo@@", "foo@@", "food", "g@@", "go@@", "goo@@", "good"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nf o\nfo o\nfoo d</w>\ng o\ngo o\ngoo d</w>\n")
    CTRLTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ctrl"}))
    words = ready(tmp_path)
    assert [words.tokens[number] for number in words.encode("good food")] == ["good", "food"]
    assert words.decode(words.encode("good food")) == "good food"
    assert (words.bos_id, words.eos_id) == (None, None)


def test_a_corpus_is_known_by_the_content_of_its_tokenizer(folder, tmp_path: Path) -> None:
    found = ready(folder)
    found.engine.save_pretrained(tmp_path)
    assert HuggingFaceTokenizer(path=str(tmp_path)).fingerprint() == found.fingerprint()
    HuggingFaceTokenizer(path=str(tmp_path)).engine.add_tokens(["new"])
    changed = HuggingFaceTokenizer(path=str(tmp_path)).engine
    changed.add_tokens(["new"])
    changed.save_pretrained(tmp_path)
    assert HuggingFaceTokenizer(path=str(tmp_path)).fingerprint() != found.fingerprint()


def test_a_folder_in_the_home_folder(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As models are read: the shell leaves the ~ of data.tokenizer.path=~/x to us."""
    monkeypatch.setenv("HOME", str(folder.parent))
    assert len(ready(Path("~") / folder.name)) == len(ready(folder))


def test_no_tokenizer_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer could be loaded"):
        HuggingFaceTokenizer(path=str(tmp_path))
