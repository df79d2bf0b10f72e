"""The score rule: class masses stay, members are shared out by the micro-model; in our loop and in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import class_table, make_recogniser
from lit_ctg.papers.nslm.decode import MicroModelRule, NSLMDecoding, TextGenerator, word_texts
from lit_ctg.papers.nslm.micro_model import Frequency, MicroModel, Unigram
from lit_ctg.papers.nslm.model import Stream
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences
from lit_ctg.papers.nslm.selection import select
from lit_ctg.run.build import build_datamodule, build_model
from tests.llama import llama_tokenizer

WORDS = ["<pad>", "in", "and", "of", "May", *map(str, range(1980, 2000)), "7", "30"]
GRID = {"metrics": ["difference", "frequency"], "densities": ["gaussian", "unigram"]}


@pytest.fixture(scope="module")
def rule() -> MicroModelRule:
    table = class_table(WORDS, [make_recogniser("year", {"pattern": r"19\d\d", **GRID})])
    rng = np.random.default_rng(0)
    previous_N = rng.integers(0, 18, 200)
    found = Occurrences(
        np.arange(200), np.zeros(200, int), previous_N + rng.integers(0, 3, 200), Evidence.of_previous(previous_N)
    )
    return MicroModelRule(table, select(table, found, found).models)


def prefixes(*texts: str) -> Tensor:
    rows = [[WORDS.index(word) for word in text.split()] for text in texts]
    width = max(map(len, rows))
    return torch.tensor([[0] * (width - len(row)) + row for row in rows])


@pytest.fixture
def scores() -> Tensor:
    return torch.randn(3, len(WORDS), generator=torch.Generator().manual_seed(0))


def test_eq_4_token_by_token(rule: MicroModelRule, scores: Tensor) -> None:
    ids_BT = prefixes("in 1985 and", "of 7 in", "in 1990 and 1993 in")
    found = rule(ids_BT, scores).double().exp()
    given = scores.double().softmax(1)
    assert torch.allclose(found.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-6)
    years = [number for number, word in enumerate(WORDS) if word.startswith("19")]
    for row, previous in enumerate(["1985", None, "1993"]):
        place = -1 if previous is None else int(previous) - 1980
        inside = np.exp(rule.models["year"].log_prob(Evidence.of_previous([place]))[0])
        for number in range(len(WORDS)):
            expected = given[row, number].item()
            if number in years:
                expected = given[row, years].sum().item() * inside[int(WORDS[number]) - 1980]
            assert found[row, number].item() == pytest.approx(expected, rel=1e-5)


def test_only_class_tokens_move_and_strength_zero_is_the_bare_model(rule: MicroModelRule, scores: Tensor) -> None:
    ids_BT = prefixes("in 1985 and", "of 7 in", "in 1990")
    assert MicroModelRule(rule.table, rule.models, strength=0.0)(ids_BT, scores) is scores
    mixed = MicroModelRule(rule.table, rule.models, strength=[0.0, 0.5, 1.0])(ids_BT, scores)
    assert torch.equal(mixed[0], scores[0])
    full = rule(ids_BT, scores)
    assert torch.equal(mixed[2], full[2])
    half = 0.5 * full[1].exp() + 0.5 * scores[1].softmax(0)
    assert torch.allclose(mixed[1].exp(), half, atol=1e-6)
    others = ~torch.from_numpy(rule.table.any_class_V)
    assert torch.allclose(full[:, others], scores.log_softmax(1)[:, others], atol=1e-6)
    assert not torch.allclose(full[:, ~others], scores.log_softmax(1)[:, ~others], atol=1e-2)


def test_each_row_has_the_classes_of_its_own_context(scores: Tensor) -> None:
    """After a month the numbers are days, elsewhere not; the class of the largest mass is told first."""
    year = make_recogniser("year", {"pattern": r"19\d\d"})
    day = make_recogniser("day", {"pattern": r"\d\d?", "context": "after_month"})
    table = class_table(WORDS, [day, year])
    rng, models = np.random.default_rng(1), {}
    for number, members in enumerate(table.classes):
        index_N = rng.integers(0, len(members), 30) ** 2 % len(members)
        found = Occurrences(np.arange(30), np.full(30, number), index_N, Evidence.of_previous([-1] * 30))
        models[members.name] = MicroModel(Frequency(), Unigram()).fit(found, members)
    rule, texts = MicroModelRule(table, models), ("in", "in May", "of")
    found_BV, given_BV = rule(prefixes(*texts), scores).exp(), scores.softmax(1)
    inside = {name: np.exp(model.log_prob(Evidence.of_previous([-1]))[0]) for name, model in models.items()}
    for row, names in enumerate((["year"], ["day", "year"], ["year"])):
        expected_V = given_BV[row].clone()
        for name in names:
            ids_K = torch.from_numpy(table.classes[table.names.index(name)].ids_K)
            expected_V[ids_K] = given_BV[row, ids_K].sum() * torch.from_numpy(inside[name]).float()
        torch.testing.assert_close(found_BV[row], expected_V)
        fired = rule.explain(prefixes(*texts), scores)[row]
        mass = {name: float(given_BV[row, table.classes[table.names.index(name)].ids_K].sum()) for name in names}
        assert [entry.class_name for entry in fired] == sorted(names, key=lambda name: -mass[name])
    # a class without a micro-model keeps its scores
    log_BV = scores.log_softmax(1)
    only = [MicroModelRule(table, {name: models[name]})(prefixes(*texts), scores) for name in ("day", "year")]
    torch.testing.assert_close(only[0][0], log_BV[0])
    days_K = torch.from_numpy(table.classes[table.names.index("day")].ids_K)
    torch.testing.assert_close(only[1][:, days_K], log_BV[:, days_K])


def test_rows_do_not_depend_on_the_batch(rule: MicroModelRule, scores: Tensor) -> None:
    texts = ("in 1985 and", "of 7 in", "in 1990 and 1993 in")
    together = rule(prefixes(*texts), scores)
    for row, words in enumerate(texts):
        assert torch.allclose(rule(prefixes(words), scores[[row]])[0], together[row], atol=1e-6)


def test_explanation_names_class_and_previous_member(rule: MicroModelRule, scores: Tensor) -> None:
    (fired,), (first,) = rule.explain(prefixes("in 1985 and", "of 7 in"), scores[:2])
    years = torch.from_numpy(rule.table.any_class_V)
    assert (fired.class_name, fired.state, fired.previous, first.previous) == ("year", "plain", "1985", "")
    assert fired.mass == pytest.approx(scores[0].double().softmax(0)[years].sum().item())


def test_inside_hugging_face_generate(rule: MicroModelRule) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    # a model that says nothing but years, all alike
    with torch.no_grad():
        model.lm_head = torch.nn.Linear(16, len(WORDS))
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.where(torch.from_numpy(rule.table.any_class_V), 0.0, -30.0))
    options = {"do_sample": True, "max_new_tokens": 8, "pad_token_id": 0, "attention_mask": torch.ones(20, 2)}
    ids_BT = prefixes("in 1985").repeat(20, 1)
    spread = {}
    for name, rules in (("bare", []), ("rule", [rule])):
        torch.manual_seed(1)
        written = model.generate(ids_BT, logits_processor=rules, **options)[:, 1:]
        spread[name] = (written[:, 1:] - written[:, :-1]).abs().float().mean().item()
    assert spread["rule"] < 2.5 < 4 < spread["bare"]


def test_what_is_forbidden_stays_so(rule: MicroModelRule, scores: Tensor) -> None:
    """The other members share the mass; where all are forbidden nothing is shared."""
    ids_BT = prefixes("in 1985 and", "of 7 in", "in 1990 and 1993 in")
    years = [number for number, word in enumerate(WORDS) if word.startswith("19")]
    banned = scores.clone()
    banned[:, years[5]] = -torch.inf
    given, free = banned.double().softmax(1), rule(ids_BT, scores).double().softmax(1)
    found = rule(ids_BT, banned).double().softmax(1)
    assert (found[:, years[5]] == 0).all()
    assert torch.allclose(found[:, years].sum(1), given[:, years].sum(1), atol=1e-6)
    others = years[:5] + years[6:]
    shares = [each[:, others] / each[:, others].sum(1, keepdim=True) for each in (found, free)]
    assert torch.allclose(*shares, atol=1e-6)
    banned[:, years] = -torch.inf
    assert torch.allclose(rule(ids_BT, banned).double().softmax(1), banned.double().softmax(1), atol=1e-6)


def byte_level_model(folder: Path, text: str) -> None:
    """Save a tiny GPT-2 whose byte-level vocabulary has the words of a text, each behind a blank."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=tokenizer.get_vocab_size(), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)


def test_the_snippet_of_the_page_on_a_byte_level_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    articles = []
    for _ in range(60):
        years = 1900 + np.cumsum(rng.integers(0, 5, 12))
        articles.append("It began in 1914 . " + " ".join(f"In {year} it went on and ended in" for year in years))
    (tmp_path / "articles.txt").write_text("\n\n".join(articles), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    byte_level_model(tmp_path / "gpt2", " ".join(articles))
    page = (Path(__file__).resolve().parents[3] / "docs" / "papers" / "nslm.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)  # a page of ours
    assert names["table"].names == ("year",) and len(names["table"].classes[0]) > 20
    assert "*difference/" in capsys.readouterr().out
    (fired,) = names["rule"].explain(names["prompt"].input_ids, names["model"](**names["prompt"]).logits[:, -1])[0]
    assert (fired.class_name, fired.previous) == ("year", "1914") and 0 < fired.mass < 1
    # inside the class the next year is near the one before; without the rule it is anywhere
    scores = names["model"](**names["prompt"]).logits[:, -1]
    members = names["table"].classes[0]
    inside_K = names["rule"](names["prompt"].input_ids, scores)[0, members.ids_K].softmax(0).detach().numpy()
    bare_K = scores[0, members.ids_K].softmax(0).detach().numpy()
    near_K = np.abs(members.attributes_KD[:, 0] - 1914) <= 6
    assert inside_K[near_K].sum() > 0.6 > 0.5 > bare_K[near_K].sum()


def test_words_of_a_byte_level_vocabulary() -> None:
    class Fake:
        texts = (" in", " 1985", "19", "a")
        all_special_ids = ()

        def __len__(self) -> int:
            return 4

        def decode(self, ids: list[int]) -> str:
            return "".join(self.texts[number] for number in ids)

    assert word_texts(Fake()) == ("in", "1985", "", "")


@pytest.mark.parametrize("normalised", [True, False])
def test_words_of_the_family_of_llama(normalised: bool) -> None:
    """Decoded alone a token has lost its space, so that pieces inside words were members."""
    tokenizer = llama_tokenizer(["it was in 1985 and (1985) or x1985" * 20], normalised)
    texts = word_texts(tokenizer)
    assert [tokenizer.convert_ids_to_tokens(number) for number, text in enumerate(texts) if text == "1985"] == [
        "\u25811985"
    ]  # fmt: skip
    assert "1985" in tokenizer.get_vocab()


def test_bad_input_is_named(rule: MicroModelRule) -> None:
    with pytest.raises(UserError, match=r"'city'.*year"):
        MicroModelRule(rule.table, {"city": rule.models["year"]})
    with pytest.raises(UserError, match="must lie in"):
        MicroModelRule(rule.table, rule.models, strength=1.5)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> TextGenerator:
    cache = tmp_path_factory.mktemp("cache")
    cfg = compose(["experiment=nslm/numbers", "size=smoke", "data.sample_size=3000", f"+data.cache_root={cache}"])
    datamodule = build_datamodule(cfg)
    module: Any = build_model(cfg, datamodule)
    return NSLMDecoding(temperature=1.0, top_p=1.0, max_new_tokens=8).generator(module, datamodule)


def test_a_text_is_a_function_of_seed_and_row(generator: TextGenerator) -> None:
    three, one = generator.generate(3, prompt="in", seed=4), generator.generate(1, prompt="in", seed=4)
    assert three[0] == one[0] and three[0] != three[1]
    assert three[0] != generator.generate(1, prompt="in", seed=5)[0]
    assert all(text.text.startswith("in ") and len(text.ids) == 10 for text in three)


def test_steps_are_the_distributions_of_the_whole_text(generator: TextGenerator) -> None:
    module = generator.module
    ids = torch.tensor([[0, *(int(members.ids_K[0]) for members in module.table.classes), 3, 5]])
    with torch.no_grad():
        state, columns = module.start(1), []
        for column in range(ids.shape[1]):
            scores, state = module.step(ids[:, column : column + 1], state)
            columns.append(scores)
        batch = {"input_ids_BT": ids, "document_BT": torch.zeros_like(ids)}
        hidden, contexts = module._run(batch, Stream())
        whole = module.log_probs(hidden, contexts, ("nslm",))["nslm"]
    torch.testing.assert_close(torch.stack(columns, 1), whole, atol=1e-5, rtol=1e-4)


def test_a_control_sets_the_mixture_and_goes_away(generator: TextGenerator) -> None:
    before = float(generator.module.mixture_weight)
    texts = {weight: generator.generate(8, control={"mixture_weight": weight}, seed=1) for weight in (0, 1)}
    assert float(generator.module.mixture_weight) == before
    assert [text.ids for text in texts[0]] != [text.ids for text in texts[1]]
    # a weight a row: each is what it is alone
    mixed = generator.generate(8, control={"mixture_weight": [0, 1] * 4}, seed=1)
    assert mixed == [texts[row % 2][row] for row in range(8)]
    (default,) = generator.generate(1, seed=1)
    assert default.control == {"mixture_weight": before}


def test_texts_are_drawn_from_the_nucleus_at_the_temperature(generator: TextGenerator) -> None:
    shaped = NSLMDecoding(temperature=0.5, top_p=0.6, max_new_tokens=1)
    rules = TextGenerator(generator.module, shaped).rules([{}], (), None)
    scores_1V = torch.full((1, 30), -9.0)
    scores_1V[0, 3:7] = torch.tensor([0.05, 0.5, 0.15, 0.3]).log() / 2  # over the temperature: .05 .5 .15 .3
    shaped_V = rules(torch.zeros(1, 1, dtype=torch.long), scores_1V)[0]
    assert shaped_V.isfinite().nonzero().flatten().tolist() == [4, 6]  # .5 alone is less than .6
    torch.testing.assert_close(shaped_V.softmax(0)[[4, 6]], torch.tensor([0.625, 0.375]))


def test_class_tokens_are_explained(generator: TextGenerator) -> None:
    tokens = generator.module.vocabulary.tokens
    year = next(members for members in generator.module.table.classes if members.name == "year")
    first, second = (int(number) for number in year.ids_K[:2])
    fired = generator._fired([0, first, 3, second, second], 2)
    assert fired == ((tokens[second], "year", tokens[first]), (tokens[second], "year", tokens[second]))
    text = generator.text([0, first, 3, second], 1, {})
    assert text.prompt_length == 1 and text.text == f"{tokens[first]} {tokens[3]} {tokens[second]}"
    assert text.note() == f"{tokens[first]}: year, {tokens[second]}: year after {tokens[first]}"


def test_a_prompt_is_prepared_as_the_corpus_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("places")
    cfg = compose(["experiment=nslm/places", "size=smoke", "data.sample_size=6000", f"+data.cache_root={cache}"])
    datamodule = build_datamodule(cfg)
    module: Any = build_model(cfg, datamodule)
    place = next(token for members in module.table.classes for token in members.tokens if "_" in token)
    made = NSLMDecoding(temperature=1.0, top_p=1.0, max_new_tokens=1).generator(module, datamodule)
    assert made.generate(1, prompt=f"in {place.replace('_', ' ')} in", seed=0)[0].text.startswith(f"in {place} in")


def test_numbers_of_a_prompt_are_joined(generator: TextGenerator) -> None:
    tokens = generator.module.vocabulary.tokens
    number = next(token for token in tokens if "," in token and token.replace(",", "").isdigit())
    split = " @,@ ".join(number.split(","))
    assert generator.generate(1, prompt=f"in {split}", seed=0)[0].text.startswith(f"in {number} ")


def test_bad_input(generator: TextGenerator) -> None:
    with pytest.raises(UserError, match="did you mean 'mixture_weight'"):
        generator.generate(1, control={"mixture_weigth": 0.5}, seed=0)
    with pytest.raises(UserError, match="mixture_weight=3"):
        generator.generate(1, control={"mixture_weight": 3}, seed=0)
    with pytest.raises(UserError, match="route 'hard'"):
        generator.generate(1, routes=["hard"], seed=0)
    with pytest.raises(UserError, match="not in the vocabulary"):
        generator.generate(1, prompt="zzzz", seed=0)


def test_a_vocabulary_without_members_is_told() -> None:
    table = class_table(["it", "1", "9"], [make_recogniser("year", {"pattern": "1[0-9]{3}"})])
    with pytest.raises(UserError, match="no class has a member that is one token of this vocabulary"):
        MicroModelRule(table, {})
