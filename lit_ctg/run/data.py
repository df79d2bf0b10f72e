"""`lit-ctg data prepare|info|sample|graph` on the data module of a composed configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.run.corpus import text_corpus
from lit_ctg.run.waiting import prepared
from lit_ctg.terminal import Console

# of a document that is shown
TOKENS = 60


class GeneratedCorpus(Protocol):
    """A corpus that is generated on the fly: nothing to prepare, facts and sentences to show."""

    def texts(self, n: int) -> list[str]:
        """Return ``n`` sentences."""

    def facts(self) -> dict[str, Any]:
        """Return what is known about the corpus, such as its entropy floor."""


def run(action: str, datamodule: Any, *, n: int = 5, console: Console | None = None) -> None:
    """Do one of prepare, info and sample.

    Args:
        datamodule: a ``CorpusDataModule``, or a generated clause corpus.
        console: where to print; standard output by default.

    Raises:
        UserError: a data module without a text corpus, or whatever reading the corpus raises.
    """
    console = console or Console()
    if hasattr(datamodule, "facts") and hasattr(datamodule, "texts"):
        _generated(action, datamodule, console, n)
        return
    corpus = text_corpus(datamodule, f"data {action}")
    actions: dict[str, Callable[[], None]] = {
        "prepare": lambda: prepare(corpus, console),
        "info": lambda: info(corpus, console),
        "sample": lambda: sample(corpus, console, n),
    }
    actions[action]()


def _generated(action: str, datamodule: GeneratedCorpus, console: Console, n: int) -> None:
    """Show floors and sentences; there is nothing to prepare."""
    if action == "sample":
        for text in datamodule.texts(n):
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    for key, value in datamodule.facts().items():
        console.print(f"{key:34} {value}", markup=False, highlight=False, soft_wrap=True)


def prepare(datamodule: CorpusDataModule, console: Console) -> None:
    """Fetch and pack a corpus with progress bars, then say where it is."""
    packed = prepared(datamodule, console)
    total = sum(split["tokens"] for split in packed.meta["splits"].values())
    console.print(f"{datamodule.name}: {total:,} tokens in {escape(str(packed.folder))}", soft_wrap=True)


def info(datamodule: CorpusDataModule, console: Console) -> None:
    """Print splits, vocabulary, unknown rate and checksum of a corpus."""
    facts = describe(datamodule)
    table = Table(title=f"{datamodule.name} ({datamodule.source})", title_justify="left")
    for heading in ("split", "documents", "tokens", "unknown", "dropped"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for name, split in facts["splits"].items():
        dropped = str(split["duplicates"])
        table.add_row(name, f"{split['documents']:,}", f"{split['tokens']:,}", f"{split['unknown_rate']:.3%}", dropped)
    console.print(table)
    for key in ("tokenizer", "vocabulary", "sources", "corpus", "folder"):
        console.print(f"{key:10} {escape(str(facts[key]))}", soft_wrap=True, highlight=False)


def describe(datamodule: CorpusDataModule) -> dict[str, Any]:
    """Return the facts that ``info`` prints.

    ``unknown_rate`` is the share of tokens that are ``<unk>``, including those in the text itself; ``duplicates``
    counts documents left out because an evaluation split contains them; ``corpus`` is the checksum of the text.
    """
    packed = datamodule.prepare()
    splits = {}
    for name, split in reversed(packed.meta["splits"].items()):
        splits[name] = {**split, "unknown_rate": split["unknown"] / max(split["tokens"], 1)}
    shown = ", ".join(packed.sources[:12]) + (", ..." if len(packed.sources) > 12 else "")
    return {
        "splits": splits,
        "tokenizer": packed.meta["tokenizer"]["kind"],
        "vocabulary": f"{len(datamodule.vocabulary):,} tokens",
        "sources": shown,
        "corpus": f"sha256 {packed.meta['identity']['corpus']}",
        "folder": packed.folder,
    }


def sample(datamodule: CorpusDataModule, console: Console, n: int) -> None:
    """Print the first tokens of ``n`` training documents, spread over the split, as the model reads them."""
    packed = datamodule.prepare()
    split = next(name for name in packed.splits if name.startswith("train"))
    count = packed.meta["splits"][split]["documents"]
    shown = min(n, count)
    for number in [place * count // shown for place in range(shown)]:
        ids_T = packed.document(split, number)
        source = packed.sources[packed.table(split, "source")[number]]
        text = datamodule.vocabulary.decode(ids_T[:TOKENS].tolist()).strip()
        more = " ..." if len(ids_T) > TOKENS else ""
        console.print(Text(f"[{source} {number}]", style="bold"), Text(text + more), soft_wrap=True)
