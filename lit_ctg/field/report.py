"""`lit-ctg field report`: the tables and the chart of the field's records (no torch).

Methods wrote from the same prompts with the same random numbers, so they are compared within prompts.

Shape letters: Z seeds, P prompts, C classes, K samples, R resamplings.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_ctg.errors import UserError, refuse, within
from lit_ctg.field.measure import JUDGES
from lit_ctg.figure import Bar, BarGroup, Sheet, bar_chart
from lit_ctg.files import write_atomic
from lit_ctg.limits import Count, check_value
from lit_ctg.results.record import HASH_IGNORED, RECORDS, SIZES, RunRecord, config_hash, load_records
from lit_ctg.results.render import escape_markdown
from lit_ctg.statistics import Interval, holm
from lit_ctg.terminal import Console

PAPER, TABLES, CHART = "field", "tables.md", "headline.svg"
# of the confirmatory family, and of every method without the class
INSTRUCTION, REFERENCES = "instruction", ("bare", "neutral")
RESAMPLES, FLIPS = 2000, 10_000
BEST = 6
LONGEST = 160  # letters of a sample
DEAR = 0.1  # nats a byte further from human texts, from which on the chart says so
TITLES = {
    **{"bare": "Model alone", "neutral": "Instruction without the class", "instruction": "Instruction"},
    **{"examples": "Examples in the prompt", "best_of": "Best of 4 texts", "log_odds": "Log-odds word bias"},
    **{"lexicon": "Word list", "memory": "Memory of n-grams", "graphmax": "Graphmax", "idea_gate": "Idea gate"},
    **{"fudge": "FUDGE", "vector": "Activation vector", "gradient": "Gradient of a probe", "lora": "LoRA"},
    **{"dexperts": "DExperts", "gedi": "GeDi", "soft_prompt": "Code in the prompt"},
    **{"neuron_codes": "Codes at every neuron", "bundle": "A saved control"},
}
_READ: dict[str, Any] = {
    **dict.fromkeys(("task", "data", "judges", "train", "decode"), Mapping),
    **dict.fromkeys(("decode.prompts", "decode.samples", "decode.words"), Count),
    "model": str, "method": str, "data.source": str,
}  # fmt: skip
_ROW: dict[str, Any] = {
    **dict.fromkeys(("place", "copy", "try", "bytes", *JUDGES), int), "strength": (int, float),
    "repetition": (int, float), "overlap": (int, float), "prompt": str, "target": str, "part": str,
    "nats": (int, float, type(None)),
}  # fmt: skip
_PER_CLASS = ("distinct_2", "repetition", "overlap", *(f"success/{judge}" for judge in JUDGES))
_COSTS = ("cost/seconds_ratio", "cost/training_seconds", "side/nats", "side/changed", "passes")


def task_of(record: RunRecord) -> str:
    """Return the task of a record named ``<task>-<method>``."""
    return record.name.partition("-")[0]


def method_of(record: RunRecord) -> str:
    """Return the method of a record named ``<task>-<method>``."""
    return record.name.partition("-")[2]


def title_of(method: str) -> str:
    """Return what people call a method or ``instruction+<method>``."""
    return " + ".join(TITLES.get(part, part) for part in method.split("+"))


def number(record: RunRecord, name: str) -> float:
    return float(record.metrics[name]["value"])


def classes_of(record: RunRecord) -> list[str]:
    return sorted({row["target"] for row in record.samples})


def human_of(record: RunRecord) -> dict[str, dict[str, float]]:
    """Return class -> the measures of human texts."""
    return {
        label: {"distinct_2": number(record, f"human/distinct_2/{label}")} for label in classes_of(record)
    }  # fmt: skip


def check_record(record: RunRecord) -> RunRecord:
    """Return a record of the field if it has all that reports read.

    Raises:
        UserError: it was damaged or not made by ``lit-ctg field run``; names the file and the field.
    """
    with within(record.source, "no run of the field writes this: delete the file"):
        for key, hint in _READ.items():
            value: Any = record.config
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            check_value(f"config.{key}", value, hint, composed=False)
        refuse(
            f"text {line}, {key}: {str(row.get(key))[:40]} is of another kind"
            for line, row in enumerate(record.samples, start=1)
            for key, kind in _ROW.items()
            if key not in row or not isinstance(row[key], kind)
        )
        reported = [row for row in record.samples if row["part"] == "report"]
        names = [f"{name}/{label}" for name in (*_PER_CLASS, "human/distinct_2") for label in classes_of(record)]
        names += [f"human/{judge}/{label}" for judge in JUDGES for label in classes_of(record)]
        names += [f"judge/{judge}/accuracy{length}" for judge in JUDGES for length in ("", "_30")]
        refuse({
            "name: give <task>-<method>": not re.fullmatch(r"\w+-[\w.+-]+", record.name),
            **{f"metrics.{name} is missing": name not in record.metrics for name in (*names, *_COSTS, "chosen")},
            "samples: no text of the report": not reported,
        })  # fmt: skip
    return record


def load(records: Sequence[str] | None) -> list[RunRecord]:
    """Return the finished records of the field in some folders.

    By default those of ``outputs/field``, or the committed ones if it does not exist.
    """
    from lit_ctg.results.spec import experiments_root

    places = [Path(folder) for folder in records or ()]
    refuse({f"no records at {place}: pass a folder of the field's runs with records=": not place.exists()
            for place in places})  # fmt: skip
    own = Path("outputs") / PAPER
    places = places or [own if own.is_dir() else experiments_root() / PAPER / RECORDS]
    found = load_records(places)
    return [check_record(record) for record in found if record.paper == PAPER and record.status == "DONE"]


@dataclass(frozen=True)
class Sweep:
    """The reported texts of one method.

    Attributes:
        success_PC: mean over judges, samples and seeds, 0 to 1.
        nats_C: nats a byte under the other model, NaN without one; human_C: of human texts.
    """

    method: str
    records: tuple[RunRecord, ...]
    success_PC: np.ndarray
    nats_C: np.ndarray
    human_C: np.ndarray

    def mean(self, name: str) -> float:
        return statistics.fmean(number(record, name) for record in self.records)


def sweep(records: Sequence[RunRecord]) -> Sweep:
    """Return the reported texts of the records of a method, one for each seed."""
    tables = []
    for record in records:
        rows = [row for row in record.samples if row["part"] == "report"]
        labels, places = classes_of(record), sorted({row["place"] for row in rows})
        cells = [[[row[judge] for row in rows if (row["place"], row["target"]) == (place, label) for judge in JUDGES]
                  for label in labels] for place in places]  # fmt: skip
        if len({len(cell) for line in cells for cell in line}) > 1:
            raise UserError(f"{record.source}: texts are missing beside the record: run it again")
        tables.append(np.mean(cells, axis=2))
    if len({table.shape for table in tables}) > 1:
        raise UserError(f"{method_of(records[0])}: its seeds have different prompts: run them with one configuration")

    def per_class(name: str) -> np.ndarray:
        values = [[record.metrics.get(f"{name}/{label}", {"value": np.nan})["value"] for label in classes_of(record)]
                  for record in records]  # fmt: skip
        return np.mean(values, axis=0)

    shown = method_of(records[0]), tuple(records), np.mean(tables, axis=0)
    return Sweep(*shown, per_class("nats_byte"), per_class("human/nats_byte"))


def sweeps(records: Sequence[RunRecord]) -> dict[str, Sweep]:
    """Return method -> its texts.

    Raises:
        UserError: records of another model, data or settings than the first, or two of one seed.
    """
    by_method: dict[str, list[RunRecord]] = {}
    first = bench_key(records[0])
    for record in sorted(records, key=lambda each: each.seed):
        own = by_method.setdefault(method_of(record), [])
        refuse({
            f"{record.source}: another model, data or setting than {records[0].source}: give records= of one of them":
                bench_key(record) != first,
            f"{method_of(record)}: two runs of seed {record.seed}, {record.source}: give records= with one of them":
                record.seed in [each.seed for each in own],
        })  # fmt: skip
        own.append(record)
    return {method: sweep(own) for method, own in by_method.items()}


def bench_key(record: RunRecord) -> str:
    """Return what runs share whose texts may be compared."""
    return config_hash(record.config, [*HASH_IGNORED, "method", "name", "seed", "bundle"]) + str(record.corpus)


def interval(value_P: np.ndarray, seed: int = 0) -> Interval:
    """Return the 95% bootstrap interval of a mean over prompts."""
    chosen_RP = np.random.default_rng(seed).integers(0, len(value_P), size=(RESAMPLES, len(value_P)))
    low, high = np.quantile(value_P[chosen_RP].mean(1), [0.025, 0.975])
    return float(low), float(high)


def p_value(difference_P: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p-value of a mean over prompts by flipping the signs of prompts at random."""
    signs_RP = np.random.default_rng(seed).choice([-1.0, 1.0], size=(FLIPS, len(difference_P)))
    drawn_R = np.abs((signs_RP * difference_P).mean(1))
    return float((1 + (drawn_R >= abs(difference_P.mean()) - 1e-12).sum()) / (FLIPS + 1))


def reference_of(method: str, found: Mapping[str, Sweep]) -> Sweep | None:
    """Return the texts in a method's format without the class, None where they were not written."""
    asked = method in (INSTRUCTION, REFERENCES[1]) or method.startswith(f"{INSTRUCTION}+")
    return found.get(REFERENCES[asked])


def cost(own: Sweep, reference: Sweep) -> float:
    """Return how much further from human texts a method's nats a byte are than its reference's, mean over classes."""
    return float(np.mean(np.abs(own.nats_C - own.human_C) - np.abs(reference.nats_C - reference.human_C)))


def ordered(found: Mapping[str, Sweep]) -> list[str]:
    """Return the methods by success, best first."""
    return sorted(found, key=lambda method: (-found[method].success_PC.mean(), method))


def report(
    records: Sequence[str] | None = None,
    out: str | None = None,
    size: str | None = None,
    *,
    console: Console | None = None,
) -> int:
    """Print the tables of every task; with ``out`` write them and the chart there.

    Args:
        records: folders; by default ``outputs/field``, or the committed records if it does not exist.
        size: of the runs; by default the largest that was run.

    Raises:
        UserError: no records, or records that cannot be compared.
    """
    shown = console or Console(soft_wrap=True, highlight=False)
    loaded = load(records)
    size = size or next((each for each in reversed(SIZES) if any(record.size == each for record in loaded)), None)
    chosen = [record for record in loaded if record.size == size]
    if not chosen:
        raise UserError(f"no record of the field{f' of size={size}' if size else ''}: lit-ctg field run makes some")
    pages, tasks = [], {}
    for task in sorted({task_of(record) for record in chosen}):
        own = [record for record in chosen if task_of(record) == task]
        first = sweeps([record for record in own if record.seed == min(each.seed for each in own)])
        new = [record for record in own if record.seed > min(each.seed for each in own)]
        tasks[task] = first
        pages += [task_page(task, first), *([new_seeds(sweeps(new), ordered(first)[:BEST])] if new else [])]
    whole = "# The level field: measured\n\nWritten by `lit-ctg field report`; do not edit.\n\n" + "\n".join(pages)
    if out is None:
        shown.print(whole, markup=False)
        return 0
    write_atomic(Path(out) / TABLES, whole)
    chart(tasks).save(Path(out) / "figures" / CHART)
    shown.print(f"{TABLES} and figures/{CHART} in {out}", markup=False)
    return 0


def task_page(task: str, found: Mapping[str, Sweep]) -> str:
    """Return the page of one task as Markdown."""
    some = next(iter(found.values())).records[0]
    decode, model = some.config["decode"], escape_markdown(some.config["model"])
    source = escape_markdown(some.config["data"]["source"])
    lines = [f"## {task}", "", f"Model {model}; {decode['prompts']} prompts, {decode['samples']} x {decode['words']} "
             f"words for each and class; seed {some.seed}; data.source={source}.", "",
             *judge_table(some), "", *main_table(found), "", *family(found), ""]  # fmt: skip
    return "\n".join([*lines, *samples(found), ""])


def judge_table(record: RunRecord) -> list[str]:
    """Return how often the judges recognise human texts."""
    rows = []
    for judge in JUDGES:
        long, short = (record.metrics[f"judge/{judge}/accuracy{length}"] for length in ("", "_30"))
        recall = [f"{number(record, f'human/{judge}/{label}'):.2f}" for label in classes_of(record)]
        rows.append([judge, _with(long["value"], long["ci95"]), f"{short['value']:.2f}", *recall])
    heads = [f"called {escape_markdown(label)}" for label in classes_of(record)]
    return _table(["judge of human texts", "right at 60 words", "at 30", *heads], rows)


def main_table(found: Mapping[str, Sweep]) -> list[str]:
    """Return success, gain and costs of every method."""
    rows = []
    for method in ordered(found):
        own, other = found[method], reference_of(method, found)
        gain_P = None if other is None else (own.success_PC - other.success_PC).mean(1)
        dear = np.nan if other is None else cost(own, other)
        classes = classes_of(own.records[0])
        copied = statistics.fmean(own.mean(f"overlap/{label}") for label in classes)
        varied = statistics.fmean(own.mean(f"distinct_2/{label}") for label in classes)
        rows.append([
            escape_markdown(method), _with(own.success_PC.mean(), interval(own.success_PC.mean(1))),
            "" if gain_P is None else _with(gain_P.mean(), interval(gain_P), "+"),
            "" if np.isnan(dear) else f"{dear:+.2f}", f"{varied:.2f}{'' if own.mean('passes') else ' (fails)'}",
            f"{copied:.3f}", f"{own.mean('side/nats'):+.2f}", f"{own.mean('side/changed'):.2f}",
            f"{own.mean('cost/seconds_ratio'):.2f}", f"{own.mean('cost/training_seconds'):.0f} s",
        ])  # fmt: skip
    heads = ["control", "success", "more than without the class", "fluency: nats a byte further from human texts",
             "distinct pairs", "copied", "unrelated text: nats a token", "continuations changed", "time a token",
             "training"]  # fmt: skip
    return _table(heads, rows)


def family(found: Mapping[str, Sweep]) -> list[str]:
    """Return the confirmatory comparisons: each method against the instruction, p-values adjusted by Holm's method."""
    if INSTRUCTION not in found:
        return ["The instruction was not run, so nothing is compared with it."]
    others = [method for method in ordered(found) if method not in (INSTRUCTION, *REFERENCES)]
    apart = {method: (found[method].success_PC - found[INSTRUCTION].success_PC).mean(1) for method in others}
    adjusted = holm([p_value(each_P) for each_P in apart.values()])
    rows = [[escape_markdown(method), _with(each_P.mean(), interval(each_P), "+"), f"{p:.4f}"]
            for (method, each_P), p in zip(apart.items(), adjusted, strict=True)]  # fmt: skip
    return _table(["against the instruction", "success", "p (Holm)"], rows)


def new_seeds(found: Mapping[str, Sweep], named: Sequence[str]) -> str:
    """Return the comparison of the best methods of the first seed on other seeds only."""
    own = {method: found[method] for method in (*named, INSTRUCTION, *REFERENCES) if method in found}
    if not own:
        return ""
    seeds = sorted({record.seed for each in own.values() for record in each.records})
    title = f"### The best {BEST} of the first seed, on seeds {', '.join(map(str, seeds))}"
    return "\n".join([title, "", *main_table(own), "", *family(own), ""])


def samples(found: Mapping[str, Sweep]) -> list[str]:
    """Return a text of each method that both judges assign to its class."""
    rows = []
    for method in ordered(found):
        texts = [row for record in found[method].records for row in record.samples
                 if row["part"] == "report" and all(row[judge] for judge in JUDGES)]  # fmt: skip
        if texts:
            row = min(texts, key=lambda each: (each["overlap"] + each["repetition"], each["place"]))
            text = " ".join(row["text"].split())[:LONGEST]
            rows.append([escape_markdown(each) for each in (method, row["target"], f"{row['prompt']} ... {text}")])
    return _table(["control", "asked", "a text that both judges accept"], rows)


def chart(tasks: Mapping[str, Mapping[str, Sweep]]) -> Sheet:
    """Return the bars of success of each task, those of the models without the class in grey."""
    charts = []
    for task, found in tasks.items():
        groups = []
        for method in ordered(found):
            own, other = found[method], reference_of(method, found)
            dear = cost(own, other) if other else 0.0
            label = title_of(method) + (f" (fluency {-dear:+.2f})" if dear >= DEAR else "")
            kind = "neutral" if method in REFERENCES else "series1" if method == INSTRUCTION else "series0"
            success = Bar(kind, own.success_PC.mean(), interval(own.success_PC.mean(1)))
            groups.append(BarGroup(label, [success], digits=2))
        measure = "share of texts as asked; longer is better"
        charts.append(bar_chart(f"Task: {task}", groups, measure=measure, low=0.0, high=1.0, beside=True))
    return Sheet(charts, (), f"The level field: share of texts of the class asked for. {', '.join(tasks)}")


def _with(value: float, ends: Sequence[float] | None, sign: str = "") -> str:
    shown = f"{value:{sign}.2f}"
    return shown if ends is None else f"{shown} [{ends[0]:{sign}.2f}, {ends[1]:{sign}.2f}]"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
