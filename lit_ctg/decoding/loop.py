"""Batched generation: ragged prompts, one cache, and draws that do not depend on the batch a row is in.

Prompts are left-aligned and forced column by column, so that one state (one key-value cache) of the model serves rows
with prompts of different lengths. Shape suffixes: B rows, T columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lit_ctg.decoding.filters import greedy, row_noise, sample
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError


class StepModel(Protocol):
    """The interface through which a language model generates; a non-causal one keeps the prefix in its state."""

    @property
    def device(self) -> torch.device:
        """The device of the ids."""

    def start(self, batch_size: int, controls: Any) -> Any:
        """Return the state of ``batch_size`` empty prefixes."""

    def step(self, ids_B1: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Take the newest token of each row; return the scores ``[B, V]`` of the token after it, and the state."""


def generate(
    model: StepModel,
    prompts: Sequence[Sequence[int]],
    rules: ScoreRule,
    *,
    seed: int | None,
    max_new_tokens: int,
    eos_id: int,
    pad_id: int = 0,
    rows: Sequence[int] | None = None,
    channel: Any = None,
) -> list[list[int]]:
    """Continue each prompt up to ``eos_id`` or ``max_new_tokens`` new tokens.

    Args:
        model: see :class:`StepModel`; the caller puts it in evaluation mode.
        prompts: ids, ``<bos>`` first where the model wants one; at least one id each, lengths may differ.
        rules: applied to the scores of every row before the choice.
        seed: the draws of row r are a function of ``(seed, rows[r])`` and the column; None takes the best token.
        max_new_tokens: new tokens per row, its ``eos_id`` included.
        eos_id: a row that contains it (except as first id) is finished and padded from then on.
        pad_id: the padding of finished rows; the rules must accept it in a prefix.
        rows: row numbers, default 0 .. B-1. ``generate(..., [p], rows=[3])`` is row 3 of the batch.

    Returns:
        prompt and continuation of each row, including ``eos_id`` where it was reached, without padding.

    Raises:
        ValueError: an empty prompt, or not as many row numbers as prompts.
        UserError: the model's scores are not numbers, or the rules leave a row without a token.
    """
    rows = range(len(prompts)) if rows is None else rows
    if len(rows) != len(prompts) or not all(prompts):
        raise ValueError(f"{len(rows)} row numbers for {len(prompts)} prompts of at least one id each")
    if not prompts:
        return []
    length = max(map(len, prompts)) + max_new_tokens
    with torch.inference_mode():
        prompt_BT = torch.tensor([[*p, *[-1] * (length - len(p))] for p in prompts], device=model.device)
        start_B = prompt_BT.ge(0).sum(dim=1)
        noise_BT = None if seed is None else row_noise(seed, rows, length)
        state = model.start(len(prompts), channel)
        ids_BT = prompt_BT[:, :1]
        done_B = torch.zeros_like(start_B, dtype=torch.bool)  # a first id equal to eos_id (GPT-2's) ends nothing
        for column in range(1, length):
            forced_B = column < start_B
            closed_B = done_B | (column >= start_B + max_new_tokens)
            if bool((closed_B & ~forced_B).all()):
                break
            scores_BV, state = model.step(ids_BT[:, -1:], state)
            scores_BV = _checked(rules(ids_BT, scores_BV), forced_B | closed_B, column)
            new_B = greedy(scores_BV) if noise_BT is None else sample(scores_BV, noise_BT[:, column])
            new_B = torch.where(closed_B, pad_id, new_B)
            new_B = torch.where(forced_B, prompt_BT[:, column], new_B)
            ids_BT = torch.cat([ids_BT, new_B.unsqueeze(1)], dim=1)
            done_B = done_B | (new_B == eos_id)
    return [_trimmed(ids, len(p), max_new_tokens, eos_id) for ids, p in zip(ids_BT.tolist(), prompts, strict=True)]


def _checked(scores_BV: Tensor, ignored_B: Tensor, column: int) -> Tensor:
    """Return scores with those of ignored rows set to 0; raise if a row that counts has no distribution."""
    scores_BV = scores_BV.masked_fill(ignored_B.unsqueeze(1), 0.0)
    best_B = scores_BV.amax(dim=-1)  # NaN if any is; -inf if no token is left
    if not bool(best_B.isfinite().all()):
        row = int((~best_B.isfinite()).nonzero()[0])
        raise UserError(
            f"generation: row {row} has no token to draw at column {column} (best score {best_B[row].item()}): the "
            f"model diverged, or the score rules exclude each other"
        )
    return scores_BV


def _trimmed(ids: list[int], prompt_length: int, max_new_tokens: int, eos_id: int) -> list[int]:
    ids = ids[: prompt_length + max_new_tokens]
    return ids[: ids.index(eos_id, 1) + 1] if eos_id in ids[1:] else ids
