"""`lit-ctg control make`: a control made from labelled texts, the best of a few on held-out texts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_ctg.control import Origin, fingerprint
from lit_ctg.control.bundle import versions
from lit_ctg.data.document import Document
from lit_ctg.data.folder import read_labelled
from lit_ctg.errors import check_known
from lit_ctg.field.bench import Arm, Bench, Parts
from lit_ctg.field.export import places
from lit_ctg.field.judge import BagJudge, EncoderJudge, Judge, balanced, prove, snippets, text_cost
from lit_ctg.field.measure import REPETITION, repetition
from lit_ctg.field.methods import METHODS
from lit_ctg.field.report import title_of
from lit_ctg.field.task import Example, Task, class_name, unspaced
from lit_ctg.files import writing
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
# of the judge's features, where it is in the cache
ENCODER = "minilm"
# folds by which a judge is chosen, and how much better one of word counts has to be: a control that raises words wins
# with it by the words alone
FOLDS, MARGIN = 5, 0.05
# texts that are shown of each label
SHOWN = 2
# nats a token more than the model's own texts cost it, above which texts fall apart into pieces of words
STRANGE = 1.0
# of the way from guessing to always right: a judge below it makes the score of a control worthless
LEAST = 0.4


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
        success: share of texts of the class that was asked for; 0 where texts repeat themselves or fall apart.
        cost: nats a token that the texts cost the model without the control, more than its own.
    """

    name: str
    arms: Mapping[str, Arm]
    strengths: Mapping[str, float]
    success: float
    cost: float


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
    folder = Path(out).expanduser()
    found = read_labelled(data, text, label)
    for line in found.report():
        console.print(line)
    tried = list(methods) or [name for name in TRIED if name in METHODS]
    for name in tried:
        check_known("method", name, [key for key, each in METHODS.items() if each.tries is None and key != "bundle"])
    folders = []
    with _parts(folder, console) as parts:
        for attribute in found.attributes:
            own = folder / (class_name(attribute.name) if len(found.attributes) > 1 else "")
            texts = found.of(attribute.name)
            if sides := attribute.sides:
                texts = {side: [text for label in labels for text in texts[label]] for side, labels in sides.items()}
                console.print("; ".join(f"{side}: {', '.join(labels)}" for side, labels in sides.items()))
            bench = _bench(_Texts(texts), attribute.name, model, parts, seed, loading)
            folders += _make_one(bench, own, tried, console)
    return folders


@contextlib.contextmanager
def _parts(out: Path, console: Console) -> Iterator[Path]:
    """Yield the working folder beside ``out``; it stays only if the command is interrupted."""
    whole = out.resolve()
    folder = whole.with_name(f".{whole.name}.parts")
    if folder.exists():
        console.print(f"continues what an interrupted command left in {folder}")
    with writing(out):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except KeyboardInterrupt:
        console.print(f"the same command continues from {folder}")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _make_one(bench: Bench, folder: Path, tried: Sequence[str], console: Console) -> list[Path]:
    began = time.monotonic()
    with quiet():
        judge = _judge(bench)
    proof = prove(judge, snippets(bench.task.examples("report"), bench.lengths[1], bench.lengths[1], 1, 0))
    guessing = 1 / len(bench.task.targets)
    least = guessing + LEAST * (1 - guessing)
    remedy = "give more texts (hundreds of each label), labels that differ more" + (
        f", or first lit-ctg model get {ENCODER}" * (cached(ENCODER) is None)
    )
    low, high = proof.interval or (0.0, 1.0)
    console.print(
        f"the judge ({judge.name}), trained on a third of the texts, is right for {proof.right} of {proof.of} others; "
        f"mean over labels {proof.balanced:.2f} [{low:.2f}, {high:.2f}], guessing {guessing:.2f}"
    )
    doubt = (
        f"the scores cannot be trusted: this judge is right for {proof.balanced:.2f} of human texts, which should be "
        f"{least:.2f}; {remedy}"
    ) * (proof.balanced < least)
    if doubt:
        console.print(doubt)
    best, usual = None, _nats(bench, "choice", [bench.write(Arm(), 1.0, "choice")[0]])
    for number, name in enumerate(tried, 1):
        console.print(f"{number} of {len(tried)}: {title_of(name)}")
        said = []
        with quiet():
            arms = METHODS[name].arms(bench)
            at = {label: bench.strengths(arm, BUDGETS) for label, arm in arms.items()}
            for place in range(len(BUDGETS)):
                strengths = {label: found[place] for label, found in at.items()}
                rows = _written(bench, arms, strengths, "choice", judge)
                success = sum(hit for _, hits in rows.values() for hit in hits) / sum(len(h) for _, h in rows.values())
                dull = sum(repetition(one) for texts, _ in rows.values() for one in texts)
                cost = _nats(bench, "choice", [texts for texts, _ in rows.values()]) - usual
                if dull / sum(len(texts) for texts, _ in rows.values()) > REPETITION or not cost <= STRANGE:
                    success = 0.0
                    said.append(f"they repeat themselves or fall apart ({cost:+.2f} nats a token)")
                else:
                    said.append(f"{success:.2f} ({cost:+.2f} nats a token)")
                if best is None or (success, -cost) > (best.success, -best.cost):
                    best = Tried(name, arms, strengths, success, cost)
        console.print(f"  texts as asked, weaker and stronger: {', '.join(said)}")
    assert best is not None
    with quiet():
        on = _written(bench, best.arms, best.strengths, "report", judge)
        bare = bench.write(Arm(), 1.0, "report")[0]
        guesses = judge.judge(bare)
        off = {label: (bare, [float(guess == label) for guess in guesses]) for label in best.arms}
    score = _score(on, off)
    facts = {"name": judge.name, "right": proof.right, "of": proof.of, "balanced": proof.balanced, "trusted": not doubt}
    texts = sum(len(each) for each in bench.task.data.texts.values())
    shown = {"prompt": bench.prompts("report")[0][0], "score": score, "cost": best.cost, "judge": facts, "texts": texts}
    folders = _write(bench, best, folder, shown, {label: on[label][0][0] for label in on}, console)
    _show(bench, best, on, off, console)
    low = score["change"][1]
    console.print(
        f"{title_of(best.name)}: texts of the label that was asked for {score['off']:.2f} without, "
        f"{score['on']:.2f} with it: {score['change'][0]:+.2f} [{low:+.2f}, {score['change'][2]:+.2f}] on "
        f"{score['prompts']} held-out openings, in {(time.monotonic() - began) / 60:.0f} minutes; "
        f"its texts cost the model {best.cost:+.2f} nats a token more than its own"
    )
    if not best.success:
        console.print(f"no control wrote texts of the label that neither repeat themselves nor fall apart: {remedy}")
    if doubt:
        console.print(doubt)
    if not low > 0:
        console.print(f"no effect is shown: {remedy}, or methods=[lora,dexperts,neuron_codes], which train for minutes")
    for label, arm in best.arms.items():
        bundles = ",".join(str(place) for place, control in folders if any(control is each for each in arm.controls))
        words = [f"model={bench.model_name}", f"controls=[{bundles}]"]
        settings = [f"control.{key}={value:g}" for key, value in arm.settings(best.strengths[label]).items()]
        rest = [f"prompt={shown['prompt']}", f"generate.top_p={DECODE['top_p']}", "n=2"]
        console.print(f"{label}: {shlex.join(['lit-ctg', 'generate', *words, *settings, *rest])}")
    every = ",".join(str(place) for place, _ in folders)
    console.print(f"sliders: {shlex.join(['lit-ctg', 'play', f'model={bench.model_name}', f'controls=[{every}]'])}")
    return [place for place, _ in folders]


class _StatesJudge:
    """Logistic regression over the mean states of a sentence encoder.

    Args:
        states: texts -> [N, D].
    """

    name = ENCODER

    def __init__(self, states: Callable[[Sequence[str]], Any], examples: Sequence[Example]) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer

        self.states = states
        self.model = make_pipeline(Normalizer(), LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000))
        self.model.fit(states([each.text for each in examples]), [each.label for each in examples])

    def judge(self, texts: Sequence[str]) -> list[str]:
        return [str(label) for label in self.model.predict(self.states(texts))] if len(texts) else []


def _judge(bench: Bench) -> Judge:
    """Return the better judge by cross-validation: one reads word counts, the other states.

    The texts on which controls are scored have no part in the choice.
    """
    known = bench.task.examples("judge")

    def of_words(examples: Sequence[Example]) -> Judge:
        return BagJudge(balanced(examples, 0), 0)

    if cached(ENCODER) is None:
        return of_words(known)
    of_states: Callable[[Sequence[Example]], Judge] = functools.partial(_StatesJudge, _states_of(bench.task.targets))
    return (of_words if _right(of_words, known) > _right(of_states, known) + MARGIN else of_states)(known)


def _states_of(labels: Sequence[str]) -> Callable[[Sequence[str]], Any]:
    """Return a function from texts to the encoder's mean states [N, D], each text read once."""
    encoder, read = EncoderJudge(ENCODER, labels).eval(), dict[str, Any]()
    encoder.head = torch.nn.Identity()  # type: ignore[assignment]  # of the judge that is fine-tuned

    @torch.no_grad()
    def states(texts: Sequence[str]) -> Any:
        new = [text for text in dict.fromkeys(texts) if text not in read]
        for start in range(0, len(new), 32):
            read.update(zip(new[start : start + 32], encoder(new[start : start + 32]).numpy(), strict=True))
        return np.stack([read[text] for text in texts])

    return states


def _right(make: Callable[[Sequence[Example]], Judge], examples: Sequence[Example]) -> float:
    """Return a judge's mean recall on folds that it was not trained on; passages of a text stay in one fold, or two."""
    from sklearn.model_selection import StratifiedKFold

    labels = [each.label for each in examples]
    folds = min(FOLDS, min(map(labels.count, labels)))
    if folds < 2:
        return 0.0
    found = []
    for rest, fold in StratifiedKFold(folds).split(labels, labels):
        judge = make([examples[place] for place in rest])
        found.append(prove(judge, [examples[place] for place in fold]).balanced)
    return sum(found) / folds


def _bench(texts: _Texts, name: str, model: str, parts: Path, seed: int, loading: Loading) -> Bench:
    task = Task(
        name=class_name(name), data=texts, labels=None, column="source", shares=SHARES, per_label=3000,
        passage_words=DECODE["words"], prompt_words=4, least_accuracy=0.0,
    )  # fmt: skip
    least = min(len(task.examples("report", label)) for label in task.targets)
    decode = {**DECODE, "prompts": min(DECODE["prompts"], least * len(task.targets)),
              "choice": min(DECODE["choice"], len(task.examples("choice")))}  # fmt: skip
    return Bench(
        task=task, parts=Parts(parts), model=model, loading=loading, fluency=None,
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


@torch.no_grad()
def _nats(bench: Bench, split: str, arms: Sequence[Sequence[str]]) -> float:
    """Return nats a token of texts behind the prompts of a split, under the model alone; NaN of no tokens."""
    openings = [opening for opening, _ in bench.prompts(split)]
    found = [each for texts in arms for each in text_cost(bench.model, bench.tokenizer, openings, texts)]
    tokens = sum(count for _, count in found)
    return sum(nats for nats, _ in found) / tokens if tokens else math.nan


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


def _write(
    bench: Bench, best: Tried, folder: Path, facts: Mapping[str, Any], texts: Mapping[str, str], console: Console
) -> list[Any]:
    """Write the bundles; each one's record has a sample (settings, text), with which the page of `play` opens."""
    tokens = fingerprint(bench.tokenizer)
    record = {"method": best.name, "model": bench.model_name, "seed": bench.seed, **facts, **environment()}
    found = places(best.arms, folder)
    for place, control in found:
        label = next(label for label, arm in best.arms.items() if any(control is each for each in arm.controls))
        settings = best.arms[label].settings(best.strengths[label])
        sample = [[" ".join(f"{key}={value:g}" for key, value in settings.items()), texts[label]]]
        origin = Origin({**record, "sample": sample}, tokens if control.of_ids else None, versions())
        write_bundle(control, place, origin, console)
    return found


def _show(bench: Bench, best: Tried, on: Any, off: Any, console: Console) -> None:
    openings = [opening for opening, _ in bench.prompts("report")][:SHOWN]
    for label in best.arms:
        for place, opening in enumerate(openings):
            for arm, way in ((off, "without"), (on, label)):
                joined = "" if unspaced(opening) else " "
                console.print(f"  {way}: {opening}{joined}{arm[label][0][place]}")
