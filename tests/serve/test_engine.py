"""Inside vLLM: each text is the one that ``Steered`` writes in float32, whatever else the engine does.

Run by `make test-vllm`, in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lit_ctg.control import Steered
from tests.serve.conftest import LENGTH, PROMPTS, SERVED, ask, check, close, setting, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


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
    from vllm.exceptions import VLLMValidationError

    before = ask(engine, [(PROMPTS[0], setting("polarity"))])
    for bad in ({"polarty.strength": 1.0}, {"polarity.strength": -1.0}, {"alice.strength": "much"}):
        with pytest.raises(VLLMValidationError, match=r"polarity|alice"):
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
