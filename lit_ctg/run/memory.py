"""`lit-ctg memory build|fit`: count texts for a Hugging Face model, and weigh the counts on held-out text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf
from rich.table import Table

from lit_ctg.command import settings, whole_number
from lit_ctg.config import compose
from lit_ctg.core.result import MetricResult
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import write_atomic
from lit_ctg.results.record import environment
from lit_ctg.run.build import build_datamodule
from lit_ctg.statistics import Interval
from lit_ctg.terminal import Console

if TYPE_CHECKING:
    from lit_ctg.control.memory import Memory, Saved

ACTIONS = ("build", "fit")
# how many tokens the model reads at a time if its context is longer
CONTEXT = 512
# its own settings, explained in cli.py; other words are overrides of the corpus
OWN = ("model", "out", "order", "smoothing", "memory", "tokens", "context")


def main(words: Sequence[str], console: Console | None = None) -> Memory:
    """Run build or fit; the following words are settings or overrides of ``data.*`` (``data=folder`` by default).

    The training split of the corpus is counted, the weights are fitted on its validation split, and the saving is
    measured on its test split; ``fit.json`` in the folder of the fitted memory keeps the numbers.

    Raises:
        UserError: no such action, a setting that is missing or does not fit, or whatever corpus, model or bundle raise.
    """
    console = console or Console(soft_wrap=True, highlight=False, markup=False)
    if not words or words[0] not in ACTIONS:
        hint = did_you_mean(words[0], ACTIONS) if words else ""
        raise UserError(f"lit-ctg memory {words[0] if words else ''}: say build or fit first{hint}")
    action, rest = words[0], [word.removeprefix("--") for word in words[1:]]
    own = settings([word for word in rest if word.partition("=")[0] in OWN], f"memory {action}", OWN)
    overrides = [word for word in rest if word.partition("=")[0] not in OWN]
    needed = ("model", "out") if action == "build" else ("model", "memory")
    for name in needed:
        if not own.get(name):
            raise UserError(f"lit-ctg memory {action}: give {name}=<folder>; lit-ctg memory --help says more")
    from lit_ctg.control.bundle import register_ours

    register_ours()  # an exported model is one of ours
    return _build(own, overrides, console) if action == "build" else _fit(own, overrides, console)


def _corpus(model: str, overrides: Sequence[str]) -> CorpusDataModule:
    """Return the corpus in the model's own tokens."""
    chosen = [] if any(word.startswith("data=") for word in overrides) else ["data=folder"]
    cfg = compose([*chosen, "data/tokenizer=huggingface", *overrides], experiment=False)
    OmegaConf.update(cfg, "data.tokenizer.path", model)
    datamodule = build_datamodule(cfg)
    if not isinstance(datamodule, CorpusDataModule):
        raise UserError(f"a {type(datamodule).__name__} is not a text corpus: give data=folder data.root=<folder>")
    return datamodule


def _texts(corpus: CorpusDataModule, split: str, most: int | None = None) -> list[np.ndarray]:
    """Return the ids of a split's first documents, about ``most`` tokens in all."""
    packed = corpus.prepare()
    texts, tokens = [], 0
    for number in range(packed.meta["splits"][split]["documents"]):
        if most is not None and tokens >= most:
            break
        text = np.asarray(packed.document(split, number), dtype=np.int64)
        texts.append(text if most is None else text[: most - tokens])
        tokens += len(texts[-1])
    return texts


def _build(own: dict[str, str], overrides: Sequence[str], console: Console) -> Memory:
    from lit_ctg.control.bundle import Origin, fingerprint
    from lit_ctg.control.memory import Memory
    from lit_ctg.decoding.ngram import NgramModel

    order = whole_number("memory build", "order", own.get("order", "3"), least=2)
    corpus = _corpus(own["model"], overrides)
    texts = _texts(corpus, "train")
    vocabulary = corpus.vocabulary
    ngram = NgramModel.count(texts, len(vocabulary), order=order, smoothing=own.get("smoothing", "kneser_ney"))
    memory = Memory(ngram, text=corpus.fingerprint()["text"])
    memory.origin = Origin(tokenizer=fingerprint(vocabulary.tokens))
    memory.save_pretrained(own["out"])
    counted = ", ".join(f"{count:,} of {length}" for length, count in memory.costs().items())
    console.print(f"{ngram.tokens:,} tokens of {len(texts):,} texts; n-grams kept, by length: {counted}")
    console.print(f"memory: {own['out']}; next: lit-ctg memory fit memory={own['out']} model={own['model']} ...")
    return memory


def _fit(own: dict[str, str], overrides: Sequence[str], console: Console) -> Memory:
    from lit_ctg.control.base import added_ids
    from lit_ctg.control.bundle import CONTROL, FIT, check_tokenizer, load
    from lit_ctg.control.memory import Memory, fit, saved
    from lit_ctg.network.huggingface import load_model

    most = whole_number("memory fit", "tokens", own["tokens"], least=2) if "tokens" in own else None
    memory = load(own["memory"])
    if not isinstance(memory, Memory):
        raise UserError(f"{own['memory']} holds a control of the kind {memory.kind}, not a memory: build one first")
    corpus = _corpus(own["model"], overrides)
    check_tokenizer(memory, getattr(corpus.vocabulary, "engine", corpus.vocabulary.tokens))
    if corpus.fingerprint()["text"] != memory.text:
        console.print("this text is not the one that was counted: see to it that none of it was", style="yellow")
    model = load_model(own["model"], where="model").eval()
    positions = int(getattr(model.config, "max_position_embeddings", None) or CONTEXT)
    context = min(whole_number("memory fit", "context", own.get("context", str(CONTEXT)), least=2), positions)
    held_out, measured = _texts(corpus, "val", most), _texts(corpus, "test", most)
    # the weights are for decoding, where the tokenizer begins a prompt (with ``<s>``, say)
    engine = getattr(corpus.vocabulary, "engine", None)
    start = [] if engine is None else added_ids(engine)[0]
    fitted = fit(memory, model, held_out, context=context, start=start)
    fitted.origin = memory.origin
    told = saved(fitted, model, measured, context=context, start=start)
    out, tokens = Path(own.get("out", own["memory"])).expanduser(), sum(map(len, held_out))
    fitted.save_pretrained(out)
    record = {
        "settings": {**own, "tokens": most, "context": context, "overrides": list(overrides)},
        "corpus": corpus.fingerprint(),
        "fitted_on": tokens,
        "chosen": fitted.mixture,
        "metrics": {name: result.to_dict() for name, result in metrics(told).items()},
        "memory": json.loads((out / CONTROL).read_text(encoding="utf-8"))["sha256"],
        **environment(),
    }
    write_atomic(out / FIT, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    show(told, fitted, tokens, console)
    console.print(f"memory: {out}; these numbers: {out / FIT}")
    return fitted


def metrics(told: Saved) -> dict[str, MetricResult]:
    """Return what a memory saves as numbers of a record: nats per token, intervals over texts."""

    def nats(value: float, interval: Interval | None = None, saved: bool = False) -> MetricResult:
        return MetricResult(value, "nats", "higher" if saved else "lower", told.tokens, interval, 1)

    found = {"nats/model": nats(told.model), "nats/ngram": nats(told.ngram)}
    for name, value in told.mixtures.items():
        found[f"nats/{name}"] = nats(value)
        found[f"saved/{name}/against_model"] = nats(*told.against_model[name], saved=True)
        found[f"saved/{name}/against_ngram"] = nats(*told.against_ngram[name], saved=True)
    return found


def show(told: Saved, memory: Memory, held_out: int, console: Console) -> None:
    """Print what a memory saves: nats per token, with 95% intervals over texts."""
    console.print(
        f"weights fitted on {held_out:,} tokens (val), measured on {told.tokens:,} others (test), nats per token"
    )
    table = Table("", "nats", "saved against the model alone", "saved against the n-grams alone")
    table.add_row("model alone", f"{told.model:.4f}", "", "")
    table.add_row("n-grams alone", f"{told.ngram:.4f}", f"{told.model - told.ngram:+.4f}", "")
    for name, nats in told.mixtures.items():
        chosen = f"{name} (chosen)" if name == memory.mixture else name
        gains = [_gain(*side[name]) for side in (told.against_model, told.against_ngram)]
        table.add_row(chosen, f"{nats:.4f}", *gains)
    console.print(table)


def _gain(value: float, interval: Any) -> str:
    return f"{value:+.4f}" + (f" [{interval[0]:+.4f}, {interval[1]:+.4f}]" if interval else "")
