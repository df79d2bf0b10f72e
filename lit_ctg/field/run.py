"""One run of the field: a method, trained and swept over its strengths on a task, as a run record.

Every text is in ``samples.jsonl`` with its measures, from which tables, curves and ranks are made (``field/rank.py``).
A killed run continues after the last finished strength, and a longer sweep takes over the texts of a shorter one.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from lit_ctg.config import plain
from lit_ctg.control import Steered
from lit_ctg.core.result import Direction, MetricResult
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.errors import UserError, one_line
from lit_ctg.field.bench import Arm, Bench, Parts
from lit_ctg.field.command import GROUPS, PARTS, check_parts, combinations, complete, compose, options
from lit_ctg.field.judge import successes
from lit_ctg.field.log import log
from lit_ctg.field.measure import distinct, repetition, word_share
from lit_ctg.field.method import Method
from lit_ctg.field.methods.plain import Bare
from lit_ctg.field.rank import HELD_OUT, sweep_key
from lit_ctg.files import write_atomic, write_samples
from lit_ctg.network.pretrained import PLAIN, Loading
from lit_ctg.results.record import HASH_IGNORED, config_hash, load_records, write_record
from lit_ctg.run.build import chosen, instantiate
from lit_ctg.run.directory import Finished, RunDirectory, claim, run_stem
from lit_ctg.run.quiet import quiet
from lit_ctg.run.train import Outcome, SameCorpus, new_record
from lit_ctg.terminal import Console

_logger = logging.getLogger(__name__)

PAPER = "field"
SAMPLES, PARTIAL = "samples.jsonl", "strength-{}.json"
HUMAN = "human"


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
    record.device, record.threads = "cpu", torch.get_num_threads()
    began = time.monotonic()
    with directory:
        try:
            with quiet():
                measured = measure(cfg, directory, {} if benches is None else benches)
            record.status, record.error = "DONE", None
            record.metrics, record.parameters, record.corpus = measured
            record.wall_time_s = round(time.monotonic() - began, 3)
            write_record(record, directory.record)
        except Exception as error:
            record.error = one_line(error)
            write_record(record, directory.record)
            raise
    console.print(f"record: {directory.record}", markup=False)
    if chosen(cfg.logger):
        (finished,) = load_records([directory.path])  # with its texts
        log(finished, config["logger"]["wandb"], directory.path)
    return Outcome("DONE", directory.path)


def build_bench(cfg: DictConfig) -> Bench:
    """Build the bench of a configuration: everything except the method."""
    config = plain(cfg)
    check_parts(config)
    task = instantiate(cfg.task, "task", data=instantiate(cfg.data, "data"))
    return Bench(
        task=task,
        parts=Parts(Path(cfg.output_root) / PAPER / "parts"),
        model=cfg.model,
        loading=Loading(**config["loading"]) if "loading" in config else PLAIN,
        chat=config.get("chat"),
        seed=cfg.seed,
        **{part: config[part] for part in PARTS},
    )


def build_method(cfg: DictConfig) -> Method:
    """Build the method of a configuration (``UserError``: the configuration names something else)."""
    method = instantiate(cfg.method, "method")
    if not isinstance(method, Method):
        raise UserError(f"method: a {type(method).__name__} is not a method of the field")
    return method


def measure(
    cfg: DictConfig, directory: RunDirectory, benches: dict[str, Bench]
) -> tuple[dict[str, Any], int, dict[str, str]]:
    """Learn, write, judge; return the record's metrics, the method's parameters and what the texts depend on."""
    method, key = build_method(cfg), config_hash(plain(cfg), without=[*HASH_IGNORED, "method", "name"])
    if key not in benches:
        benches.clear()  # one bench at a time: models take memory
        benches[key] = build_bench(cfg)
    bench = benches[key]
    bench.training_seconds = 0.0
    metrics: dict[str, dict[str, Any]] = {}

    def put(name: str, result: MetricResult) -> None:
        metrics[name] = result.to_dict()

    judges, proofs = bench.judges
    for judge, proof in zip(judges, proofs, strict=True):
        put(f"judge/{judge.name}/accuracy",
            MetricResult(proof.right / proof.of, "", "higher", proof.of, proof.interval, 1))  # fmt: skip
        put(f"judge/{judge.name}/balanced_accuracy", MetricResult(proof.balanced, "", "higher", proof.of, None, 1))
    method.fit(bench)
    arms = {target: method.arm(bench, target) for target in bench.task.targets}
    corpus = bench.identity | ({f"read by {cfg.name}": read} if (read := method.read()) else {})
    before = written_before(directory.path, plain(cfg), corpus) if cfg.skip_completed else {}
    rows: list[dict[str, Any]] = []
    for strength in method.strengths:
        part = directory.path / PARTIAL.format(f"{strength:g}")
        kept = _texts_kept(part)
        if kept.get("corpus") == corpus:  # the models may have been trained again since
            own = kept["rows"]
        elif strength in before:
            own = before[strength]
        else:
            own = texts_of(bench, arms, strength)
            write_atomic(part, json.dumps({"corpus": corpus, "rows": own}, ensure_ascii=False))
        rows += own
        for name, result in summary(own, [judge.name for judge in judges]).items():
            put(f"{name}@{strength:g}", result)
    put("cost/seconds_ratio", seconds_ratio(bench, arms, method))
    put("cost/training_seconds", MetricResult(bench.training_seconds, "s", "lower", 1, None, 1))
    put("cost/parameters", MetricResult(float(method.parameters()), "", "lower", 1, None, 1))
    write_samples(rows + (human_texts(bench) if isinstance(method, Bare) else []), directory.path / SAMPLES)
    for strength in method.strengths:
        (directory.path / PARTIAL.format(f"{strength:g}")).unlink(missing_ok=True)
    return metrics, method.parameters(), corpus


def _texts_kept(part: Path) -> dict[str, Any]:
    """Return what an interrupted run kept of a strength; nothing where it is missing or damaged."""
    try:
        kept = json.loads(part.read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else {}
    except FileNotFoundError:
        return {}
    except (RecursionError, ValueError):
        _logger.warning("%s is damaged: these texts are written again", part)
        return {}


def written_before(
    folder: Path, config: Mapping[str, Any], corpus: Mapping[str, str]
) -> dict[float, list[dict[str, Any]]]:
    """Return by strength what finished runs have written whose settings differ from these in the strengths at most.

    The texts of one strength do not depend on which others are swept. What they do depend on, the method's own code
    aside, is in settings and corpus; ``skip_completed=false`` writes all of them again.

    Args:
        folder: of this run; the others are beside it.
        corpus: this run's text and model, as in its record.
    """
    key = sweep_key(config, corpus)
    found: dict[float, list[dict[str, Any]]] = {}
    for record in load_records([folder.parent]):
        if record.status == "DONE" and sweep_key(record.config, record.corpus) == key:
            own = [row for row in record.samples if row.get("kind") != HUMAN]
            found |= {value: [row for row in own if row["strength"] == value] for value in {r["strength"] for r in own}}
    return found


def texts_of(bench: Bench, arms: Mapping[str, Arm], strength: float) -> list[dict[str, Any]]:
    """Write under every class at one strength and measure every text."""
    rows: list[dict[str, Any]] = []
    samples = int(bench.decode_options["samples"])
    for target, arm in arms.items():
        texts, _, _ = bench.write(arm, strength)
        for row, text in enumerate(texts):
            rows.append({"text": text, "prompt": bench.prompts[row // samples][0], "place": row // samples,
                         "copy": row % samples, "target": target, "strength": strength})  # fmt: skip
    return measured(bench, rows)


def human_texts(bench: Bench) -> list[dict[str, Any]]:
    """Return the real continuations of the prompts, cut to as many tokens and measured like any text; strength 0."""
    rows = []
    longest = int(bench.decode_options["new_tokens"])
    reader = Steered(bench.model, [], tokenizer=bench.tokenizer)
    tokenizer = HuggingFaceTokenizer.of(bench.tokenizer)
    for place, (prompt, example) in enumerate(bench.prompts):
        (new,) = ids_behind(tokenizer, prompt, [example.text[len(prompt) :]])
        text = reader.continuation(tokenizer.encode(prompt), new[:longest])
        rows.append({"text": text, "prompt": prompt, "place": place, "copy": 0,
                     "target": example.label, "strength": 0.0, "kind": HUMAN})  # fmt: skip
    return measured(bench, rows)


def measured(bench: Bench, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to every row the judges' decisions on its text, its cost, and the other measures."""
    texts, targets = [row["text"] for row in rows], [row["target"] for row in rows]
    costs = bench.cost([row["prompt"] for row in rows], texts)
    for judge in bench.judges[0]:
        for row, hit in zip(rows, successes(judge, texts, targets), strict=True):
            row[judge.name] = int(hit)
    lists = {target: frozenset(words) for target, words in bench.word_lists.items()}
    for row, (nats, tokens) in zip(rows, costs, strict=True):
        row |= {
            "nats": round(nats, 4),
            "tokens": tokens,
            "repetition": round(repetition(row["text"]), 4),
            "overlap": round(bench.overlap(row["text"]), 4),
            "attribute_words": round(word_share(row["text"], lists[row["target"]]), 4),
        }
        if bench.task.lexicon is not None:
            row[HELD_OUT] = int(word_share(row["text"], bench.held_out_words[row["target"]]) > 0)
    return rows


def summary(rows: Sequence[Mapping[str, Any]], judges: Sequence[str]) -> dict[str, MetricResult]:
    """Return the measures of the texts of one strength. Intervals need the prompts and are made in ``rank.py``."""
    count = len(rows)
    tokens = sum(row["tokens"] for row in rows)
    cost = sum(row["nats"] for row in rows) / tokens if tokens else math.nan
    # per class: texts that are the same for two classes (the bare model's) do not count as repeated
    groups = [
        [str(row["text"]) for row in rows if row["target"] == target]
        for target in dict.fromkeys(r["target"] for r in rows)
    ]
    names = [*(f"success/{judge}" for judge in judges), "repetition", "overlap", "attribute_words"]
    names += [HELD_OUT] if all(HELD_OUT in row for row in rows) else []
    found = {name: sum(row[name.removeprefix("success/")] for row in rows) / count for name in names}
    found["perplexity"] = math.exp(min(cost, 700.0)) if tokens else math.nan
    for order in (1, 2, 3):
        found[f"distinct_{order}"] = sum(distinct(group, order) for group in groups) / len(groups)

    def better(name: str) -> Direction:
        if name in ("attribute_words", HELD_OUT):
            return "none"
        return "lower" if name in ("repetition", "overlap", "perplexity") else "higher"

    return {name: MetricResult(value, "", better(name), count, None, 1) for name, value in found.items()}


def seconds_ratio(bench: Bench, arms: Mapping[str, Arm], method: Method, repeats: int = 2) -> MetricResult:
    """Return a method's CPU seconds per token as a multiple of the bare model's: the mean of alternating pairs."""
    arm, strength = next(iter(arms.values())), method.strengths[len(method.strengths) // 2]
    ratios = []
    for _ in range(1 if bench.decode_options["prompts"] < 10 else repeats):
        _, bare_seconds, bare_tokens = bench.write(Arm(bench.model), 1.0)
        _, own_seconds, own_tokens = bench.write(arm, strength)
        ratios.append((own_seconds / max(own_tokens, 1)) / (bare_seconds / max(bare_tokens, 1)))
    return MetricResult(statistics.fmean(ratios), "", "lower", len(ratios), None, 1)


def run_all(overrides: Sequence[str]) -> int:
    """Run every combination; return 0, or 1 if one failed or another process is running it.

    A failure is reported at once and does not stop the rest; that of a single combination is raised, as is any with
    ``debug``.
    """
    if not any(word.partition("=")[0] in GROUPS for word in overrides):
        known = "; ".join(f"{group}s: {', '.join(options(group))}" for group in GROUPS)
        raise UserError(
            f"give task= and method= (all: every one), as in task=keywords method=dexperts size=smoke; {known}"
        )
    overrides = [f"{key}={','.join(complete(key))}" if value == "all" and key in GROUPS else word
                 for word in overrides for key, _, value in [word.partition("=")]]  # fmt: skip
    jobs = combinations(overrides)
    configs = [compose(job) for job in jobs]  # compose all of them before the first one runs
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
