"""Speed and memory of the corpus path: preparing against a plain Python loop, reading against a training step, growth.

    python benchmarks/bench_corpus.py [--root FOLDER with train.txt] [--gpt2 FOLDER with encoder.json and vocab.bpe]

Without --root the text is our own sample. Everything is printed as a ratio, so a busy or slow machine does not matter
much; each side is the best of several tries made in turns. Exit code 1 when a bound of docs/data.md does not hold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from lit_ctg.data.batching import ConsecutiveBatches, RandomWindows, StreamBatches
from lit_ctg.data.byte_pair import GPT2Tokenizer, TrainedBPETokenizer
from lit_ctg.data.document import Document
from lit_ctg.data.loader import ResumableLoader
from lit_ctg.data.packing import PackedCorpus, ensure_packed
from lit_ctg.data.sample import encyclopedia
from lit_ctg.data.source import find_file, read_lines
from lit_ctg.data.tokenizer import SpacyTokenizer, Tokenizer, WordTokenizer
from lit_ctg.data.wikitext import WikiTextDataModule, articles

SPEEDUP, READING, GROWTH = 5.0, 0.02, 1.10
TRIES = 3


def best(work: Callable[[], object], tries: int) -> float:
    """Return the seconds of the fastest try."""
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


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


def speed(documents: list[Document], gpt2: str | None) -> bool:
    """Print how much faster packing is than the loop, for each tokenizer."""
    bpe = TrainedBPETokenizer(size=4000)
    bpe.train(document.text for document in documents)
    state = bpe.state()

    def ready() -> Tokenizer:
        tokenizer = TrainedBPETokenizer(size=4000)
        tokenizer.restore(state)
        return tokenizer

    makers: dict[str, Callable[[], Tokenizer]] = {"word": WordTokenizer, "spacy": SpacyTokenizer, "bpe": ready}
    if gpt2 is not None:

        def gpt2_ready() -> Tokenizer:
            tokenizer = GPT2Tokenizer(root=gpt2)
            tokenizer.train([])
            return tokenizer

        makers["gpt2"] = gpt2_ready
    good, texts = True, {"train": lambda: documents}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers.items():
            tokenizers = [make() for _ in range(TRIES)]
            plain, path = make(), Path(folder) / "loop"
            ours = loop = float("inf")
            # in turns, so that other work on the machine meets both
            for number in range(TRIES):
                start = time.perf_counter()
                packed = ensure_packed(Path(folder) / f"{name}{number}", texts, tokenizers[number], {})
                middle = time.perf_counter()
                python_loop(plain, documents, path)
                ours, loop = min(ours, middle - start), min(loop, time.perf_counter() - middle)
            if not np.array_equal(packed.ids("train"), np.fromfile(path, dtype=np.uint32)):
                raise RuntimeError(f"{name}: packing and the loop give different ids")
            good &= loop / ours >= SPEEDUP
            print(f"prepare and pack, {name:6} {loop / ours:6.1f} times faster than the loop (at least {SPEEDUP})")
    return good


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


def reading(packed: PackedCorpus, vocabulary: int) -> bool:
    """Print the share of a training step that reading its batch takes, for each way of batching."""
    options = {"length": 256, "batch_size": 16}
    kinds = {
        "chunks": ConsecutiveBatches(packed, "train", **options),
        "windows": RandomWindows(packed, "train", steps=50, seed=0, **options),
        "streams": StreamBatches(packed, "train", **options),
    }
    model = SmallestModel(vocabulary)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = kinds["chunks"][0, 0]

    def step() -> None:
        optimizer.zero_grad()
        scores_BTV = model(batch["input_ids_BT"])
        torch.nn.functional.cross_entropy(scores_BTV.flatten(0, 1), batch["target_ids_BT"].flatten()).backward()
        optimizer.step()

    step_s = best(step, 3)
    good = True
    for name, batches in kinds.items():
        loader = ResumableLoader(batches, shuffle=name == "chunks")

        def read(loader: ResumableLoader = loader) -> None:
            for _ in loader:
                pass

        share = best(read, 3) / len(loader) / step_s
        good &= share <= READING
        print(f"reading a batch, {name:7} {share:8.3%} of a training step (at most {READING:.0%})")
    return good


def copies(folder: Path, text: str, count: int) -> None:
    """Write a corpus of ``count`` copies of ``text`` whose articles all differ in their titles."""
    for name, times in (("train", count), ("valid", 1), ("test", 1)):
        with open(folder / f"{name}.txt", "w", encoding="utf-8") as stream:
            for number in range(times):
                stream.write(text.replace(" = \n\n", f" {name} {number} = \n\n"))


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


def memory(text: str) -> bool:
    """Print the peak memory of preparing 1, 4 and 16 times as much text."""
    unit = text * max(1, 6_000_000 // len(text))
    peaks = []
    for factor in (1, 4, 16):
        with tempfile.TemporaryDirectory() as folder:
            copies(Path(folder), unit, factor)
            command = [sys.executable, __file__, "--peak", folder]
            peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        ratio = peaks[-1] / peaks[0]
        print(f"memory at {factor:2} times the text {peaks[-1] / 1000:6.0f} MB, {ratio:.2f} of that at 1")
    return peaks[-1] / peaks[0] <= GROWTH


def main() -> int:
    """Run all three comparisons; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--gpt2")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        prepare_and_tell_peak(given.peak)
        return 0
    torch.set_num_threads(1)
    if given.root:
        documents = list(articles(read_lines(find_file(given.root, ("wiki.train", "train")))))
    else:
        documents = list(encyclopedia.documents("train", 0, 400_000))
    good = speed(documents, given.gpt2)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = WordTokenizer()
        packed = ensure_packed(Path(folder) / "c", {"train": lambda: documents}, tokenizer, {})
        good &= reading(packed, len(tokenizer))
    text = "".join(document.text for document in documents[:400])
    good &= memory(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
