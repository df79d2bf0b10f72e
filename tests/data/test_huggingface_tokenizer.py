"""lit_ctg.data.huggingface_tokenizer: a pretrained model's ids, with and without a fast tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CTRLTokenizer, PreTrainedTokenizerFast

from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer, fast_tokenizer
from lit_ctg.data.reviews import ReviewsDataModule
from lit_ctg.data.tokenizer import WordTokenizer
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


def special_ids(tokenizer: HuggingFaceTokenizer) -> set[int]:
    return {*tokenizer.engine.all_special_ids} - {tokenizer.unknown_id}


def unigram() -> PreTrainedTokenizerFast:
    """As of SentencePiece, whose pieces include the special tokens."""
    engine, names = Tokenizer(models.Unigram()), ["<pad>", "</s>", "<unk>"]
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>", show_progress=False)
    engine.train_from_iterator([*TEXTS, "</s> <pad>"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def words() -> PreTrainedTokenizerFast:
    """Ours of words, as ``export-model`` writes it."""
    made = WordTokenizer(lower=True)
    made.train(["the food was good\n"])
    return fast_tokenizer(made)[0]


def test_a_text_makes_no_special_token(folder) -> None:
    """Whether or not the tokenizer's vocabulary has them beside its added tokens; ``<unk>`` keeps its id."""
    chat = ready(folder).engine
    chat.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    for engine in (chat, unigram(), words()):
        tokenizer = HuggingFaceTokenizer.of(engine)
        for token in {*engine.all_special_tokens} - {engine.unk_token}:
            text = f"the food {token}was good"
            ids, (packed_T, counts_N) = tokenizer.encode(text), tokenizer.encode_many([text, "food", text])
            assert not special_ids(tokenizer) & set(ids), (token, ids)
            assert packed_T.tolist() == [*ids, *tokenizer.encode("food"), *ids] and counts_N[0] == len(ids)
        mixed = tokenizer.encode(f"food {engine.unk_token} {engine.eos_token} good")
        assert mixed.count(engine.unk_token_id) >= 1 and not special_ids(tokenizer) & set(mixed)
        assert engine.unk_token_id in tokenizer.encode(f"food {engine.unk_token} good")
    tokenizer = HuggingFaceTokenizer.of(chat)
    assert tokenizer.decode(tokenizer.encode("so </s> <|im_end|>")) == "so </s> <|im_end|>"
    assert chat("so </s>").input_ids.count(1) == 2, "the tokenizer is as it was"
    lines = HuggingFaceTokenizer.of(words())
    assert lines.encode("good\n<eos>\n").count(lines.eos_id) == 2, "line ends are not quoted"


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
    words.engine.add_special_tokens({"eos_token": "<|end|>"})
    assert words.engine.eos_token_id not in HuggingFaceTokenizer.of(words.engine).encode("good <|end|> food")


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
