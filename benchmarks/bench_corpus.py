"""Corpora: packing beside a Python loop, reading a batch beside a training step, memory beside the amount of text.

    python benchmarks/bench_corpus.py [--root FOLDER with train.txt of WikiText] [--quick]

Without ``--root`` the text is our own sample.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from turns import Row, best, parser, progress, read, report

from lit_ctg.data.batching import ConsecutiveBatches, RandomWindows, StreamBatches
from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.document import Document
from lit_ctg.data.loader import ResumableLoader
from lit_ctg.data.packing import ensure_packed
from lit_ctg.data.sample_text import sample_documents
from lit_ctg.data.source import find_file, read_lines
from lit_ctg.data.tokenizer import SpacyTokenizer, Tokenizer, WordTokenizer
from lit_ctg.data.wikitext import WikiTextDataModule, articles, wikitext_tokens

SPEEDUP, READING, GROWTH = 5.0, 0.02, 1.10


def python_loop(tokenizer: Tokenizer, documents: list[Document], path: Path) -> None:
    """The plain way: vocabulary (of words) and ids line by line, a token at a time, with the tokenizer's own rules."""
    ids = array("I")
    if isinstance(tokenizer, WordTokenizer):
        counts: Counter[str] = Counter()
        for document in documents:
            for line in document.text.splitlines(keepends=True):
                for word in tokenizer._words(tokenizer._bytes(line)):
                    counts[word] += 1
        words = sorted(counts, key=lambda word: (-counts[word], word))
        specials = tokenizer.specials
        tokens = [*specials, *(word for word in words if word not in specials)]
        table = {token: number for number, token in enumerate(tokens)}
        for document in documents:
            for line in document.text.splitlines(keepends=True):
                for word in tokenizer._words(tokenizer._bytes(line)):
                    ids.append(table[word])
    else:
        # not line by line: byte-level BPE joins line ends that follow one another
        for document in documents:
            for number in tokenizer.encode(document.text):
                ids.append(number)
    path.write_bytes(ids.tobytes())


def speed(documents: list[Document], rounds: int) -> list[Row]:
    """Return how much longer than packing the loop takes, for each tokenizer."""
    bpe = TrainedBPETokenizer(size=4000)
    bpe.train(document.text for document in documents)
    state = bpe.state()

    def ready() -> Tokenizer:
        tokenizer = TrainedBPETokenizer(size=4000)
        tokenizer.restore(state)
        return tokenizer

    makers: dict[str, Callable[[], Tokenizer]] = {"word": WordTokenizer, "spacy": SpacyTokenizer, "bpe": ready}
    texts, rows = {"train": lambda: documents}, []
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as text_folder:
            folder, plain, made = Path(text_folder), make(), [make() for _ in range(rounds + 1)]
            path, packed = folder / "loop", []

            def pack(folder: Path = folder, made: list = made, packed: list = packed) -> None:
                packed.append(ensure_packed(folder / str(len(made)), texts, made.pop(), {}))

            loop = functools.partial(python_loop, plain, documents, path)
            seconds = best({f"{name}, pack": pack, f"{name}, loop": loop}, rounds)
            if not np.array_equal(packed[-1].ids("train"), np.fromfile(path, dtype=np.uint32)):
                raise RuntimeError(f"{name}: packing and the loop give different ids")
        ratio = seconds[f"{name}, loop"] / seconds[f"{name}, pack"]
        rows.append(Row(f"prepare and pack, {name}: Python loop / ours", ratio, least=SPEEDUP))
    return rows


class SmallestModel(torch.nn.Module):
    """Two Transformer layers of 200 (the smallest of the control-code grid), a vocabulary of the corpus."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(200, 2, 128, batch_first=True)
        self.embedding = torch.nn.Embedding(vocabulary, 200)
        self.body = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(200, vocabulary)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        mask_TT = torch.nn.Transformer.generate_square_subsequent_mask(ids_BT.shape[1])
        return self.head(self.body(self.embedding(ids_BT), mask=mask_TT, is_causal=True))


def reading(documents: list[Document], folder: Path, rounds: int, length: int) -> list[Row]:
    """Return the share of a training step that reading its batch takes, for each way of batching."""
    tokenizer = WordTokenizer()
    packed = ensure_packed(folder, {"train": lambda: documents}, tokenizer, {})
    options = {"length": length, "batch_size": 16}
    kinds = {
        "chunks": ConsecutiveBatches(packed, "train", **options),
        "windows": RandomWindows(packed, "train", steps=50, seed=0, **options),
        "streams": StreamBatches(packed, "train", **options),
    }
    model = SmallestModel(len(tokenizer))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = kinds["chunks"][0, 0]

    def step() -> None:
        optimizer.zero_grad()
        scores_BTV = model(batch["input_ids_BT"])
        torch.nn.functional.cross_entropy(scores_BTV.flatten(0, 1), batch["target_ids_BT"].flatten()).backward()
        optimizer.step()

    loaders = {name: ResumableLoader(batches, shuffle=name == "chunks") for name, batches in kinds.items()}
    ways = {name: functools.partial(list, loader) for name, loader in loaders.items()}
    ways["two workers"] = functools.partial(list, ResumableLoader(kinds["chunks"], shuffle=True, num_workers=2))
    seconds = best({"step": step, **ways}, rounds)
    return [
        *(
            Row(f"reading a batch, {name} / training step", seconds[name] / len(loader) / seconds["step"], most=READING)
            for name, loader in loaders.items()
        ),
        # sending a batch costs more than making it, so no workers are the default
        Row("reading all chunks: two workers / none", seconds["two workers"] / seconds["chunks"]),
    ]


def copies(folder: Path, documents: list[Document], count: int) -> None:
    """Write a corpus of ``count`` copies of the documents; all differ in their titles, since equal ones are dropped."""
    for name, times in (("train", count), ("valid", 1), ("test", 1)):
        with open(folder / f"{name}.txt", "w", encoding="utf-8") as stream:
            for number in range(times * len(documents)):
                stream.write(f" = {name} {number} = \n\n {documents[number % len(documents)].text}\n\n")


def prepare_and_tell_peak(folder: str) -> None:
    """Prepare the corpus in ``folder`` (in a process of its own) and print the peak memory in kilobytes (Linux)."""
    data = WikiTextDataModule(
        source="local", root=folder, cache_root=Path(folder) / "cache", tokenizer=WordTokenizer(), version=2, raw=False,
        batching="streams", length=35,
        batch_size=20, seed=0,
    )  # fmt: skip
    data.prepare_data()
    for _ in data.train_dataloader():
        break
    # not getrusage: its peak is inherited from the process that started this one
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def memory(documents: list[Document]) -> Row:
    """Return the peak memory of preparing 8 times as much text, divided by that of once."""
    unit = documents * max(1, 3_000_000 // sum(len(document.text) for document in documents))
    peaks = []
    for factor in (1, 8):
        progress(f"memory: {factor} times the text")
        with tempfile.TemporaryDirectory() as folder:
            copies(Path(folder), unit, factor)
            command = [sys.executable, __file__, "--peak", folder]
            peaks.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    return Row("peak memory of preparing: 8 times 3 MB of text / once", peaks[1] / peaks[0], most=GROWTH)


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return the exit code."""
    made = parser(__doc__)
    made.add_argument("--root", help="folder of WikiText")
    made.add_argument("--peak", help=argparse.SUPPRESS)
    options = read(made, words)
    if options.peak:
        prepare_and_tell_peak(options.peak)
        return 0
    if options.root:
        documents = list(articles(read_lines(find_file(options.root, ("wiki.train", "train")))))
    else:
        size = 20_000 if options.quick else 400_000
        documents = list(sample_documents("encyclopedia", "train", size=size, change=wikitext_tokens))
    rows = speed(documents, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        rows += reading(documents, Path(folder) / "packed", options.rounds, 8 if options.quick else 256)
    if not options.quick:  # two further processes
        rows.append(memory(documents[:400]))
    return report(rows, options)


if __name__ == "__main__":
    sys.exit(main())
