"""`lit-ctg field run`: one method on one task and seed: learn, choose a strength, write, judge, record."""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from lit_ctg.config import plain
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, one_line
from lit_ctg.field.bench import LENGTHS, Arm, Bench, Parts, alike, facts
from lit_ctg.field.command import check_parts, combinations, complete, compose, options
from lit_ctg.field.log import log
from lit_ctg.field.measure import choose, distinct, repetition, summary
from lit_ctg.field.methods import BUDGETS, METHODS, Arms, Method, method_named
from lit_ctg.field.methods import complete as complete_methods
from lit_ctg.files import write_atomic, write_samples
from lit_ctg.network.pretrained import Loading
from lit_ctg.results.record import HASH_IGNORED, config_hash, load_records, write_record
from lit_ctg.run.build import chosen, instantiate
from lit_ctg.run.directory import Finished, claim, run_stem
from lit_ctg.run.quiet import quiet
from lit_ctg.run.train import Outcome, SameCorpus, new_record
from lit_ctg.terminal import Console

_logger = logging.getLogger(__name__)

PAPER, SAMPLES, CELLS = "field", "samples.jsonl", "cells"
Row = dict[str, Any]


def run(cfg: DictConfig, benches: dict[str, Bench] | None = None) -> Outcome:
    """Run one configuration of ``conf/field`` and leave ``run.json`` and ``samples.jsonl`` in its run directory.

    Args:
        benches: benches by hash, shared by runs of a sweep that differ only in the method.

    Raises:
        UserError: bad input; the record says FAILED and why.
    """
    config = plain(cfg)
    digest = config_hash(config)
    stem = run_stem(Path(cfg.output_root), PAPER, cfg.name, cfg.regime.name, cfg.size.name, cfg.seed, digest)
    console = Console(soft_wrap=True, highlight=False)
    same = SameCorpus(lambda: {"text": instantiate(cfg.data, "data").checksum()})
    directory = claim(stem, cfg.skip_completed, same)
    if isinstance(directory, Finished):
        note = f"skipped: {directory.busy} is running it" if directory.busy else "done already, skipped"
        console.print(f"{note}: {directory.path}", markup=False)
        return Outcome("BUSY" if directory.busy else "SKIPPED", directory.path)
    record = new_record(cfg, config, digest, PAPER)
    record.device, record.threads = str(cfg.device), torch.get_num_threads()
    began = time.monotonic()
    with directory:
        try:
            with quiet():
                key = config_hash(config, without=[*HASH_IGNORED, "method", "name", "bundle"])
                shared = {} if benches is None else benches
                if key not in shared:
                    shared.clear()  # one bench at a time: models take memory
                    shared[key] = build_bench(cfg)
                bench = shared[key]
                bench.bundle, bench.training_seconds = cfg.bundle, 0.0
                record.metrics = measure(bench, method_named(cfg.method), directory.path)
            record.corpus = bench.identity
            record.status, record.error = "DONE", None
            record.wall_time_s = round(time.monotonic() - began, 3)
            write_record(record, directory.record)
            shutil.rmtree(directory.path / CELLS, ignore_errors=True)
        except Exception as error:
            record.error = one_line(error)
            write_record(record, directory.record)
            raise
    console.print(f"record: {directory.record}", markup=False)
    if chosen(cfg.logger):
        (done,) = load_records([directory.path])  # with its texts
        log(done, config["logger"]["wandb"], directory.path)
    return Outcome("DONE", directory.path)


def build_bench(cfg: DictConfig) -> Bench:
    """Build the bench of a configuration: everything except the method."""
    config = plain(cfg)
    check_parts(config)
    return Bench(
        task=instantiate(cfg.task, "task", data=instantiate(cfg.data, "data")),
        parts=Parts(Path(cfg.output_root) / PAPER / "parts"),
        loading=Loading(config["device"], config["dtype"]),
        **{key: config[key] for key in ("model", "fluency", "judges", "train", "decode", "seed", "bundle")},
    )


class Cells:
    """What an interrupted run has finished, a file each.

    Args:
        identity: what all of it depends on; a file of anything else is made again.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder, self.identity = folder, dict(identity)

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the plain value of a cell, made now if it is missing or damaged."""
        path = self.folder / f"{name}.json"
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["identity"] == self.identity:
                return kept["value"]
        except FileNotFoundError:
            pass
        except (RecursionError, TypeError, KeyError, ValueError):
            _logger.warning("%s is damaged: it is made again", path)
        value = make()
        write_atomic(path, json.dumps({"identity": self.identity, "value": value}, ensure_ascii=False))
        return value


def measure(bench: Bench, method: Method, folder: Path) -> dict[str, dict[str, Any]]:
    """Learn, choose, write and judge; leave the texts in ``folder`` and return the record's metrics."""
    bench.proofs  # noqa: B018 # a task that its judges do not know is not run
    cells, targets = Cells(folder / CELLS, bench.identity), bench.task.targets
    arms, reference = method.arms(bench), METHODS[method.reference].arms(bench)
    values = cells.get("strengths", lambda: {
        label: list(method.tries or bench.strengths(arms[label], BUDGETS)) for label in targets
    })  # fmt: skip

    # classes that the same controls serve write in one batch, at all strengths
    groups = list[list[str]]()
    for label in targets:
        mates = next((group for group in groups if alike(arms[group[0]], arms[label])), None)
        groups.append([label]) if mates is None else mates.append(label)

    def texts(part: str, numbers: Sequence[int]) -> list[Row]:
        found = list[Row]()
        for group in groups:
            ways = [Way(arms[label], label, number, values[label][number]) for number in numbers for label in group]
            found += cells.get(f"{part}-{'-'.join(group)}", partial(written, bench, ways, part))
        return found

    tries, rows = range(len(values[targets[0]])), list[Row]()
    if len(tries) > 1:
        rows = texts("choice", tries)
    human = human_texts(bench)
    best = choose(rows, human) if rows else 0
    rows += texts("report", [best])
    side = cells.get("side", lambda: [
        bench.side_effects(arms[label], values[label][best], reference[label]) for label in targets
    ])  # fmt: skip
    seconds = cells.get(
        "seconds", lambda: seconds_ratio(bench, arms, {label: values[label][best] for label in targets})
    )
    write_samples(rows, folder / SAMPLES)
    metrics = summary(rows, human)
    for name, proofs in bench.proofs.items():
        for words, proof in proofs.items():
            at = "" if words == LENGTHS[0] else f"_{words}"
            metrics[f"judge/{name}/accuracy{at}"] = MetricResult(
                proof.right / proof.of, "", "higher", proof.of, proof.interval, 1
            )
    for label, own in human.items():
        metrics |= {f"human/{key}/{label}": MetricResult(value, "", "none", int(own["texts"]), None, 1)
                    for key, value in own.items() if key != "texts"}  # fmt: skip
        metrics[f"strength/{label}"] = MetricResult(values[label][best], "", "none", 1, None, 1)
    for key in ("nats", "changed"):
        metrics[f"side/{key}"] = MetricResult(statistics.fmean(each[key] for each in side), "", "lower", 1, None, 1)
    metrics["cost/seconds_ratio"] = MetricResult(seconds, "", "lower", 1, None, 1)
    metrics["cost/training_seconds"] = MetricResult(bench.training_seconds, "s", "lower", 1, None, 1)
    return {name: result.to_dict() for name, result in metrics.items()}


@dataclass(frozen=True)
class Way:
    """A class, the arm towards it, and one of the strengths that are tried."""

    arm: Arm
    label: str
    number: int
    strength: float


def written(bench: Bench, ways: Sequence[Way], part: str) -> list[Row]:
    """Write in each way and measure every text; nats only of those that are reported."""
    made, _, _ = bench.write_all([(way.arm, way.strength) for way in ways], part)
    openings = [opening for opening, _ in bench.prompts(part)]
    samples = len(made[0]) // len(openings)
    texts = [text for own in made for text in own]
    places = [row for own in made for row in range(len(own))]
    prompts = [openings[row // samples] for row in places]
    costs: Sequence[float | None] = bench.cost(prompts, texts) if part == "report" else [None] * len(texts)
    hits = {judge.name: judge.judge(texts) for judge in bench.judges}
    by_text = [way for way, own in zip(ways, made, strict=True) for _ in own]
    return [
        {
            "text": texts[row], "prompt": prompts[row], "place": places[row] // samples, "copy": places[row] % samples,
            "target": way.label, "part": part, "try": way.number, "strength": way.strength,
            **{name: int(found[row] == way.label) for name, found in hits.items()},
            "nats": costs[row], "bytes": len(texts[row].encode("utf-8", "surrogatepass")),
            "repetition": round(repetition(texts[row]), 4), "overlap": round(bench.overlap(texts[row]), 4),
        }
        for row, way in enumerate(by_text)
    ]  # fmt: skip


def human_texts(bench: Bench) -> dict[str, dict[str, float]]:
    """Return class -> measures of human passages behind their openings, as many as a method writes; not their texts."""
    count = int(bench.decode["prompts"]) * int(bench.decode["samples"])

    def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
        found = {}
        for label in bench.task.targets:
            passages = bench.task.some("report", label, count)
            openings = [" ".join(text.split()[: bench.task.prompt_words]) for text in passages]
            texts = [text[len(opening) :] for opening, text in zip(openings, passages, strict=True)]
            nats = bench.cost(openings, texts)
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
            known = [each for each in nats if each is not None]
            found[label] = {
                "texts": len(texts),
                "distinct_2": distinct(texts, 2),
                "repetition": statistics.fmean(map(repetition, texts)),
                **({"nats_byte": sum(known) / max(size, 1)} if known else {}),
                **{judge.name: bench.proofs[judge.name][LENGTHS[0]].recall[label] for judge in bench.judges},
            }
        return {"human": found}

    key = {
        "texts": bench.task.checksum,
        "judges": bench.judge_options,
        "fluency": bench.fluency,
        "count": count,
        "random": True,
    }
    found: dict[str, dict[str, float]] = facts(bench.parts.get("human", key, make))["human"]
    return found


def seconds_ratio(bench: Bench, arms: Arms, strengths: Mapping[str, float], repeats: int = 2) -> float:
    """Return a method's CPU seconds per token as a multiple of the bare model's: the mean of alternating pairs."""
    label, ratios = next(iter(arms)), []
    for _ in range(repeats):
        _, bare_seconds, bare_tokens = bench.write(Arm(), 1.0, "choice", 12)
        _, own_seconds, own_tokens = bench.write(arms[label], strengths[label], "choice", 12)
        ratios.append((own_seconds / max(own_tokens, 1)) / (bare_seconds / max(bare_tokens, 1)))
    return statistics.fmean(ratios)


def run_all(overrides: Sequence[str]) -> int:
    """Run every combination; return 0, or 1 if one failed or another process is running it.

    A failure is reported at once and does not stop the rest; that of a single combination is raised, as is any with
    ``debug``.
    """
    every = {"task": complete, "method": complete_methods}
    overrides = [f"{key}={','.join(every[key]())}" if value == "all" and key in every else word
                 for word in overrides for key, _, value in [word.partition("=")]]  # fmt: skip
    if not any(word.partition("=")[0] in every for word in overrides):
        known = f"tasks: {', '.join(options())}; methods: {', '.join(METHODS)}, instruction+<control>"
        raise UserError(f"give task= and method= (all: every one), as in task=sentiment method=dexperts; {known}")
    configs = [compose(job) for job in combinations(overrides)]  # compose all of them before the first one runs
    console, failed = Console(soft_wrap=True, highlight=False), 0
    benches: dict[str, Bench] = {}
    for number, cfg in enumerate(configs, start=1):
        try:
            status = run(cfg, benches).status
        except Exception as error:
            if len(configs) == 1 or cfg.debug:
                raise
            benches.clear()  # whoever failed may have left the shared models changed
            status, failed = f"failed: {one_line(error)}", failed + 1
        if len(configs) > 1:
            word = status.lower() if status.isupper() else status
            console.print(f"[{number}/{len(configs)}] {cfg.name} seed {cfg.seed}: {word}", markup=False)
        failed += status == "BUSY"
    return 1 if failed else 0
