"""`lit-ctg data graph`: count the bigrams of a corpus in a vocabulary and write them as a scene graph (graphmax)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig
from rich.console import Console

from lit_ctg.config import compose
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.graph import NORMALIZATIONS, CooccurrenceGraph, SceneGraph
from lit_ctg.run.build import build_datamodule, instantiate

USAGE = (
    "lit-ctg data graph data=<corpus>|experiment=graphmax/<name> [OVERRIDE ...] --out FILE [--split train] [--order 1] "
    "[--normalization row|spectral] [--transposed] [--minimum-count 1] [--row-edges 256]"
)


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"data graph: {message}; usage: {USAGE}")


def main(words: list[str], console: Console | None = None) -> CooccurrenceGraph:
    """Build, write and describe a scene graph.

    ``data=<corpus>`` counts that corpus in its own vocabulary; ``experiment=graphmax/<name>`` counts the experiment's
    scene corpus in the vocabulary of its language model, which is what ``model.scene.path`` reads.

    Raises:
        UserError: no file named, an option that does not exist, a corpus without text, or what the corpus raises.
    """
    parser = _Arguments(add_help=False, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--order", type=int, default=1)
    parser.add_argument("--normalization", choices=NORMALIZATIONS, default="row")
    parser.add_argument("--transposed", action="store_true")
    parser.add_argument("--minimum-count", type=int, default=1)
    parser.add_argument("--row-edges", type=int, default=256)
    options, overrides = parser.parse_known_args(words)
    unknown = next((word for word in overrides if word.startswith("-")), None)
    if unknown is not None:
        raise UserError(f"data graph has no option '{unknown}'; usage: {USAGE}")
    settings = vars(options)
    out = settings.pop("out")
    cfg = compose(overrides, experiment=False)
    datamodule = build_datamodule(cfg)
    if not isinstance(datamodule, CorpusDataModule):
        raise UserError(f"data graph cannot count a {type(datamodule).__name__}: it is no text corpus")
    graph = SceneGraph(_scene_corpus(cfg, datamodule), **settings).graph(datamodule.vocabulary)
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


# found by `lit-ctg data`
DATA_COMMANDS = {"graph": main}
