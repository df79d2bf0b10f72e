"""NSLM: the grid search over all classes of WikiText-2, and what micro-models add to the LSTM's evaluation time.

    python benchmarks/bench_nslm.py --root local/wikitext2 [--threads 2] [--batches 40] [--dim 200]

Bounds: both grids under 120 s on two cores; micro-models (finding class tokens and what stands before them, their
log-probabilities) at most 5% of the LSTM's evaluation (LSTM and full softmax with the exact log-probability of every
target). Without ``--root`` the sample text is used, which shows that it runs and no more.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from lit_ctg.build import build_datamodule
from lit_ctg.config import compose
from lit_ctg.model.nslm.class_table import ClassTable
from lit_ctg.model.nslm.construction import class_table, make_recogniser
from lit_ctg.model.nslm.occurrence import ContextTracker, Occurrences
from lit_ctg.model.nslm.report import class_counts, counts_table
from lit_ctg.model.nslm.selection import Selection, select

CLASSES = Path(__file__).resolve().parents[1] / "conf" / "model" / "nslm_class"
CORPORA = {"number": "data.join_numbers=true", "place": "data.chunk_places=true"}


def prepare(kind: str, root: str | None) -> tuple[Any, ClassTable, dict[str, Occurrences]]:
    """Return the corpus, its classes and their occurrences."""
    words = ["data=wikitext", CORPORA[kind], "data.documents=true", "size=small"]
    words += ["data.source=local", f"data.root={root}"] if root else []
    datamodule = build_datamodule(compose(words, experiment=False))
    packed = datamodule.prepare()
    settings = yaml.safe_load((CLASSES / f"{kind}.yaml").read_text(encoding="utf-8"))
    recognisers = [
        make_recogniser(name, {key: value for key, value in entry.items() if key != "name"})
        for name, entry in settings.items()
    ]
    table = class_table(datamodule.vocabulary.tokens, recognisers)
    found = {
        split: Occurrences.from_documents(packed.ids(split), packed.table(split, "begin"), table)
        for split in ("train", "val")
    }
    return datamodule, table, found


def evaluation(datamodule: Any, table: ClassTable, selection: Selection, dim: int, batches: int) -> tuple[float, float]:
    """Return seconds of the LSTM and of the micro-models over the same validation batches."""
    torch.manual_seed(0)
    vocabulary = len(datamodule.vocabulary)
    embedding, lstm = torch.nn.Embedding(vocabulary, dim), torch.nn.LSTM(dim, dim, 2, batch_first=True)
    output = torch.nn.Linear(dim, vocabulary)
    tracker, carry, state = ContextTracker(table), None, None
    models = list(selection.models.values())
    neural = symbolic = 0.0
    for number, batch in enumerate(datamodule.val_dataloader()):
        if number == batches:
            break
        began = time.perf_counter()
        with torch.no_grad():
            hidden_BTD, state = lstm(embedding(batch["input_ids_BT"]), state)
            output(hidden_BTD).log_softmax(-1).gather(2, batch["target_ids_BT"][..., None])
        middle = time.perf_counter()
        ids_BT, document_BT = batch["input_ids_BT"].numpy(), batch["document_BT"].numpy()
        contexts, carry = tracker.read(ids_BT, document_BT, carry, batch["reset_B"].numpy())
        found = contexts.occurrences(batch["target_ids_BT"].numpy(), batch["mask_target_BT"].numpy())
        for place, model in enumerate(models):
            own = found.of(place)
            if len(own):
                model.log_prob_of(own.index_N, own.evidence)
        neural, symbolic = neural + middle - began, symbolic + time.perf_counter() - middle
    return neural, symbolic


def main() -> None:
    """Measure both corpora."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--dim", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    total = 0.0
    for kind in CORPORA:
        datamodule, table, found = prepare(kind, options.root)
        packed = datamodule.prepare()
        print(counts_table(class_counts(table, found, {split: len(packed.ids(split)) for split in found})))
        for bases in (("uniform",), ("uniform", "unigram")):
            began = time.perf_counter()
            selection = select(table, found["train"], found["val"], bases=bases)
            seconds = time.perf_counter() - began
            print(f"{kind}: grid of {len(selection.trials)} cells, bases {', '.join(bases)}: {seconds:.1f} s")
        total += seconds
        print(selection.table())
        neural, symbolic = evaluation(datamodule, table, selection, options.dim, options.batches)
        print(f"{kind}: micro-models add {symbolic / neural:.1%} to the LSTM's evaluation time (bound 5%)")
    print(f"both grids: {total:.1f} s (bound 120 s)")


if __name__ == "__main__":
    main()
