"""The scene graph: how often one token follows another in a small corpus, row-normalised and sparse (sec. 2.4).

Top to bottom: counting bigrams, the map M, the graph and its file, the graph of a corpus over a model's vocabulary.
Shape suffixes: B rows of a batch, V vocabulary, E edges, K hubs, P bigrams of a block.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from lit_ctg.data.tokenizer import Tokenizer, blocks
from lit_ctg.errors import UserError
from lit_ctg.files import replacing
from lit_ctg.limits import Choice, Count, Fields, checked, grouped
from lit_ctg.papers.graphmax.fast import SETTINGS, chosen_kernels

if TYPE_CHECKING:
    from lit_ctg.data.corpus import CorpusDataModule
    from lit_ctg.papers.graphmax.fast.kernels import SlicedRows


# Bigram counts of a token stream of any size; memory grows only with the number of distinct bigrams (sec. 2.4).


def count_bigrams(
    sequences: Iterable[Sequence[int] | np.ndarray], vocab_size: int, block: int = 2_000_000
) -> sp.csr_array:
    """Return ``count(i, j)``, how often token j follows token i within a sequence, as a ``[V, V]`` float64 CSR matrix.

    Args:
        sequences: token ids of each text (lists, arrays or tensors); bigrams never span two of them.
        vocab_size: V, the vocabulary of the language model.
        block: number of bigrams collected before they are added to the matrix.

    Raises:
        UserError: an id that is not in the vocabulary.
    """
    total = sp.csr_array((vocab_size, vocab_size), dtype=np.float64)
    for first_P, second_P in _blocks(_bigrams(sequences, vocab_size), block):
        counts = sp.coo_array((np.ones(len(first_P)), (first_P, second_P)), shape=total.shape)
        total = total + counts.tocsr()
    total.sort_indices()
    return total


def _bigrams(
    sequences: Iterable[Sequence[int] | np.ndarray], vocab_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number, sequence in enumerate(sequences):
        given = np.asarray(sequence).reshape(-1)
        ids = given.astype(np.int64)
        wrong = given[(ids != given) | (ids < 0) | (ids >= vocab_size)]
        if len(wrong):
            raise UserError(
                f"sequence {number} of the scene corpus holds token {wrong[0]}: ids are whole numbers from 0 to "
                f"{vocab_size - 1}"
            )
        yield ids[:-1], ids[1:]


def _blocks(pairs: Iterator[tuple[np.ndarray, np.ndarray]], block: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    held: list[tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for pair in pairs:
        held.append(pair)
        size += len(pair[0])
        if size >= block:
            yield _joined(held)
            held, size = [], 0
    if size:
        yield _joined(held)


def _joined(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([first for first, _ in pairs]), np.concatenate([second for _, second in pairs])


# The linear map M = (I - A~)^T (I - A~) and what the solver precomputes from it (Eq. 4).
#
# M itself is never formed (one of its rows can be full): a product applies B = I - A~, then B^T.


HUBS = 512


class Matrices:
    """A~ and its transpose, in the layouts for products; each is made when first needed, then shared.

    Args:
        forward: A~, ``[V, V]`` CSR, float32 or float64.
        fast: ``auto`` or ``off``, see :mod:`lit_ctg.papers.graphmax.fast`.
    """

    def __init__(self, forward: sp.csr_array, fast: str = "auto"):
        self.fast = fast
        self.forward, self.backward = forward, forward.T.tocsr()
        self.backward.sort_indices()
        self.largest = float(forward.data.max(initial=0.0))
        self._wide: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def wide(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return both in float64 as torch CSR (int32 indices) on the device of ``like``."""
        if like.device not in self._wide:
            forward, backward = (_torch_csr(matrix).to(like.device) for matrix in (self.forward, self.backward))
            self._wide[like.device] = forward, backward
        return self._wide[like.device]

    @property
    def kernels(self) -> ModuleType | None:
        """The compiled kernels; None where torch is used."""
        return chosen_kernels(self.fast)

    @cached_property
    def sliced(self) -> tuple[SlicedRows, SlicedRows]:
        """Both in the layout for the compiled product with one vector."""
        kernels = self.kernels
        assert kernels is not None, "asked for by compiled products only"
        return kernels.sliced(self.forward), kernels.sliced(self.backward)

    @property
    def nbytes(self) -> int:
        """Memory in bytes, including the sliced layout if used."""
        pair = (self.forward, self.backward)
        parts = [part for matrix in pair for part in (matrix.data, matrix.indices, matrix.indptr)]
        return sum(part.nbytes for part in parts) + (sum(part.nbytes for part in self.sliced) if self.kernels else 0)


@dataclass(frozen=True, eq=False)
class GraphOperator:
    """``x -> M x`` for one graph, dtype and device; every sum of a product is float64.

    Attributes:
        matrices: A~ and its transpose.
        diagonal_V: ``M_jj = ||(I - A~) e_j||^2``.
        hubs_K: the tokens with the largest ``M_jj``, which make the problem stiff.
        gram_KK: the block of M on the hubs.
        is_hub_V: bool.
    """

    matrices: Matrices
    diagonal_V: Tensor
    hubs_K: Tensor
    gram_KK: Tensor
    is_hub_V: Tensor

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, hubs: int = HUBS, fast: str = "auto") -> GraphOperator:
        """Prepare ``matrix`` (A~, ``[V, V]``) in float64."""
        matrices = Matrices(matrix, fast)
        weights, backward = (sp.csr_array(part, dtype=np.float64) for part in (matrix, matrices.backward))
        size = weights.shape[0]
        self_V = weights.diagonal()
        # ||e_j - A e_j||^2: the squared column of A, with its diagonal entry treated separately
        diagonal_V = np.asarray(backward.multiply(backward).sum(axis=1)).reshape(-1) - self_V**2 + (1 - self_V) ** 2
        hubs_K = np.sort(np.argsort(-diagonal_V, kind="stable")[:hubs])
        columns = (sp.eye_array(size, format="csc") - weights.tocsc())[:, hubs_K].tocsr()
        return cls(
            matrices=matrices,
            diagonal_V=torch.from_numpy(diagonal_V),
            hubs_K=torch.from_numpy(hubs_K),
            gram_KK=torch.from_numpy(np.ascontiguousarray((columns.T @ columns).toarray())),
            is_hub_V=torch.from_numpy(np.isin(np.arange(size), hubs_K)),
        )

    def like(self, tensor: Tensor) -> GraphOperator:
        """Return this operator in the dtype and on the device of ``tensor``; the matrices are shared."""
        return GraphOperator(
            matrices=self.matrices,
            diagonal_V=self.diagonal_V.to(tensor),
            hubs_K=self.hubs_K.to(tensor.device),
            gram_KK=self.gram_KK.to(tensor),
            is_hub_V=self.is_hub_V.to(tensor.device),
        )

    @property
    def vocab_size(self) -> int:
        return len(self.diagonal_V)

    def difference(self, x_BV: Tensor) -> Tensor:
        """Return ``(I - A~) x`` row by row, ``[B, V]``, in the dtype of x."""
        wide_VB = x_BV.T.double()
        return torch.addmm(wide_VB, self.matrices.wide(x_BV)[0], wide_VB, alpha=-1).T.to(x_BV.dtype)

    def product(self, x_BV: Tensor) -> Tensor:
        """Return ``M x`` row by row, ``[B, V]`` in the dtype of x: one full product, summed in float64."""
        kernels = self.kernels_for(x_BV)
        if kernels is not None:
            return torch.from_numpy(kernels.product(self.matrices, x_BV.detach().numpy()))
        # [V, B] as intermediate: sparse rows then read B neighbours at once
        x_VB = x_BV.T.double().contiguous()
        forward_VV, backward_VV = self.matrices.wide(x_BV)
        residual_VB = torch.addmm(x_VB, forward_VV, x_VB, alpha=-1)
        return torch.addmm(residual_VB, backward_VV, residual_VB, alpha=-1).T.contiguous().to(x_BV.dtype)

    def kernels_for(self, x_BV: Tensor) -> ModuleType | None:
        """Return the compiled kernels if they support this: float32 on a CPU, with float32 weights."""
        narrow = x_BV.dtype == torch.float32 and self.matrices.forward.dtype == np.float32
        return self.matrices.kernels if narrow and x_BV.device.type == "cpu" else None

    @cached_property
    def extra_diagonal_V(self) -> Tensor:
        """``M_jj`` of the tokens that are not hubs, 0 for hubs."""
        return self.diagonal_V * ~self.is_hub_V

    @property
    def megabytes(self) -> float:
        dense = [self.diagonal_V, self.extra_diagonal_V, self.hubs_K, self.gram_KK, self.is_hub_V]
        return (self.matrices.nbytes + sum(part.numel() * part.element_size() for part in dense)) / 1e6


def _torch_csr(matrix: sp.csr_array) -> Tensor:
    with warnings.catch_warnings():
        # torch warns that its CSR support is in beta
        warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data.astype(np.float64)),
            size=matrix.shape,
            check_invariants=True,
        )


# The scene graph: how often one token follows another in a small corpus, row-normalised and sparse (sec. 2.4).


GRAPH_FORMAT = "lit-ctg scene graph 1"
NORMALIZATIONS = ("row", "spectral")


@checked
@dataclass(frozen=True, kw_only=True)
class Counting:
    """How bigram counts become a graph.

    Attributes:
        order: n of ``A~ + A~^2 + ... + A~^n`` (sec. 5.3).
        alone: use ``A~^n`` alone, which the section names first.
        transposed: use ``count(j, i)`` instead of ``count(i, j)`` (predecessors), before normalising.
        normalization: ``row`` is ``D^-1 A`` (eps of the paper's ``D_ii = sum_j A_ij + eps`` tends to 0: rows without
            successors stay zero); ``spectral`` divides the counts by their largest eigenvalue ``mu_max``.
        minimum_count: rarer bigrams are dropped before normalising.
        row_edges: for order > 1, only this many of the largest weights of a row of each power are kept, because powers
            fill up; nothing is rescaled. ``information["dropped_mass"]`` is the share of weight lost.
    """

    order: Count = 1
    alone: bool = False
    transposed: bool = False
    normalization: Annotated[str, Choice(NORMALIZATIONS)] = "row"
    minimum_count: Count = 1
    row_edges: Count = 256


class Successors(NamedTuple):
    """The positive entries of some rows of A~, in as many columns K as the fullest row has.

    Attributes:
        ids_BK: the tokens; unused places repeat the row's first, an empty row has token 0.
        weight_BK: their weights, 0 at unused places.
        spare_BK: marks unused places.
    """

    ids_BK: torch.Tensor
    weight_BK: torch.Tensor
    spare_BK: torch.Tensor


@checked
@dataclass(frozen=True, eq=False)
class CooccurrenceGraph:
    """The weighted directed graph ``A~`` over a language model's vocabulary.

    Attributes:
        matrix: ``[V, V]`` CSR, float32 (the weights *are* these float32 numbers, whatever the solver computes in).
        information: how it was built (order, normalization, pruning and the mass it dropped, ...), plain values.
        total_V: how often each token was followed by another, float64; None if unknown. With it the counts of a
            row-normalised graph of order 1 can be recovered.
        fast: ``auto`` uses compiled kernels if available, ``off`` only torch.
    """

    matrix: sp.csr_array
    information: dict[str, object] = field(default_factory=dict)
    total_V: np.ndarray | None = None
    fast: Annotated[str, Choice(SETTINGS)] = "auto"

    @classmethod
    @checked
    def from_token_ids(
        cls,
        sequences: Iterable[Sequence[int] | np.ndarray],
        vocab_size: Count,
        **counting: Annotated[Any, Fields(Counting)],
    ) -> CooccurrenceGraph:
        """Count the bigrams of ``sequences`` and normalise them.

        Args:
            sequences: the token ids of each text; read once, never held in full.
            vocab_size: V.

        Raises:
            UserError: an empty corpus, an id that is not in the vocabulary, an argument out of range.
        """
        counts = count_bigrams(sequences, vocab_size)
        bigrams = float(counts.sum())
        (how,) = grouped(counting, Counting)
        minimum_count = how.minimum_count
        counts.data[counts.data < minimum_count] = 0
        counts.eliminate_zeros()
        if counts.nnz == 0:
            raise UserError(
                f"the scene corpus has no pair of tokens {minimum_count} times: give more text or lower minimum_count"
            )
        facts = {"minimum_count": minimum_count, "bigrams": bigrams}
        return cls._from_counts(counts, how, **facts)

    @classmethod
    def _from_counts(cls, counts: sp.csr_array, how: Counting, **information: object) -> CooccurrenceGraph:
        counts = counts.T.tocsr() if how.transposed else counts
        weights, dropped = _sum_of_powers(_normalized(counts, how.normalization), how.order, how.row_edges, how.alone)
        information |= {"order": how.order, "transposed": how.transposed, "normalization": how.normalization}
        information |= {"row_edges": how.row_edges if how.order > 1 else None, "dropped_mass": dropped}
        information |= {"alone": True} if how.alone else {}
        graph = cls.from_matrix(weights, **information)
        keeps_counts = how.order == 1 and how.normalization == "row"
        return replace(graph, total_V=np.asarray(counts.sum(axis=1))) if keeps_counts else graph

    @checked
    def reweighted(self, **counting: Annotated[Any, Fields(Counting)]) -> CooccurrenceGraph:
        """Return another graph of the same counts, by fields of ``Counting``; ``transposed`` is relative to this one.

        Raises:
            UserError: this graph lacks its counts (only row-normalised graphs of order 1 have them).
        """
        if self.total_V is None:
            raise UserError("this scene graph does not hold its counts: build it with order=1 and normalization=row")
        # float32 weights times totals are within rounding of the original whole numbers
        counts = (sp.diags_array(self.total_V) @ self.matrix.astype(np.float64)).tocsr()
        counts.data = np.rint(counts.data)
        facts = {key: self.information[key] for key in ("minimum_count", "bigrams") if key in self.information}
        (how,) = grouped(counting, Counting)
        transposed_now = bool(self.information.get("transposed")) != how.transposed
        graph = self._from_counts(counts, how, **facts)
        return replace(graph, information={**graph.information, "transposed": transposed_now}, fast=self.fast)

    @classmethod
    def from_matrix(cls, matrix: sp.sparray | sp.spmatrix | np.ndarray, **information: object) -> CooccurrenceGraph:
        """Use a given ``A~`` (square, finite, non-negative), with ``information`` about it."""
        weights = sp.csr_array(matrix, dtype=np.float32)
        weights.sum_duplicates()
        weights.eliminate_zeros()
        weights.sort_indices()
        sound = np.isfinite(weights.data).all() and not (weights.data < 0).any()
        if weights.shape[0] != weights.shape[1] or not sound:
            raise UserError(f"a scene graph is square, its weights finite and not negative, not {weights.shape}")
        weights.indptr, weights.indices = weights.indptr.astype(np.int32), weights.indices.astype(np.int32)
        return cls(weights, dict(information))

    def __getstate__(self) -> dict[str, object]:
        # copies and pickles omit the prepared operators
        return {"matrix": self.matrix, "information": self.information, "total_V": self.total_V, "fast": self.fast}

    @property
    def vocab_size(self) -> int:
        return self.matrix.shape[0]

    @property
    def edges(self) -> int:
        return self.matrix.nnz

    @property
    def weights_E(self) -> torch.Tensor:
        """A copy of the ``[E]`` float32 weights, row by row, columns ascending, as replaced by ``edge_weights``."""
        return torch.from_numpy(self.matrix.data.copy())

    def operator(self, like: torch.Tensor) -> GraphOperator:
        """Return ``x -> (I - A~)^T (I - A~) x`` in the dtype and on the device of ``like``; made once, then cached."""
        cache = self.__dict__.setdefault("_operators", {})
        key = (like.dtype, like.device)
        if key not in cache:
            cache[key] = GraphOperator.from_scipy(self.matrix, fast=self.fast).like(like)
        return cache[key]

    def successors(self, last_ids_B: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the rows of A~ of some tokens, ``[B, V]`` in the dtype and on the device of ``like``.

        Raises:
            UserError: ids that are not whole numbers, or not in this graph.
        """
        return torch.from_numpy(self.matrix[self._checked_ids(last_ids_B)].toarray()).to(like)

    def successor_entries(self, last_ids_B: torch.Tensor, like: torch.Tensor) -> Successors:
        """Return the same rows without their zeros (``UserError``: see ``successors``)."""
        ids_B = self._checked_ids(last_ids_B)
        first_B = self.matrix.indptr[ids_B].astype(np.int64)
        count_B1 = (self.matrix.indptr[ids_B + 1] - first_B)[:, None]
        column_K = np.arange(max(1, int(count_B1.max(initial=0))))
        entry_BK = first_B[:, None] + np.where(column_K < count_B1, column_K, 0)
        entry_BK = entry_BK.clip(max=max(0, self.edges - 1))
        ids_BK = np.where(count_B1 > 0, self.matrix.indices[entry_BK], 0) if self.edges else 0 * entry_BK
        weight_BK = np.where(column_K < count_B1, self.matrix.data[entry_BK], 0) if self.edges else 0.0 * entry_BK
        return Successors(
            torch.from_numpy(ids_BK.astype(np.int64)).to(like.device),
            torch.from_numpy(weight_BK).to(like),
            torch.from_numpy(column_K >= np.maximum(count_B1, 1)).to(like.device),
        )

    def _checked_ids(self, ids_B: torch.Tensor) -> np.ndarray:
        kind: Any = getattr(ids_B, "dtype", type(ids_B).__name__)
        fault = ""
        if not isinstance(ids_B, torch.Tensor) or kind.is_floating_point or kind.is_complex or kind == torch.bool:
            fault = f"token ids are a torch tensor of whole numbers, not {kind}"
        elif ids_B.dim() != 1:
            fault = f"last tokens have the shape [B], one for each row, not {tuple(ids_B.shape)}"
        elif len(wrong := ids_B[(ids_B < 0) | (ids_B >= self.vocab_size)]):
            fault = f"no token {int(wrong[0])} in a scene graph of {self.vocab_size} tokens: ids count from 0"
        if fault:
            raise UserError(fault)
        return ids_B.cpu().numpy()

    def describe(self) -> dict[str, Any]:
        """Return nodes, edges, memory and the strongest hubs as plain values, for a page or a record."""
        penalty_V = GraphOperator.from_scipy(self.matrix).diagonal_V
        hubs = penalty_V.topk(min(10, self.vocab_size))
        successors_V = np.diff(self.matrix.indptr)
        return {
            **self.information,
            "nodes": self.vocab_size,
            "edges": self.edges,
            "rows_without_successors": int((successors_V == 0).sum()),
            "largest_row": int(successors_V.max()),
            "megabytes": (self.matrix.data.nbytes + self.matrix.indices.nbytes + self.matrix.indptr.nbytes) / 1e6,
            "hubs": [(int(token), float(value)) for value, token in zip(hubs.values, hubs.indices, strict=True)],
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the matrix and, if known, the totals as arrays by name, see ``of_arrays``."""
        arrays = {"row": self.matrix.indptr, "column": self.matrix.indices, "weight": self.matrix.data}
        return arrays if self.total_V is None else {**arrays, "total": self.total_V}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray], size: int, information: object) -> CooccurrenceGraph:
        """Rebuild the graph of ``size`` tokens from its ``arrays()``.

        Raises:
            KeyError: an array is missing.
            ValueError: an array does not fit the others.
            UserError: weights that are not finite, or negative.
        """
        if not isinstance(information, dict):
            raise ValueError("its information is not a mapping")
        # every pointer and column is checked: scipy and the kernels read memory through them without checks
        row, column, weight, total_V = arrays["row"], arrays["column"], arrays["weight"], arrays.get("total")
        if not 1 <= size < 2**31:
            raise ValueError(f"a vocabulary of {size}")
        if any(part.ndim != 1 for part in (row, column, weight)) or len(row) != size + 1:
            raise ValueError(f"{row.shape} row pointers for a vocabulary of {size}")
        if row.dtype.kind != "i" or column.dtype.kind != "i" or weight.dtype.kind != "f":
            raise ValueError(f"{row.dtype} pointers, {column.dtype} columns, {weight.dtype} weights")
        if row[0] != 0 or row[-1] != len(column) or len(column) != len(weight) or (np.diff(row) < 0).any():
            raise ValueError("row pointers that do not fit its columns")
        if len(column) and (column.min() < 0 or column.max() >= size):
            raise ValueError(f"a column outside the vocabulary of {size}")
        if total_V is not None and (total_V.shape != (size,) or not (np.isfinite(total_V) & (total_V >= 0)).all()):
            raise ValueError("totals that do not fit its vocabulary")
        matrix = sp.csr_array((weight, column, row), shape=(size, size))
        return replace(cls.from_matrix(matrix), information=information, total_V=total_V)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with a checksum of its content; the file appears whole or not at all.

        Raises:
            UserError: it cannot be written there (see ``replacing``).
        """
        tensors = self.arrays()
        metadata = {
            "format": GRAPH_FORMAT,
            "vocab_size": str(self.vocab_size),
            "information": json.dumps(self.information),
            "sha256": _arrays_checksum(tensors),
        }
        with replacing(path, remedy="choose another file") as temporary:
            save_file(tensors, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: str | Path) -> CooccurrenceGraph:
        """Read a graph that :meth:`save` wrote.

        Raises:
            UserError: no such file, another format, a wrong checksum, or a wrong pointer, column, weight or entry.
        """
        try:
            if not Path(path).is_file():
                raise FileNotFoundError("no such file")
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            if metadata.get("format") != GRAPH_FORMAT:
                raise ValueError("not a scene graph of this version")
            if metadata.get("sha256") != _arrays_checksum(tensors):
                raise ValueError("its checksum does not agree")
            return cls.of_arrays(tensors, int(metadata["vocab_size"]), json.loads(metadata["information"]))
        except KeyError as error:
            reason = f"it has no {error}"
        except (OSError, SafetensorError, UserError, TypeError, ValueError, OverflowError, RecursionError) as error:
            reason = " ".join(str(error).split())[:160]
        raise UserError(f"the scene graph {path} is missing or damaged ({reason}): write it with lit-ctg data graph")


def _normalized(counts: sp.csr_array, normalization: str) -> sp.csr_array:
    if normalization == "spectral":
        return counts / _largest_eigenvalue(counts)
    total_V = counts.sum(axis=1)
    inverse_V = np.divide(1.0, total_V, out=np.zeros_like(total_V), where=total_V > 0)
    return (sp.diags_array(inverse_V) @ counts).tocsr()


def _largest_eigenvalue(matrix: sp.csr_array, steps: int = 500) -> float:
    """Return the spectral radius of a non-negative matrix: the largest of its strongly connected parts.

    A part by itself has one leading vector, to which the power method converges; of the whole matrix several parts may
    have the same eigenvalue, and the method would then take forever.
    """
    components, part_V = sp.csgraph.connected_components(matrix, connection="strong")
    if components == matrix.shape[0] and not matrix.diagonal().any():
        raise UserError("the bigram counts have no cycle, so mu_max is 0: use normalization=row")
    largest = float(matrix.diagonal().max())
    for number in np.flatnonzero(np.bincount(part_V) > 1):
        rows = np.flatnonzero(part_V == number)
        largest = max(largest, _leading_eigenvalue(matrix[rows][:, rows], steps))
    return largest


def _leading_eigenvalue(matrix: sp.csr_array, steps: int) -> float:
    """Return the spectral radius of an irreducible matrix; A + sI has the same leading vector without oscillation."""
    shift = float(matrix.sum(axis=1).mean())
    vector_V = np.full(matrix.shape[0], matrix.shape[0] ** -0.5)
    value = 0.0
    for _ in range(steps):
        image_V = matrix @ vector_V + shift * vector_V
        previous, value = value, float(np.linalg.norm(image_V))
        vector_V = image_V / value
        if abs(value - previous) <= 1e-12 * value:
            break
    return value - shift


def _sum_of_powers(
    weights: sp.csr_array, order: int, row_edges: int, alone: bool = False
) -> tuple[sp.csr_array, float]:
    """Return ``A + ... + A^order``, each power pruned to its largest weights per row, and the share of weight lost.

    ``alone``: only the last power.
    """
    total, power, dropped = weights, weights, 0.0
    for _ in range(order - 1):
        power, lost = _multiply_pruned(power, weights, row_edges)
        dropped += lost
        total = power if alone else total + power
    return total.tocsr(), dropped / (float(total.sum()) + dropped)


def _multiply_pruned(
    left: sp.csr_array, right: sp.csr_array, row_edges: int, rows: int = 512
) -> tuple[sp.csr_array, float]:
    blocks, lost = [], 0.0
    for start in range(0, left.shape[0], rows):
        product = (left[start : start + rows] @ right).tocsr()
        before = float(product.sum())
        for row in range(product.shape[0]):
            values = product.data[product.indptr[row] : product.indptr[row + 1]]
            if len(values) > row_edges:
                # a stable order, so that ties are pruned in the same way everywhere
                values[np.argsort(-values, kind="stable")[row_edges:]] = 0
        product.eliminate_zeros()
        lost += before - float(product.sum())
        blocks.append(product)
    return sp.vstack(blocks, format="csr"), lost


def _arrays_checksum(tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


# The source of a language model's scene graph: a corpus read in the model's vocabulary, or a file made from it.


VOCABULARY = "vocabulary"  # key of ``information``: the vocabulary of the graph's token ids


@checked
class SceneGraph:
    """Provides the graph of a scene corpus over any vocabulary; made once, when first needed.

    Args:
        corpus: the scene corpus; its texts are used, its tokenizer is not. None if ``path`` is given.
        path: a graph that ``lit-ctg data graph`` wrote, to read instead.
    """

    def __init__(
        self,
        corpus: CorpusDataModule | None = None,
        *,
        split: str = "train",
        path: str | Path | None = None,
        fast: Annotated[str, Choice(SETTINGS)] = "auto",
        **counting: Annotated[Any, Fields(Counting)],
    ):
        # it is read when needed, which may be late in a run
        if corpus is None if path is None else not Path(path).is_file():
            raise UserError(f"a scene graph needs a corpus, or a file of lit-ctg data graph: none is at path={path}")
        self.corpus, self.split, self.path, self.fast = corpus, split, path, fast
        (self.counting,) = grouped(counting, Counting)
        self._made: dict[str, CooccurrenceGraph] = {}

    def graph(self, vocabulary: Tokenizer) -> CooccurrenceGraph:
        """Return the graph over ``vocabulary``.

        Raises:
            UserError: an empty corpus, no such file, a graph over another vocabulary.
        """
        key = vocabulary_checksum(vocabulary.tokens)
        if key not in self._made:
            made = self._count(vocabulary, key) if self.path is None else self._read(key)
            self._made[key] = replace(made, fast=self.fast)
        return self._made[key]

    def _count(self, vocabulary: Tokenizer, key: str) -> CooccurrenceGraph:
        assert self.corpus is not None
        graph = CooccurrenceGraph.from_token_ids(
            token_ids(self.corpus, self.split, vocabulary), len(vocabulary), **asdict(self.counting)
        )
        graph.information.update({VOCABULARY: key, "corpus": self.corpus.name, "split": self.split})
        return graph

    def _read(self, key: str) -> CooccurrenceGraph:
        assert self.path is not None
        graph = CooccurrenceGraph.load(self.path)
        # a graph of order 1 has no pruned rows
        pruned = {} if self.counting.order > 1 else {"row_edges": None}
        for name, value in {VOCABULARY: key, **asdict(self.counting), **pruned}.items():
            has = graph.information.get(name, value)
            if has != value:
                raise UserError(
                    f"the scene graph {self.path} has {name}={has}, this model {value}: write it again with lit-ctg "
                    f"data graph experiment=..., or set model.scene.{name}={has}"
                )
        return graph


def token_ids(corpus: CorpusDataModule, split: str, vocabulary: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the ids of one document at a time in a vocabulary that need not be the corpus' own."""
    texts = (document.text for document in corpus.documents(split))
    for block in blocks(texts):
        ids_T, counts_N = vocabulary.encode_many(block)
        yield from np.split(np.asarray(ids_T, dtype=np.int64), np.cumsum(counts_N)[:-1])


def vocabulary_checksum(tokens: Sequence[str]) -> str:
    """Return a checksum that identifies a vocabulary."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16]
