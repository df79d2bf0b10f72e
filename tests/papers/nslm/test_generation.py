"""Texts from the mixture: reproducible, controlled, explained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.distribution import distributions
from lit_ctg.papers.nslm.generation import NSLMDecoding, TextGenerator
from lit_ctg.papers.nslm.stream import Stream
from lit_ctg.run.build import build_datamodule, build_model


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
        whole = distributions(module, hidden, contexts, ("nslm",))["nslm"]
    torch.testing.assert_close(torch.stack(columns, 1), whole, atol=1e-5, rtol=1e-4)


def test_a_control_sets_the_mixture_and_goes_away(generator: TextGenerator) -> None:
    before = float(generator.module.mixture_weight)
    texts = {weight: generator.generate(8, control={"mixture_weight": weight}, seed=1) for weight in (0, 1)}
    assert float(generator.module.mixture_weight) == before
    assert texts[0] != texts[1]


def test_class_tokens_are_explained(generator: TextGenerator) -> None:
    tokens = generator.module.vocabulary.tokens
    year = next(members for members in generator.module.table.classes if members.name == "year")
    first, second = (int(number) for number in year.ids_K[:2])
    fired = generator._fired([0, first, 3, second, second], 2)
    assert fired == ((tokens[second], "year", tokens[first]), (tokens[second], "year", tokens[second]))


def test_a_prompt_is_prepared_as_the_corpus_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("places")
    cfg = compose(["experiment=nslm/places", "size=smoke", "data.sample_size=6000", f"+data.cache_root={cache}"])
    datamodule = build_datamodule(cfg)
    module: Any = build_model(cfg, datamodule)
    place = next(token for members in module.table.classes for token in members.tokens if "_" in token)
    made = NSLMDecoding(temperature=1.0, top_p=1.0, max_new_tokens=1).generator(module, datamodule)
    assert made.generate(1, prompt=f"in {place.replace('_', ' ')} in")[0].text.startswith(f"in {place} in")


def test_numbers_of_a_prompt_are_joined(generator: TextGenerator) -> None:
    tokens = generator.module.vocabulary.tokens
    number = next(token for token in tokens if "," in token and token.replace(",", "").isdigit())
    split = " @,@ ".join(number.split(","))
    assert generator.generate(1, prompt=f"in {split}")[0].text.startswith(f"in {number} ")


def test_bad_input(generator: TextGenerator) -> None:
    with pytest.raises(UserError, match="did you mean 'mixture_weight'"):
        generator.generate(1, control={"mixture_weigth": 0.5})
    with pytest.raises(UserError, match="from 0 to 1"):
        generator.generate(1, control={"mixture_weight": 3})
    with pytest.raises(UserError, match="not in the vocabulary"):
        generator.generate(1, prompt="zzzz")
