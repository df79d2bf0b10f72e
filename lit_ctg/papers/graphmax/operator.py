"""The linear map M = (I - A~)^T (I - A~) and what the solver needs to know of it beforehand (Eq. 4).

M itself is never formed (one row of it can be full): a product is B = I - A~, then B^T. Shape suffixes: B rows of a
batch, V vocabulary, E edges, K hubs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from lit_ctg.papers.graphmax.acceleration import kernels_for

if TYPE_CHECKING:
    from lit_ctg.papers.graphmax.compiled import SlicedRows

HUBS = 512


@dataclass(frozen=True, eq=False)
class GraphOperator:
    """``x -> M x`` for one graph, dtype and device.

    Attributes:
        forward_VV, backward_VV: A~ and its transpose, torch CSR (int32 indices).
        diagonal_V: ``M_jj = ||(I - A~) e_j||^2``.
        hubs_K: the tokens with the largest ``M_jj``, where all the stiffness of the problem sits.
        gram_KK: the block of M on the hubs.
        is_hub_V: bool.
    """

    forward_VV: Tensor
    backward_VV: Tensor
    diagonal_V: Tensor
    hubs_K: Tensor
    gram_KK: Tensor
    is_hub_V: Tensor

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, hubs: int = HUBS) -> GraphOperator:
        """Prepare ``matrix`` (A~, ``[V, V]``) in float64."""
        weights = sp.csr_array(matrix, dtype=np.float64)
        backward = weights.T.tocsr()
        backward.sort_indices()
        size = weights.shape[0]
        self_V = weights.diagonal()
        # ||e_j - A e_j||^2: the column of A squared, its own entry apart
        diagonal_V = np.asarray(backward.multiply(backward).sum(axis=1)).reshape(-1) - self_V**2 + (1 - self_V) ** 2
        hubs_K = np.sort(np.argsort(-diagonal_V, kind="stable")[:hubs])
        columns = (sp.eye_array(size, format="csc") - weights.tocsc())[:, hubs_K].tocsr()
        return cls(
            forward_VV=_torch_csr(weights),
            backward_VV=_torch_csr(backward),
            diagonal_V=torch.from_numpy(diagonal_V),
            hubs_K=torch.from_numpy(hubs_K),
            gram_KK=torch.from_numpy(np.ascontiguousarray((columns.T @ columns).toarray())),
            is_hub_V=torch.from_numpy(np.isin(np.arange(size), hubs_K)),
        )

    def like(self, tensor: Tensor) -> GraphOperator:
        """Return this operator in the dtype and on the device of ``tensor``."""
        return GraphOperator(
            forward_VV=self.forward_VV.to(tensor),
            backward_VV=self.backward_VV.to(tensor),
            diagonal_V=self.diagonal_V.to(tensor),
            hubs_K=self.hubs_K.to(tensor.device),
            gram_KK=self.gram_KK.to(tensor),
            is_hub_V=self.is_hub_V.to(tensor.device),
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.diagonal_V)

    def difference(self, x_BV: Tensor) -> Tensor:
        """Return ``(I - A~) x`` row by row, ``[B, V]``."""
        return x_BV - (self.forward_VV @ x_BV.T).T

    def adjoint(self, residual_BV: Tensor) -> Tensor:
        """Return ``(I - A~)^T r`` row by row, ``[B, V]``."""
        return residual_BV - (self.backward_VV @ residual_BV.T).T

    def product(self, x_BV: Tensor) -> Tensor:
        """Return ``M x`` row by row, ``[B, V]``: one full product."""
        if len(x_BV) == 1 and x_BV.device.type == "cpu":
            return torch.from_numpy(self._product_of_one(x_BV[0].detach().numpy()))[None]
        # [V, B] in between: sparse rows then read B neighbours at once
        x_VB = x_BV.T.contiguous()
        residual_VB = torch.addmm(x_VB, self.forward_VV, x_VB, alpha=-1)
        return torch.addmm(residual_VB, self.backward_VV, residual_VB, alpha=-1).T.contiguous()

    def _product_of_one(self, x_V: np.ndarray) -> np.ndarray:
        """Do the same for a single vector: compiled, or by scipy, twice as fast as torch."""
        kernels = kernels_for(self.diagonal_V)
        if kernels is not None:
            return kernels.product(*self._sliced, x_V)
        forward, backward = self._scipy
        residual_V = x_V - forward @ x_V
        return residual_V - backward @ residual_V

    @cached_property
    def extra_diagonal_V(self) -> Tensor:
        """``M_jj`` of the tokens that are no hubs, 0 for hubs."""
        return self.diagonal_V * ~self.is_hub_V

    @cached_property
    def _sliced(self) -> tuple[SlicedRows, SlicedRows]:
        """The two matrices as the compiled product reads them."""
        kernels = kernels_for(self.diagonal_V)
        forward, backward = (kernels.sliced(matrix) for matrix in self._scipy)
        return forward, backward

    @cached_property
    def _scipy(self) -> tuple[sp.csr_array, sp.csr_array]:
        """The two matrices for scipy, on the same memory."""
        views = []
        for matrix in (self.forward_VV, self.backward_VV):
            row, column, value = (part.numpy() for part in _parts(matrix))
            views.append(sp.csr_array((value, column, row), shape=tuple(matrix.shape)))
        return views[0], views[1]

    @property
    def megabytes(self) -> float:
        """Memory held, in MB."""
        sparse = [part for matrix in (self.forward_VV, self.backward_VV) for part in _parts(matrix)]
        dense = [self.diagonal_V, self.extra_diagonal_V, self.hubs_K, self.gram_KK, self.is_hub_V]
        single = sum(part.nbytes for part in self._sliced) if kernels_for(self.diagonal_V) is not None else 0
        return (single + sum(part.numel() * part.element_size() for part in sparse + dense)) / 1e6


def _parts(matrix: Tensor) -> list[Tensor]:
    return [matrix.crow_indices(), matrix.col_indices(), matrix.values()]


def _torch_csr(matrix: sp.csr_array) -> Tensor:
    with warnings.catch_warnings():
        # torch calls its CSR support beta at every first use
        warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            check_invariants=True,
        )
