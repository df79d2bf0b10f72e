"""`lit-ctg data graph`: count the bigrams of a corpus in a vocabulary and write them as a scene graph (graphmax)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lit_ctg.command import Command, Setting
from lit_ctg.config import compose
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.graphmax.graph import NORMALIZATIONS, CooccurrenceGraph, SceneGraph
from lit_ctg.run.build import build_datamodule, instantiate
from lit_ctg.terminal import Console


def main(words: list[str], console: Console | None = None) -> CooccurrenceGraph:
    """Build, write and describe a scene graph.

    ``data=<corpus>`` counts that corpus in its own vocabulary; ``experiment=graphmax/<name>`` counts the experiment's
    scene corpus in the vocabulary of its language model, which is what ``model.scene.path`` reads.

    Raises:
        UserError: no file named, an option that does not exist, a corpus without text, or what the corpus raises.
    """
    found, overrides = COMMAND.split(words)
    options: dict[str, Any] = {
        "split": "",
        "order": COMMAND.whole(found, "order", 1, least=1),
        "normalization": found.get("normalization", "row"),
        "transposed": found.get("transposed") == "true",
        "minimum_count": COMMAND.whole(found, "minimum_count", 1, least=1),
        "row_edges": COMMAND.whole(found, "row_edges", 256, least=1),
    }
    cfg = compose(overrides, experiment=False)
    datamodule = build_datamodule(cfg)
    if not isinstance(datamodule, CorpusDataModule):
        raise UserError(f"data graph cannot count a {type(datamodule).__name__}: it is not a text corpus")
    corpus = _scene_corpus(cfg, datamodule)
    # of a translation corpus the side that is written
    usual = "train" if "train" in corpus.splits else "train.target"
    options["split"] = found.get("split", usual)
    if options["split"] not in corpus.splits:
        hint = did_you_mean(options["split"], corpus.splits)
        raise UserError(f"split={options['split']}: the corpus has {', '.join(corpus.splits)}{hint}")
    graph = SceneGraph(corpus, **options).graph(datamodule.vocabulary)
    out = Path(found["out"])
    graph.save(out)
    _show(graph, out, datamodule, console or Console())
    return graph


def _scene_corpus(cfg: DictConfig, datamodule: CorpusDataModule) -> CorpusDataModule:
    scene = None if cfg.model is None else cfg.model.get("scene")
    return datamodule if scene is None else instantiate(scene.corpus, "model.scene.corpus")


def _show(graph: CooccurrenceGraph, out: Path, datamodule: CorpusDataModule, console: Console) -> None:
    facts = graph.describe()
    hubs = [(datamodule.vocabulary.decode([token]).strip(), value) for token, value in facts.pop("hubs")]
    facts["hubs (M_jj)"] = ", ".join(f"{word!r} {value:.1f}" for word, value in hubs[:5])
    for key, value in {**facts, "file": out}.items():
        console.print(f"{key:22} {value}", markup=False, highlight=False, soft_wrap=True)


def _run(words: list[str]) -> int:
    main(words)
    return 0


COMMAND = Command(
    "data graph",
    "count the bigrams of a corpus and write them as a scene graph",
    _run,
    (
        Setting("out", "the file to write", required=True),
        Setting("split", "split that is counted (default: train)"),
        Setting("order", "the powers of the bigram matrix that are added up, 1 (default) or more"),
        Setting("normalization", "how counts become weights (default: row)", lambda: NORMALIZATIONS),
        Setting("transposed", "true: predecessors instead of successors", lambda: ("true", "false")),
        Setting("minimum_count", "leave rarer bigrams out (default: 1)"),
        Setting("row_edges", "edges that a row keeps at most where order is above 1 (default: 256)"),
    ),
    overrides=True,
    examples=("data graph experiment=graphmax/main out=scene.safetensors",),
)

# found by `lit-ctg data`
DATA_COMMANDS = {"graph": main}
