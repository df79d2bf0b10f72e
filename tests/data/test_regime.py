"""conf/data: a corpus that several papers read depends on the regime of none of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lit_ctg.config import compose, experiments

CONF = Path(__file__).resolve().parents[2] / "conf"
CORPORA = sorted(path.stem for path in (CONF / "data").glob("*.yaml"))


def named(name: str) -> Iterator[Path]:
    """Yield the options and experiments that name a corpus, in a list of defaults or as a value."""
    word = re.compile(rf"^\s*- .*data.*[ /]{name}\s*$", re.MULTILINE)
    yield from (path for path in CONF.rglob("*.yaml") if word.search(path.read_text(encoding="utf-8")))


def papers(name: str) -> set[str]:
    """Return the papers whose options read a corpus: by the folder or the name of the option."""
    known = {path.name for path in (CONF / "experiment").iterdir()}
    found = set()
    for path in named(name):
        parts = path.relative_to(CONF).with_suffix("").parts
        found |= {paper for paper in known for part in parts[1:] if part == paper or part.startswith(f"{paper}_")}
    return found


def corpora(node: object) -> list[dict]:
    """Return every data module of a resolved configuration that is not the run's own."""
    if isinstance(node, dict):
        own = [node] if str(node.get("_target_", "")).endswith("DataModule") else []
        return own + [found for value in node.values() for found in corpora(value)]
    return []


SHARED = [name for name in CORPORA if len(papers(name)) > 1]


def test_reviews_are_read_by_two_papers() -> None:
    assert "reviews" in SHARED and papers("reviews") >= {"graphmax", "control_code"}
    assert papers("clause") == {"semantic_fusion"}


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_corpus_has_no_regime(name: str) -> None:
    texts = [
        OmegaConf.to_container(
            compose([f"data={name}", f"regime={regime}", "paper=x", "name=x"], experiment=False).data, resolve=True
        )
        for regime in ("as_published", "corrected")
    ]
    assert texts[0] == texts[1]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in experiments() if name.startswith("graphmax/")])
def test_both_columns_of_graphmax_read_the_same_texts(name: str) -> None:
    path = "model.path=x" if name == "graphmax/pretrained_translation" else "backbone.path=x"
    words, found = [f"experiment={name}", *[path] * ("pretrained" in name)], []
    for regime in ("as_published", "corrected"):
        cfg = OmegaConf.to_container(compose([*words, f"regime={regime}"]), resolve=True)
        found.append(corpora({key: cfg[key] for key in ("data", "model", "callback") if cfg.get(key)}))
    assert found[0] == found[1] and found[0]
