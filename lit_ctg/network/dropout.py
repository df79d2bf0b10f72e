"""Dropout with the distribution of torch's (p rounded to 16 bits), several times faster on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LEVELS = 65536  # values of a 16-bit random word


def _dropped(p: float) -> int:
    """Return how many of the levels are dropped: never all of them."""
    return min(round(p * LEVELS), LEVELS - 1)


def dropout_scale(p: float) -> float:
    """Return the factor of kept elements."""
    return LEVELS / (LEVELS - _dropped(p))


def dropout_mask(shape: torch.Size, p: float, like: Tensor) -> Tensor:
    """Draw a mask from torch's default generator: 0 with probability p, else 1 / (1 - p).

    One 64-bit draw serves four elements. p is rounded to a multiple of 1 / 65536, and the scale is exact for
    the rounded p.

    Args:
        p: in [0, 1).
        like: a tensor of the wanted dtype and device.
    """
    if not _dropped(p):
        return torch.ones(shape, dtype=like.dtype, device=like.device)
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device=like.device)
    # the whole 64-bit range: plain random_() leaves the sign bit 0, which would skew one word in four
    words.random_(-(2**63), None)
    first_kept = _dropped(p) - LEVELS // 2
    bits = words.view(torch.int16)[:count].view(shape)
    # clamp and subtract instead of comparing: kernels with boolean results do not vectorise
    kept = bits.clamp_(first_kept - 1, first_kept).sub_(first_kept - 1)
    if like.dtype in (torch.bfloat16, torch.float16):
        # 0 or 1 times the bit pattern of the scale: the same numbers as below without a conversion
        pattern = torch.tensor(dropout_scale(p), dtype=like.dtype).view(torch.int16)
        return kept.mul_(int(pattern)).view(like.dtype)
    return kept.to(like.dtype).mul_(dropout_scale(p))


def dropout(x: Tensor, p: float) -> Tensor:
    """Drop elements of x with probability p; p = 0 returns x."""
    return x * dropout_mask(x.shape, p, x) if p > 0.0 else x


def relu_dropout(x: Tensor, p: float) -> Tensor:
    """dropout(relu(x)), overwriting x, which must not be needed elsewhere."""
    return _ReluDropout.apply(x, p) if p > 0.0 else torch.relu_(x)


def dropout_add(branch: Tensor, residual: Tensor, p: float) -> Tensor:
    """residual + dropout(branch), overwriting branch, which must not be needed elsewhere."""
    return _DropoutAdd.apply(branch.to(residual.dtype), residual, p) if p > 0.0 else residual + branch


class _ReluDropout(torch.autograd.Function):
    """Saves only its result, whose positive entries are those that passed both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.scale = dropout_scale(p)
        x.relu_().mul_(dropout_mask(x.shape, p, x))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        # the gradient where out > 0, else 0: relu's own kernel
        return torch.ops.aten.threshold_backward(grad, out, 0).mul_(ctx.scale), None


class _DropoutAdd(torch.autograd.Function):
    """Two passes over memory, where separate multiplication and addition take more."""

    @staticmethod
    def forward(ctx: Any, branch: Tensor, residual: Tensor, p: float) -> Tensor:
        mask = dropout_mask(branch.shape, p, branch)
        ctx.save_for_backward(mask)
        ctx.mark_dirty(branch)
        return branch.mul_(mask).add_(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad * mask, grad, None
