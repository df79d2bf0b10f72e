"""A bench of the smallest size over sample text; what it trains is made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.field.bench import Bench
from lit_ctg.field.command import compose
from lit_ctg.field.run import build_bench

MakeBench = Callable[..., Bench]


@pytest.fixture(scope="session")
def field_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests' runs and shared parts lie."""
    return tmp_path_factory.mktemp("field")


@pytest.fixture(scope="session")
def make_bench(field_root: Path) -> MakeBench:
    """Return a maker of benches; those of the same words are one."""
    made: dict[tuple[str, ...], Any] = {}

    def make(*words: str) -> Bench:
        if words not in made:
            made[words] = build_bench(compose(["size=smoke", *words, f"output_root={field_root}"]))
        return made[words]

    return make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """Of sentiment."""
    return make_bench()
