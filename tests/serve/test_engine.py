"""Inside vLLM: each text is the one that ``Steered`` writes in float32, whatever else the engine does.

Run by `make test-vllm`, in an environment of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lit_ctg.control import Steered
from lit_ctg.network.pretrained import models_folder
from lit_ctg.serve.plugin import VARIABLE
from tests.serve.conftest import SERVED, setting, written

# with them keys and values of a text depend on its settings
IN_LAYERS = ("sentiment",)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
# a choice closer than this may fall either way by rounding
TIE = 1e-3
PROMPTS = ("The acid", "Once upon a time", " the acid began in", "I went to the cinema and", "Alice was")
LENGTH = 10


def start(words: Sequence[str], **options: Any) -> Any:
    """Return vLLM's engine on SmolLM2."""
    vllm = pytest.importorskip("vllm")
    os.environ[VARIABLE] = ",".join(words)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # a minute less
    own = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 16, "seed": 0}
    own |= {"distributed_executor_backend": "uni"}
    return vllm.LLM(str(models_folder() / "smollm2"), **(own | options))


def close(engine: Any) -> None:
    engine.llm_engine.engine_core.shutdown()


def ask(engine: Any, asked: Sequence[tuple[str, dict[str, float]]], length: int = LENGTH) -> list[list[int]]:
    from vllm import SamplingParams

    params = [SamplingParams(temperature=0, max_tokens=length, extra_args={"lit_ctg": each}) for _, each in asked]
    made = engine.generate([prompt for prompt, _ in asked], params, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in made]


def check(steered: Steered, asked: Sequence[tuple[str, dict[str, float]]], made: list[list[int]], length: int) -> None:
    """Compare with ``Steered``; a text with a tie is compared no further."""
    ties = 0
    for (prompt, settings), ids in zip(asked, made, strict=True):
        expected, apart = written(steered, prompt, settings, length)
        if ids != expected:
            assert apart < TIE, f"{prompt} {settings}: {steered.tokenizer.decode(ids)}"
            ties += 1
    assert ties <= len(asked) // 10


@pytest.fixture(scope="module")
def engine(words: list[str]) -> Iterator[Any]:
    found = start(words)
    yield found
    close(found)


def mixed() -> list[tuple[str, dict[str, float]]]:
    """Each control alone, several together, none, and strength 0."""
    asked: list[tuple[str, dict[str, float]]] = [
        (PROMPTS[2] if name == "grammar" else PROMPTS[place % 5], setting(name)) for place, name in enumerate(SERVED)
    ]
    together = [("polarity", "alice"), ("sentiment", "on_topic", "token_bias"), ("graphmax", "future")]
    asked += [(PROMPTS[1], {k: v for name in names for k, v in setting(name).items()}) for names in together]
    return [*asked, (PROMPTS[0], {}), (PROMPTS[3], {})]


@pytest.mark.parametrize("batch", [1, 16])
def test_greedy_texts_are_those_of_steered(engine: Any, steered: Steered, batch: int) -> None:
    asked = mixed()
    made = [ids for at in range(0, len(asked), batch) for ids in ask(engine, asked[at : at + batch])]
    check(steered, asked, made, LENGTH)


def test_strength_0_is_the_bare_engine(engine: Any) -> None:
    off = {key: 0.0 for name in SERVED for key in setting(name) if key.endswith((".strength", ".alpha"))}
    assert ask(engine, [(prompt, off) for prompt in PROMPTS]) == ask(engine, [(prompt, {}) for prompt in PROMPTS])


def test_bad_settings_end_their_request_alone(engine: Any) -> None:
    before = ask(engine, [(PROMPTS[0], setting("polarity"))])
    for bad in ({"polarty.strength": 1.0}, {"polarity.strength": -1.0}, {"alice.strength": "much"}):
        with pytest.raises(ValueError, match=r"polarity|alice"):
            ask(engine, [(PROMPTS[0], bad)])
    assert ask(engine, [(PROMPTS[0], setting("polarity"))]) == before


def test_requests_that_come_late_or_are_given_up_change_no_other(engine: Any) -> None:
    from vllm import SamplingParams

    asked, core, made = mixed(), engine.llm_engine, dict[str, list[int]]()
    expected = ask(engine, asked)
    for step in range(200):
        if step < len(asked):
            extra = {"lit_ctg": asked[step][1]}
            params = SamplingParams(temperature=0, max_tokens=LENGTH, extra_args=extra)
            core.add_request(str(step), asked[step][0], params)
        if step in (3, 8):
            core.abort_request([str(step - 2)])
        for output in core.step():
            if output.finished:
                made[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)
        if step >= len(asked) and not core.has_unfinished_requests():
            break
    left = [place for place in range(len(asked)) if place not in (1, 6)]
    assert [made[str(place)] for place in left] == [expected[place] for place in left]


@pytest.fixture(scope="module")
def crowded(words: list[str]) -> Iterator[Any]:
    """An engine with prefix caching and so little memory that it sets requests back."""
    options = {"max_num_seqs": 64, "block_size": 16, "num_gpu_blocks_override": 64, "disable_log_stats": False}
    found = start([word for word in words if word not in IN_LAYERS], **options)
    yield found
    close(found)


def test_200_requests_are_each_as_alone(crowded: Any) -> None:
    names, count = [name for name in SERVED if name not in (*IN_LAYERS, "grammar", "graphmax")], 200
    asked = []
    for place in range(count):
        own = setting(names[place % len(names)])
        strength = next(key for key in own if key.endswith((".strength", ".alpha")))
        scale = 0.5 if "micro" not in strength else 1 / count
        asked.append((PROMPTS[place % 5], {**own, strength: scale * (1 + place) / (1 if scale < 0.1 else 20)}))
    assert len({str(settings) for _, settings in asked}) == count
    together = ask(crowded, asked, 8)
    alone = [ids for each in asked for ids in ask(crowded, [each], 8)]
    assert sum(one != other for one, other in zip(together, alone, strict=True)) <= count // 50, "but for ties"


def test_texts_go_on_after_they_were_set_back_and_share_prefixes(crowded: Any, steered: Steered) -> None:
    names = [name for name in SERVED if name not in (*IN_LAYERS, "grammar", "graphmax")]
    asked = [(f"{PROMPTS[1]} {PROMPTS[3]} there was", setting(names[place % len(names)])) for place in range(48)]
    made = ask(crowded, asked, 24)
    counts = {metric.name: getattr(metric, "value", 0) for metric in crowded.get_metrics()}
    assert counts["vllm:num_preemptions"] > 0 and counts["vllm:prefix_cache_hits"] > 0
    for place, ids in enumerate(made):
        assert ids == made[place % len(names)]
    check(steered, asked[: len(names)], made[: len(names)], 24)
