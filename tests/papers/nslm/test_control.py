"""Micro-models as a carried control: members of several tokens, the growing prefix, bundles, the user's own text."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.control import Control
from lit_ctg.control.base import NO_TOKEN, Prefix
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import ClassTable, class_table, make_recogniser
from lit_ctg.papers.nslm.control import MicroModels, WordReader, carried
from lit_ctg.papers.nslm.control import RedistributeClassMass as Redistribute
from lit_ctg.papers.nslm.control import _others as counted_others
from lit_ctg.papers.nslm.micro_model import Blend, Difference, Frequency, Gaussian, MicroModel, Repeat, Unigram
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences
from tests.llama import llama_tokenizer

YEARS = ("1914", "1918", "1939", "19", "1,234")
WORDS = ("it", "was", "in", *YEARS, "New_York", "New_Jersey", ".")


def micro_models() -> MicroModels:
    """Years measured against the year before, and places, in which two begin alike."""
    year = make_recogniser("year", {"members": {w: float(w.replace(",", "")) for w in YEARS}, "metrics": ["difference"],
                                    "densities": ["gaussian"]})  # fmt: skip
    place = make_recogniser("place", {"members": {"New_York": 1, "New_Jersey": 2}})
    table = class_table(WORDS, [year, place])
    text = "in 1914 was 1918 . it was 1939 in New_York was 19 . 1914 in New_Jersey in New_York was 1918 . 1,234"
    ids = np.array([WORDS.index(word) for word in text.split()])
    found = Occurrences.from_documents(ids, np.array([0]), table)
    inner = MicroModel(Difference(), Gaussian(), base="unigram").fit(found.of(0), table.classes[0])
    repeat = Repeat(inner).fit(found.of(0))
    places = MicroModel(Frequency(), Unigram()).fit(found.of(1), table.classes[1])
    again = MicroModel(Frequency(), Unigram(3.0), base="unigram").fit(found.of(1), table.classes[1])
    models = {"year": repeat, "place": Blend([places, again], np.array([0.25, 0.75]))}
    return MicroModels(carried(table, models, {"year": 7.0, "place": 3.0}), weight=1.0)


def bytes_tokenizer() -> Any:
    """Byte-level, digits apart but for 19: every year and place has several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<end>", "\u0120", *"0123456789,.abcdefghijklmnopqrstuvwxyzYNJ"]
    merges = [("1", "9"), ("\u0120", "19"), ("N", "e"), ("Ne", "w"), ("\u0120", "New"), ("Y", "o"), ("r", "k"),
              ("\u0120", "Yo"), ("\u0120Yo", "rk"), ("i", "n"), ("\u0120", "in")]  # fmt: skip
    table = {piece: number for number, piece in enumerate([*pieces, *("".join(pair) for pair in merges)])}
    engine = Tokenizer(models.BPE(vocab=table, merges=merges))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<end>", bos_token="<end>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return bytes_tokenizer()


@pytest.fixture(scope="module")
def reader(tokenizer: Any) -> WordReader:
    return WordReader(micro_models(), HuggingFaceTokenizer.of(tokenizer))


def log_probs(rule: Redistribute, ids: list[int], size: int, seed: int = 0) -> torch.Tensor:
    """Log-probabilities after a prefix, of a language model whose scores are a function of the prefix."""
    generator = torch.Generator().manual_seed(seed + sum((place + 1) * token for place, token in enumerate(ids)))
    return rule(torch.tensor([ids]), torch.randn(1, size, generator=generator, dtype=torch.float64))[0]


def test_a_member_of_several_tokens_has_the_product_of_its_tokens(tokenizer: Any, reader: WordReader) -> None:
    """Shares inside the class, on ways that stay in it, are the micro-model's own, whatever the model's scores."""
    rule = Redistribute(reader, torch.ones(1, dtype=torch.float64))
    size, prefix = len(tokenizer), tokenizer("in 1914 in").input_ids
    inside = reader.classes[0].model.log_prob(Evidence.of_previous([YEARS.index("1914")]))[0]
    ends = ~reader.tries[0].continuing(size)
    found = []
    for text in reader.classes[0].texts:
        ids, total = list(tokenizer(f" {text}").input_ids), 0.0
        for place, token in enumerate(ids):
            log_V = log_probs(rule, [*prefix, *ids[:place]], size)
            below = reader.below(*way(reader, [*prefix, *ids[:place]]))
            members = sorted({*below.ids_J.tolist()})
            stays = log_V[members].logsumexp(0)
            if len(below.here):  # complete here: ending it is a way to stay in the class
                other = ends.clone()
                other[members] = False
                stays = torch.logaddexp(stays, log_V[other].logsumexp(0))
            total += float(log_V[token] - (stays if place else log_V[years(reader)].logsumexp(0)))
        below = reader.below(*way(reader, [*prefix, *ids]))
        if len(below.ids_J):  # it is the beginning of another member too: what ends it counts
            log_V = log_probs(rule, [*prefix, *ids], size)
            other = ends.clone()
            other[below.ids_J.tolist()] = False
            end = log_V[other].logsumexp(0)
            total += float(end - torch.logaddexp(log_V[below.ids_J.tolist()].logsumexp(0), end))
        found.append(total)
    assert len(tokenizer(" 1,234").input_ids) > 3
    assert np.allclose(found, inside, atol=1e-9)
    assert np.isclose(np.exp(found).sum(), 1.0)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("prefix", "form"), [("it was", 0), ("it was (", 1)])
def test_members_under_tokenizers_of_the_llama_family(normalised: bool, prefix: str, form: int) -> None:
    """Read alone, a member had a second space, or one after a bracket, so that it got no probability."""
    written = [text.replace("_", " ") for text in (*YEARS, "New_York", "New_Jersey")]
    # a bracket that always precedes a member would be one token with it
    text = " ".join(["it was in . ( )", *written, *(f"x{text}" for text in written)])
    tokenizer = llama_tokenizer([text] * 20, normalised, 120)
    reader = WordReader(micro_models(), HuggingFaceTokenizer.of(tokenizer))
    blank = " " * (form == 0)
    for number, member in enumerate(written):
        (reading,) = reader.read(torch.tensor([tokenizer(f"{prefix}{blank}{member}").input_ids]))
        assert reading.form == form and number in reader.below(form, reading.node).here, member
    before, own = (tokenizer(text).input_ids for text in (prefix, f"{prefix}{blank}1939"))
    rule = Redistribute(reader, torch.ones(1, dtype=torch.float64))
    scores = torch.zeros(1, len(tokenizer), dtype=torch.float64)
    changed = rule(torch.tensor([before]), scores)[0] != scores.log_softmax(1)[0]
    assert bool(changed[own[len(before)]])


def way(reader: WordReader, ids: list[int]) -> tuple[int, int]:
    """Form and node of a prefix."""
    reading = reader.read(torch.tensor([ids]))[0]
    return reading.form, reading.node


def years(reader: WordReader) -> list[int]:
    """First tokens of years with a blank before them."""
    begun = reader.below(0, 0)
    return sorted({int(begun.ids_J[owner]) for owner, member in zip(begun.owner_M, begun.member_M, strict=True)
                   if reader.class_W[member] == 0})  # fmt: skip


def test_what_classes_have_together_stays(tokenizer: Any, reader: WordReader) -> None:
    """Sums over the vocabulary are 1 and the mass of the first tokens is the model's own."""
    rule = Redistribute(reader, torch.ones(1, dtype=torch.float64))
    for text in ("in", "in 19", "in 1914 was New", "in 1,2", "it was 1914."):
        ids = tokenizer(text).input_ids
        generator = torch.Generator().manual_seed(3)
        scores = torch.randn(1, len(tokenizer), generator=generator, dtype=torch.float64)
        ruled, plain = rule(torch.tensor([ids]), scores)[0], scores[0].log_softmax(0)
        assert torch.isclose(ruled.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
        assert not torch.allclose(ruled, plain)
        if text == "in":
            assert torch.isclose(ruled[years(reader)].logsumexp(0), plain[years(reader)].logsumexp(0))
            # forbidden tokens stay forbidden, and the other members share the mass
            first = years(reader)
            banned = scores.index_fill(1, torch.tensor(first[:1]), -torch.inf)
            found = rule(torch.tensor([ids]), banned)[0]
            assert found[first[0]] == -torch.inf
            assert torch.isclose(found[first].logsumexp(0), banned[0].log_softmax(0)[first].logsumexp(0))


def test_each_row_has_the_classes_of_its_own_context() -> None:
    """After a month the numbers are days, elsewhere not; the most likely class is explained first."""
    words = ("in", "of", "May", *map(str, range(1980, 1990)), "7", "30")
    day = make_recogniser("day", {"pattern": r"\d\d?", "context": "after_month"})
    table = class_table(words, [day, make_recogniser("year", {"pattern": r"19\d\d"})])
    models, own = unigrams(table), words_tokenizer(*words)
    control = MicroModels(carried(table, models, {}))
    control.bind(own)
    rule, size = control.rule({"strength": torch.ones(1, dtype=torch.float64)}, Prefix()), len(own)
    scores = torch.randn(3, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.tensor([own(text).input_ids for text in ("of in", "in May", "in 1985")])
    found, plain_BV = rule(ids, scores).exp(), scores.softmax(1)
    ids_of = {part.name: [own.convert_tokens_to_ids(text) for text in part.tokens] for part in table.classes}
    for row, (names, previous) in enumerate(((["year"], -1), (["day", "year"], -1), (["year"], 5))):
        expected_V, mass = plain_BV[row].clone(), {}
        for name in names:
            inside_K = torch.from_numpy(models[name].log_prob(Evidence.of_previous([previous]))[0]).exp()
            mass[name] = float(plain_BV[row, ids_of[name]].sum())
            expected_V[ids_of[name]] = mass[name] * inside_K
        torch.testing.assert_close(found[row], expected_V)
        fired = control.explain(ids, scores)[row]
        assert [entry.class_name for entry in fired] == sorted(names, key=lambda name: -mass[name])
        assert {entry.class_name: entry.mass for entry in fired} == pytest.approx(mass)
        assert fired[-1].state == ("after_month" if row == 1 else "plain")
        assert [entry.previous for entry in fired] == (["1985"] if row == 2 else [""] * len(names))


def test_prefixes_are_read_on_and_in_any_order(tokenizer: Any, reader: WordReader) -> None:
    """Readings of a growing batch whose rows change places equal those of whole prefixes, padding or not."""
    texts = ["in 1914 was 1918 in", "it was New York in 19", "New Jersey , 1,234 was"]
    rows = [tokenizer(text).input_ids for text in texts]
    grown = WordReader(micro_models(), HuggingFaceTokenizer.of(tokenizer))
    longest = max(map(len, rows))
    for length, order in zip(range(1, longest + 1), itertools.cycle([(0, 1, 2), (2, 0, 1)]), strict=False):
        padded = [[NO_TOKEN] * 2 + rows[row][:length] for row in order if len(rows[row]) >= length]
        for ids, reading in zip(padded, grown.read(torch.tensor(padded)), strict=True):
            fresh = WordReader(micro_models(), HuggingFaceTokenizer.of(tokenizer)).read(torch.tensor([ids[2:]]))[0]
            assert (reading.node, reading.pending, reading.open) == (fresh.node, fresh.pending, fresh.open)
            assert (reading.next_contexts.previous_BTC[0, -1] == fresh.next_contexts.previous_BTC[0, -1]).all()


def test_bundle_keeps_the_models(tmp_path: Path, tokenizer: Any) -> None:
    control = MicroModels(micro_models().classes, weight=0.75)
    control.save_pretrained(tmp_path / "bundle")
    again = Control.from_pretrained(tmp_path / "bundle")
    assert isinstance(again, MicroModels) and again.settings[0].default == 0.75
    assert [each.count for each in again.classes] == [7.0, 3.0]
    evidence = Evidence.of_previous([-1, 0, 1])
    for one, other in zip(control.classes, again.classes, strict=True):
        assert np.allclose(one.model.log_prob(evidence), other.model.log_prob(evidence), atol=1e-12)
        assert one.texts == other.texts and one.states == other.states
    rules = [Redistribute(WordReader(c, HuggingFaceTokenizer.of(tokenizer)), torch.ones(1)) for c in (control, again)]
    ids = tokenizer("in 1914 was").input_ids
    assert torch.equal(*(log_probs(rule, ids, len(tokenizer)) for rule in rules))


def words_tokenizer(*words: str) -> Any:
    """One token a word, as in the model that ``lit-ctg export-model`` writes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    table = {word: number for number, word in enumerate(("<unk>", *words))}
    engine = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="<unk>")


def test_a_tokenizer_that_spells_no_member_is_refused() -> None:
    with pytest.raises(UserError, match="spells no member of the class"):
        micro_models().bind(words_tokenizer("it"))


def test_a_member_that_is_one_token_as_it_is_stored_is_ruled_out_and_read() -> None:
    place = make_recogniser("place", {"members": {"New_York": 1, "New_Jersey": 2, "York": 3}})
    words = ("in", "New_York", "New_Jersey", "York", "was")
    table = class_table(words, [place])
    text = "in York was New_York in New_York"
    ids_T = np.array([words.index(word) for word in text.split()])
    found = Occurrences.from_documents(ids_T, np.array([0]), table)
    again = Repeat(MicroModel(Frequency(), Unigram()).fit(found, table.classes[0])).fit(found)
    control = MicroModels(carried(table, {"place": again}, {}))
    # "New" and "York" are words too; of New_Jersey there are only these
    own = words_tokenizer("in", "was", "New", "York", "Jersey", "New_York")
    reader, size = WordReader(control, HuggingFaceTokenizer.of(own)), len(own)
    rule = Redistribute(reader, torch.ones(1, dtype=torch.float64))
    ways = {"New_York": "New_York", "New_Jersey": "New", "York": "York"}
    for prompt, previous in (("in", -1), ("in New_York was", 0), ("in New York was", 0), ("in York New_York", 0),
                             ("New Jersey in", 1), ("New York York", 2), ("New in", -1)):  # fmt: skip
        ids = own(prompt).input_ids
        assert reader.read(torch.tensor([ids]))[0].next_contexts.previous_BTC[0, -1, 0] == previous, prompt
        log_V = log_probs(rule, ids, size)
        plain_V = log_probs(Redistribute(reader, torch.zeros(1)), ids, size)
        first = [own.convert_tokens_to_ids(ways[text]) for text in table.classes[0].tokens]
        inside_K = torch.from_numpy(again.log_prob(Evidence.of_previous([previous]))[0])
        torch.testing.assert_close(log_V[first].log_softmax(0), inside_K, msg=prompt)
        torch.testing.assert_close(log_V[first].logsumexp(0), plain_V[first].logsumexp(0))
        torch.testing.assert_close(log_V.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    # behind "New" comes the rest of New_Jersey; "York", whose other reading is only read, is another place there
    log_V, plain_V = (
        log_probs(one, own("in New").input_ids, size) for one in (rule, Redistribute(reader, torch.zeros(1)))
    )
    jersey = own.convert_tokens_to_ids("Jersey")
    torch.testing.assert_close(log_V[jersey], plain_V[jersey])


def test_other_words_that_begin_like_a_member_keep_their_part(tmp_path: Path, tokenizer: Any) -> None:
    """Of a first token only the share that members have among the training words with it is ruled out."""
    place = make_recogniser("place", {"members": {"New_York": 1, "Jersey": 2, "in": 3}})
    table = class_table(["was", "New_York", "Jersey", "in"], [place])
    models = unigrams(table)
    share_K = np.exp(models["place"].log_prob(Evidence.of_previous([-1]))[0])
    members = {token: 8 * float(share_K[k]) for k, token in enumerate(table.classes[0].tokens)}
    control = MicroModels(
        carried(table, models, {"place": 8.0}), others={"News": 5, "Newark": 4, "inn": 3, "Nought": 9}
    )
    control.save_pretrained(tmp_path / "bundle")
    again = Control.from_pretrained(tmp_path / "bundle")
    assert isinstance(again, MicroModels) and again.others == control.others
    size, ids = len(tokenizer), tokenizer("was").input_ids
    scores_1V = torch.randn(1, size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    plain_V = scores_1V[0].softmax(0)
    first = {token: tokenizer(f" {token.replace('_', ' ')}").input_ids[0] for token in members}
    assert tokenizer(" Nought").input_ids[0] == tokenizer(" Jersey").input_ids[0] != first["New_York"], "a bare space"
    other = {"New_York": 9, "in": 3, "Jersey": 9}
    own = {token: members[token] / (members[token] + other[token]) for token in members}
    pool = sum(own[token] * float(plain_V[first[token]]) for token in members)
    for one in (control, again):
        ruled_V = Redistribute(WordReader(one, HuggingFaceTokenizer.of(tokenizer)), torch.ones(1))(
            torch.tensor([ids]), scores_1V
        )[0].exp()
        for k, token in enumerate(table.classes[0].tokens):
            expected = (1 - own[token]) * float(plain_V[first[token]]) + pool * share_K[k]
            assert float(ruled_V[first[token]]) == pytest.approx(expected)
        assert float(ruled_V.sum()) == pytest.approx(1)
    # without counts of other words, as in bundles from before there were any, all of it is ruled out
    bare = WordReader(MicroModels(control.classes), HuggingFaceTokenizer.of(tokenizer))
    assert all((own_J == 1).all() for own_J in bare.own) and "others" not in MicroModels(control.classes).config()


def test_of_a_run_the_words_that_may_begin_like_a_member_are_counted() -> None:
    words = ("North", "Norse", "New_York", "in", "Oslo", "Nome")
    table = class_table(words, [make_recogniser("place", {"members": {"New_York": 1, "Oslo": 2}})])
    module: Any = SimpleNamespace(vocabulary=SimpleNamespace(tokens=words), table=table)
    ids_T = np.array([0, 2, 3, 0, 4, 1, 2])
    datamodule = SimpleNamespace(prepare=lambda: SimpleNamespace(ids={"train": ids_T}.get))
    assert counted_others(module, datamodule) == {"North": 2, "Norse": 1}


def unigrams(table: ClassTable) -> dict[str, MicroModel]:
    """A unigram of each class that has seen its first member three times and its second once."""
    models = {}
    for number, members in enumerate(table.classes):
        found = Occurrences(np.arange(4), np.full(4, number), np.array([0, 0, 0, 1]), Evidence.of_previous([-1] * 4))
        models[members.name] = MicroModel(Frequency(), Unigram()).fit(found, members)
    return models


def test_classes_that_begin_alike_share_their_tokens_by_their_counts(tokenizer: Any) -> None:
    long = make_recogniser("long", {"members": {"1914": 1, "1918": 2, "19,5": 3}})
    short = make_recogniser("short", {"members": {"19": 1, "234": 2}})
    table = class_table(["in", "1914", "1918", "19,5", "19", "234"], [long, short])
    models = unigrams(table)
    control = MicroModels(carried(table, models, {"long": 6.0, "short": 2.0}))
    reader, size = WordReader(control, HuggingFaceTokenizer.of(tokenizer)), len(tokenizer)
    rule, ids = Redistribute(reader, torch.ones(1, dtype=torch.float64)), tokenizer("in").input_ids
    first = [tokenizer(text).input_ids[0] for text in (" 19", " 234")]
    rare = 0.25 * float(np.exp(models["short"].log_prob(Evidence.of_previous([-1]))[0, 0]))  # of "19"
    begun_2 = log_probs(rule, ids, size)[first].softmax(0)
    assert begun_2.tolist() == pytest.approx([0.75 + rare, 0.25 - rare])
    # after "19" it goes on (by a mark too), or ends; the shares of what ends it stay
    ids = [*ids, first[0]]
    log_V, plain_V = log_probs(rule, ids, size), log_probs(Redistribute(reader, torch.zeros(1)), ids, size)
    onward, ends = [tokenizer(text).input_ids[0] for text in ("1", ",")], ~reader.tries[0].continuing(size)
    ends[onward] = False
    shares_2 = torch.stack([log_V[onward].logsumexp(0), log_V[ends].logsumexp(0)]).softmax(0)
    assert shares_2.tolist() == pytest.approx([0.75 / (0.75 + rare), rare / (0.75 + rare)])
    assert float(log_V.exp().sum()) == pytest.approx(1)
    others = [tokenizer(text).input_ids[0] for text in (".", " in")]
    torch.testing.assert_close(log_V[others].softmax(0), plain_V[others].softmax(0))


def test_what_goes_on_with_a_member_is_not_ruled_out_again(tokenizer: Any) -> None:
    """Behind "New", "York" is the rest of a member, though it is also a member."""
    place = make_recogniser("place", {"members": {"New_York": 1, "New_Jersey": 2, "York": 3}})
    table = class_table(["in", "New_York", "New_Jersey", "York"], [place])
    models = unigrams(table)
    reader = WordReader(MicroModels(carried(table, models, {})), HuggingFaceTokenizer.of(tokenizer))
    rule, ids = Redistribute(reader, torch.ones(1, dtype=torch.float64)), tokenizer("in New").input_ids
    log_V = log_probs(rule, ids, len(tokenizer))
    onward = [tokenizer(text).input_ids[0] for text in (" York", " Jersey")]
    share_2 = torch.from_numpy(models["place"].log_prob(Evidence.of_previous([-1]))[0, :2]).softmax(0)
    torch.testing.assert_close(log_V[onward].softmax(0), share_2)
    assert float(log_V.exp().sum()) == pytest.approx(1)


def test_all_words_of_what_is_written_together_are_read(tokenizer: Any, reader: WordReader) -> None:
    reading = reader.read(torch.tensor([tokenizer("in 1914th").input_ids]))[0]
    assert tokenizer.decode(reading.pending) == " 1914th"
    assert reading.next_contexts.previous_BTC[0, -1, 0] == YEARS.index("1914")


def test_what_is_carried_knows_its_contexts_and_counts() -> None:
    day = make_recogniser("day", {"pattern": r"\d\d?", "context": "after_month"})
    year = make_recogniser("year", {"pattern": r"\d{4}"})
    table = class_table(["May", "4", "12", "1914", "1918"], [day, year])
    models = unigrams(table)
    found = carried(table, models, {"day": 5.0})
    assert [(each.name, each.texts, each.states, each.count) for each in found] == [
        ("day", ("4", "12"), ("after_month",), 5.0),
        ("year", ("1914", "1918"), ("plain", "after_month"), 1.0),
    ]
    assert [each.name for each in carried(table, {"year": models["year"]}, {})] == ["year"]
    with pytest.raises(UserError, match="classes"):
        MicroModels([])


def test_strength_mixes_and_nothing_begins_inside_a_word(tokenizer: Any, reader: WordReader) -> None:
    scores_3V = torch.randn(1, len(tokenizer), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    scores_3V = scores_3V.expand(3, -1)
    rule, begun = (
        Redistribute(reader, torch.tensor([0.25, 1, 0], dtype=torch.float64)),
        reader.below(1, 0).ids_J.tolist(),
    )
    plain_V = scores_3V[0].log_softmax(0)
    for text, inside in (("it", True), ("it.", False)):
        found_3V = rule(torch.tensor([tokenizer(text).input_ids] * 3), scores_3V)
        torch.testing.assert_close(found_3V.exp().sum(1), torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(found_3V[0].exp(), 0.25 * found_3V[1].exp() + 0.75 * plain_V.exp())
        assert torch.equal(found_3V[2], plain_V) and not torch.allclose(found_3V[1], plain_V)
        # a token without a space continues the word, or begins one
        assert torch.allclose(found_3V[1, begun], plain_V[begun], atol=1e-9) is inside


def test_strength_is_fitted_on_texts(tokenizer: Any) -> None:
    import transformers

    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=8, n_layer=1, n_head=1)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    control = micro_models()
    found = control.fit_strength(model, tokenizer, ["in 1914 was 1918 in 1914 in 1918 was 1914", "it was New York"])
    assert 0 < found["strength"] <= 1 and found["places"] > 3 and found["nats"] > 0
    assert control.settings[0].default == found["strength"]
    with pytest.raises(UserError, match="the texts hold no member"):
        control.fit_strength(model, tokenizer, ["in"])

    def restated(start: list[int], ids: list[int]) -> torch.Tensor:
        """Probabilities by the rule and by the model of the tokens where the two differ, [2, N]."""
        rule, pairs = Redistribute(control.reader, torch.ones(1, dtype=torch.float64)), []
        for place in range(max(1, len(start)), len(start + ids)):
            before, own = torch.tensor([(start + ids)[:place]]), (start + ids)[place]
            with torch.no_grad():
                plain_V = model(before).logits[0, -1].double().log_softmax(0)
            pairs.append(torch.stack([rule(before, plain_V[None])[0, own], plain_V[own]]))
        return torch.stack([pair.exp() for pair in pairs if abs(pair[0] - pair[1]) > 1e-9], 1)

    # against a search over all mixtures, token by token
    text = "in 1914 was 1918 in 1914 in 1918 was 1914 in 19"
    found, ids = control.fit_strength(model, tokenizer, [text]), tokenizer(text).input_ids
    share_G, (ruled_N, own_N) = torch.linspace(0, 1, 1001, dtype=torch.float64), restated([], ids)
    gain_G = (share_G[:, None] * ruled_N + (1 - share_G[:, None]) * own_N).log().mean(1) - own_N.log().mean()
    assert found["strength"] == pytest.approx(float(share_G[gain_G.argmax()]), abs=0.02) and len(own_N) > 5
    assert (found["nats"], found["places"]) == (pytest.approx(float(gain_G.max()), abs=1e-3), len(own_N))
    # a tokenizer that begins a text does so here too, as in decoding: the first token has a place then
    from tokenizers.processors import TemplateProcessing

    begun = copy.deepcopy(tokenizer)
    first = begun.convert_ids_to_tokens(3)
    begun.backend_tokenizer.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 3)])
    text = f"1914 {text}"
    ids = tokenizer(text).input_ids
    assert begun(text).input_ids == [3, *ids]
    found, (ruled_N, own_N) = control.fit_strength(model, begun, [text]), restated([3], ids)
    mixed_N = found["strength"] * ruled_N + (1 - found["strength"]) * own_N
    assert found["places"] == len(own_N)
    assert found["nats"] == pytest.approx(float((mixed_N.log() - own_N.log()).mean()), abs=1e-4)
    control.bind(tokenizer)
    # a text beyond the model's positions is cut off
    small = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**config.to_dict(), "n_positions": 20})).eval()
    cut = tokenizer.decode(ids[:20])
    assert tokenizer(cut).input_ids == ids[:20] and len(ids) > 20
    assert control.fit_strength(small, tokenizer, [text]) == control.fit_strength(small, tokenizer, [cut])
