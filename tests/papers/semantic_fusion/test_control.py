"""Channels as controls on exported models: what they say is what the modules say under the same control.

Lexicons and grammars as controls of any tokenizer against readings of the text.
"""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.control import Control, Steered
from lit_ctg.control.base import NO_TOKEN, Prefix
from lit_ctg.data.byte_pair import END, TrainedBPETokenizer
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.bank import Feature, FeatureBank, Graded, Mark, Recent, WordClass
from lit_ctg.papers.semantic_fusion.channel import GatedFusion
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.control import ClauseChannel, FeatureChannel, Grammar, LexiconSteering, of_run
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon, Speller
from lit_ctg.papers.semantic_fusion.portable import clause_tokenizer, portable
from lit_ctg.run.build import instantiate
from tests.tiny import make_tokenizer as make_bytes

ASKED: list[dict[str, float]] = [{}, {"pos_high": 1.0}, {"is_question": 1.0, "str_low": 0.5}, {"neg_low": 0.3}]


def loud(module: Any) -> Any:
    """Make every weight matter."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.4)
    return module.eval()


def settings(asked: list[dict[str, float]], **more: Any) -> dict[str, Any]:
    """Return controls, one a row, as settings of the channel, a list each."""
    names = sorted({name for row in asked for name in row})
    return {f"clause_channel.{name}": [row.get(name) for row in asked] for name in names} | more


@pytest.fixture
def clauses(make_module: Any) -> Any:
    """A module over the clauses with all that carries it: model, tokenizer, prompts [N, T]."""
    module = loud(make_module())
    words = module.vocabulary
    ids_NT = torch.tensor([[words.bos_id, *words.encode("Alice reviews the paper , very")]] * len(ASKED))
    model = portable(module, None).model
    model.generation_config.use_cache = False  # as the exported folder says
    return SimpleNamespace(module=module, model=model, tokenizer=clause_tokenizer(words), ids_NT=ids_NT)


@torch.no_grad()
def test_a_channel_of_clauses_says_what_the_route_says(clauses: Any) -> None:
    state, ours = clauses.module.start(len(ASKED), ASKED), []
    for ids_B1 in clauses.ids_NT.split(1, dim=1):
        scores_BV, state = clauses.module.step(ids_B1, state)
        ours.append(scores_BV)
    control = ClauseChannel(len(clauses.module.vocabulary))
    bare_NTV = clauses.model(clauses.ids_NT).logits
    with Steered(clauses.model, [control]).attached(settings(ASKED), len(ASKED)):
        theirs_NTV = clauses.model(clauses.ids_NT).logits
    torch.testing.assert_close(theirs_NTV, torch.stack(ours, dim=1), rtol=0, atol=1e-4)
    changed_N = (theirs_NTV - bare_NTV).abs().amax((1, 2))
    assert changed_N[0] == 0 and bool((changed_N[1:] > 0.05).all())
    half = settings(ASKED, **{"clause_channel.strength": [1, 0, 0.5, 1]})
    with Steered(clauses.model, [control]).attached(half, len(ASKED)):
        some_NTV = clauses.model(clauses.ids_NT).logits
    assert torch.equal(some_NTV[1], bare_NTV[1]) and torch.equal(some_NTV[3], theirs_NTV[3])
    assert not torch.allclose(some_NTV[2], theirs_NTV[2]) and not torch.allclose(some_NTV[2], bare_NTV[2])
    assert torch.equal(clauses.model(clauses.ids_NT).logits, bare_NTV)  # it is gone again


def test_rows_beams_and_padding_keep_their_own_features(clauses: Any) -> None:
    steered = Steered(clauses.model, [ClauseChannel(len(clauses.module.vocabulary))], tokenizer=clauses.tokenizer)
    prompts = ["Alice", "Alice reviews the paper", "the", "Alice reviews the paper , very"]
    for options in ({"num_beams": 2}, {"do_sample": False}):
        asked: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": None, "do_sample": False, **options}
        together = steered.write(prompts, settings(ASKED), **asked)
        alone = [
            steered.write([prompt], settings([own]), **asked)[0] for prompt, own in zip(prompts, ASKED, strict=True)
        ]
        assert together == alone


def test_a_run_has_its_channel_and_its_grammar(make_module: Any) -> None:
    decoding = instantiate(compose(["experiment=semantic_fusion/main", "size=smoke"]).decoding, "decoding")
    corpus = SimpleNamespace(vocabulary=ClauseVocabulary())
    decoding.grammar = "two_clause"
    channel, grammar = of_run(make_module(), corpus, decoding)
    assert isinstance(channel, ClauseChannel) and channel.vocab_size == 41 and isinstance(grammar, Grammar)
    words, texts = corpus.vocabulary, ("Alice trains the task, very good and", "Bob trains the task, very good and")
    grammar.bind(clause_tokenizer(words))
    rows = [words.encode(text) for text in texts]
    assert allowed(grammar.rule(grammar.values({}, 2), Prefix()), rows, 41) == [{words.id("she")}, {words.id("he")}]
    for changes in ({"fusion": False}, {"published": True}):  # no channel, or none that a control reaches
        assert [type(control) for control in of_run(make_module(**changes), corpus, decoding)] == [Grammar]
    with pytest.raises(UserError, match="a SemanticFusionModule has nothing to carry"):
        of_run(make_module(), corpus, None)


LEXICON = Lexicon.of(
    ["good", "goods", "bad", "badly", "never"],
    {"polarity": [1, 0.5, -1, -0.25, 0], "strength": [0, 0.5, 0, 1, 0], "warmth": [0, 0, -0.5, 0, 0]},
    ["praise", "", "blame", "blame", "strength"],
    ["goods"],
)  # fmt: skip
TEXTS = (
    "badly made, the good food was bad.",
    ' Goods good;\n"bad badness goodly!',
    " BADLY bad goods never good bad\n.",
)


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A byte-level tokenizer in which some words of the lexicon are several tokens, some one."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = TrainedBPETokenizer(size=268)
    tokenizer.train(["the bad food was bad but the bad made the goo"] * 3)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.engine, bos_token=END, eos_token=END)


def steering(pieces: Any) -> LexiconSteering:
    control = LexiconSteering(LEXICON, gain=3.0)
    control.bind(pieces)
    return control


def test_a_text_gains_what_its_words_are_worth(pieces: Any) -> None:
    """Summed over its tokens, whatever they are; rows of a batch each by their own weights, behind padding too."""
    control = steering(pieces)
    assert [setting.name for setting in control.settings][1:] == [
        "to_polarity", "to_strength", "to_warmth", "to_blame", "to_praise",
    ]  # fmt: skip
    asked = {"to_polarity": [1, -0.5, None], "to_blame": [None, 1, 0.25], "to_warmth": [None, None, -1]}
    values = control.values({**asked, "strength": [None, 2, 1]}, 3)
    weights = ({"polarity": 3.0}, {"polarity": -1.0, "blame": 2.0}, {"blame": 0.25, "warmth": -1.0})
    rule = control.rule(values, Prefix())
    rows = [pieces(text).input_ids for text in TEXTS]
    size, longest = len(pieces) + 3, max(map(len, rows))  # a model's head may have more rows than there are tokens
    said = torch.zeros(3, dtype=torch.float64)
    for length in range(1, longest):
        ids_NT = torch.full((3, longest), NO_TOKEN)
        for number, row in enumerate(rows):
            ids_NT[number, longest - min(length, len(row)) :] = torch.tensor(row[:length])
        gains_NV = rule(ids_NT, torch.zeros(3, size, dtype=torch.float64))
        for number, row in enumerate(rows):
            if length < len(row):
                said[number] += gains_NV[number, row[length]]
    first_NV = rule(torch.full((3, 1), NO_TOKEN), torch.zeros(3, size, dtype=torch.float64))
    said += torch.stack([first_NV[number, row[0]] for number, row in enumerate(rows)])
    worth = []
    for text, own in zip(TEXTS, weights, strict=True):
        places = [LEXICON.words.index(word) for word in re.findall("[a-z]+", text.lower()) if word in LEXICON.words]
        graded = sum(own.get(name, 0.0) * LEXICON.columns[name][place] for name in LEXICON.columns for place in places)
        worth.append(graded + sum(own.get(LEXICON.classes[place], 0.0) for place in places))
    assert said.tolist() == pytest.approx(worth, abs=1e-9) and min(map(abs, worth)) > 0.2


def test_the_first_token_of_words_gains_their_mean(pieces: Any, word_tokenizer: Any) -> None:
    control = steering(pieces)
    rule = control.rule(control.values({"to_polarity": [1.0, -0.5]}, 2), Prefix())
    gains_2V = rule(torch.tensor([pieces("was").input_ids] * 2), torch.zeros(2, len(pieces)))
    spelled = Speller(HuggingFaceTokenizer.of(pieces)).spell
    begun: dict[int, list[float]] = {}
    for word, polarity in zip(LEXICON.words, LEXICON.columns["polarity"], strict=True):
        for ids in spelled(word):
            begun.setdefault(ids[0], []).append(3.0 * polarity)
    blank = {ids: sum(gains) / len(gains) for ids, gains in begun.items() if pieces.decode([ids]).startswith(" ")}
    assert len(blank) > 1 and any(len(set(begun[ids])) > 1 for ids in blank)
    # "was" may go on: what has no space before it begins no word; the space and two letters begin too many others
    begins = [len(pieces.decode([number]).strip()) > 2 for number in range(len(pieces))]
    expected = [blank.get(number, 0.0) * begins[number] for number in range(len(pieces))]
    assert gains_2V[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(gains_2V[1], -0.5 * gains_2V[0])
    control = LexiconSteering(LEXICON)
    values = control.values({"strength": [None, 0, 1, 1], "to_blame": [1, 1, 0, None]}, 4)
    assert control.off(values).tolist() == [False, True, True, True] and float(values["strength"][0]) == 2.0
    foreign = LexiconSteering(Lexicon.of(["superb"], {"polarity": [1]}, [""]))
    with pytest.raises(UserError, match="spells none of its words"):
        foreign.bind(word_tokenizer)


def test_blanks_bytes_of_a_character_and_first_letters_gain_nothing() -> None:
    """Many words share a blank, the bytes that spell a Chinese word, and " b" of "bland", but not all of "ok"."""
    tokenizer = make_bytes(["the war began in the morning\n"] * 3, 270)
    words = {"\u597d": 1, "\u7f8e\u4e3d": 1, "war": 0.5, "bland": 0.5, "ok": 1}
    control = LexiconSteering(Lexicon.of(list(words), {"polarity": list(words.values())}, [""] * len(words)))
    control.bind(tokenizer)
    rule = control.rule(control.values({"strength": 6, "to_polarity": 1}, 1), Prefix())
    for word, gain in zip(words, (6, 6, 3, 3, 6), strict=True):
        ids, got = tokenizer(f" {word}").input_ids, 0.0
        for place, token in enumerate(ids):
            before = tokenizer(".").input_ids + ids[:place]
            gains_V = rule(torch.tensor([before]), torch.zeros(1, len(tokenizer)))[0]
            raised = (gains_V > 0).nonzero().flatten().tolist()
            texts = [tokenizer.decode([*ids[:place], number]) for number in raised]
            said = [text.replace("\ufffd", "").strip() for text in texts]
            assert all(text in words or len(text) > 2 or not text.isascii() for text in said), (word, place, texts)
            got += float(gains_V[token])
        assert got == pytest.approx(gain), word


def allowed(rule: Any, ids_NT: list[list[int]], size: int) -> list[set[int]]:
    """Return the tokens of finite score after each prefix."""
    scores_NV = rule(torch.tensor(ids_NT), torch.randn(len(ids_NT), size))
    return [set(row_V.isfinite().nonzero().flatten().tolist()) for row_V in scores_NV]


def test_a_grammar_holds_from_the_beginning_of_each_row(word_tokenizer: Any) -> None:
    """With the start token or without it, behind padding, for two rows of a prompt; what has ended ends again."""
    id_of, size = word_tokenizer.convert_tokens_to_ids, len(word_tokenizer) + 2
    slots = {"WHAT": {"words": "things", "next": "HOW"}, "HOW": {"words": ["good", "bad"], "next": "END"}}
    content = {"start": "WHAT", "slots": slots}
    control = Grammar(content, groups={"things": ["acid", "metal"]})
    with pytest.raises(UserError, match="control grammar needs the tokenizer"):
        control.rule(control.values({}, 1), Prefix())
    control.bind(word_tokenizer)
    acid, good, end = id_of("acid"), id_of("good"), id_of("<end>")
    how = {id_of("good"), id_of("bad")}
    rows = [[NO_TOKEN, NO_TOKEN, acid], [NO_TOKEN, end, acid], [NO_TOKEN, acid, good], [acid, good, end]]
    assert allowed(control.rule(control.values({}, 2), Prefix()), rows, size) == [how, how, {end}, {end}]
    with pytest.raises(UserError, match=r"'good' .*does not fit the grammar"):
        control.rule(control.values({}, 2), Prefix())(torch.tensor([[acid], [good]]), torch.zeros(2, size))
    control.rule(control.values({"strength": [1, 0]}, 2), Prefix())(
        torch.tensor([[acid], [good]]), torch.zeros(2, size)
    )


class Own(Feature):
    """Of the user's own."""

    def values(self, reading: Any) -> torch.Tensor:
        return torch.zeros(reading.ids_BT.shape)


def channel(**more: Feature) -> FeatureChannel:
    """Every kind of feature, none as it is by default."""
    features: dict[str, Feature] = {
        "neg": Graded(column="polarity", sign=-1, group="mood", membership="low_med_high"),
        "is_blame": WordClass(word_class="blame", group="class", hindsight="rest"),
        "stops": Mark(marks=["the", "."], hindsight="any"),
        "gloom": Recent(column="polarity", sign=-1, half_life=2.0),
    }
    bank = FeatureBank(lexicon=LEXICON, features=features | more, centres=[0.1, 0.6, 0.9], temperature=0.3)
    fuse = GatedFusion(16, len(bank.names), True)
    torch.nn.init.normal_(fuse.project.weight)
    return FeatureChannel(fuse, bank)


@torch.no_grad()
def test_a_bundle_of_a_feature_channel_has_all_its_features(
    tmp_path: Any, word_model: Any, word_tokenizer: Any
) -> None:
    control = channel()
    control.save_pretrained(tmp_path / "channel")
    again = Control.from_pretrained(tmp_path / "channel")
    assert isinstance(again, FeatureChannel) and again.settings == control.settings
    with pytest.raises(UserError, match="control feature_channel needs the tokenizer"):
        again.hooks(word_model, again.values({}, 1), Prefix())
    ids_BT = torch.tensor([word_tokenizer.encode("the bad acid good war . bad")])
    for one in (control, again):
        one.bind(word_tokenizer)
    features_BTF = control.bank(ids_BT)
    assert torch.equal(again.bank(ids_BT), features_BTF) and bool((features_BTF.std(1) > 0.01).all())
    for name in ("group", "hindsight", "membership"):
        told = [[getattr(feature, name) for feature in one.bank.features.values()] for one in (control, again)]
        assert told[0] == told[1]
    assert torch.equal(again.fuse(torch.ones(1, 7, 16), features_BTF), control.fuse(torch.ones(1, 7, 16), features_BTF))
    with pytest.raises(UserError, match="feature 'own' is a user-defined Own"):
        channel(own=Own()).config()


@torch.no_grad()
def test_a_feature_channel_is_a_share_of_the_way_and_skips_padding(word_model: Any, word_tokenizer: Any) -> None:
    """e + strength (Eq. 4 - e); what is asked of a group replaces all of it, other features are the text's."""
    control = channel()
    control.bind(word_tokenizer)
    table = word_model.get_input_embeddings()
    ids_BT = torch.tensor([word_tokenizer.encode("the bad acid good")] * 4)
    embedded_BTD, features_BTF = table(ids_BT), control.bank(ids_BT)
    asked_BTF = features_BTF.clone()
    asked_BTF[1:3, :, :3] = torch.tensor([0.0, 0.0, 0.75])  # neg_low, neg_med, neg_high
    full_BTD = control.fuse(embedded_BTD, asked_BTF)
    settings = {"strength": [1, 1, 0.25, 0], "neg_high": [None, 0.75, 0.75, 1]}
    prefix = Prefix()
    handles = control.hooks(word_model, control.values(settings, 4), prefix)
    found_BTD = table(ids_BT)
    whole_BT = ids_BT.clone()
    whole_BT[:, 0] = NO_TOKEN
    prefix.ids_NT, prefix._fresh = whole_BT, True
    padded_BTD, newest_B1D = table(ids_BT), table(ids_BT[:, -1:])
    for handle in handles:
        handle.remove()
    share_B11 = torch.tensor([1, 1, 0.25, 0]).view(-1, 1, 1)
    torch.testing.assert_close(found_BTD, embedded_BTD + share_B11 * (full_BTD - embedded_BTD))
    assert torch.equal(found_BTD[3], embedded_BTD[3]) and torch.equal(padded_BTD[:, 0], embedded_BTD[:, 0])
    torch.testing.assert_close(newest_B1D, found_BTD[:, -1:])
    assert torch.equal(table(ids_BT), embedded_BTD)


def test_words_without_spaces_between_them_begin_anywhere() -> None:
    """A tokenizer that has the characters: no blank is raised, and a word may follow a character without one."""
    characters, generator = list("\u4eca\u5929\u597d\u7f8e\u4e3d\u574f"), random.Random(0)
    tokenizer = make_bytes(["".join(generator.choices(characters, k=40)) for _ in range(40)], 257 + 12)
    assert len(tokenizer("\u4eca\u5929\u574f").input_ids) == 3
    words = ["\u597d", "\u7f8e\u4e3d", "\u574f"]
    control = LexiconSteering(Lexicon.of(words, {"polarity": [1, 1, -1], "strength": [0, 0, 0]}, ["", "", ""]))
    control.bind(tokenizer)
    rule = control.rule(control.values({"strength": 6, "to_polarity": 1}, 1), Prefix())
    before = tokenizer("\u4eca\u5929").input_ids
    for word, gain in zip(words, (6, 6, -6), strict=True):
        got, ids = 0.0, tokenizer(f"\u4eca\u5929{word}").input_ids[len(before) :]
        for place, token in enumerate(ids):
            gains_V = rule(torch.tensor([before + ids[:place]]), torch.zeros(1, len(tokenizer)))[0]
            assert not any(tokenizer.decode([number]).startswith(" ") for number in (gains_V > 0).nonzero().flatten())
            got += float(gains_V[token])
        assert got == pytest.approx(gain), word
