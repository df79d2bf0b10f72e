"""Semantic fusion: our training and generation beside a straight rendering of the paper.

    python benchmarks/bench_semantic_fusion.py [--regime corrected] [--quick]

The straight rendering does as the paper reads, and nothing is made fast. It computes features each time that a sentence
is drawn and pads every batch to 28 tokens. Its network is ``nn.TransformerEncoder``. It generates one text at a time
and reads the whole prefix for each token. Both train on the same sentences.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from turns import Row, best, parser, read, report

from lit_ctg.config import compose
from lit_ctg.papers.semantic_fusion.corpus import ClauseVocabulary
from lit_ctg.run.build import build_datamodule, build_model, instantiate

LENGTH, DIM, LAYERS, HEADS, WIDE, DROPOUT = 28, 128, 4, 4, 256, 0.1
FEATURES = 22
SLOTS = ["subject", "verb", "the", "object", "comma", "intensifier", "adjective", "punctuation"]


def triple(x: float) -> list[float]:
    """Return low, medium and high membership of x (Eq. 1 with tau = 0.35)."""
    return [0.9 ** (abs(x - centre) / 0.35) for centre in (0.2, 0.6, 1.0)]


def sentence_features(tokens: list[str], vocabulary: ClauseVocabulary) -> Tensor:
    """Return the published features [28, 22] of a sentence without <bos> and <eos>."""
    rows = ["<bos>", *tokens, "<eos>"]
    subjects = {vocabulary.tokens[i] for i in vocabulary.ids("subject")}
    verbs = {vocabulary.tokens[i] for i in vocabulary.ids("verb")}
    pronouns = {vocabulary.tokens[i] for i in vocabulary.ids("pronoun")}
    nudge = 0.2 if tokens[-1] == "!" else 0.0
    table = torch.zeros(LENGTH, FEATURES)
    for t, token in enumerate(rows):
        polarity = vocabulary.polarity.get(token, 0)
        strength = min(1.0, (vocabulary.intensity.get(rows[t - 1], 0.0) if t else 0.0) + nudge)
        adjective = token in vocabulary.polarity
        noun = token.isalpha() and not adjective and token not in subjects | verbs | pronouns
        values = [noun, token in verbs, adjective, t == 1, t == 4, t == 2, t == 0, t == len(rows) - 1]
        values += [token == ",", token == "?"]
        values += triple(max(0, polarity)) + triple(max(0, -polarity)) + triple(strength)
        values += [token in pronouns and bool(subjects & set(rows[:t])), token[0].isupper(), token in pronouns]
        table[t] = torch.tensor([float(value) for value in values])
    return table


class Sentences(torch.utils.data.Dataset):
    """One sentence an item, padded to 28, features computed when it is asked for."""

    def __init__(self, ids_NT: Tensor, lengths_N: Tensor, vocabulary: ClauseVocabulary) -> None:
        self.rows = [row[:length].tolist() for row, length in zip(ids_NT, lengths_N, strict=True)]
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ids = self.rows[index]
        features = sentence_features([self.vocabulary.tokens[i] for i in ids[1:-1]], self.vocabulary)
        padded = torch.tensor(ids + [0] * (LENGTH - len(ids)))
        return padded[:-1], padded[1:], (padded[:-1] != 0).float(), features[:-1]


class StraightFusion(nn.Module):
    """Eq. 2-4, sinusoidal positions, nn.TransformerEncoder, tied head, auxiliary head."""

    def __init__(self, vocabulary_size: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(vocabulary_size, DIM)
        self.project, self.gate = nn.Linear(FEATURES, DIM), nn.Linear(DIM + FEATURES, DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, WIDE, DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.auxiliary = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, FEATURES))
        position = torch.arange(512).unsqueeze(1)
        rate = torch.exp(torch.arange(0, DIM, 2) * (-math.log(10000.0) / DIM))
        table = torch.zeros(512, DIM)
        table[:, 0::2], table[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("positions", table)

    def forward(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        e, u = self.embedding(ids), self.project(features)
        g = torch.sigmoid(self.gate(torch.cat([e, features], dim=-1)))
        h = e + u + g * u + self.positions[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        padding = torch.zeros(ids.shape).masked_fill(ids == 0, float("-inf"))
        h = self.encoder(h, mask=mask, src_key_padding_mask=padding)
        return h @ self.embedding.weight.T, torch.sigmoid(self.auxiliary(h))


def uniformizer(logits: Tensor, target: Tensor, mask: Tensor, classes: list[Tensor]) -> Tensor:
    """Return the loss of Eq. 8."""
    parts = []
    for ids in classes:
        rows = logits[torch.isin(target, ids) & (mask > 0)][:, ids]
        if len(rows):
            p = rows.softmax(-1)
            parts.append((p * (p.clamp_min(1e-9).log() + math.log(len(ids)))).sum(-1).mean())
    return sum(parts) / len(parts) if parts else logits.new_zeros(())


def straight_loss(model: StraightFusion, batch: list[Tensor], classes: list[Tensor]) -> Tensor:
    """Return the published loss."""
    ids, target, mask, features = batch
    logits, auxiliary = model(ids, features)
    token = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=0.02)
    bce = functional.binary_cross_entropy(auxiliary, features, reduction="none").mean(-1)
    token, bce = (token * mask.flatten()).sum() / mask.sum(), (bce * mask).sum() / mask.sum()
    return token + 0.5 * bce + 0.01 * uniformizer(logits, target, mask, classes)


@torch.no_grad()
def straight_text(model: StraightFusion, vocabulary: ClauseVocabulary) -> str:
    """Return one clause, the whole prefix computed anew for every token (hard control, group mixture)."""
    ids = [vocabulary.bos_id]
    for slot in SLOTS:
        tokens = [vocabulary.tokens[i] for i in ids[1:]] or ["."]
        features = sentence_features(tokens, vocabulary)[: len(ids)].unsqueeze(0)
        logits, _ = model(torch.tensor([ids]), features)
        allowed = torch.tensor(vocabulary.ids("adjective_positive" if slot == "adjective" else slot))
        p = (logits[0, -1, allowed] / 0.7).softmax(-1)
        ids.append(int(allowed[int(torch.multinomial(p, 1))]))
    return vocabulary.decode(ids)


def training(module: Any, batches: Any, loss: Callable[[Any], Tensor], steps: int) -> Callable[[], None]:
    """Return a training over so many batches, which are made anew each time."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4, weight_decay=0.01)

    def work() -> None:
        module.train()
        for batch in itertools.islice(iter(batches), steps):
            optimizer.zero_grad()
            loss(batch).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

    return work


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return the exit code."""
    made = parser(__doc__)
    made.add_argument("--regime", default="as_published", choices=["as_published", "corrected"])
    options = read(made, words)
    size, steps, samples = ("smoke", 2, 2) if options.quick else ("paper", 40, 100)
    cfg = compose(["experiment=semantic_fusion/main", f"regime={options.regime}", f"size={size}", "data.batch_size=64"])
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    module = build_model(cfg, datamodule)
    vocabulary = datamodule.vocabulary
    straight = StraightFusion(len(vocabulary), options.regime == "corrected")
    classes = [torch.tensor(vocabulary.ids(f"adjective_{polarity}")) for polarity in ("positive", "negative")]
    data = Sentences(*map(torch.from_numpy, datamodule.corpus("train")), vocabulary)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    ways = {
        "ours": training(module, datamodule.train_dataloader(), lambda batch: module.losses(batch)["loss"], steps),
        "straight": training(straight, loader, lambda batch: straight_loss(straight, batch, classes), steps),
    }
    trained = best(ways, options.rounds)
    generator = instantiate(cfg.decoding, "decoding").generator(module.eval(), datamodule)
    straight.eval()
    control = {"pos_high": 0.95, "str_high": 0.9}
    texts = {
        "batch": lambda: generator.generate(samples, control=control, routes=("hard", "soft"), seed=0),
        "singly": lambda: [straight_text(straight, vocabulary) for _ in range(samples)],
    }
    written = best(texts, options.rounds)
    return report(
        [
            Row(f"training, {options.regime}: straight / ours", trained["straight"] / trained["ours"], 1.5),
            Row(f"{samples} clauses, {options.regime}: one at a time / in a batch",
                written["singly"] / written["batch"], 5.0),
        ],
        options,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
