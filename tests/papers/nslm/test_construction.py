"""A user's class from YAML or Python, without a change to any file of ours (Table 1; the paper's recipe example)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.construction import class_table, make_recogniser, read_classes
from lit_ctg.papers.nslm.occurrence import Evidence, Occurrences
from lit_ctg.papers.nslm.selection import select

RECIPE = """
verb:
  members: {measuring: 1, mixing: 2, baking: 3, cooling: 4}
  metrics: [own_metric.InOrder, frequency]
  densities: [multinomial, unigram]
minutes:
  pattern: '[1-9]0?'
  metrics: [value]
  densities: [gaussian]
"""
OWN = """
import numpy as np
from lit_ctg.papers.nslm.metric_function import Difference

class InOrder(Difference):
    name, kind = "in_order", "flag"

    def values(self, keys_UJ):
        return (super().values(keys_UJ) > 0).astype(float)

    def value_of(self, keys_NJ, index_N):
        return (super().value_of(keys_NJ, index_N) > 0).astype(float)
"""


def test_a_recipe_class_with_a_metric_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "own_metric.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_metric", raising=False)
    table = class_table(
        ["the", "baking", "cooling", "measuring", "mixing", "5"], read_classes(tmp_path / "recipe.yaml").values()
    )
    assert table.names == ("verb", "minutes")
    rng = np.random.default_rng(0)
    order = {token: place for place, token in enumerate(table.classes[0].tokens)}
    steps = [order[word] for word in ("measuring", "mixing", "baking", "cooling")]
    begin_N = rng.integers(0, 3, 200)
    after_N = np.array([rng.integers(begin + 1, 4) for begin in begin_N])
    index_N, previous_N = np.array(steps)[after_N], np.array(steps)[begin_N]
    found = Occurrences(np.arange(200), np.zeros(200, int), index_N, Evidence.of_previous(previous_N))
    minutes = Occurrences(np.arange(1), np.ones(1, int), np.zeros(1, int), Evidence.of_previous([-1]))
    selection = select(table, Occurrences.join([found, minutes]), found)
    chosen = selection.models["verb"]
    assert chosen.metric.name == "in_order"
    after_mixing = np.exp(chosen.log_prob(Evidence.of_previous([order["mixing"]]))[0])
    assert after_mixing[order["measuring"]] < 0.01 < after_mixing[order["baking"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("verb: {pattern: x, kind: city}", "exactly one of pattern, members, kind"),
        ("verb: {pattern: x, colour: red}", "'verb'.*colour"),
        ("verb: 3", "'verb': expected settings"),
        ("- verb", "expected 'name:"),
        ("verb: [", "no YAML"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "classes.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_classes(tmp_path / "classes.yaml")


def test_bad_names_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read classes"):
        read_classes(tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"no LeftContext 'after_moth'.*did you mean 'after_month'"):
        class_table(["4"], [make_recogniser("day", {"pattern": r"\d", "context": "after_moth"})])
    with pytest.raises(UserError, match=r"cannot import 'no.such.Thing'"):
        make_recogniser("x", {"_target_": "no.such.Thing"})
    with pytest.raises(UserError, match="not derived from"):
        make_recogniser("x", {"_target_": "collections.OrderedDict"})
