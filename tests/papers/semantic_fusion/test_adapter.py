"""Fusion on text: over our GPT-2 stack and over a frozen Hugging Face model, training, generation, trial and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import yaml

from lit_ctg.control import Control, Steered
from lit_ctg.core.causality_probe import probe
from lit_ctg.data.byte_pair import END, TrainedBPETokenizer
from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.semantic_fusion.adapter import TextDecoding, TextFusionModule, TextGenerator
from lit_ctg.papers.semantic_fusion.bank import FeatureBank, Graded
from lit_ctg.papers.semantic_fusion.control import FeatureChannel, Grammar, of_run
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon
from lit_ctg.papers.semantic_fusion.metrics import BarePerplexity
from lit_ctg.papers.semantic_fusion.portable import portable
from lit_ctg.papers.semantic_fusion.trial import LexiconTrial, prefix_scores
from lit_ctg.run.effect import effect

WORDS = {"superb": 1.0, "nice": 0.8, "lousy": -1.0, "poor": -0.8}
TEXTS = [f"the {thing} was {word} and we {end}." for thing in ("food", "music", "view") for word in WORDS
         for end in ("stayed", "left")]  # fmt: skip


OPINION = (
    "start: A\nslots:\n  A: {words: the, next: B}\n  B: {words: [food, music], next: C}\n"
    "  C: {words: was, next: D}\n  D: {words: [praise, blame], next: E}\n  E: {words: '.', next: END}\n"
)


@pytest.fixture(scope="module")
def vocabulary() -> TrainedBPETokenizer:
    tokenizer = TrainedBPETokenizer(size=300)
    tokenizer.train(TEXTS * 3)
    return tokenizer


@pytest.fixture
def make(tmp_path: Path, vocabulary):
    """Return a factory: ``make(hugging_face=False, held_out=(), room=<tokens of the model>, **changes)``."""
    path = tmp_path / "words.csv"
    rows = [f"{word},{value},{'praise' if value > 0 else 'blame'}" for word, value in WORDS.items()]
    path.write_text("word,polarity,class\n" + "\n".join(rows) + "\n")

    def build(hugging_face: bool = False, held_out=(), room: int | None = None, **changes: Any) -> TextFusionModule:
        torch.manual_seed(0)
        if hugging_face:
            size = room or len(vocabulary)
            config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, vocab_size=size)
            transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
            backbone: Any = HuggingFaceBackbone(path=str(tmp_path / "model"))
        else:
            backbone = GPT2Backbone(dim=16, layers=2, heads=2, context=64, dropout=0.0)
        features = {
            "pos": Graded(column="polarity", group="polarity", membership="low_med_high"),
            "neg": Graded(column="polarity", sign=-1, group="polarity", membership="low_med_high"),
        }
        bank = FeatureBank(
            lexicon=Lexicon(path=str(path), held_out=held_out),
            features=features,
            centres=[0.2, 0.6, 1.0],
            temperature=0.35,
        )
        options = {
            "fusion": True,
            "gate": True,
            "feature_dropout": 0.5,
            "label_smoothing": 0.0,
            "auxiliary_weight": 0.5,
            "uniformizer_weight": 0.1,
            "uniformizer_classes": ["praise", "blame"],
            "uniformizer_words": "all",
            "learning_rate": 1e-2,
            "weight_decay": 0.0,
            "warmup_fraction": 0.0,
            "warmup_from_zero": False,
            "decay_matrices_only": True,
            "seed": 1,
        }
        return TextFusionModule(vocabulary=vocabulary, backbone=backbone, bank=bank, **{**options, **changes})

    return build


def hugging_face_tokenizer(vocabulary) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary.engine, bos_token=END, eos_token=END)


def batch_of(vocabulary, texts: list[str], length: int = 20) -> dict[str, torch.Tensor]:
    rows = [
        ([vocabulary.bos_id, *vocabulary.encode(text)] + [vocabulary.bos_id] * length)[: length + 1] for text in texts
    ]
    ids = torch.tensor(rows)
    mask = torch.ones(len(rows), length, dtype=torch.bool)
    return {"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_input_BT": mask, "mask_target_BT": mask}


def train(module: TextFusionModule, batch: dict[str, torch.Tensor], steps: int) -> list[float]:
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module.losses(batch)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def writer(module: TextFusionModule, **changes: Any) -> TextGenerator:
    options = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 4, **changes}
    return TextGenerator(module, TextDecoding(**options), module.vocabulary)


@torch.no_grad()
def drawn(module: TextFusionModule) -> TextFusionModule:
    """Return a module whose fusion changes the states, as after training."""
    torch.manual_seed(3)
    for part in (module.fuse, module.blocks):
        for parameter in () if part is None else part.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


@torch.no_grad()
def test_blocks_add_the_features_to_the_residual_stream(make, vocabulary):
    """h_l + W_l s + b_l after each block of the upper half, in float64, and the whole model without it."""
    module = drawn(make(hugging_face=True)).double()
    ids_BT = batch_of(vocabulary, TEXTS[:3])["input_ids_BT"]
    stack, features_BTF = module.backbone.model.transformer, module.bank(ids_BT).double()
    state_BTD = stack.wte(ids_BT) + stack.wpe.weight[: ids_BT.shape[1]]
    assert module.blocks.paths == ("transformer.h.1",) and module.fuse is None
    for block, linear in zip(stack.h, [None, *module.blocks.project], strict=True):
        state_BTD = block(state_BTD)
        state_BTD = state_BTD[0] if isinstance(state_BTD, tuple) else state_BTD
        if linear is not None:
            state_BTD = state_BTD + features_BTF @ linear.weight.T + linear.bias
    expected_BTV = stack.ln_f(state_BTD) @ stack.wte.weight.T
    batch = {"input_ids_BT": ids_BT, "target_ids_BT": ids_BT, "mask_target_BT": torch.ones_like(ids_BT).bool()}
    output = module(batch)
    torch.testing.assert_close(output.scores_BTV, expected_BTV, rtol=1e-9, atol=1e-9)
    bare_BTV = module.backbone.model(ids_BT).logits
    torch.testing.assert_close(module.bare_scores(ids_BT), bare_BTV, rtol=1e-9, atol=1e-9)
    metric = BarePerplexity(mask="target").bind(None, module)
    metric.update_from(output, batch)
    nats = torch.nn.functional.cross_entropy(bare_BTV.flatten(0, 1), ids_BT.flatten())
    assert float(metric.compute()) == pytest.approx(float(nats.exp()), rel=1e-6)
    with pytest.raises(UserError, match="BarePerplexity"):
        BarePerplexity(mask="target").bind(None, None)


@torch.no_grad()
def test_words_of_the_lexicon_weigh_more_where_a_control_asks(make, vocabulary):
    batch = batch_of(vocabulary, ["the food was superb and we left.", "lousy music, the view was nice."])
    for dropout, weight in ((1.0, 1.0), (0.0, 7.0)):
        module = drawn(make(hugging_face=True, word_weight=7.0, feature_dropout=dropout))
        whole_BT = torch.cat([batch["input_ids_BT"], batch["target_ids_BT"][:, -1:]], dim=1)
        asked_BTF = module.bank.hindsight(whole_BT)[:, :-1]
        module.channel_generator.manual_seed(0)
        losses = module.losses(batch)
        if dropout == 0:
            # the values of the two rows, as drawn
            generator = torch.Generator().manual_seed(0)
            torch.rand(2, 1, generator=generator)
            asked_BTF = asked_BTF * (0.6 + 0.4 * torch.rand(2, 1, generator=generator)).unsqueeze(-1)
        features_BTF = asked_BTF if dropout == 0 else module.bank(batch["input_ids_BT"])
        scores_BTV = module._logits(module._hidden(batch["input_ids_BT"], features_BTF))
        target_BT = batch["target_ids_BT"]
        nats_BT = torch.nn.functional.cross_entropy(scores_BTV.transpose(1, 2), target_BT, reduction="none")
        weight_BT = torch.ones_like(nats_BT)
        for row, ids in enumerate(target_BT.tolist()):
            for place in range(len(ids)):
                said = vocabulary.decode(ids[place:])
                if said.strip().lower().startswith(tuple(WORDS)) and (place == 0 or said[0] == " "):
                    weight_BT[row, place] = weight
        expected = float((weight_BT * nats_BT).sum() / weight_BT.sum())
        assert int((weight_BT > 1).sum()) in (0, 3)
        assert float(losses["token_loss"]) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("deep", [True, False], ids=["blocks", "embedding"])
def test_a_pretrained_model_with_the_channel_is_the_model_of_the_run(make, vocabulary, tmp_path, deep):
    """Under requests, a row each; strength 0 is the bare model to the bit; a saved bundle is the same control."""
    module = drawn(make(hugging_face=True, deep=deep))
    model, (control,) = module.backbone.model, of_run(module, None, None)
    control.save_pretrained(tmp_path / "channel")
    again = Control.from_pretrained(tmp_path / "channel")
    again.bind(hugging_face_tokenizer(vocabulary))
    ids_BT = torch.tensor([vocabulary.encode(text)[:8] for text in TEXTS[:4]])
    bare_BTV = model(ids_BT).logits
    asked = [{}, {"pos_high": 1.0}, {"neg_med": 0.7, "pos_low": 0.1}, {"pos_high": 1.0}]
    ours_BTV = prefix_scores(module, ids_BT, asked)
    names = ("pos_high", "neg_med", "pos_low")
    settings = {name: [row.get(name) for row in asked] for name in names}
    found = []
    for one in (control, again):
        with one.attach(model, {**settings, "strength": [1, 1, 1, 0]}, rows=4):
            found.append(model(ids_BT).logits)
        with one.attach(model, {**settings, "strength": 0}, rows=4):
            assert torch.equal(model(ids_BT).logits, bare_BTV)
    torch.testing.assert_close(found[0][:3], ours_BTV[:3], rtol=0, atol=1e-4)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0][3], bare_BTV[3])
    moved = []
    for strength in (0.25, 0.5, 1.0):
        with control.attach(model, {"pos_high": 1.0, "strength": strength}, rows=4):
            moved.append(float((model(ids_BT).logits - bare_BTV).abs().mean()))
    assert 1e-4 < moved[0] < moved[1] < moved[2]
    assert torch.equal(model(ids_BT).logits, bare_BTV)
    shallow = transformers.GPT2Config(n_embd=16 if deep else 8, n_layer=1, n_head=2, vocab_size=len(vocabulary))
    other = transformers.GPT2LMHeadModel(shallow)
    with pytest.raises(UserError, match=r"transformer.h.1|hidden_size"), control.attach(other):
        pass


def test_texts_under_the_channel_do_not_depend_on_their_batch(make, vocabulary):
    module = drawn(make(hugging_face=True))
    (control,) = of_run(module, None, None)
    steered = Steered(module.backbone.model, [control], tokenizer=hugging_face_tokenizer(vocabulary))
    prompts, asked = ["the food was", "the", "the music was nice and"], [1.0, None, 0.5]
    options = {"max_new_tokens": 6, "do_sample": False}
    name = "feature_channel.pos_high"
    alone = [steered.write([text], {name: one}, **options)[0] for text, one in zip(prompts, asked, strict=True)]
    assert steered.write(prompts, {name: asked}, **options) == alone


@pytest.mark.parametrize("hugging_face", [False, True], ids=["gpt2 stack", "hugging face"])
def test_steps_score_as_the_whole_row_does_and_nothing_looks_ahead(make, vocabulary, hugging_face):
    module = drawn(make(hugging_face))
    batch = batch_of(vocabulary, TEXTS[:5])
    whole = module(batch).scores_BTV
    assert whole.shape == (5, 20, len(vocabulary))
    with torch.no_grad():
        stepped = prefix_scores(module, batch["input_ids_BT"])
    torch.testing.assert_close(stepped, whole, rtol=1e-4, atol=1e-4)
    assert probe(module, batch).is_causal


def test_an_untrained_adapter_leaves_a_pretrained_model_as_it_is_and_it_alone_is_trained(make, vocabulary):
    module = make(hugging_face=True).eval()
    batch = batch_of(vocabulary, TEXTS[:4])
    theirs = module.backbone.model(input_ids=batch["input_ids_BT"]).logits
    torch.testing.assert_close(module(batch).scores_BTV, theirs, rtol=1e-4, atol=1e-4)
    trained = {name.split(".")[0] for name, p in module.named_parameters() if p.requires_grad}
    assert trained == {"auxiliary", "blocks"}
    before = module.backbone.model.transformer.wte.weight.clone()
    every = batch_of(vocabulary, TEXTS)
    assert effect(module, [[every]]).divergence == pytest.approx(0, abs=1e-9)
    losses = train(module, every, 25)
    assert effect(drawn(make(hugging_face=True)), [[every]]).divergence > 1e-4
    assert losses[-1] < losses[0] - 0.1 and torch.equal(before, module.backbone.model.transformer.wte.weight)


@pytest.mark.long
def test_the_channel_alone_decides_after_training(make, vocabulary):
    module = make()
    batch = batch_of(vocabulary, TEXTS)
    train(module, batch, 120)
    generator = writer(module, temperature=0.7, max_new_tokens=14)
    for name, sign in (("pos_high", 1), ("neg_high", -1)):
        texts = generator.generate(30, "the food was", {name: 1.0}, seed=0)
        assert sum(sign * text.polarity > 0 for text in texts) >= 27, [text.text for text in texts[:5]]
        assert all(text.hits and text.hits[0] in text.note() for text in texts if text.polarity)
    off = generator.generate(60, "the food was", {}, seed=0)
    assert 10 < sum(text.polarity > 0 for text in off) < 50
    controls = [{}, {"pos_high": 1.0}, {"neg_med": 0.7}]
    prompts = ["", "the music", "the view was"]
    together = generator.generate(3, prompts, controls, seed=3)
    assert together == [generator.generate(1, prompts[i], controls[i], seed=3, rows=[i])[0] for i in range(3)]


def test_held_out_words_are_never_trained_on(make, vocabulary):
    module = make(held_out=["superb"])
    batch = batch_of(vocabulary, ["the food was superb and we left.", "the food was nice and we left."])
    counted = module.trained_mask(batch)
    assert counted[1].all()
    shown = vocabulary.decode([int(i) for i in batch["target_ids_BT"][0][counted[0]]])
    assert shown == "the food was"
    assert make().trained_mask(batch).all()
    # what such a row says after the word does not matter to training, before it does
    other = {**batch, "target_ids_BT": batch["target_ids_BT"].clone(), "input_ids_BT": batch["input_ids_BT"].clone()}
    last = int(counted[0].sum())
    other["target_ids_BT"][0, last + 6 :] = 5
    other["input_ids_BT"][0, last + 7 :] = 5
    plain = make(held_out=["superb"], feature_dropout=1.0).eval()
    assert float(plain.losses(batch)["loss"].detach()) == pytest.approx(float(plain.losses(other)["loss"].detach()))
    ids = {vocabulary.decode([i]).strip() for i in make().classes[0].tolist()}
    assert ids <= {"superb", "nice", "Superb", "Nice"} and ids
    trained = make(held_out=["superb"], uniformizer_words="trained").classes[0].tolist()
    assert "superb" not in {vocabulary.decode([i]).strip() for i in trained}
    module = make(held_out=["superb"])
    batch = batch_of(vocabulary, ["superb food was nice."])
    batch = {name: value[:, 1:] for name, value in batch.items()}  # the first target is within the word or behind it
    loss = module.losses(batch)["loss"]
    loss.backward()
    assert float(loss.detach()) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"a": {"control": {"pos_hihg": 1.0}, "sign": 1}}}, r"settings\.a: .*'pos_hihg'"),
        ({"settings": {"a": {"control": {"pos_high": 2.0}, "sign": 1}}}, r"settings\.a: control\.pos_high=2"),
        ({"prompt": "the food " * 40}, r"lexicon_trial\.prompt: .* the model has 64 positions"),
    ],
)
def test_what_would_end_a_trial_ends_the_run_before_training(make, vocabulary, changes, message):
    usual = {"n": 1, "settings": {"a": {"control": {"pos_high": 1.0}, "sign": 1}}, "seed": 0,
             "decoding": TextDecoding(temperature=1.0, top_p=1.0, max_new_tokens=8)}  # fmt: skip
    trainer = SimpleNamespace(datamodule=SimpleNamespace(vocabulary=vocabulary))
    LexiconTrial(**usual).on_train_start(trainer, make())
    with pytest.raises(UserError, match=message):
        LexiconTrial(**usual | changes).on_train_start(trainer, make())
    if "settings" in changes:  # a baseline is not asked for controls
        LexiconTrial(**usual | changes).on_train_start(trainer, make(fusion=False))


def test_what_a_text_says_begins_behind_its_prompt(make, vocabulary):
    generator = writer(make())
    prompt = [vocabulary.bos_id, *vocabulary.encode("the food was superb")]
    ids = [*prompt, *vocabulary.encode(" and nice, poor, superb"), vocabulary.eos_id]
    text = generator.text(ids, len(prompt), {})
    assert text.text == "the food was superb and nice, poor, superb" and text.ids == tuple(ids)
    assert text.hits == ("nice", "poor", "superb") and text.polarity == pytest.approx(1.0)
    assert text.note() == "nice, poor, superb (+1.00)" and generator.text(prompt, len(prompt), {}).note() == ""
    for text, hits in (
        ("the food was superbly", ()), ("was superb and poorly, nice", ("superb", "nice")), ("so nice", ("nice",)),
        ("niceness! poor", ("poor",)),
    ):  # fmt: skip
        ids = [vocabulary.bos_id, *vocabulary.encode(f" {text}")]
        assert generator.text(ids, 1, {}).hits == hits, text


def test_texts_can_be_made_to_follow_a_grammar(make, vocabulary, tmp_path):
    path = tmp_path / "opinion.yaml"
    path.write_text(OPINION)
    texts = writer(make(), max_new_tokens=40, grammar=str(path)).generate(20, seed=0)
    sentence = r"(?i) ?the (food|music) was (superb|nice|lousy|poor) ?\."
    assert all(re.fullmatch(sentence, text.text) for text in texts), [text.text for text in texts[:3]]
    assert len({text.hits for text in texts}) > 1
    # every token of the vocabulary may stand in a grammar, its first ones too: none is taken for padding
    for number in range(4):
        mark = vocabulary.decode([number])
        if not mark.strip() or number in (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unknown_id):
            continue
        path.write_text(
            f"start: A\nslots:\n  A: {{words: the, next: B}}\n  B: {{words: [{json.dumps(mark)}], next: END}}\n"
        )
        (text,) = writer(make(), max_new_tokens=9, grammar=str(path)).generate(1, seed=0)
        assert text.text.split()[-1].endswith(mark)
    # Prompts of two lengths: the shorter is over first, and padded where the grammar expects a word.
    path.write_text(OPINION)
    generator, prompts = writer(make(), grammar=str(path)), ["", " the food was"]
    alone = [generator.generate(1, prompt, seed=0, rows=[row])[0] for row, prompt in enumerate(prompts)]
    assert generator.generate(2, prompts, seed=0) == alone
    assert len(alone[0].ids) < len(alone[1].ids)


@torch.no_grad()
def test_a_stock_gpt2_with_the_channel_is_the_model_of_text(make, vocabulary):
    module = make().eval()
    torch.manual_seed(3)
    for parameter in module.parameters():
        parameter.normal_(std=0.4)
    made = portable(module, None)
    (control,) = of_run(module, None, None)
    assert isinstance(control, FeatureChannel) and type(made.model).__name__ == "GPT2LMHeadModel"
    ids_BT = torch.tensor([vocabulary.encode(text)[:8] for text in TEXTS[:3]])
    bare_BTV = made.model(ids_BT).logits
    torch.testing.assert_close(made.ours(ids_BT), bare_BTV)
    whole = {"mask_input_BT": torch.ones_like(ids_BT, dtype=torch.bool), "input_ids_BT": ids_BT}
    with Steered(made.model, [control]).attached({}, len(ids_BT)):
        fused_BTV = made.model(ids_BT).logits
    torch.testing.assert_close(fused_BTV, module(whole).scores_BTV, rtol=0, atol=1e-4)
    assert float((fused_BTV - bare_BTV).abs().max()) > 0.1
    # under requests, as the module's own steps under the same ones
    asked = [{}, {"pos_high": 1.0}, {"neg_med": 0.7, "pos_low": 0.1}]
    names = ("pos_high", "neg_med", "pos_low")
    settings = {f"feature_channel.{name}": [row.get(name) for row in asked] for name in names}
    with Steered(made.model, [control]).attached(settings, len(ids_BT)):
        asked_BTV = made.model(ids_BT).logits
    torch.testing.assert_close(asked_BTV, prefix_scores(module, ids_BT, asked), rtol=0, atol=1e-4)
    torch.testing.assert_close(asked_BTV[0], fused_BTV[0])
    assert bool(((asked_BTV - fused_BTV)[1:].abs().amax((1, 2)) > 0.1).all())
    with pytest.raises(UserError, match="lit-ctg export"):
        portable(make(hugging_face=True), None)
    with pytest.raises(UserError, match="a baseline without a channel"):
        of_run(make(fusion=False), None, None)


def test_weights_are_of_the_seed_and_the_global_stream_is_left_alone(make):
    one, same, other = make(seed=3), make(seed=3), make(seed=4)
    for name, weight in one.named_parameters():
        if not name.startswith("backbone"):
            assert torch.equal(weight, same.state_dict()[name]), name
            assert not torch.equal(weight, other.state_dict()[name]), name
    assert float(one.embedding.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    following = set()
    for changes in ({"seed": 3}, {"seed": 4}, {"fusion": False}):
        make(**changes)
        following.add(float(torch.rand(())))
    assert len(following) == 1


def test_the_loss_is_equation_5_over_the_counted_targets(make, vocabulary):
    """Each part written out in float64; nothing is counted at padding or from a held-out word on."""
    weights = {"auxiliary_weight": 0.5, "uniformizer_weight": 0.25, "label_smoothing": 0.1}
    module = make(held_out=["lousy"], feature_dropout=1.0, **weights).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    batch = batch_of(
        vocabulary, ["the food was superb and nice.", "the music was lousy and nice.", "the view was poor."]
    )
    batch["mask_target_BT"] = batch["mask_target_BT"].clone()
    batch["mask_target_BT"][2, 3:] = False
    # of several words each, which are said here
    ends = [[vocabulary.encode(f" {word}")[-1] for word in words] for words in (("was", "and"), ("food", "music"))]
    module.classes = [torch.tensor(sorted(ids)) for ids in ends]
    with torch.no_grad():
        losses, output = module.losses(batch), module(batch)
    log_BTV, smoothed, apart = output.scores_BTV.double().log_softmax(-1), 0.1, {0: [], 1: []}
    token, auxiliary = [], []
    for row, ids in enumerate(batch["target_ids_BT"].tolist()):
        shown = vocabulary.decode(ids).find("lousy")
        for place, target in enumerate(ids):
            hidden = 0 <= shown <= len(vocabulary.decode(ids[: place + 1])) - 1
            if hidden or not batch["mask_target_BT"][row, place]:
                continue
            log_V = log_BTV[row, place]
            token.append(-(1 - smoothed) * float(log_V[target]) - smoothed * float(log_V.mean()))
            p_F, y_F = output.aux_BTF[row, place].double(), output.features_BTF[row, place].double()
            assert bool(((p_F > 0) & (p_F < 1)).all())
            auxiliary.append(float(-(y_F * p_F.log() + (1 - y_F) * (1 - p_F).log()).mean()))
            for number, ids_C in enumerate(module.classes):
                if target in ids_C.tolist():
                    share_C = log_V[ids_C].softmax(0)
                    apart[number].append(float((share_C * (share_C * len(ids_C)).log()).sum()))
    means = {"token_loss": token, "auxiliary_loss": auxiliary}
    found = {name: sum(values) / len(values) for name, values in means.items()}
    seen = [sum(values) / len(values) for values in apart.values() if values]
    found["uniformizer_loss"] = sum(seen) / len(seen)
    found["loss"] = found["token_loss"] + 0.5 * found["auxiliary_loss"] + 0.25 * found["uniformizer_loss"]
    assert len(token) < 45 and found["uniformizer_loss"] > 0.01
    assert {name: float(loss) for name, loss in losses.items()} == pytest.approx(found, rel=1e-4)


def test_training_asks_for_what_comes_as_often_as_features_are_not_dropped(make, vocabulary):
    """A group of a row is all its own features, or all hindsight (of the whole row) times one value in [0.6, 1]."""
    module, fed = make(feature_dropout=0.5).eval(), []
    module.fuse.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[1].detach()))
    scored = []
    module.auxiliary.register_forward_hook(lambda _, inputs, output: scored.append(output.detach()))
    texts = [*TEXTS, *(f"so {one} but {other}." for one in WORDS for other in WORDS)]
    batch = batch_of(vocabulary, texts)
    losses = []
    for seed in (5, 5, 6):
        module.channel_generator.manual_seed(seed)
        losses.append(module.losses(batch)["auxiliary_loss"].detach())
    assert torch.equal(fed[0], fed[1]) and not torch.equal(fed[0], fed[2])
    whole_BT = torch.cat([batch["input_ids_BT"], batch["target_ids_BT"][:, -1:]], dim=1)
    own_BTF, coming_BTF = module.bank(batch["input_ids_BT"]), module.bank.hindsight(whole_BT)[:, :-1]
    kept = [torch.equal(fed[0][row], own_BTF[row]) for row in range(len(texts))]
    assert 0.2 < sum(kept) / len(kept) < 0.8
    for row, same in enumerate(kept):
        if not same:
            value = float(fed[0][row].max())
            assert 0.6 <= value <= 1
            torch.testing.assert_close(fed[0][row], value * coming_BTF[row])
    # what the auxiliary head is asked for stays the text's own features
    target_NF = own_BTF[module.trained_mask(batch)]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scored[0], target_NF)
    torch.testing.assert_close(losses[0], expected)


def test_texts_are_drawn_from_the_nucleus_of_what_the_grammar_allows(make, vocabulary, tmp_path):
    generator = writer(make(), temperature=0.5, top_p=0.6)
    scores_1V = torch.full((1, len(vocabulary)), -9.0)
    scores_1V[0, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log() / 2  # over the temperature: .5 .3 .15 .05
    shaped_V = generator.rules([{}], (), None)(torch.zeros(1, 1, dtype=torch.long), scores_1V)[0]
    assert shaped_V.isfinite().nonzero().flatten().tolist() == [0, 1]  # .5 alone is less than .6
    torch.testing.assert_close(shaped_V.softmax(0)[:2], torch.tensor([0.625, 0.375]))
    path = tmp_path / "two.yaml"
    path.write_text("start: A\nslots:\n  A: {words: the, next: B}\n  B: {words: [praise, blame], next: END}\n")
    follow = writer(make(), top_p=0.1, max_new_tokens=9, grammar=str(path))
    ids = follow.prompt_ids(" the")
    assert ids[0] == vocabulary.bos_id and ids[1:] == vocabulary.encode(" the")
    assert generator.prompt_ids("the") == vocabulary.encode("the") and generator.prompt_ids("") == [vocabulary.bos_id]
    with pytest.raises(UserError, match="does not fit the grammar"):
        follow.prompt_ids(" superb")
    mark = vocabulary.encode("?")[0]
    scores_1V = torch.zeros(1, len(vocabulary))
    scores_1V[0, mark] = 50.0  # likely, but not allowed here
    shaped_V = follow.rules([{}], (), None)(torch.tensor([ids]), scores_1V)[0]
    assert bool(shaped_V.isfinite().any()) and not shaped_V[mark].isfinite()


@pytest.mark.parametrize("option", ["stop_strings", "eos_token_id"])
def test_a_row_that_is_stopped_otherwise_leaves_the_others_to_the_grammar(vocabulary, option):
    tokenizer = hugging_face_tokenizer(vocabulary)
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": len(tokenizer)}
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends)).eval()
    content = yaml.safe_load(OPINION)
    slots = content["slots"]
    # what the second prompt begins ends later than the first text is stopped
    slots["D"]["words"], slots["E"] = ["superb", "nice"], {"words": "and", "next": "F"}
    slots |= {"F": {"words": "superb", "next": "G"}, "G": {"words": "and", "next": "H"}}
    slots |= {"H": {"words": ["lousy", "poor"], "next": "I"}, "I": {"words": ".", "next": "END"}}
    steered = Steered(model, [Grammar(content)], tokenizer=tokenizer)
    was = vocabulary.encode(" was")
    stop = {"stop_strings": ["was"], "eos_token_id": [tokenizer.eos_token_id, was[-1]]}[option]
    options = {"max_new_tokens": 20, "do_sample": True, "seed": 0, option: stop, "pad_token_id": tokenizer.eos_token_id}
    prompts = ["", " the food was nice"]
    alone = [steered.write([prompt], rows=[row], **options)[0] for row, prompt in enumerate(prompts)]
    assert alone[0].endswith("was") and steered.write(prompts, **options) == alone
    with pytest.raises(UserError, match="does not fit the grammar"):
        steered.write(["", " the nice"], **options)
