"""Numbers of the field's records that follow from their texts: a record keeps every text and what was measured of it.

Recounted from the texts themselves are repetition, distinct-n and, where a rule judges, success; the means of the other
measures (success by trained judges, perplexity, copying, attribute words) follow from the numbers beside each text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from lit_ctg.config import plain
from lit_ctg.errors import UserError
from lit_ctg.field.command import compose
from lit_ctg.field.judge import OccurrenceJudge, RuleJudge, WordJudge
from lit_ctg.field.measure import repetition
from lit_ctg.field.rank import HUMAN, check_record, judges_of
from lit_ctg.field.run import summary
from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, exactly, wilson_of
from lit_ctg.run.build import instantiate


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    check_record(record)
    names = judges_of(record)
    for name in names:
        yield from wilson_of(record, f"judge/{name}/accuracy")
    rules = _rules_of(record.config.get("task") or {})
    rows = [_recounted(row, rules) for row in record.samples if row.get("kind") != HUMAN]
    for strength in sorted({row["strength"] for row in rows}):
        own = [row for row in rows if row["strength"] == strength]
        for name, result in summary(own, names).items():
            yield exactly(f"{name}@{strength:g}", result.value, f"{len(own)} texts")


def _recounted(row: Mapping[str, Any], rules: list[OccurrenceJudge]) -> dict[str, Any]:
    """Return a text's row with what the text alone decides counted again."""
    hits = {judge.name: int(judge.has(row["text"], row["target"])) for judge in rules}
    return {**row, **hits, "repetition": round(repetition(row["text"]), 4)}


def _rules_of(task: Mapping[str, Any]) -> list[OccurrenceJudge]:
    """Return the judges of a task that need no training; none of a task that is not as it was."""
    if task.get("column") == "words":
        return [WordJudge(dict(task["labels"]), inflected) for inflected in (False, True)]
    return _named_rules(str(task["name"]), repr(task["rules"])) if task.get("rules") else []


@cache
def _named_rules(name: str, written: str) -> list[OccurrenceJudge]:
    # built from our own configuration: what a record names is not called
    try:
        cfg = compose([f"task={name}"])
    except UserError:
        return []
    if repr(plain(cfg.task).get("rules")) != written:
        return []
    return [RuleJudge(judge, {label: instantiate(rule, "task.rules") for label, rule in own.items()})
            for judge, own in cfg.task.rules.items()]  # fmt: skip
