"""`lit-ctg data graph`: the file holds the bigrams of the corpus in the vocabulary asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lit_ctg.cli import dispatch
from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph
from lit_ctg.papers.graphmax.command import Graph
from lit_ctg.papers.graphmax.graph import SceneGraph
from lit_ctg.run.build import build_datamodule, instantiate


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.long
def test_a_corpus_in_its_own_vocabulary(run_cli, tmp_path: Path) -> None:
    file = tmp_path / "graph.safetensors"
    words = ["data=reviews", "size=smoke", "data/tokenizer=word"]
    code, out, err = run_cli("data", "graph", *words, f"out={file}", "order=2", "row_edges=20")
    assert code == 0 and err == "" and "hubs" in out
    data = build_datamodule(compose(words, experiment=False))
    texts = [data.vocabulary.encode(document.text) for document in data.documents("train")]
    expected = CooccurrenceGraph.from_token_ids(texts, len(data.vocabulary), order=2, row_edges=20)
    found = CooccurrenceGraph.load(file)
    np.testing.assert_array_equal(found.matrix.toarray(), expected.matrix.toarray())
    assert found.information["order"] == 2 and f"{found.edges}" in out and found.information["corpus"] == "reviews"


@pytest.mark.long
def test_a_scene_in_the_vocabulary_of_the_language_model(tmp_path: Path) -> None:
    file = tmp_path / "graph.safetensors"
    words = ["experiment=graphmax/main", "size=smoke"]
    graph = Graph.parse([*words, f"out={file}"]).graph()
    cfg = compose(words)
    data = build_datamodule(cfg)
    assert graph.vocab_size == len(data.vocabulary)
    read = SceneGraph(path=file).graph(data.vocabulary)
    counted = instantiate(cfg.model.scene, "model.scene").graph(data.vocabulary)
    assert (read.matrix != counted.matrix).nnz == 0
    # of a translation corpus the side that is written
    graph = Graph.parse(["experiment=graphmax/translation", "size=smoke", f"out={tmp_path / 'g'}"]).graph()
    assert graph.information["split"] == "train.target"


def test_bad_input(tmp_path: Path) -> None:
    out = f"out={tmp_path / 'g'}"
    corpus = ["data=reviews", "size=smoke", "data/tokenizer=word"]
    for words, message in (
        (["data=reviews"], "data graph: give out="),
        ([*corpus, out, "order=0"], "data graph: order=0: pass"),
        ([*corpus, out, "split=tran"], "split=tran: .*did you mean 'train'"),
        (["data=clause", "size=smoke", out], "not a text corpus"),
    ):
        with pytest.raises(UserError, match=message):
            dispatch(["data", "graph", *words])
    assert not list(tmp_path.iterdir())


def test_a_missing_graph_is_named_when_the_run_is_built(tmp_path: Path) -> None:
    """It is read late, and by some runs not at all."""
    with pytest.raises(UserError, match=r"lit-ctg data graph: .* path=.*none\.safetensors"):
        SceneGraph(path=tmp_path / "none.safetensors")
