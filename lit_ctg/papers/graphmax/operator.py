"""The linear map M = (I - A~)^T (I - A~) and what the solver needs to know of it beforehand (Eq. 4).

M itself is never formed (one row of it can be full): a product is B = I - A~, then B^T. Shape suffixes: B rows of a
batch, V vocabulary, E edges, K hubs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from lit_ctg.papers.graphmax.acceleration import compiled_kernels

if TYPE_CHECKING:
    from lit_ctg.papers.graphmax.compiled import SlicedRows

HUBS = 512


class Matrices:
    """A~ and its transpose, in the forms that products read; each is made when first needed, then shared.

    Args:
        forward: A~, ``[V, V]`` CSR, float32 or float64.
    """

    def __init__(self, forward: sp.csr_array):
        self.forward, self.backward = forward, forward.T.tocsr()
        self.backward.sort_indices()
        self.largest = float(forward.data.max(initial=0.0))
        self._wide: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def wide(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return both in float64 as torch CSR (int32 indices) on a device."""
        if device not in self._wide:
            pair = (_torch_csr(matrix).to(device) for matrix in (self.forward, self.backward))
            self._wide[device] = (*pair,)
        return self._wide[device]

    @cached_property
    def kernels(self) -> ModuleType | None:
        """The compiled kernels, which read float32 weights; None where torch has to do."""
        return compiled_kernels() if self.forward.dtype == np.float32 else None

    @cached_property
    def sliced(self) -> tuple[SlicedRows, SlicedRows]:
        """Both as the compiled product of one vector reads them."""
        return self.kernels.sliced(self.forward), self.kernels.sliced(self.backward)

    @property
    def nbytes(self) -> int:
        """Memory held, the sliced form included where it is used."""
        pair = (self.forward, self.backward)
        parts = [part for matrix in pair for part in (matrix.data, matrix.indices, matrix.indptr)]
        return sum(part.nbytes for part in parts) + (sum(part.nbytes for part in self.sliced) if self.kernels else 0)


@dataclass(frozen=True, eq=False)
class GraphOperator:
    """``x -> M x`` for one graph, dtype and device; every sum of a product is float64.

    Attributes:
        matrices: A~ and its transpose.
        diagonal_V: ``M_jj = ||(I - A~) e_j||^2``.
        hubs_K: the tokens with the largest ``M_jj``, where all the stiffness of the problem sits.
        gram_KK: the block of M on the hubs.
        is_hub_V: bool.
    """

    matrices: Matrices
    diagonal_V: Tensor
    hubs_K: Tensor
    gram_KK: Tensor
    is_hub_V: Tensor

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, hubs: int = HUBS) -> GraphOperator:
        """Prepare ``matrix`` (A~, ``[V, V]``) in float64."""
        matrices = Matrices(matrix)
        weights, backward = (sp.csr_array(part, dtype=np.float64) for part in (matrix, matrices.backward))
        size = weights.shape[0]
        self_V = weights.diagonal()
        # ||e_j - A e_j||^2: the column of A squared, its own entry apart
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
        """V."""
        return len(self.diagonal_V)

    def difference(self, x_BV: Tensor) -> Tensor:
        """Return ``(I - A~) x`` row by row, ``[B, V]``, in the dtype of x."""
        return self._less(0, x_BV)

    def adjoint(self, residual_BV: Tensor) -> Tensor:
        """Return ``(I - A~)^T r`` row by row, ``[B, V]``, in the dtype of r."""
        return self._less(1, residual_BV)

    def _less(self, which: int, x_BV: Tensor) -> Tensor:
        wide_VB = x_BV.T.double()
        return torch.addmm(wide_VB, self.matrices.wide(x_BV.device)[which], wide_VB, alpha=-1).T.to(x_BV.dtype)

    def product(self, x_BV: Tensor) -> Tensor:
        """Return ``M x`` row by row, ``[B, V]`` in the dtype of x: one full product, summed in float64."""
        kernels = self.kernels_for(x_BV)
        if kernels is not None:
            return torch.from_numpy(kernels.product(self.matrices, x_BV.detach().numpy()))
        # [V, B] in between: sparse rows then read B neighbours at once
        x_VB = x_BV.T.double().contiguous()
        forward_VV, backward_VV = self.matrices.wide(x_BV.device)
        residual_VB = torch.addmm(x_VB, forward_VV, x_VB, alpha=-1)
        return torch.addmm(residual_VB, backward_VV, residual_VB, alpha=-1).T.contiguous().to(x_BV.dtype)

    def kernels_for(self, x_BV: Tensor) -> ModuleType | None:
        """Return the compiled kernels where they can multiply this: float32 on a CPU."""
        return self.matrices.kernels if x_BV.device.type == "cpu" and x_BV.dtype == torch.float32 else None

    @cached_property
    def extra_diagonal_V(self) -> Tensor:
        """``M_jj`` of the tokens that are no hubs, 0 for hubs."""
        return self.diagonal_V * ~self.is_hub_V

    @property
    def megabytes(self) -> float:
        """Memory held, in MB."""
        dense = [self.diagonal_V, self.extra_diagonal_V, self.hubs_K, self.gram_KK, self.is_hub_V]
        return (self.matrices.nbytes + sum(part.numel() * part.element_size() for part in dense)) / 1e6


def _torch_csr(matrix: sp.csr_array) -> Tensor:
    with warnings.catch_warnings():
        # torch calls its CSR support beta at every first use
        warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data.astype(np.float64)),
            size=matrix.shape,
            check_invariants=True,
        )
