"""`lit-ctg data graph`: count the bigrams of a corpus in a vocabulary and write them as a scene graph (graphmax)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lit_ctg.command import Command, option
from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, check_value
from lit_ctg.terminal import Console

if TYPE_CHECKING:  # they import torch, and help is to be there at once
    from lit_ctg.data.corpus import CorpusDataModule
    from lit_ctg.papers.graphmax.graph import CooccurrenceGraph


class Graph(Command):
    """count the bigrams of a corpus and write them as a scene graph

    ``data=<corpus>`` counts that corpus in its own vocabulary; ``experiment=graphmax/<name>`` counts the experiment's
    scene corpus in the vocabulary of its language model, which is what ``model.scene.path`` reads.
    """

    words = "data graph"
    overrides: list[str]
    examples = ("data graph experiment=graphmax/main out=scene.safetensors",)
    out: str = option("the file to write")
    split: str | None = option("split that is counted (default: train)", None)
    order: Count = option("the powers of the bigram matrix that are added up", 1)
    normalization: Literal["row", "spectral"] = option("how counts become weights", "row")
    transposed: bool = option("true: predecessors instead of successors", False)
    minimum_count: Count = option("leave rarer bigrams out", 1)
    row_edges: Count = option("edges that a row keeps at most where order is above 1", 256)

    def execute(self) -> None:
        self.graph()

    def graph(self, console: Console | None = None) -> CooccurrenceGraph:
        """Build, write and describe the scene graph.

        Raises:
            UserError: a corpus without text, a split that it lacks, or what the corpus raises.
        """
        from lit_ctg.data.corpus import CorpusDataModule
        from lit_ctg.papers.graphmax.graph import SceneGraph
        from lit_ctg.run.build import build_datamodule, instantiate

        cfg = compose(self.overrides, experiment=False)
        datamodule = build_datamodule(cfg)
        if not isinstance(datamodule, CorpusDataModule):
            raise UserError(f"data graph cannot count a {type(datamodule).__name__}: it is not a text corpus")
        scene = None if cfg.model is None else cfg.model.get("scene")
        corpus = datamodule if scene is None else instantiate(scene.corpus, "model.scene.corpus")
        # of a translation corpus the side that is written
        split = self.split or ("train" if "train" in corpus.splits else "train.target")
        check_value("split", split, Annotated[str, Choice(corpus.splits)])
        settings: dict[str, Any] = {"order": self.order, "normalization": self.normalization}
        settings |= {"transposed": self.transposed, "minimum_count": self.minimum_count, "row_edges": self.row_edges}
        graph = SceneGraph(corpus, split=split, **settings).graph(datamodule.vocabulary)
        graph.save(Path(self.out))
        _show(graph, Path(self.out), datamodule, console or Console())
        return graph


def _show(graph: CooccurrenceGraph, out: Path, datamodule: CorpusDataModule, console: Console) -> None:
    facts = graph.describe()
    hubs = [(datamodule.vocabulary.decode([token]).strip(), value) for token, value in facts.pop("hubs")]
    facts["hubs (M_jj)"] = ", ".join(f"{word!r} {value:.1f}" for word, value in hubs[:5])
    for key, value in {**facts, "file": out}.items():
        console.print(f"{key:22} {value}", markup=False, highlight=False, soft_wrap=True)


# found by `lit-ctg data`
COMMANDS = (Graph,)
