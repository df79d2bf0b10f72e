"""Batches from a packed corpus: consecutive chunks, random windows, streams for truncated back-propagation.

Legend: B rows, T positions, N documents. Every batch is a dict with ``input_ids_BT``, ``target_ids_BT`` (long, the text
shifted by one), ``mask_input_BT``, ``mask_target_BT`` (bool), and on request ``control_code_B`` (long, the source),
``document_BT`` (long, the document each target is in); streams add ``reset_B`` (bool, whether to reset the state).
The i-th batch of an epoch depends on (seed, epoch, i) alone, so a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_ctg.core.batch import Batch
from lit_ctg.data.packing import PackedCorpus
from lit_ctg.errors import UserError

_logger = logging.getLogger(__name__)


class PackedBatches(Dataset[Batch]):
    """The common part: turns token positions into a batch.

    Args:
        length: positions T of a row.
        batch_size: rows B.

    Raises:
        UserError: the split has fewer than two tokens.
    """

    def __init__(
        self, packed: PackedCorpus, split: str, *, length: int, batch_size: int, documents: bool = False
    ) -> None:
        self.packed, self.split, self.length, self.batch_size = packed, split, length, batch_size
        self.documents = documents
        self.total = len(packed.ids(split))
        if self.total < 2:
            raise UserError(f"split '{split}' has {self.total} tokens: nothing to predict; give more text")

    def rows(self, start_B: np.ndarray, stop_B: np.ndarray, length: int | None = None) -> Batch:
        """Return the rows that begin at ``start_B``; targets from ``stop_B`` on are masked.

        Args:
            length: T, if it is not the usual one.
        """
        place_BT = start_B[:, None] + np.arange((length or self.length) + 1)
        inside_BT = place_BT[:, 1:] < stop_B[:, None]
        ids_BT = self.packed.ids(self.split)[np.minimum(place_BT, stop_B[:, None] - 1)].astype(np.int64)
        mask_BT = torch.from_numpy(inside_BT)
        batch: Batch = {
            "input_ids_BT": torch.from_numpy(ids_BT[:, :-1].copy()),
            "target_ids_BT": torch.from_numpy(ids_BT[:, 1:].copy()),
            "mask_input_BT": mask_BT,
            "mask_target_BT": mask_BT.clone(),
        }
        if self.documents:
            begin_N = self.packed.table(self.split, "begin")
            target_BT = np.minimum(place_BT[:, 1:], self.total - 1)
            batch["document_BT"] = torch.from_numpy(np.searchsorted(begin_N, target_BT, side="right") - 1)
        return batch

    def source_ranges(self) -> list[tuple[int, int, int]]:
        """Return (source, first token, end) of every source; ``UserError`` if its documents are not contiguous."""
        source_N, begin_N = self.packed.table(self.split, "source"), self.packed.table(self.split, "begin")
        edges = [0, *(np.flatnonzero(np.diff(source_N)) + 1).tolist(), len(source_N)]
        ranges = [(int(source_N[a]), int(begin_N[a]), int(begin_N[b])) for a, b in itertools.pairwise(edges)]
        if len({source for source, _, _ in ranges}) < len(ranges):
            raise UserError(f"split '{self.split}' mixes its sources: batches of one source need them one by one")
        return ranges


class ConsecutiveBatches(PackedBatches):
    """Consecutive chunks without overlap; every token but the first of a source (of the text) is a target once.

    With ``by_source`` a batch holds one source and its control code (control-code paper, sec. 4).
    """

    def __init__(self, packed: PackedCorpus, split: str, *, by_source: bool = False, **options: Any) -> None:
        super().__init__(packed, split, **options)
        ranges = self.source_ranges() if by_source else [(MIXED, 0, self.total)]
        self.plan: list[tuple[int, int, int]] = []
        for source, first, stop in ranges:
            span = self.length * self.batch_size
            self.plan += [(source, start, stop) for start in range(first, stop - 1, span)]

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        source, first, stop = self.plan[key[1]]
        start_B = np.arange(first, min(first + self.length * self.batch_size, stop - 1), self.length)
        batch = self.rows(start_B, np.full(len(start_B), stop))
        if source != MIXED:
            batch["control_code_B"] = torch.full((len(start_B),), source)
        return batch


MIXED = -1


class WholeBatches(PackedBatches):
    """Consecutive whole chunks of all sources, one source after the other; ``control_code_B`` differs by row.

    This is the loader of the control-code paper's authors: a batch may hold the end of one source and the beginning of
    the next. The remainder of a source after its last whole chunk is never seen, nor are last chunks that do not fill a
    batch.

    Raises:
        UserError: the text does not fill one batch.
    """

    def __init__(self, packed: PackedCorpus, split: str, **options: Any) -> None:
        super().__init__(packed, split, **options)
        length = self.length
        # a chunk needs the token after it as its last target
        chunks = [(source, np.arange(first, stop - length, length)) for source, first, stop in self.source_ranges()]
        self.start_R = np.concatenate([start_R for _, start_R in chunks])
        self.source_R = np.concatenate([np.full(len(start_R), source) for source, start_R in chunks])
        self.steps = len(self.start_R) // self.batch_size
        if not self.steps:
            raise UserError(
                f"split '{split}' has {len(self.start_R)} whole chunks of {self.length}, fewer than data.batch_size="
                f"{self.batch_size}: give more text or lower data.length"
            )

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        rows = slice(key[1] * self.batch_size, (key[1] + 1) * self.batch_size)
        start_B = self.start_R[rows]
        batch = self.rows(start_B, start_B + self.length + 1)
        batch["control_code_B"] = torch.from_numpy(self.source_R[rows])
        return batch


class RandomWindows(PackedBatches):
    """Windows at random places; with ``by_source`` each row is within one source and ``control_code_B`` names it.

    A source of at most ``length`` tokens has no window: it is left out with a warning.

    Args:
        steps: batches per epoch; None is as many as hold the tokens of the text.
        equal: draw sources equally often (with ``by_source``), not in proportion to their length.
    """

    def __init__(
        self,
        packed: PackedCorpus,
        split: str,
        *,
        steps: int | None,
        seed: int,
        by_source: bool = False,
        equal: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(packed, split, **options)
        self.steps = steps if steps is not None else max(1, self.total // (self.length * self.batch_size))
        self.seed, self.by_source, self.equal = seed, by_source, equal
        ranges = self.source_ranges() if by_source else [(0, 0, self.total)]
        long = [entry for entry in ranges if entry[2] - entry[1] > self.length]
        if not long:
            raise UserError(f"split '{split}' is shorter than one window of {self.length}: give more text")
        if left_out := [packed.sources[source] for source, first, stop in ranges if stop - first <= self.length]:
            _logger.warning(
                f"split '{split}': no window holds {', '.join(left_out)}, with at most {self.length} tokens: lower "
                "data.length or give more text"
            )
        self.source_R, self.first_R, self.stop_R = (np.array(column) for column in zip(*long, strict=True))

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, step = key
        rng = np.random.default_rng([self.seed, epoch, step])
        room_R = self.stop_R - self.first_R - self.length
        # places uniform over the whole text hit a source in proportion to its length
        share_R = np.full(len(room_R), 1 / len(room_R)) if self.equal else room_R / room_R.sum()
        range_B = rng.choice(len(room_R), size=self.batch_size, p=share_R)
        start_B = self.first_R[range_B] + rng.integers(0, room_R[range_B])
        batch = self.rows(start_B, start_B + self.length + 1)
        if self.by_source:
            batch["control_code_B"] = torch.from_numpy(self.source_R[range_B].astype(np.int64))
        return batch


class StreamBatches(PackedBatches):
    """Truncated back-propagation: the text as B streams, batch i their i-th stretch of T tokens; state is carried over.

    Every token but the first is a target exactly once; streams that end early are masked. ``reset_B`` holds in the
    first batch only. With several processes, each has every ``world_size``-th stream, starting at stream ``rank``.

    Args:
        vary: stretches are cut anew in every epoch, as Merity et al. (2018, sec. 4.1) do: each has a length drawn from
            a normal distribution around T, in 5% of cases around T / 2, and at least ``SHORTEST``; then all are scaled
            to fill the text, so that every epoch has as many. T is at least ``4 * SHORTEST``.

    Raises:
        UserError: fewer streams than processes.
    """

    def __init__(
        self,
        packed: PackedCorpus,
        split: str,
        *,
        rank: int = 0,
        world_size: int = 1,
        vary: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(packed, split, **options)
        targets = self.total - 1
        self.batch_size = min(self.batch_size, targets)
        self.share = -(-targets // self.batch_size)
        self.first_B = np.minimum(np.arange(self.batch_size) * self.share, targets)
        self.stop_B = np.minimum(self.first_B + self.share, targets) + 1
        self.vary, self.seed = vary, seed
        usual = self.length * (1 - HALVED / 2) if vary else self.length
        self.steps = math.ceil(self.share / usual)
        if self.batch_size < world_size:
            raise UserError(f"{self.batch_size} streams for {world_size} processes: give data.batch_size={world_size}")
        self.first_B, self.stop_B = self.first_B[rank::world_size], self.stop_B[rank::world_size]

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, step = key
        edges_S = self._edges(epoch)
        start_B = np.minimum(self.first_B + edges_S[step], self.stop_B)
        batch = self.rows(start_B, self.stop_B, int(edges_S[step + 1] - edges_S[step]))
        batch["reset_B"] = torch.full((len(start_B),), step == 0)
        return batch

    def _edges(self, epoch: int) -> np.ndarray:
        """Return where the stretches of an epoch begin, and the end of the last one."""
        if not self.vary:
            return np.arange(self.steps + 1) * self.length
        rng = np.random.default_rng([self.seed, epoch])
        usual_S = np.where(rng.random(self.steps) < HALVED, self.length / 2, self.length)
        drawn_S = np.maximum(SHORTEST, rng.normal(usual_S, SPREAD))
        inner_S = np.rint(np.cumsum(drawn_S)[:-1] * (self.share / drawn_S.sum())).astype(np.int64)
        return np.concatenate(([0], inner_S, [self.share]))


# lengths of stretches that vary (Merity et al. 2018, sec. 4.1): share of halved ones, deviation and minimum in tokens
HALVED, SPREAD, SHORTEST = 0.05, 5.0, 5
