"""lit_ctg.papers.graphmax.translation: BART, T5 and mBART in miniature, against their own way of use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from lit_ctg.config import compose
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import VariantRule
from lit_ctg.papers.graphmax.translation import PretrainedTranslationModule, _first
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.train import train

QUICK = ("experiment=graphmax/pretrained_translation", "size=smoke", "logger=none", "trainer.accelerator=cpu",
         "data.source_language=es", "data.length=250")  # fmt: skip
TASK = "translate: "
SHAPE = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "max_position_embeddings": 300,
}  # fmt: skip


def letters(specials: list[str], template: str, **names: str) -> PreTrainedTokenizerFast:
    """Byte by byte, with special tokens around as the template says."""
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    table = {piece: number for number, piece in enumerate(pieces)}
    engine = Tokenizer(models.BPE(vocab=table, merges=[]))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ends = [(token, table[token]) for token in specials if token in template]
    engine.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=engine, **names)


def make(kind: str) -> tuple[Any, Any]:
    """Return (tokenizer, network)."""
    if kind == "bart":
        names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        words = letters(list(names.values()), "<s> $A </s>", **names)
        # its embedding has rows to spare
        return words, BartForConditionalGeneration(BartConfig(vocab_size=len(words) + 4, **SHAPE))
    if kind == "t5":
        names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        words = letters(list(names.values()), "$A </s>", **names)
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        return words, T5ForConditionalGeneration(T5Config(vocab_size=len(words), **sizes))
    text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,.?!áéíóúñ0123456789'▁"
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    words = MBart50Tokenizer(vocab=[*first, *((letter, -1.0) for letter in text)])
    return words, MBartForConditionalGeneration(MBartConfig(vocab_size=len(words), decoder_start_token_id=2, **SHAPE))


def save(kind: str, folder: Path) -> str:
    torch.manual_seed(0)
    words, network = make(kind)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    # never the best next token
    network.get_input_embeddings().weight.data[words.all_special_ids] = 0
    words.save_pretrained(folder)
    network.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=["bart", "t5", "mbart"])
def saved(request, tmp_path_factory) -> tuple[str, list[str]]:
    words = {"bart": [], "t5": [f"model.task='{TASK}'"],
             "mbart": ["model.source_language=es_XX", "model.target_language=en_XX"]}[request.param]  # fmt: skip
    path = save(request.param, tmp_path_factory.mktemp(request.param))
    return path, [*QUICK, f"model.path={path}", *words]


@pytest.mark.long
def test_scores_and_translations_are_the_models_own(saved) -> None:
    """With text and labels prepared by the tokenizer as its model's page says."""
    path, words = saved
    data = build_datamodule(compose(words))
    module = build_model(compose(words), data).eval()
    module.trainer = type("Trainer", (), {"datamodule": data})()
    module.setup()
    engine, network = module.vocabulary.engine, module.network
    pairs = list(data.pairs("val"))[:3]
    batch = {key: value[:3] for key, value in next(iter(data.val_dataloader())).items()}
    given = batch["source_ids_BS"], batch["mask_source_BS"]
    task = TASK if "t5" in path else ""
    for b, pair in enumerate(pairs):
        source = engine(task + pair.text.strip(), return_tensors="pt")
        ids_BS, mask_BS = module.source(*given)
        assert ids_BS[b][mask_BS[b]].tolist() == source["input_ids"][0].tolist()
        forced = {"forced_bos_token_id": engine.get_vocab()["en_XX"]} if "mbart" in path else {}
        forced = {"forced_bos_token_id": engine.bos_token_id} if "/bart" in path else forced
        theirs_T = network.generate(**source, **forced, max_new_tokens=9, num_beams=1, do_sample=False)[0]
        expected = [number for number in theirs_T.tolist() if number not in module.silent]
        for rule in (None, VariantRule(module.variants["graphmax"], 0.0)):
            found = module.translate(*given, rule, max_new_tokens=10 - len(module.decoder_start))[b]
            assert found == expected and found
        target = batch["target_ids_BT"][b][batch["mask_target_BT"][b]].tolist()
        labels = torch.tensor([[*module.decoder_start[1:], *target]])
        with torch.no_grad():
            loss = network(**source, labels=labels, use_cache=False).logits.log_softmax(-1)
            nll = -loss[0, -len(target) :].gather(1, torch.tensor(target)[:, None])
            scores_TV = module(batch).scores_BTV[b].log_softmax(-1)
        ours = -scores_TV[: len(target)].gather(1, torch.tensor(target)[:, None])
        torch.testing.assert_close(ours, nll, atol=1e-4, rtol=1e-4)


def test_languages_stand_where_the_model_has_them(tmp_path: Path) -> None:
    """The source's before a sentence, the target's after the token that every translation starts with."""
    path = save("mbart", tmp_path)
    codes = {"source_language": "es_XX", "target_language": "en_XX"}
    words = HuggingFaceTokenizer(path=path)
    words.train([])
    module = PretrainedTranslationModule(vocabulary=words, path=path, **codes)
    spanish, english = (words.engine.get_vocab()[code] for code in codes.values())
    assert (module.before, module.after) == ([spanish], [words.engine.eos_token_id])
    assert module.decoder_start == (2, english) and set(module.decoder_start) <= module.silent
    module.network.generation_config.decoder_start_token_id = 5
    assert _first(module.network, words.engine, None) == [5], "as the network's own generate"
    module.network.generation_config.decoder_start_token_id = None
    module.network.config.decoder_start_token_id = None
    assert _first(module.network, words.engine, "en_XX") == [english], "where the model names none"
    with pytest.raises(UserError, match=r"names no decoder_start_token_id: give model\.target_language"):
        _first(module.network, words.engine, None)
    with pytest.raises(UserError, match=r"has no language 'es': .*its own codes"):
        PretrainedTranslationModule(vocabulary=words, path=path, source_language="es")
    with pytest.raises(UserError, match="its own tokenizer"):
        PretrainedTranslationModule(vocabulary=WordTokenizer(), path=path)
    with pytest.raises(UserError, match="no encoder-decoder"):
        PretrainedTranslationModule(vocabulary=words, path=str(tmp_path / "none"))
    module.network.resize_token_embeddings(len(words) - 1)
    module.network.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"has {len(words) - 1} tokens"):
        PretrainedTranslationModule(vocabulary=words, path=path)


@pytest.mark.long
@pytest.mark.parametrize("regime", ["corrected", "as_published"])
def test_translation_without_training(saved, regime, tmp_path: Path) -> None:
    words = saved[1]
    changes = ["callback.graphmax_translation.sentences=3", f"regime={regime}", f"output_root={tmp_path}"]
    outcome = train(compose([*words, *changes, "name=pretrained_tiny"]))
    record = json.loads((outcome.folder / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "DONE" and record["tokens_per_s"] == 0
    for name in ("val/perplexity", "bleu/softmax", "bleu/graphmax"):
        assert math.isfinite(record["metrics"][name]["value"]), name
    assert not list(tmp_path.rglob("*.ckpt"))
