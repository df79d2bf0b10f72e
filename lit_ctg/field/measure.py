"""Measures of generated texts: success, variety, repetition, copying; and which strength they choose (no torch)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lit_ctg.core.result import Direction, MetricResult
from lit_ctg.field.task import words_of

JUDGES = ("tfidf", "encoder")
# texts of a strength pass with at least this share of the human texts' distinct word pairs, and at most this share of
# repeated word triples
VARIETY, REPETITION = 0.5, 0.2


def ngrams(words: Sequence[str], order: int) -> list[tuple[str, ...]]:
    """Return the n-grams of a text in order."""
    return [tuple(words[start : start + order]) for start in range(len(words) - order + 1)]


def distinct(texts: Iterable[str], order: int) -> float:
    """Return distinct-n: distinct n-grams divided by all n-grams of all texts (Li et al., 2016); 0 without any."""
    found = [gram for text in texts for gram in ngrams(words_of(text), order)]
    return len(set(found)) / len(found) if found else 0.0


def repetition(text: str, order: int = 3) -> float:
    """Return the share of a text's n-grams that occurred in it before; 0 for a text without any."""
    grams = ngrams(words_of(text), order)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class Overlap:
    """The share of a text's n-grams that occur verbatim in a training text."""

    def __init__(self, texts: Iterable[str], order: int = 5) -> None:
        self.order = order
        self.known = {gram for text in texts for gram in ngrams(words_of(text), order)}

    def __call__(self, text: str) -> float:
        """Return the share; 0 for a text shorter than an n-gram."""
        grams = ngrams(words_of(text), self.order)
        return sum(gram in self.known for gram in grams) / len(grams) if grams else 0.0


def word_share(text: str, words: Collection[str]) -> float:
    """Return the share of a text's words that are in a list; 0 for an empty text."""
    own = words_of(text)
    return sum(word in words for word in own) / len(own) if own else 0.0


def choose(rows: Sequence[Mapping[str, Any]], human: Mapping[str, Mapping[str, float]]) -> int:
    """Return the try with the best success among those whose texts pass the bar; the first if none does."""
    found = {}
    for number in sorted({int(row["try"]) for row in rows}):
        own = [row for row in rows if row["try"] == number]
        if passes(own, human):
            found[number] = success(own)
    return max(found, key=lambda number: (found[number], -number)) if found else 0


def success(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of texts of the class that was asked for, mean over the judges."""
    return statistics.fmean(statistics.fmean(row[judge] for judge in JUDGES) for row in rows)


def passes(rows: Sequence[Mapping[str, Any]], human: Mapping[str, Mapping[str, float]]) -> bool:
    """Return whether texts are varied enough to count, in every class."""
    for label, own in human.items():
        texts = [row["text"] for row in rows if row["target"] == label]
        least = VARIETY * own["distinct_2"]
        if distinct(texts, 2) < least or statistics.fmean(map(repetition, texts)) > REPETITION:
            return False
    return True


def summary(rows: Sequence[Mapping[str, Any]], human: Mapping[str, Mapping[str, float]]) -> dict[str, MetricResult]:
    """Return the measures of a run's texts. Intervals need the prompts and are made in ``report.py``."""
    found: dict[str, tuple[float, int, Direction]] = {}
    choice = [row for row in rows if row["part"] == "choice"]
    for number in sorted({int(row["try"]) for row in choice}):
        own = [row for row in choice if row["try"] == number]
        found[f"choice/success@{number}"] = success(own), len(own), "higher"
        found[f"choice/passes@{number}"] = float(passes(own, human)), len(own), "none"
    reported = [row for row in rows if row["part"] == "report"]
    found["chosen"] = float(reported[0]["try"]), 1, "none"
    found["passes"] = float(passes(reported, human)), len(reported), "none"
    for label in human:
        own = [row for row in reported if row["target"] == label]
        for judge in JUDGES:
            found[f"success/{judge}/{label}"] = statistics.fmean(row[judge] for row in own), len(own), "higher"
        found[f"distinct_2/{label}"] = distinct([row["text"] for row in own], 2), len(own), "higher"
        for key in ("repetition", "overlap"):
            found[f"{key}/{label}"] = statistics.fmean(row[key] for row in own), len(own), "lower"
        if all(row["nats"] is not None for row in own):
            size = sum(row["bytes"] for row in own)
            found[f"nats_byte/{label}"] = sum(row["nats"] for row in own) / max(size, 1), len(own), "none"
    return {name: MetricResult(value, "", better, n, None, 1) for name, (value, n, better) in found.items()}
