"""Random batches, and slow float64 references written from the paper's text (Appendix B), not from our code."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.semantic_fusion.model import FusionOutput

PAD = 0


@pytest.fixture
def make_batch():
    """Factory of (output, batch): sentences of random length, right-padded with id 0, as the data module gives them."""

    def make(seed=0, sentences=10, positions=9, vocabulary=13, features=4, scale=3.0, dtype=torch.float32):
        gen = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, positions + 2, (sentences,), generator=gen)
        ids = torch.randint(1, vocabulary, (sentences, positions + 1), generator=gen)
        ids[torch.arange(positions + 1) >= lengths[:, None]] = PAD
        scores = torch.randn(sentences, positions, vocabulary, generator=gen) * scale
        aux, target = (torch.rand(sentences, positions, features, generator=gen).to(dtype) for _ in range(2))
        batch = {
            "input_ids_BT": ids[:, :-1],
            "target_ids_BT": ids[:, 1:],
            "mask_input_BT": ids[:, :-1] != PAD,
            "mask_target_BT": ids[:, 1:] != PAD,
        }
        return FusionOutput(scores.to(dtype), scores, target, aux, target), batch

    return make


@pytest.fixture
def nll():
    """-log p(target) of one row of scores, by a loop over the vocabulary."""

    def one(row, target):
        values = [float(value) for value in row]
        top = max(values)
        return top + math.log(math.fsum(math.exp(value - top) for value in values)) - values[target]

    return one


@pytest.fixture
def counted_nlls(nll):
    """All (target, nll) of a batch's counted positions, in order."""

    def collect(output, batch, mask):
        scores, targets, counted = output.scores_BTV, batch["target_ids_BT"], batch[f"mask_{mask}_BT"]
        pairs = []
        for b in range(targets.shape[0]):
            for t in range(targets.shape[1]):
                if counted[b, t]:
                    pairs.append((int(targets[b, t]), nll(scores[b, t], int(targets[b, t]))))
        return pairs

    return collect


@pytest.fixture
def split():
    """Cut (output, batch) into parts of ``size`` sentences."""

    def cut(output, batch, size):
        for start in range(0, len(batch["target_ids_BT"]), size):
            rows = slice(start, start + size)
            part = FusionOutput(**{k: v[rows] for k, v in vars(output).items()})
            yield part, {k: v[rows] for k, v in batch.items()}

    return cut
