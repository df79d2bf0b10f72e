"""lit_ctg.papers.graphmax.graph, lit_ctg.papers.graphmax.graph, lit_ctg.papers.graphmax.graph."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph
from lit_ctg.papers.graphmax.graph import (
    GraphOperator,
    SceneGraph,
    _arrays_checksum,
    _largest_eigenvalue,
    _multiply_pruned,
    count_bigrams,
)

TEXTS = [[0, 1, 2, 1, 2], [2, 0], [3], [], [1, 1]]
SIZE = 5


def counted() -> np.ndarray:
    counts = np.zeros((SIZE, SIZE))
    for text in TEXTS:
        for first, second in itertools.pairwise(text):
            counts[first, second] += 1
    return counts


def test_bigrams_stay_inside_their_text_and_blocks_do_not_matter() -> None:
    for block in (1, 2, 3, 1000):
        np.testing.assert_array_equal(count_bigrams(TEXTS, SIZE, block=block).toarray(), counted())
    tensors = [torch.tensor(text, dtype=torch.long) for text in TEXTS]
    np.testing.assert_array_equal(count_bigrams(tensors, SIZE).toarray(), counted())


def test_rows_are_normalised_and_words_without_successors_allowed() -> None:
    for transposed in (True, False):
        graph = CooccurrenceGraph.from_token_ids(TEXTS, SIZE, transposed=transposed)
        counts = counted().T if transposed else counted()
        total = counts.sum(axis=1, keepdims=True)
        expected = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
        np.testing.assert_allclose(graph.matrix.toarray(), expected, rtol=1e-6)
    frequent = CooccurrenceGraph.from_token_ids(TEXTS, SIZE, minimum_count=2)
    assert frequent.edges == 1 and frequent.matrix[1, 2] == 1
    description = graph.describe()
    assert description["nodes"] == 5 and description["edges"] == 5 and description["bigrams"] == 6
    assert description["rows_without_successors"] == 2 and description["largest_row"] == 2
    assert len(description["hubs"]) == 5 and description["hubs"][0][1] >= description["hubs"][1][1]


def test_spectral_normalisation_has_eigenvalue_one() -> None:
    graph = CooccurrenceGraph.from_token_ids(TEXTS, SIZE, normalization="spectral")
    assert np.abs(np.linalg.eigvals(graph.matrix.toarray().astype(float))).max() == pytest.approx(1, abs=1e-5)
    ratio = graph.matrix.toarray()[counted() > 0] / counted()[counted() > 0]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    with pytest.raises(UserError, match="no cycle"):
        CooccurrenceGraph.from_token_ids([[0, 1, 2]], 3, normalization="spectral")


def test_orders_sum_powers_and_pruning_is_stated() -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 30, 40).tolist() for _ in range(20)]
    first = CooccurrenceGraph.from_token_ids(texts, 30).matrix.toarray().astype(float)
    whole = CooccurrenceGraph.from_token_ids(texts, 30, order=3)
    np.testing.assert_allclose(whole.matrix.toarray(), first + first @ first + first @ first @ first, atol=1e-6)
    assert whole.information["dropped_mass"] == pytest.approx(0, abs=1e-9)

    cut = CooccurrenceGraph.from_token_ids(texts, 30, order=2, row_edges=4)
    square = first @ first
    kept = np.zeros_like(square)
    for row in range(30):
        best = np.argsort(-square[row], kind="stable")[:4]
        kept[row, best] = square[row, best]
    np.testing.assert_allclose(cut.matrix.toarray(), first + kept, atol=1e-6)
    total = (first + square).sum()
    assert cut.information["dropped_mass"] == pytest.approx((square - kept).sum() / total, rel=1e-4)
    assert cut.information["row_edges"] == 4
    assert CooccurrenceGraph.from_token_ids(texts, 30).information["row_edges"] is None, "nothing was pruned"
    # rows are pruned a block at a time: the lost mass is the sum over blocks
    matrix = sp.csr_array(first)
    (whole_part, whole_lost), (parts, lost) = (_multiply_pruned(matrix, matrix, 4, rows=rows) for rows in (512, 7))
    np.testing.assert_array_equal(parts.toarray(), whole_part.toarray())
    assert lost == pytest.approx(whole_lost) == pytest.approx((square - kept).sum(), rel=1e-5)


def test_totals_are_of_the_rows_of_counts_that_can_be_recovered() -> None:
    assert CooccurrenceGraph.from_token_ids(TEXTS, SIZE).total_V.tolist() == counted().sum(axis=1).tolist()
    transposed = CooccurrenceGraph.from_token_ids(TEXTS, SIZE, transposed=True)
    assert transposed.total_V.tolist() == counted().sum(axis=0).tolist()
    for settings in ({"order": 2}, {"normalization": "spectral"}):
        assert CooccurrenceGraph.from_token_ids(TEXTS, SIZE, **settings).total_V is None
    # thirds and sevenths in float32 times their totals are the counts again
    texts = [[0, 1]] * 3 + [[0, 2]] * 4 + [[1, 0]] * 1000 + [[1, 2]] * 7
    graph = CooccurrenceGraph.from_token_ids(texts, 3, minimum_count=1)
    again = graph.reweighted(transposed=True)
    assert again.total_V.tolist() == [1000.0, 3.0, 11.0] and again.information["bigrams"] == 1014


def test_the_successors_without_their_zeros_are_the_same_rows() -> None:
    graph = CooccurrenceGraph.from_token_ids(TEXTS, SIZE)
    ids_B, like = torch.tensor([1, 4, 2, 0, 3]), torch.zeros(1, dtype=torch.float64)
    found = graph.successor_entries(ids_B, like)
    assert found.weight_BK.dtype == torch.float64 and found.ids_BK.shape == (5, 2)
    rows_BV = torch.zeros(5, SIZE, dtype=torch.float64).scatter_add_(1, found.ids_BK, found.weight_BK)
    assert torch.equal(rows_BV, graph.successors(ids_B, like))
    # 1 and 2 are followed by two tokens, 4 and 3 by nothing: one place of theirs counts as used, with a weight of 0
    assert found.spare_BK[:, 1].tolist() == [False, True, False, True, True] and not found.spare_BK[:, 0].any()
    # unused places repeat the row's first token
    assert found.ids_BK.tolist() == [[1, 2], [0, 0], [0, 1], [1, 1], [0, 0]]
    assert found.weight_BK[found.spare_BK].eq(0).all() and found.weight_BK[1].eq(0).all()
    none = CooccurrenceGraph.from_matrix(np.zeros((3, 3))).successor_entries(torch.tensor([2]), like)
    assert none.ids_BK.tolist() == [[0]] and none.weight_BK.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": []}, "no pair of tokens 1 times"),
        ({"sequences": [[0, 1], [1, 5]]}, "sequence 1 .* token 5"),
        ({"sequences": [[0, -1]]}, "token -1"),
        ({"minimum_count": 3}, "lower minimum_count"),
        ({"matrix": np.ones((2, 3))}, "square"),
        ({"matrix": np.array([[0, -1], [1, 0]])}, "not negative"),
        ({"matrix": np.array([[0, np.nan], [1, 0]])}, "finite"),
    ],
)
def test_bad_corpora_and_weights_are_one_line(arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        if "matrix" in arguments:
            CooccurrenceGraph.from_matrix(**arguments)
        CooccurrenceGraph.from_token_ids(**({"sequences": TEXTS, "vocab_size": SIZE} | arguments))


def test_a_file_keeps_everything_and_replaces_no_pipe(tmp_path: Path) -> None:
    graph = CooccurrenceGraph.from_token_ids(TEXTS, SIZE, order=2)
    graph.operator(torch.zeros(1))
    folder = tmp_path / "folder"
    graph.save(folder / "graph")
    for again in (CooccurrenceGraph.load(folder / "graph"), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert (again.matrix != graph.matrix).nnz == 0 and again.information == graph.information
    os.mkfifo(folder / "pipe")
    for path in (folder / "pipe", folder / "pipe" / "graph"):
        with pytest.raises(UserError, match="choose another file"):
            graph.save(path)
    (folder / "link").symlink_to("other")
    graph.save(folder / "link")
    assert (folder / "link").is_symlink() and CooccurrenceGraph.load(folder / "other").edges == graph.edges
    assert sorted(path.name for path in folder.iterdir()) == ["graph", "link", "other", "pipe"]
    (folder / "graph").write_bytes(b"something else")
    for name, message in (("graph", "damaged"), ("missing", "no such file")):
        with pytest.raises(UserError, match=message):
            CooccurrenceGraph.load(folder / name)


def crafted(path, change) -> None:
    """Write a graph file whose tensors and metadata ``change`` altered, with the checksum that belongs to them."""
    graph = CooccurrenceGraph.from_token_ids([[0, 1, 2, 1, 0]], 3)
    graph.save(path)
    with safe_open(path, framework="numpy") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    change(tensors, metadata)
    if metadata.get("sha256", "0" * 64) != "0" * 64:
        metadata["sha256"] = _arrays_checksum(tensors)
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # read unchecked, this column is a segmentation fault
        (lambda t, m: t.update(column=np.full_like(t["column"], 2**30)), "a column outside the vocabulary of 3"),
        (lambda t, m: t.update(row=np.array([0, 9, 1, 4], np.int32)), "row pointers that do not fit"),
        (lambda t, m: t.update(row=np.array([0, 2, 3, 2**30], np.int32)), "row pointers that do not fit"),
        (lambda t, m: t.update(row=t["row"][:2]), "row pointers for a vocabulary of 3"),
        (lambda t, m: t.update(weight=t["weight"][:2]), "row pointers that do not fit"),
        (lambda t, m: t.update(column=t["column"].astype(np.float32)), "float32 columns"),
        (lambda t, m: t.update(weight=np.full_like(t["weight"], np.nan)), "finite and not negative"),
        (lambda t, m: t.update(total=t["total"][:1]), "totals that do not fit"),
        (lambda t, m: t.update(total=-t["total"]), "totals that do not fit"),
        (lambda t, m: t.update(column=np.array([3, *t["column"][1:]], t["column"].dtype)), "a column outside"),
        (lambda t, m: t.update(column=np.array([-1, *t["column"][1:]], t["column"].dtype)), "a column outside"),
        (lambda t, m: t.update(row=np.array([1, *t["row"][1:]], t["row"].dtype)), "row pointers that do not fit"),
        (lambda t, m: m.update(vocab_size="0"), "damaged .a vocabulary of 0"),
        (lambda t, m: t.pop("weight"), "has no 'weight'"),
        (lambda t, m: m.pop("vocab_size"), "has no 'vocab_size'"),
        (lambda t, m: m.update(vocab_size="many"), "damaged .*'many'"),
        (lambda t, m: m.update(vocab_size="1" * 30), "damaged .a vocabulary of 1111"),
        (lambda t, m: m.update(information="[" * 100_000), "damaged"),
        (lambda t, m: m.update(information='["cls", "matrix"]'), "its information is not a mapping"),
        (lambda t, m: m.pop("sha256"), "checksum"),
        (lambda t, m: m.update(sha256="0" * 64), "checksum"),
        (lambda t, m: m.pop("format"), "not a scene graph of this version"),
    ],
)
def test_a_hostile_file_is_one_line(tmp_path, change, message) -> None:
    path = tmp_path / "graph.safetensors"
    crafted(path, change)
    with pytest.raises(UserError, match=message) as caught:
        CooccurrenceGraph.load(path)
    assert (
        str(path) in str(caught.value) and "lit-ctg data graph" in str(caught.value) and "\n" not in str(caught.value)
    )
    crafted(path, lambda t, m: m.update(information='{"matrix": 1, "cls": 2}'))  # information may have any name
    assert CooccurrenceGraph.load(path).information == {"matrix": 1, "cls": 2}


def test_successors_of_ids_that_are_none(zipf_graph: CooccurrenceGraph) -> None:
    like = torch.zeros(1)
    assert zipf_graph.successors(torch.tensor([0, 2999]), like).shape == (2, 3000)
    for ids, message in (
        (torch.tensor([5, 3000]), "no token 3000"),
        (torch.tensor([-1, 2]), "no token -1"),
        (torch.tensor([1.0]), "whole numbers, not torch.float32"),
        ([1, 2], "whole numbers, not list"),
        (torch.tensor([True, False]), "whole numbers, not torch.bool"),
        (torch.tensor([[1]]), r"one for each row, not \(1, 1\)"),
    ):
        with pytest.raises(UserError, match=message):
            zipf_graph.successors(ids, like)


def test_the_operator_is_m(slow) -> None:
    matrix = slow.random_matrix(np.random.default_rng(4), 40)
    operator = GraphOperator.from_scipy(CooccurrenceGraph.from_matrix(matrix).matrix, hubs=7)
    difference = np.eye(40) - matrix.astype(np.float32)
    m = difference.T @ difference
    x = np.random.default_rng(1).random((3, 40))
    np.testing.assert_allclose(operator.product(torch.from_numpy(x)), x @ m, atol=1e-12)
    np.testing.assert_allclose(operator.product(torch.from_numpy(x[:1])), x[:1] @ m, atol=1e-12)
    assert operator.like(torch.zeros(1)).matrices is operator.matrices, "another dtype must not cost memory"
    np.testing.assert_allclose(operator.diagonal_V, np.diag(m), atol=1e-12)
    hubs = operator.hubs_K.numpy()
    assert set(np.argsort(-np.diag(m))[:6]) <= set(hubs) and operator.is_hub_V.sum() == 7
    np.testing.assert_allclose(operator.gram_KK, m[np.ix_(hubs, hubs)], atol=1e-12)
    np.testing.assert_allclose(operator.difference(torch.from_numpy(x)), x @ difference.T, atol=1e-12)
    others = np.where(np.isin(np.arange(40), hubs), 0, np.diag(m))
    np.testing.assert_allclose(operator.extra_diagonal_V, others, atol=1e-12)


def test_memory_is_sparse(zipf_graph: CooccurrenceGraph) -> None:
    operator = zipf_graph.operator(torch.zeros(1))
    # two copies of the edges and two laid out for the compiled product, the hub block, a few vectors
    assert operator.megabytes < (2 * (8 + 7) * zipf_graph.edges + 4 * 512**2 + 40 * zipf_graph.vocab_size) / 1e6


def test_the_largest_eigenvalue_of_several_parts() -> None:
    """A chain of parts with one eigenvalue: the power method on the whole would take forever."""
    loops = 40
    matrix = np.eye(loops) + np.eye(loops, k=1)
    assert _largest_eigenvalue(sp.csr_array(matrix)) == 1.0
    pair = np.array([[0.0, 2.0], [2.0, 0.0]])
    blocks = np.block([[pair, np.ones((2, 2))], [np.zeros((2, 2)), pair]])
    assert _largest_eigenvalue(sp.csr_array(blocks)) == pytest.approx(2.0, rel=1e-9)


def test_a_graph_that_was_counted_otherwise_is_refused(tmp_path) -> None:
    vocabulary = SimpleNamespace(tokens=[str(n) for n in range(SIZE)])
    path = tmp_path / "graph.safetensors"
    CooccurrenceGraph.from_token_ids(TEXTS, SIZE, order=2).save(path)
    with pytest.raises(UserError, match=r"has order=2, .* set model.scene.order=2"):
        SceneGraph(path=path).graph(vocabulary)
    assert SceneGraph(path=path, order=2).graph(vocabulary).information["order"] == 2
    CooccurrenceGraph.from_token_ids(TEXTS, SIZE).save(path)
    assert SceneGraph(path=path, row_edges=7).graph(vocabulary).information["order"] == 1
