"""`lit-ctg control build`: train or count a control of a pretrained model, measure it, and write its bundle.

A recipe says how a control is made, and between which two settings its effect is measured: texts of the same prompts
and draws are written under both.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lit_ctg.config import compose
from lit_ctg.control import Control, Origin, Steered, fingerprint
from lit_ctg.control.bundle import save, versions
from lit_ctg.control.shipped import score
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.errors import UserError, check_known
from lit_ctg.network.huggingface import load_model
from lit_ctg.network.pretrained import MODELS, Loading, origin
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.papers.idea_gate.corpus import load_domain
from lit_ctg.papers.idea_gate.metrics import grouped_bootstrap, words
from lit_ctg.papers.semantic_fusion.control import LexiconSteering
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon
from lit_ctg.results.record import environment
from lit_ctg.run import memory as memories
from lit_ctg.run.export import Exported, control_of
from lit_ctg.run.quiet import quiet
from lit_ctg.run.train import train
from lit_ctg.statistics import t_interval
from lit_ctg.terminal import Console

# texts of each prompt under each setting, and texts at a time
COPIES, TOGETHER = 6, 30
DRAWN: dict[str, Any] = {"max_new_tokens": 30, "do_sample": True, "temperature": 0.8, "top_p": 0.9}
# tokens of held-out text on which a memory is fitted, and as many on which it is measured; tokens read at a time
FITTED_ON, CONTEXT = 4000, 128
Score = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What a recipe is given.

    Attributes:
        name: of the control.
        model: name or folder.
        texts: folder of its texts; None for a recipe that needs none.
        out: folder in which runs are kept.
        seed: of everything drawn.
        console: where to print.
    """

    name: str
    model: str
    texts: Path | None
    out: Path
    seed: int
    console: Console


@dataclass
class Made:
    """What a recipe made.

    Attributes:
        control: under its name.
        record: of the run that trained it, or of the memory's fit; {} for words.
        steps: of training; 0 where there was none.
        score: where the recipe itself measured the effect; None: on texts.
        trained: what the metrics of ``record`` measure, where that is not this control.
    """

    control: Control
    record: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    score: Score | None = None
    trained: str = ""


@dataclass(frozen=True)
class Recipe:
    """How a control is made, used and measured.

    Attributes:
        about: one line.
        texts: what ``data=<folder>/<name>`` holds; "" if nothing is needed.
        minutes: about how long it takes on two quiet cores.
        make: makes it.
        on, off: the two settings that are compared.
        what: the measure, in words.
        prompts: of the texts; the first is the sample's.
        measure: text -> the measure of one text; None: ``on_topic``, or ``make`` measures.
    """

    about: str
    texts: str
    minutes: float
    make: Callable[[Task], Made]
    on: Mapping[str, float]
    off: Mapping[str, float]
    what: str
    prompts: Sequence[str]
    measure: Callable[[str], float] | None = None


# how they are made ---------------------------------------------------------------------------------------------------


def _trained(*overrides: str) -> Callable[[Task], Made]:
    """Return a recipe's ``make``: train with these overrides (or take the finished run), and export the control."""

    def make(task: Task) -> Made:
        backbone = [f"backbone={task.model}"]
        if task.model not in MODELS:
            backbone = ["backbone=huggingface", f"backbone.path={task.model}", "data/tokenizer=huggingface",
                        f"data.tokenizer.path={task.model}"]  # fmt: skip
        given = [f"data.root={task.texts}", f"seed={task.seed}", f"output_root={task.out / 'runs'}"]
        outcome = train(compose([*overrides, *backbone, *given, "skip_completed=true"]))
        if outcome.status == "BUSY":
            raise UserError(f"control build {task.name}: another process trains it in {outcome.folder}; wait for it")
        exported = control_of([str(outcome.folder)])
        record = {**exported.record, "history": {}, "samples": []}
        control = exported.controls[0]
        if isinstance(control, IdeaGate):
            return Made(_lifted(control, exported), record, exported.steps, trained="the paper's gate, before our lift")
        return Made(control, record, exported.steps)

    return make


def _lifted(gate: IdeaGate, exported: Exported) -> IdeaGate:
    """Return our lift of a trained gate: the paper's raises stopwords, and so lowers the words of a topic."""
    odds_V = exported.module._odds(exported.datamodule.prepare().ids("train"))
    base_V, neutral_V = (odds_V / (1 + odds_V)).log().float(), exported.module.stopword_mask_V
    return IdeaGate(gate.head, form=gate.form, alpha=1.0, beta=-3.0, base_V=base_V, neutral_V=neutral_V)


def _words(task: Task) -> Made:
    return Made(LexiconSteering(Lexicon(path="reviews"), gain=3.0))


def _memory(task: Task) -> Made:
    """Count the texts, and fit and measure the weights on held-out parts."""
    folder, data = str(task.out / "runs" / task.name), [f"data.root={task.texts}"]
    memories.build(task.model, folder, data, console=task.console)
    memory = memories.fit(
        task.model, folder, data, tokens=FITTED_ON, context=CONTEXT, console=task.console, loading=Loading()
    )
    record = json.loads((Path(folder) / "fit.json").read_text(encoding="utf-8"))
    saved = record["metrics"][f"saved/{memory.mixture}/against_model"]
    what = {"what": _SAVED, "value": saved["value"], "ci95": saved["ci95"], "n": saved["n"], "unit": "tokens"}
    return Made(memory, record, score=what)


# how they are measured -----------------------------------------------------------------------------------------------

_REVIEWS = (
    "The food was",
    "We waited for our table and the waiter",
    "I bought this last week and it",
    "The hotel room",
    "The movie was",
    "My new phone",
)
_DOMAINS = ("chemistry", "finance", "hardware", "medicine", "war")
_TOPICS = [(load_domain(name), prompt) for name in _DOMAINS for prompt in load_domain(name).prompts[3:]]
_SAVED = "nats a token saved on held-out text:"


def balance(text: str) -> float:
    """Return the words of praise minus those of blame in 100 words."""
    lexicon, found = Lexicon(path="reviews"), words(text)
    sign = {"praise": 1, "blame": -1}
    known = {word: sign.get(kind, 0) for word, kind in zip(lexicon.words, lexicon.classes, strict=True)}
    return 100 * sum(known.get(word, 0) for word in found) / max(1, len(found))


def on_topic(recipe: Recipe, steered: Steered) -> Score:
    """Return how much more probable the words of its topic are after each prompt, in percent."""
    (control,) = steered.controls
    first = [
        [ids[0] for term in sorted(domain.terms["long"]) if len(ids := steered.tokenizer(f" {term}").input_ids) == 1]
        for domain, _ in _TOPICS
    ]
    found = []
    for values in (recipe.on, recipe.off):
        settings = {f"{control.name}.{key}": value for key, value in values.items()}
        options: dict[str, Any] = {
            "max_new_tokens": 1,
            "do_sample": False,
            "output_scores": True,
            "return_dict_in_generate": True,
        }
        p_NV = steered.generate(list(recipe.prompts), settings, **options).scores[0].double().softmax(-1)
        found.append([100 * float(p_V[ids].sum()) for p_V, ids in zip(p_NV, first, strict=True)])
    gains = np.subtract(found[0], found[1]).tolist()
    return _score(recipe, gains, t_interval(gains), "prompts")


def _score(recipe: Recipe, gains: Sequence[float], interval: tuple[float, float] | None, unit: str) -> Score:
    value, ci95 = float(np.mean(gains)), interval and list(interval)
    return {"what": recipe.what, "value": value, "ci95": ci95, "n": len(gains), "unit": unit}


def measure(recipe: Recipe, steered: Steered, seed: int = 0, copies: int = COPIES) -> Score:
    """Write texts under both settings and return how much they differ.

    The texts of a pair have the same draws; the interval is over prompts and texts.
    """
    if recipe.measure is None:
        return on_topic(recipe, steered)
    group = [number for number in range(len(recipe.prompts)) for _ in range(copies)]
    found = []
    for values in (recipe.on, recipe.off):
        texts = [
            text
            for start in range(0, len(group), TOGETHER)
            for text in _texts(steered, recipe, values, group[start : start + TOGETHER], seed, start)
        ]
        found.append([recipe.measure(text) for text in texts])
    gains = np.subtract(found[0], found[1]).tolist()
    return _score(recipe, gains, grouped_bootstrap(gains, group), "texts")


def sample(recipe: Recipe, steered: Steered, seed: int = 0) -> list[list[str]]:
    """Return [settings, text] of the first prompt: of the bare model, and under both settings."""
    (control,) = steered.controls
    arms = {"without": {control.strength: 0.0}} | {shown(control.name, each): each for each in (recipe.off, recipe.on)
                                                   if each.get(control.strength) != 0}  # fmt: skip
    return [[arm, _texts(steered, recipe, values, [0], seed, 0)[0]] for arm, values in arms.items()]


def _texts(
    steered: Steered, recipe: Recipe, values: Mapping[str, float], numbers: Sequence[int], seed: int, first: int
) -> list[str]:
    """Return a text of each prompt (by its number), whose draws are those of the rows from ``first`` on."""
    (control,) = steered.controls
    settings = {f"{control.name}.{key}": value for key, value in values.items()}
    prompts, rows = [recipe.prompts[number] for number in numbers], list(range(first, first + len(numbers)))
    return steered.write(prompts, settings, seed=seed, rows=rows, **DRAWN)


def shown(name: str, values: Mapping[str, float]) -> str:
    """Return settings as words of a command line."""
    return " ".join(f"control.{name}.{key}={value:g}" for key, value in values.items())


RECIPES = {
    "sentiment": Recipe(
        about="neuron codes of reviews of 4 to 5 stars (positive) and of 1 to 2 stars (negative)",
        texts="positive.* and negative.*: a text file (.txt, .jsonl, .csv, .parquet) or subfolder each",
        minutes=12,
        make=_trained(
            "experiment=control_code/pretrained", "data=folder/control_code", "data.length=64", "data.batch_size=8",
            "data.max_documents=500", "model.output=false", "trainer.precision=bf16-mixed", "trainer.max_epochs=1",
            "callback.code_trial.judge_chunks=500",
        ),
        on={"positive": 1},
        off={"negative": 1},
        what="words of praise minus words of blame in 100 words, positive minus negative:",
        prompts=_REVIEWS,
        measure=balance,
    ),
    "on_topic": Recipe(
        about="idea gate (our lift) that makes the words of a text's topic more likely",
        texts="text files, one article after the other",
        minutes=20,
        make=_trained(
            "experiment=idea_gate/main", "data=wikipedia", "data.source=local", "data.length=128", "data.batch_size=8",
            "data.steps_per_epoch=300", "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1",
            "trainer.limit_val_batches=4", "callback=[default]", "metric=[gated_perplexity,idea_head]",
            "+model.rank=64", "+model.from_token_head=0.5", "model.idea_bias=token_rate",
        ),
        on={"alpha": 1},
        off={"alpha": 0},
        what="probability of the topic's words as the next word in percent, with minus without:",
        prompts=[prompt for _, prompt in _TOPICS],
    ),
    "alice": Recipe(
        about="memory of the n-grams of Alice's Adventures in Wonderland (Lewis Carroll; public domain in the USA)",
        texts="text files",
        minutes=2,
        make=_memory,
        on={"strength": 1},
        off={"strength": 0},
        what=_SAVED,
        prompts=("Alice opened the door and",),
    ),
    "polarity": Recipe(
        about="lexicon of words of praise and of blame",
        texts="",
        minutes=1,
        make=_words,
        on={"to_praise": 1},
        off={"to_blame": 1},
        what="words of praise minus words of blame in 100 words, to_praise minus to_blame:",
        prompts=_REVIEWS,
        measure=balance,
    ),
}  # fmt: skip


def build(
    name: str,
    model: str,
    data: str | None,
    out: str,
    seed: int,
    *,
    corpus: Mapping[str, Any],
    loading: Loading,
    console: Console | None = None,
) -> list[Path]:
    """Make and measure controls and write their bundles to ``out/<name>``; return the folders.

    Args:
        name: of a recipe, or ``all``.
        model: name or folder of a causal language model.
        data: a folder with the texts of each recipe in a subfolder of its name.
        out: folder; runs are kept in ``out/runs``, and a finished one is not repeated.
        seed: of everything drawn.
        corpus: name -> what its texts are, for the card.
        loading: device and precision in which texts are written.
        console: where to print.

    Raises:
        UserError: no such recipe or texts, or whatever training, model and bundle raise.
    """
    console = console or Console(soft_wrap=True, highlight=False, markup=False)
    if name != "all":
        check_known("control", name, [*RECIPES, "all"])
    for each in corpus:
        check_known("corpus", each, RECIPES)
    chosen = dict(RECIPES) if name == "all" else {name: RECIPES[name]}
    for each, recipe in chosen.items():
        if recipe.texts and not (data and (Path(data) / each).is_dir()):
            raise UserError(f"control build {each}: give data=<folder> with a subfolder {each} of {recipe.texts}")
    folders, spent = [], 0.0
    for number, (each, recipe) in enumerate(chosen.items(), 1):
        left = sum([one.minutes for one in chosen.values()][number - 1 :])
        console.print(f"{number} of {len(chosen)}: {each}, {recipe.about}; about {left:g} minutes to the end")
        began = time.monotonic()
        texts = Path(data) / each if data and recipe.texts else None
        task = Task(each, model, texts, Path(out), seed, console)
        folders.append(_one(recipe, task, str(corpus.get(each, texts or "none")), loading))
        spent += time.monotonic() - began
    console.print(f"{len(folders)} controls in {spent / 60:.0f} minutes: {out}")
    return folders


def _one(recipe: Recipe, task: Task, corpus: str, loading: Loading) -> Path:
    """Make, measure and write one control; return its folder."""
    name, model, began = task.name, task.model, time.monotonic()
    made = recipe.make(task)
    made.control.rename(name)
    minutes = max(time.monotonic() - began, float(made.record.get("wall_time_s") or 0.0)) / 60
    with quiet():
        network = load_model(model, where="model", loading=loading).eval()
        tokenizer = load_tokenizer(model, None, "model")
    tokens = fingerprint(tokenizer) if made.control.of_ids else None
    made.control.origin = Origin(None, tokens, versions())
    folder = task.out / name
    save(made.control, folder, small=True)
    # what is measured has been read back, in half precision
    control = Control.from_pretrained(folder)
    steered = Steered(network, [control], tokenizer=tokenizer)
    known = made.score or measure(recipe, steered, task.seed)
    command, use = f"lit-ctg control build name={name} model={model}", shown(name, recipe.on)
    facts = {
        "about": recipe.about,
        "kind": made.control.kind,
        "model": model,
        "origin": origin(model),
        "corpus": corpus,
        "command": command,
        "seed": task.seed,
        "steps": made.steps,
        "minutes": round(minutes, 1),
        "trained": made.trained,
        "score": known,
        "prompt": recipe.prompts[0],
        "sample": sample(recipe, steered, task.seed),
        "use": f'lit-ctg generate model={model} controls=[{name}] {use} prompt="{recipe.prompts[0]}"',
    }
    record = without_folders({"experiment": command, "seed": task.seed, **environment(), **made.record, "zoo": facts})
    made.control.origin = Origin(record, tokens, versions())
    save(made.control, folder, small=True)
    works = known["ci95"] is not None and known["ci95"][0] > 0
    task.console.print(f"{name}: {score(known)}: " + ("works" if works else "no effect shown; give more texts"))
    return folder


def without_folders(node: Any) -> Any:
    """Return a copy of a record in which absolute paths, also of ``key=<path>``, are their last names.

    A bundle goes to other people, and a folder of this machine tells them nothing.
    """
    if isinstance(node, Mapping):
        return {key: without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [without_folders(value) for value in node]
    found = re.fullmatch(r"([\w.]+=)?/(?:.*/)?([^/]+)", node) if isinstance(node, str) else None
    return (found[1] or "") + found[2] if found else node
