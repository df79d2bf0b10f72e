"""`lit-ctg control make`: a control made from labelled texts, the best of a few on held-out texts."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lit_ctg.control import Origin, fingerprint
from lit_ctg.control.bundle import versions
from lit_ctg.data.document import Document
from lit_ctg.data.folder import read_labelled
from lit_ctg.data.labelled import Labelled
from lit_ctg.errors import check_known
from lit_ctg.field.bench import Arm, Bench, Parts
from lit_ctg.field.export import places
from lit_ctg.field.judge import BagJudge, EncoderJudge, Judge, balanced, prove, snippets
from lit_ctg.field.measure import REPETITION, repetition
from lit_ctg.field.methods import METHODS
from lit_ctg.field.task import Task, class_name, unspaced
from lit_ctg.network.pretrained import Loading, cached
from lit_ctg.results.record import environment
from lit_ctg.run.export import write_bundle
from lit_ctg.run.quiet import quiet
from lit_ctg.statistics import t_interval
from lit_ctg.terminal import Console

# tried on every set of texts: counts, a classifier of unfinished texts, directions in the model's states
TRIED = ("log_odds", "fudge", "vector")
# nats by which each moves the next token's distribution
BUDGETS = (0.7, 1.5)
SHARES = {"train": 0.45, "judge": 0.35, "choice": 0.08, "report": 0.12}
DECODE: dict[str, Any] = {
    "choice": 8, "prompts": 24, "samples": 1, "words": 40, "new_tokens": 48, "top_k": 200, "top_p": 0.9, "batch": 48,
    "contexts": 16,
}  # fmt: skip
TRAIN = {"steps": 30, "batch": 4, "length": 64, "learning_rate": 5e-4, "rank": 8, "texts": 200}
# the encoder of the judge, and its training
ENCODER, STEPS = "minilm", 100
# texts that are shown of each label
SHOWN = 2
# below it the judge hardly knows the labels apart, and a score says little
LEAST = 0.6


class _Texts:
    """Labelled texts as a corpus."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self.texts, self.labels = texts, list(texts)

    def documents(self, split: str) -> Iterator[Document]:
        for label, texts in self.texts.items():
            yield from (Document(text, label) for text in texts)

    def checksum(self) -> str:
        return hashlib.sha256(repr(sorted(self.texts.items())).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Tried:
    """A method at a strength for each class, and its texts' score.

    Attributes:
        success: share of texts of the class that was asked for; 0 where texts repeat themselves.
    """

    name: str
    arms: Mapping[str, Arm]
    strengths: Mapping[str, float]
    success: float


def make(
    data: str,
    model: str,
    out: str,
    *,
    text: str | None,
    label: Sequence[str],
    methods: Sequence[str],
    seed: int,
    loading: Loading,
    console: Console | None = None,
) -> list[Path]:
    """Make a control of each attribute of labelled texts, try it on held-out texts, and write its bundles.

    Args:
        data: a file of rows, or a folder with a file or subfolder for each label.
        model: a causal language model.
        out: a folder; several attributes have a subfolder each.
        text, label: names of columns; None and (): the usual ones.
        methods: names of ``METHODS`` that have a control, of which the best is kept; (): ``TRIED``.
        seed: of training and of the texts.
        loading: device and precision of the model.
        console: where to print.

    Returns:
        the bundles' folders.

    Raises:
        UserError: no such texts, too few of them, or a method without a control.
    """
    console = console or Console(soft_wrap=True, highlight=False, markup=False)
    found = read_labelled(data, text, label)
    for line in found.report():
        console.print(line)
    tried = list(methods) or [name for name in TRIED if name in METHODS]
    for name in tried:
        check_known("method", name, [key for key, each in METHODS.items() if each.tries is None and key != "bundle"])
    folders = []
    for attribute in found.attributes:
        folder = Path(out).expanduser() / (class_name(attribute.name) if len(found.attributes) > 1 else "")
        folders += _make_one(found, attribute.name, model, folder, tried, seed, loading, console)
    return folders


def _make_one(
    found: Labelled, attribute: str, model: str, folder: Path, tried: Sequence[str], seed: int, loading: Loading,
    console: Console,
) -> list[Path]:  # fmt: skip
    began = time.monotonic()
    bench = _bench(_Texts(found.of(attribute)), attribute, model, folder, seed, loading)
    with quiet():
        judge = _judge(bench)
    proof = prove(judge, snippets(bench.task.examples("report"), bench.lengths[1], bench.lengths[1], 1, 0))
    better = "" if judge.name == ENCODER else f"; lit-ctg model get {ENCODER} makes a better one"
    console.print(
        f"the judge ({judge.name}), trained on a third of the texts, is right for {proof.right} of {proof.of} others"
        + better
    )
    best = None
    for number, name in enumerate(tried, 1):
        console.print(f"{number} of {len(tried)}: {METHODS[name].title}")
        with quiet():
            arms = METHODS[name].arms(bench)
            at = {label: bench.strengths(arm, BUDGETS) for label, arm in arms.items()}
            for place in range(len(BUDGETS)):
                strengths = {label: found[place] for label, found in at.items()}
                rows = _written(bench, arms, strengths, "choice", judge)
                success = sum(hit for _, hits in rows.values() for hit in hits) / sum(len(h) for _, h in rows.values())
                dull = sum(repetition(one) for texts, _ in rows.values() for one in texts)
                if dull / sum(len(texts) for texts, _ in rows.values()) > REPETITION:
                    success = 0.0
                if best is None or success > best.success:
                    best = Tried(name, arms, strengths, success)
    assert best is not None
    with quiet():
        on = _written(bench, best.arms, best.strengths, "report", judge)
        off = _written(bench, dict.fromkeys(best.arms, Arm()), dict.fromkeys(best.arms, 1.0), "report", judge)
    score = _score(on, off)
    folders = _write(bench, best, folder, {"score": score, "texts": len(found.texts)}, console)
    _show(bench, best, on, off, console)
    low = score["change"][1]
    console.print(
        f"{METHODS[best.name].title}: texts of the label that was asked for {score['off']:.2f} without, "
        f"{score['on']:.2f} with it: {score['change'][0]:+.2f} [{low:+.2f}, {score['change'][2]:+.2f}] on "
        f"{score['prompts']} held-out openings, in {(time.monotonic() - began) / 60:.0f} minutes"
    )
    if proof.balanced < LEAST:
        console.print("the judge hardly knows these labels apart: the score says little; give more texts")
    if not low > 0:
        console.print(
            "no effect is shown: give more texts, labels that differ more, or methods=[lora,dexperts,neuron_codes], "
            "which train for minutes"
        )
    for label, arm in best.arms.items():
        bundles = ",".join(str(place) for place, control in folders if any(control is each for each in arm.controls))
        settings = " ".join(f"control.{key}={value:g}" for key, value in arm.settings(best.strengths[label]).items())
        console.print(f"{label}: lit-ctg generate model={model} controls=[{bundles}] {settings} prompt=... n=2")
    return [place for place, _ in folders]


def _judge(bench: Bench) -> Judge:
    """Return a judge of the classes: a sentence encoder where it is in the cache, else word counts."""
    known = balanced(bench.task.examples("judge"), 0)
    if cached(ENCODER) is None:
        return BagJudge(known, 0)
    torch.manual_seed(0)
    encoder = EncoderJudge(ENCODER, bench.task.targets)
    encoder.name = ENCODER
    encoder.fit(known, steps=STEPS, batch=16, learning_rate=5e-5, seed=0)
    return encoder


def _bench(texts: _Texts, name: str, model: str, folder: Path, seed: int, loading: Loading) -> Bench:
    task = Task(
        name=class_name(name), data=texts, labels=None, column="source", shares=SHARES, per_label=3000,
        passage_words=DECODE["words"], prompt_words=4, least_accuracy=0.0,
    )  # fmt: skip
    least = min(len(task.examples("report", label)) for label in task.targets)
    decode = {**DECODE, "prompts": min(DECODE["prompts"], least * len(task.targets)),
              "choice": min(DECODE["choice"], len(task.examples("choice")))}  # fmt: skip
    return Bench(
        task=task, parts=Parts(folder.parent / f".{folder.name}.parts"), model=model, loading=loading, fluency=None,
        judges={}, train=TRAIN, decode=decode, seed=seed,
    )  # fmt: skip


def _written(
    bench: Bench, arms: Mapping[str, Arm], strengths: Mapping[str, float], split: str, judge: Judge
) -> dict[str, tuple[list[str], list[float]]]:
    """Return for each class the texts under its arm, and 1 for each that the judge takes for it."""
    found = {}
    for label, arm in arms.items():
        texts, _, _ = bench.write(arm, strengths[label], split)
        found[label] = texts, [float(own == label) for own in judge.judge(texts)]
    return found


def _score(on: Mapping[str, tuple[list[str], list[float]]], off: Mapping[str, tuple[list[str], list[float]]]) -> Any:
    """Return the share of texts as asked with and without the control, and the change by prompt with its interval."""
    both = [[hits for _, hits in arm.values()] for arm in (on, off)]
    prompts = len(both[0][0])
    by_prompt = [
        sum(one[place] - other[place] for one, other in zip(*both, strict=True)) / len(on) for place in range(prompts)
    ]
    mean = sum(by_prompt) / prompts
    low, high = t_interval(by_prompt) or (-math.inf, math.inf)
    shares = [sum(map(sum, arm)) / (prompts * len(on)) for arm in both]
    return {"on": shares[0], "off": shares[1], "change": [mean, low, high], "prompts": prompts}


def _write(bench: Bench, best: Tried, folder: Path, facts: Mapping[str, Any], console: Console) -> list[Any]:
    tokens = fingerprint(bench.tokenizer)
    record = {"method": best.name, "model": bench.model_name, "seed": bench.seed, **facts, **environment()}
    found = places(best.arms, folder)
    for place, control in found:
        write_bundle(control, place, Origin(record, tokens if control.of_ids else None, versions()), console)
    return found


def _show(bench: Bench, best: Tried, on: Any, off: Any, console: Console) -> None:
    openings = [opening for opening, _ in bench.prompts("report")][:SHOWN]
    for label in best.arms:
        for place, opening in enumerate(openings):
            for arm, way in ((off, "without"), (on, label)):
                joined = "" if unspaced(opening) else " "
                console.print(f"  {way}: {opening}{joined}{arm[label][0][place]}")
