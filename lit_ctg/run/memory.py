"""`lit-ctg memory build|fit`: count texts for a Hugging Face model, and weigh the counts on held-out text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf
from rich.table import Table

from lit_ctg.config import compose
from lit_ctg.core.result import MetricResult
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.errors import UserError
from lit_ctg.files import write_atomic
from lit_ctg.network.pretrained import PLAIN, Loading, origin
from lit_ctg.results.record import environment
from lit_ctg.run.build import build_datamodule
from lit_ctg.run.corpus import text_corpus
from lit_ctg.statistics import Interval
from lit_ctg.terminal import Console

if TYPE_CHECKING:
    from lit_ctg.control.memory import Memory, Saved

# how many tokens the model reads at a time if its context is longer
CONTEXT = 512


def corpus_of(model: str, overrides: Sequence[str]) -> CorpusDataModule:
    """Return the corpus in the model's own tokens."""
    chosen = [] if any(word.startswith("data=") for word in overrides) else ["data=folder"]
    cfg = compose([*chosen, "data/tokenizer=huggingface", *overrides], experiment=False)
    OmegaConf.update(cfg, "data.tokenizer.path", model)
    return text_corpus(build_datamodule(cfg), "memory")


def texts_of(corpus: CorpusDataModule, split: str, most: int | None = None) -> list[np.ndarray]:
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


def build(
    model: str,
    out: str,
    overrides: Sequence[str] = (),
    *,
    order: int = 3,
    smoothing: str = "kneser_ney",
    console: Console | None = None,
) -> Memory:
    """Count the training split of a corpus (``data=folder`` by default) in a model's tokens; write and return it.

    Args:
        model: folder or hub name, whose tokenizer is used.
    """
    from lit_ctg.control.bundle import Origin, fingerprint, register_ours
    from lit_ctg.control.memory import Memory
    from lit_ctg.decoding.ngram import NgramModel

    register_ours(model)  # an exported model is one of ours
    corpus = corpus_of(model, overrides)
    texts = texts_of(corpus, "train")
    vocabulary = corpus.vocabulary
    ngram = NgramModel.count(texts, len(vocabulary), order=order, smoothing=smoothing)
    memory = Memory(ngram, text=corpus.fingerprint()["text"])
    memory.origin = Origin(tokenizer=fingerprint(vocabulary.tokens))
    memory.save_pretrained(out)
    counted = ", ".join(f"{count:,} of {length}" for length, count in memory.costs().items())
    shown = console or Console(soft_wrap=True, highlight=False, markup=False)
    shown.print(f"{ngram.tokens:,} tokens of {len(texts):,} texts; n-grams kept, by length: {counted}")
    shown.print(f"memory: {out}; next: lit-ctg memory fit memory={out} model={model} ...")
    return memory


def fit(
    model: str,
    memory: str,
    overrides: Sequence[str] = (),
    *,
    out: str | None = None,
    tokens: int | None = None,
    context: int = CONTEXT,
    console: Console | None = None,
    loading: Loading = PLAIN,
) -> Memory:
    """Fit the weights of a memory on a corpus's validation split, measure the saving on its test split.

    ``fit.json`` in the folder of the fitted memory keeps the numbers.

    Args:
        out: folder of the fitted memory, by default ``memory``.
        tokens: read at most this many of each split.
        context: tokens that the model reads at a time, at most its context.
        loading: device and precision of the model.
    """
    from lit_ctg.control.base import added_ids
    from lit_ctg.control.bundle import CONTROL, FIT, check_tokenizer, load, register_ours
    from lit_ctg.control.memory import Memory, saved
    from lit_ctg.control.memory import fit as fitted_memory
    from lit_ctg.network.huggingface import load_model

    register_ours(model)
    console = console or Console(soft_wrap=True, highlight=False, markup=False)
    found = load(memory)
    if not isinstance(found, Memory):
        raise UserError(f"{memory} holds a control of the kind {found.kind}, not a memory: build one first")
    corpus = corpus_of(model, overrides)
    check_tokenizer(found, getattr(corpus.vocabulary, "engine", corpus.vocabulary.tokens))
    if corpus.fingerprint()["text"] != found.text:
        console.print("this is another text than the counted one: make sure that they do not overlap", style="yellow")
    network = load_model(model, where="model", loading=loading).eval()
    context = min(context, int(getattr(network.config, "max_position_embeddings", None) or CONTEXT))
    held_out, measured = texts_of(corpus, "val", tokens), texts_of(corpus, "test", tokens)
    # the weights are for decoding, where the tokenizer begins a prompt (with ``<s>``, say)
    engine = getattr(corpus.vocabulary, "engine", None)
    start = [] if engine is None else added_ids(engine)[0]
    fitted = fitted_memory(found, network, held_out, context=context, start=start)
    fitted.origin = found.origin
    savings = saved(fitted, network, measured, context=context, start=start)
    folder, count = Path(out or memory).expanduser(), sum(map(len, held_out))
    fitted.save_pretrained(folder)
    settings = {"model": model, "memory": memory, **({"out": out} if out else {})}
    settings |= {"origin": origin(model), "dtype": str(network.dtype), "device": str(network.device)}
    record = {
        "settings": {**settings, "tokens": tokens, "context": context, "overrides": list(overrides)},
        "corpus": corpus.fingerprint(),
        "fitted_on": count,
        "chosen": fitted.mixture,
        "metrics": {name: result.to_dict() for name, result in metrics(savings).items()},
        "memory": json.loads((folder / CONTROL).read_text(encoding="utf-8"))["sha256"],
        **environment(),
    }
    write_atomic(folder / FIT, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    show(savings, fitted, count, console)
    console.print(f"memory: {folder}; these numbers: {folder / FIT}")
    return fitted


def metrics(savings: Saved) -> dict[str, MetricResult]:
    """Return what a memory saves as numbers of a record: nats per token, intervals over texts."""

    def nats(value: float, interval: Interval | None = None, saved: bool = False) -> MetricResult:
        return MetricResult(value, "nats", "higher" if saved else "lower", savings.tokens, interval, 1)

    found = {"nats/model": nats(savings.model), "nats/ngram": nats(savings.ngram)}
    for name, value in savings.mixtures.items():
        found[f"nats/{name}"] = nats(value)
        found[f"saved/{name}/against_model"] = nats(*savings.against_model[name], saved=True)
        found[f"saved/{name}/against_ngram"] = nats(*savings.against_ngram[name], saved=True)
    return found


def show(savings: Saved, memory: Memory, held_out: int, console: Console) -> None:
    """Print what a memory saves: nats per token, with 95% intervals over texts."""
    console.print(
        f"weights fitted on {held_out:,} tokens (val), measured on {savings.tokens:,} others (test), nats per token"
    )
    table = Table("", "nats", "saved against the model alone", "saved against the n-grams alone")
    table.add_row("model alone", f"{savings.model:.4f}", "", "")
    table.add_row("n-grams alone", f"{savings.ngram:.4f}", f"{savings.model - savings.ngram:+.4f}", "")
    for name, nats in savings.mixtures.items():
        chosen = f"{name} (chosen)" if name == memory.mixture else name
        gains = [_gain(*side[name]) for side in (savings.against_model, savings.against_ngram)]
        table.add_row(chosen, f"{nats:.4f}", *gains)
    console.print(table)


def _gain(value: float, interval: Any) -> str:
    return f"{value:+.4f}" + (f" [{interval[0]:+.4f}, {interval[1]:+.4f}]" if interval else "")
