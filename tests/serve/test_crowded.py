"""A crowded engine: many requests share prefixes and little memory, and each text is the one it gets alone.

Of its own process: on a CPU two engines do not fit in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.control import Steered
from tests.serve.conftest import IN_LAYERS, PROMPTS, SERVED, ask, check, close, setting, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


# longer than a block of the cache
LONG = (
    "Once upon a time there was a man who lived by the sea. Every day he walked along the shore and looked for shells, "
    "and every night he told his children about them. One day he found"
)


@pytest.fixture(scope="module")
def crowded(words: list[str]) -> Iterator[Any]:
    """An engine with prefix caching and so little memory that it sets requests back."""
    options = {"max_num_seqs": 64, "block_size": 32, "num_gpu_blocks_override": 40, "disable_log_stats": False}
    found = start([word for word in words if Path(word).name not in IN_LAYERS], **options)
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
    asked = [(LONG, setting(names[place % len(names)])) for place in range(48)]
    made = ask(crowded, asked, 30)
    counts = {metric.name: getattr(metric, "value", 0) for metric in crowded.get_metrics()}
    assert counts["vllm:num_preemptions"] > 0 and counts["vllm:prefix_cache_hits"] > 0
    assert sum(ids != made[place % len(names)] for place, ids in enumerate(made)) <= 2, "but for ties"
    check(steered, asked[: len(names)], made[: len(names)], 30)
