"""Texts from the final mixture, and the page's example of micro-models on a Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.control.base import Prefix
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.decode import NSLMDecoding, TextGenerator
from lit_ctg.papers.nslm.model import Stream
from lit_ctg.run.build import build_datamodule, build_model
from tests.tiny import make_gpt2, make_tokenizer


def byte_level_model(folder: Path, text: str) -> None:
    """Save a tiny GPT-2 whose byte-level vocabulary has the words of a text, each behind a blank."""
    tokenizer = make_tokenizer([text], 2000)
    tokenizer.save_pretrained(folder)
    model = make_gpt2(len(tokenizer), layers=1, dim=16, heads=2, positions=64, end=tokenizer.eos_token_id, seed=0)
    model.save_pretrained(folder)


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
    control, tokenizer, model = names["control"], names["tokenizer"], names["model"]
    assert [each.name for each in control.classes] == ["year"] and len(control.classes[0].texts) > 20
    assert "year" in capsys.readouterr().out
    prompt = tokenizer("It began in 1914 and ended in", return_tensors="pt")
    scores = model(**prompt).logits[:, -1].detach()
    (fired,) = control.explain(prompt.input_ids, scores)[0]
    assert (fired.class_name, fired.previous) == ("year", "1914") and 0 < fired.mass < 1
    # inside the class the next year is near the one before; without the control it is anywhere
    texts = [text for text in control.classes[0].texts if len(tokenizer(f" {text}").input_ids) == 1]
    ids = [tokenizer(f" {text}").input_ids[0] for text in texts]
    near_K = np.abs(np.array(texts, dtype=float) - 1914) <= 6
    ruled = control.rule({"strength": torch.ones(1)}, Prefix())(prompt.input_ids, scores)
    inside_K, bare_K = (each[0, ids].softmax(0).numpy() for each in (ruled, scores))
    assert inside_K[near_K].sum() > 0.6 > 0.5 > bare_K[near_K].sum()


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> TextGenerator:
    cache = tmp_path_factory.mktemp("cache")
    cfg = compose(["experiment=nslm/numbers", "size=smoke", "data.sample_size=3000", f"+data.cache_root={cache}"])
    datamodule = build_datamodule(cfg)
    module: Any = build_model(cfg, datamodule)
    return NSLMDecoding(temperature=1.0, top_p=1.0, max_new_tokens=8).generator(module, datamodule)


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


def test_a_prompt_is_prepared_as_the_corpus_is(generator: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("places")
    cfg = compose(["experiment=nslm/places", "size=smoke", "data.sample_size=6000", f"+data.cache_root={cache}"])
    datamodule = build_datamodule(cfg)
    module: Any = build_model(cfg, datamodule)
    place = next(token for members in module.table.classes for token in members.tokens if "_" in token)
    made = NSLMDecoding(temperature=1.0, top_p=1.0, max_new_tokens=1).generator(module, datamodule)
    assert made.generate(1, prompt=f"in {place.replace('_', ' ')} in", seed=0)[0].text.startswith(f"in {place} in")
    # and so are numbers
    tokens = generator.module.vocabulary.tokens
    number = next(token for token in tokens if "," in token and token.replace(",", "").isdigit())
    split = " @,@ ".join(number.split(","))
    assert generator.generate(1, prompt=f"in {split}", seed=0)[0].text.startswith(f"in {number} ")


def test_bad_input(generator: TextGenerator) -> None:
    for options, message in (
        ({"control": {"mixture_weight": 3}}, "mixture_weight=3"),
        ({"prompt": "zzzz"}, "not in the vocabulary"),
    ):
        with pytest.raises(UserError, match=message):
            generator.generate(1, seed=0, **options)
