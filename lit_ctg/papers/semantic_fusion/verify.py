"""Redundant numbers in semantic fusion's records: rates, confusions, gains and floors, and the committed texts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from lit_ctg.papers.semantic_fusion.clause import INTENSIFIERS, NEGATIVE, POSITIVE, resolve_held_out
from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, difference, exactly, from_mean, history_end, rate_intervals, value_of

_CONFUSION = re.compile(r"((?:untrained/)?control/\w+)/confusion/(\w+)/(\w+)")
_GAIN = re.compile(r"((?:untrained/)?control)/\w+/(\w+/\w+)_gain")
_RISE = re.compile(r"(.*/dose/\w+/)rise")
# the request of a setting: polarity of all adjectives, closing mark
STRONG = ("very", "extremely")
ASKED = {"positive": (POSITIVE, "!"), "negative_question": (NEGATIVE, "?"), "negative": (NEGATIVE, None)}


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    """Yield what a record's numbers must be (sec. 3.2, Tables 2 to 4)."""
    yield from history_end(record)
    yield from rate_intervals(record)
    for name, entry in record.metrics.items():
        if (found := _CONFUSION.fullmatch(name)) and found[2] == found[3] and entry["n"]:
            # the trials of the table are those of the rate
            yield exactly(f"{found[1]}/{found[2]}/adjective", entry["value"] / entry["n"], name)
        elif rise := _RISE.fullmatch(name):
            doses = [key for key in record.metrics if key.startswith(rise[1]) and key[len(rise[1]) :][0].isdigit()]
            doses.sort(key=lambda key: float(key.removeprefix(rise[1])))
            yield from difference(record, name, doses[-1], doses[0])
            steps = [value_of(record, high) - value_of(record, low) for low, high in itertools.pairwise(doses)]
            yield exactly(f"{rise[1]}fall", max(0.0, -min(steps)), "the responses")
            if entry["value"] > 0:
                yield exactly(f"{rise[1]}largest_step", max(steps) / entry["value"], "the responses")
        elif found := _GAIN.fullmatch(name):
            yield from difference(record, name, name.removesuffix("_gain"), f"{found[1]}/off/{found[2]}")
    for intended in ("positive", "negative"):
        for prefix in {name.partition("/confusion/")[0] for name in record.metrics if "/confusion/" in name}:
            row = [f"{prefix}/confusion/{intended}/{realized}" for realized in ("positive", "negative", "other")]
            others = sum(value_of(record, name) for name in row[1:])
            yield exactly(row[0], record.metrics[row[0]]["n"] - others, "the rest of its row")
    yield from _texts(record)


def _texts(record: RunRecord) -> Iterator[Recomputed]:
    """Recount the requests in the committed texts of every trial; texts with a prompt are additional ones."""
    data = record.config.get("data") or {}
    if data.get("words"):
        return  # the user's own words have other classes
    held = resolve_held_out(data["held_out"], record.seed) if data.get("held_out") else None
    groups: dict[tuple[str, str], list[str]] = {}
    for sample in record.samples:
        if not sample.get("prompt") and sample.get("setting") in ASKED:
            groups.setdefault((sample["path"], sample["setting"]), []).append(sample["text"])
    for (path, setting), texts in groups.items():
        start, _, name = path.rpartition("/")
        place = "/".join(filter(None, (start, "control", name, setting)))
        wanted, mark = ASKED[setting]
        found = [[word for word in re.findall(r"\w+", text) if word in (*POSITIVE, *NEGATIVE)] for text in texts]
        counted = {"adjective": [bool(words) and all(word in wanted for word in words) for words in found]}
        if setting == "positive":
            graded = [[word for word in re.findall(r"\w+", text) if word in INTENSIFIERS] for text in texts]
            counted["strong"] = [bool(words) and all(word in STRONG for word in words) for words in graded]
        if mark is not None:
            counted["punctuation"] = [re.findall(r"[.!?]", text)[-1:] == [mark] for text in texts]
        if held is not None:
            counted["ood_hit"] = [bool(words) and words[0] in held and words[0] in wanted for words in found]
        for what, hits in counted.items():
            if (entry := record.metrics.get(f"{place}/{what}")) is not None and entry["n"]:
                yield from_mean(f"{place}/{what}", [float(hit) for hit in hits], entry["n"], 0.0, 1.0)
