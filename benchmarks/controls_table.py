"""All controls on one real model: effect on their own measure, fluency under a second model, cost, one text.

    python benchmarks/controls_table.py --bundles FOLDER --texts FOLDER --out FOLDER [--rows lora,grammar] [--cost]

``--bundles`` holds the controls as ``ROWS`` names them, beside each a ``train.json``: the processor ``seconds`` of its
training, and what it ``saved`` of held-out text (nats, with its interval).
``--texts`` holds a file of reviews a class that no control has read: three quarters train the judge of classes, the
others are held out. A row is kept in ``--out``, and the table has all rows that are there. Each text is written twice
from the same draws, with the control and without.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from bench_controls import byte_tokenizer, texts
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel
from turns import best, parser, progress, read

from lit_ctg.control import Control, Steered
from lit_ctg.control.class_models import Experts, GenerativeClassifier
from lit_ctg.control.guidance import Guidance
from lit_ctg.control.token_bias import TokenBias, log_odds
from lit_ctg.field.judge import BagJudge, balanced, prove, snippets, text_cost
from lit_ctg.field.measure import word_share
from lit_ctg.field.task import Example
from lit_ctg.network.huggingface import load_model
from lit_ctg.network.pretrained import Loading, resolve
from lit_ctg.papers.idea_gate.corpus import known_domains, load_domain
from lit_ctg.papers.semantic_fusion.control import Grammar
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon
from lit_ctg.statistics import t_interval

PLACES = ("restaurant", "hotel", "garage", "bakery", "airline", "bar")
OPENINGS = (
    "I went to this {} because", "After an hour at the {},", "The first thing about this {} is",
    "My family says that the {}",
)  # fmt: skip
REVIEWS = [opening.format(place) for opening in OPENINGS for place in PLACES]
# an opinion that only its grammar makes the model say; no two words of a slot begin alike, whatever the tokens
SLOTS = {
    "THE": ["the", "our"],
    "THING": ["soup", "room", "waiter", "music", "view"],
    "WAS": ["was", "is"],
    "HOW": ["very", "rather", "hardly"],
    "JUDGED": ["good", "cold", "friendly", "expensive", "loud"],
    "MARK": ["."],
}
CLAUSE = re.compile(r"\s*".join(f"(?:{'|'.join(map(re.escape, words))})" for words in SLOTS.values()))
OWN_PROMPTS = {
    "terms": [(prompt, name) for name in known_domains() for prompt in load_domain(name).prompts],
    "years": [
        (f"{who} was born in {year} and {then} in", "")
        for year in (1790, 1815, 1842, 1868, 1893, 1911, 1934, 1950)
        for who, then in (("The painter", "died"), ("Her brother", "married"), ("The general", "retired"))
    ],
    "clauses": [("", "")] * 16,
}
# tokens of a text, words of one that is shown, lengths and rounds of a timing
TOKENS, WORDS, LENGTHS, ROUNDS = 40, 9, (1, 6), 2


@dataclass(frozen=True)
class Row:
    """A control of the table.

    Attributes:
        bundles: folders below ``--bundles``; ``{asked}`` is the class that a text shall have.
        settings: of the controls.
        measure: a key of ``MEASURES``.
        also: further controls, made of the bench.
        trained: the folder with the training's time; by default that of the first bundle.
        names: class -> its name in the settings, where they call it otherwise.
    """

    bundles: Sequence[str]
    settings: Mapping[str, float]
    measure: str = "class"
    also: Sequence[Callable[[Bench], Control]] = ()
    trained: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


def _classes(folder: str, strength: float) -> Row:
    """Return the row of a control with a setting ``to_<class>``."""
    kind = folder.rpartition("/")[2]
    return Row([folder], {f"{kind}.strength": strength, f"{kind}.to_{{asked}}": 1})


ROWS = {
    "grammar": Row(["grammar"], {"grammar.strength": 1}, "clauses"),
    "lexicon": Row(
        ["polarity"], {"polarity.to_{asked}": 1}, "words", names={"positive": "praise", "negative": "blame"}
    ),
    "memory": Row(["alice"], {"alice.strength": 1}, "saved"),
    "micro_models": Row(["years"], {}, "years"),
    "idea_gate": Row(["on_topic"], {"on_topic.alpha": 1}, "terms"),
    "neuron_codes": Row(["sentiment"], {"sentiment.{asked}": 1}),
    "feature_channel": Row(
        ["feature_channel"], {"feature_channel.{asked}": 1}, names={"positive": "pos", "negative": "neg"}
    ),
    "token_bias": _classes("log_odds/token_bias", 0.5),
    "graphmax": Row(["graphmax/{asked}/graphmax"], {"graphmax.strength": 1}),
    "future": _classes("fudge/future", 16),
    "gradient": _classes("gradient/gradient", 0.2),
    "activation_vector": _classes("vector/activation_vector", 0.15),
    "lora": Row(["lora/{asked}/lora"], {"lora.strength": 1.5}),
    "guidance": Row(
        ["lora/{asked}/lora"], {"lora.strength": 1, "guidance.strength": 0.5}, also=[lambda bench: Guidance()]
    ),
    "experts": Row(
        [],
        {"experts.strength": 2, "experts.to_{asked}": 1},
        also=[lambda bench: Experts(bench.experts)],
        trained="lora",
    ),
    "generative_classifier": Row(
        [],
        {"generative_classifier.strength": 20, "generative_classifier.to_{asked}": 1},
        also=[lambda bench: GenerativeClassifier(bench.experts)],
        trained="lora",
    ),
    "soft_prompt": Row(["soft_prompt/soft_prompt"], {"soft_prompt.strength": 1, "soft_prompt.{asked}": 1}),
}
Asked = Sequence[tuple[str, str]]  # the prompt of each text, and its class or topic ("" for none)


class Bench:
    """The models, the judge and the texts of a table.

    Args:
        models: the steered model and the one that judges fluency, each with its tokenizer.
        bundles: their folder.
        reviews: class -> texts that no control has read.
        out: folder of the results.
        seed: of the draws.
        most: texts of each kind; None: all.
        tokens: of a text.
    """

    def __init__(
        self, models: Sequence[tuple[Any, Any]], bundles: Path, reviews: Mapping[str, Sequence[str]], out: Path,
        seed: int, most: int | None = None, tokens: int = TOKENS,
    ) -> None:  # fmt: skip
        (self.model, self.tokenizer), self.second = models
        self.bundles, self.out, self.seed, self.most, self.tokens = bundles, out, seed, most, tokens
        out.mkdir(parents=True, exist_ok=True)
        parts = [(Example(text, name), place % 4) for name, own in reviews.items() for place, text in enumerate(own)]
        self.known, self.held_out = ([each for each, part in parts if (part > 0) == train] for train in (True, False))
        self.classes = list(reviews)

    @functools.cached_property
    def judge(self) -> BagJudge:
        """A classifier of reviews of the texts' length."""
        judge = BagJudge(balanced(snippets(self.known, self.tokens // 2, self.tokens, 3, 0), 0), 0)
        proof = prove(judge, snippets(self.held_out, self.tokens // 2, self.tokens, 1, 0))
        print(f"The judge of classes is right for {proof.balanced:.3f} of {proof.of} held-out snippets of reviews.\n")
        return judge

    def asked(self, measure: str) -> Asked:
        """Return the prompts of a measure."""
        of_classes = [(prompt, name) for prompt in REVIEWS for name in self.classes]
        return OWN_PROMPTS.get(measure, of_classes)[: self.most]

    def write(self, row: Row | None, asked: Asked, tokens: int, least: int = 0) -> list[str]:
        """Continue prompts, those of a class together, under the controls of a row (None: the model alone)."""
        written, groups = [""] * len(asked), dict[str, list[int]]()
        for place, (_, name) in enumerate(asked):
            groups.setdefault(name if name in self.classes else "", []).append(place)
        for name, places in groups.items():
            given = {} if row is None else row.settings
            called = name if row is None else row.names.get(name, name)
            settings = {key.format(asked=called): value for key, value in given.items()}
            steered = Steered(self.model, self.controls(row, name), tokenizer=self.tokenizer)
            found = steered.write(
                [asked[place][0] for place in places], settings, max_new_tokens=tokens, min_new_tokens=least,
                do_sample=True, top_p=0.95, seed=self.seed, rows=places, pad_token_id=self.tokenizer.eos_token_id,
            )  # fmt: skip
            for place, text in zip(places, found, strict=True):
                written[place] = text
        return written

    @functools.lru_cache(maxsize=4)  # noqa: B019 # as long as the bench
    def _loaded(self, folder: str) -> Control:
        return Control.from_pretrained(self.bundles / folder)

    def controls(self, row: Row | None, name: str) -> list[Control]:
        """Return the controls of a row for a class."""
        if row is None:
            return []
        return [
            *(self._loaded(folder.format(asked=name)) for folder in row.bundles),
            *(make(self) for make in row.also),
        ]

    @functools.cached_property
    def experts(self) -> dict[str, Any]:
        """Copies of the model with each class's adapters added to its weights."""
        found = {}
        for name in self.classes:
            found[name] = copy.deepcopy(self.model)
            for path, (down_RI, up_OR) in self._loaded(f"lora/{name}/lora").adapters.items():
                found[name].get_submodule(path).weight.data += (up_OR @ down_RI).to(self.model.dtype)
        return found

    def fluency(self, asked: Asked, written: Sequence[str]) -> list[float | None]:
        """Return nats a token of each text under the second model, None for an empty one."""
        costs = text_cost(*self.second, [prompt for prompt, _ in asked], written, batch=8)
        return [nats / count if count else None for nats, count in costs]

    def bare(self, measure: str) -> dict[str, Any]:
        """Return the model's own texts for a measure, which all its rows share, and their fluency."""
        path = self.out / f"bare_{measure if measure in OWN_PROMPTS else 'class'}.json"
        if not path.is_file():
            asked = self.asked(measure)
            written = self.write(None, asked, self.tokens)
            made = json.dumps({"texts": written, "nats": self.fluency(asked, written)}, ensure_ascii=False)
            path.write_text(made + "\n", encoding="utf-8")
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found

    def measured(self, row: Row) -> dict[str, Any]:
        """Return a row's texts, their fluency, and the control's own measure."""
        asked, score = self.asked(row.measure), MEASURES[row.measure][1]
        off, on = self.bare(row.measure), self.write(row, asked, self.tokens)
        own = (
            [score(self, asked, texts) for texts in (on, off["texts"])]
            if score is not None
            else self.facts(row)["saved"]
        )
        return {
            "asked": asked, "on": on, "off": off["texts"], "measure": row.measure, "settings": dict(row.settings),
            "own": own,
            "nats": [self.fluency(asked, on), off["nats"]],
            "seconds": self.facts(row).get("seconds"),
        }  # fmt: skip

    def costs(self, names: Sequence[str]) -> dict[str, float]:
        """Return the time of a decode step of eight texts under each row, divided by the bare model's."""
        timed: Asked = [(prompt, self.classes[0]) for prompt in REVIEWS[:8]]
        ways = {}
        for name in ("", *names):
            row = ROWS[name] if name else None
            clause = row is not None and row.measure == "clauses"  # it ends by itself, not before
            asked = [("", "")] * 8 if clause else timed
            for length in LENGTHS:
                least = 0 if clause else length
                ways[f"{name} {length}"] = functools.partial(self.write, row, asked, length, least)
        spent = best(ways, 1 if self.most else ROUNDS)
        step = {name: spent[f"{name} {LENGTHS[1]}"] - spent[f"{name} {LENGTHS[0]}"] for name in ("", *names)}
        return {name: step[name] / step[""] for name in names}

    def facts(self, row: Row) -> dict[str, Any]:
        """Return what was written down of a row's training: its ``seconds``, and what it ``saved`` of held-out text."""
        path = self.bundles / (row.trained or row.bundles[0].partition("/")[0]) / "train.json"
        return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def _as_asked(bench: Bench, asked: Asked, written: Sequence[str]) -> list[float]:
    return [float(own == name) for own, (_, name) in zip(bench.judge.judge(written), asked, strict=True)]


def _words(_: Bench, asked: Asked, written: Sequence[str]) -> list[float]:
    lexicon = Lexicon(path="reviews")
    sign = {"positive": 1, "negative": -1}
    lists = {
        name: {word for word, grade in zip(lexicon.words, lexicon.column("polarity"), strict=True) if own * grade > 0}
        for name, own in sign.items()
    }
    return [word_share(text, lists[name]) for text, (_, name) in zip(written, asked, strict=True)]


def _terms(_: Bench, asked: Asked, written: Sequence[str]) -> list[float]:
    terms = {name: load_domain(name).terms["long"] for _, name in asked}
    return [word_share(text, terms[name]) for text, (_, name) in zip(written, asked, strict=True)]


def _clauses(_: Bench, asked: Asked, written: Sequence[str]) -> list[float]:
    return [float(CLAUSE.fullmatch(text.strip()) is not None) for text in written]


# name -> (the table's name of it, score of each text; None: the training measured it)
MEASURES: dict[str, tuple[str, Callable[..., list[float]] | None]] = {
    "class": ("as asked", _as_asked),
    "terms": ("topic words", _terms),
    "clauses": ("valid clauses", _clauses),
    "words": ("lexicon words", _words),
    "saved": ("nats saved a token", None),
    "years": ("nats saved a year", None),
}
HEAD = "| control | training | effect: off, on | fluency | step | continuation |\n|---|---:|---|---|---:|---|"


def line(name: str, found: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    if MEASURES[found["measure"]][1] is None:
        return _cells(name, found, f"{found['own'][0]:.2f}", found["own"], 0)
    on, off = found["own"]
    by_prompt: dict[str, list[float]] = {}
    for place, (one, other) in enumerate(zip(on, off, strict=True)):
        # the texts of one prompt are not independent
        prompt = found["asked"][place][0] if len(on) == len(found["asked"]) else ""
        by_prompt.setdefault(prompt or str(place), []).append(one - other)
    differences = [sum(each) / len(each) for each in by_prompt.values()]
    change = sum(differences) / len(differences), *(t_interval(differences) or (math.nan, math.nan))
    # the first text that has what its measure counts
    shown = next((place for place, score in enumerate(on) if score > 0), 0)
    means = f"{sum(off) / len(off):.2f}, {sum(on) / len(on):.2f}"
    return _cells(name, found, means, change, shown)


def _cells(name: str, found: Mapping[str, Any], means: str, change: Sequence[float], shown: int) -> str:
    effect = f"{MEASURES[found['measure']][0]} {means} [{change[1]:.2f}, {change[2]:.2f}]"
    nats = [[each for each in own if each is not None] for own in reversed(found["nats"])]
    fluency = ", ".join(f"{sum(own) / len(own):.2f}" if own else "-" for own in nats)
    seconds = found["seconds"]
    trained = "none" if seconds is None else f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    cost = "-" if found["cost"] is None else f"{found['cost']:.2f}"
    _, asked = found["asked"][shown]
    text = f"{asked}: {' '.join(found['on'][shown].split()[:WORDS])}".removeprefix(": ").replace("|", "/")
    return f"| {' | '.join([f'`{name}`', trained, effect, fluency, cost, text])} |"


def _real(name: str, device: Any) -> tuple[Any, Any]:
    model = load_model(name, where="model", loading=Loading(device, "bfloat16")).eval()
    return model, AutoTokenizer.from_pretrained(resolve(name, "model"))


def _trial(folder: Path) -> Bench:
    """Return a bench with a random model and two controls in a folder."""
    given = texts()[:60]
    tokenizer = byte_tokenizer(given)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    halves = {"negative": given[::2], "positive": given[1::2]}
    ids = [torch.tensor([each for text in own for each in tokenizer(text).input_ids]) for own in halves.values()]
    counts_CV = torch.stack([torch.bincount(own, minlength=len(tokenizer)) for own in ids])
    TokenBias(dict(zip(halves, log_odds(counts_CV), strict=True))).save_pretrained(folder / "log_odds/token_bias")
    write_grammar(folder)
    return Bench([(model, tokenizer)] * 2, folder, halves, folder / "rows", 0, most=4, tokens=16)


def write_grammar(bundles: Path) -> None:
    """Write the bundle of ``SLOTS``, which needs no training."""
    following = [*list(SLOTS)[1:], "END"]
    slots = {
        name: {"words": words, "next": after} for (name, words), after in zip(SLOTS.items(), following, strict=True)
    }
    Grammar({"start": "THE", "slots": slots}).save_pretrained(bundles / "grammar")


def _there(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").is_file()


def main(words: Sequence[str] | None = None) -> int:
    """Measure the rows and print the table; return the exit code."""
    made = parser(__doc__)
    made.add_argument("--model", default="smollm2")
    made.add_argument("--second", default="gemma3-270m", help="the model that judges fluency")
    made.add_argument("--bundles", type=Path)
    made.add_argument("--texts", type=Path)
    made.add_argument("--out", type=Path, default=Path("outputs/controls"))
    made.add_argument("--rows", default=",".join(ROWS), help="to measure; none: only print the table")
    made.add_argument("--cost", action="store_true", help="time a step under all rows that are there, in one run")
    made.add_argument("--seed", type=int, default=0)
    options = read(made, words)
    with tempfile.TemporaryDirectory() as temporary:
        names = [name for name in options.rows.split(",") if name]
        out = options.out
        if options.quick:
            bench, names = _trial(Path(temporary)), ["token_bias", "grammar"]
            out = bench.out
        elif names or options.cost:
            reviews = {path.stem: path.read_text("utf-8").split("\n\n") for path in sorted(options.texts.glob("*.txt"))}
            models = [_real(name, options.device) for name in (options.model, options.second)]
            write_grammar(options.bundles)
            bench = Bench(models, options.bundles, reviews, out, options.seed)
        for name in names:
            progress(name)
            found = json.dumps(bench.measured(ROWS[name]), ensure_ascii=False, indent=1)
            (out / f"{name}.json").write_text(found + "\n", encoding="utf-8")
        kept = {name: json.loads((out / f"{name}.json").read_text("utf-8")) for name in ROWS if _there(out, name)}
        if options.cost or options.quick:
            costs = json.dumps(bench.costs(list(kept)), indent=1)
            (out / "costs.json").write_text(costs + "\n", encoding="utf-8")
        costs = json.loads((out / "costs.json").read_text("utf-8")) if _there(out, "costs") else {}
        rows = [line(name, {**found, "cost": costs.get(name)}) for name, found in kept.items()]
    print(HEAD, *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
