"""The straight rendering of semantic fusion that the benchmarks compare with: as the paper reads, nothing made fast.

Features are computed per sentence each time it is drawn, every batch has the fixed length of 28 tokens with padding,
the network is ``nn.TransformerEncoder``, the scheduler steps once a batch, and generation runs one sentence at a time
with the whole prefix recomputed for each token. Written from the paper and its known constants; no code of the authors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_ctg.papers.semantic_fusion.corpus import ClauseVocabulary

LENGTH, DIM, LAYERS, HEADS, WIDE, DROPOUT = 28, 128, 4, 4, 256, 0.1
FEATURES = 22


def membership(x: float, centre: float) -> float:
    """Eq. 1 with tau = 0.35."""
    return 0.9 ** (abs(x - centre) / 0.35)


def triple(x: float) -> list[float]:
    """Low, medium and high membership of x."""
    return [membership(x, centre) for centre in (0.2, 0.6, 1.0)]


def sentence_features(tokens: list[str], vocabulary: ClauseVocabulary) -> Tensor:
    """Published features [28, 22] of one sentence given without <bos> and <eos>."""
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


class SentenceDataset(torch.utils.data.Dataset):
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

    def __init__(self, vocabulary_size: int, causal: bool, embedding_std: float) -> None:
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(vocabulary_size, DIM)
        nn.init.normal_(self.embedding.weight, std=embedding_std)
        self.project = nn.Linear(FEATURES, DIM)
        self.gate = nn.Linear(DIM + FEATURES, DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, WIDE, DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.auxiliary = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, FEATURES))
        position = torch.arange(512).unsqueeze(1)
        rate = torch.exp(torch.arange(0, DIM, 2) * (-math.log(10000.0) / DIM))
        table = torch.zeros(512, DIM)
        table[:, 0::2], table[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("positions", table)

    def forward(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        e = self.embedding(ids)
        u = self.project(features)
        g = torch.sigmoid(self.gate(torch.cat([e, features], dim=-1)))
        h = e + u + g * u + self.positions[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        padding = torch.zeros(ids.shape).masked_fill(ids == 0, float("-inf"))
        h = self.encoder(h, mask=mask, src_key_padding_mask=padding)
        return h @ self.embedding.weight.T, torch.sigmoid(self.auxiliary(h))


def uniformizer(logits: Tensor, target: Tensor, mask: Tensor, classes: list[Tensor]) -> Tensor:
    """Eq. 8."""
    parts = []
    for ids in classes:
        rows = logits[torch.isin(target, ids) & (mask > 0)][:, ids]
        if len(rows):
            p = rows.softmax(-1)
            parts.append((p * (p.clamp_min(1e-9).log() + math.log(len(ids)))).sum(-1).mean())
    return sum(parts) / len(parts) if parts else logits.new_zeros(())


def train(model: StraightFusion, data: SentenceDataset, epochs: int, seed: int, rate: float = 3e-4) -> None:
    """The published loop: AdamW, warm-up and cosine per batch, clip 1."""
    vocabulary = data.vocabulary
    classes = [torch.tensor(vocabulary.ids(f"adjective_{polarity}")) for polarity in ("positive", "negative")]
    generator = torch.Generator().manual_seed(seed)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, generator=generator)
    steps = epochs * len(loader)
    warm = max(1, steps // 10)

    def factor(step: int) -> float:
        return step / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    model.train()
    for _ in range(epochs):
        for ids, target, mask, features in loader:
            logits, auxiliary = model(ids, features)
            token = functional.cross_entropy(
                logits.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=0.02
            )
            token = (token * mask.flatten()).sum() / mask.sum()
            bce = functional.binary_cross_entropy(auxiliary, features, reduction="none").mean(-1)
            bce = (bce * mask).sum() / mask.sum()
            loss = token + 0.5 * bce + 0.01 * uniformizer(logits, target, mask, classes)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


@torch.no_grad()
def perplexity(model: StraightFusion, data: SentenceDataset) -> float:
    """Published validation perplexity (input mask)."""
    model.eval()
    nats = count = 0.0
    for ids, target, mask, features in torch.utils.data.DataLoader(data, batch_size=64):
        logits, _ = model(ids, features)
        token = functional.cross_entropy(logits.double().flatten(0, 1), target.flatten(), reduction="none")
        nats, count = nats + float((token * mask.flatten()).sum()), count + float(mask.sum())
    return math.exp(nats / count)


@torch.no_grad()
def generate_one(
    model: StraightFusion, vocabulary: ClauseVocabulary, positive: bool, generator: torch.Generator
) -> str:
    """One controlled clause, the whole prefix recomputed for every token (hard control, group mixture)."""
    model.eval()
    slots = ["subject", "verb", "the", "object", "comma", "intensifier", "adjective", "punctuation"]
    ids = [vocabulary.bos_id]
    for slot in slots:
        tokens = [vocabulary.tokens[i] for i in ids[1:]] or ["."]
        features = sentence_features(tokens, vocabulary)[: len(ids)].unsqueeze(0)
        logits, _ = model(torch.tensor([ids]), features)
        name = f"adjective_{'positive' if positive else 'negative'}" if slot == "adjective" else slot
        allowed = torch.tensor(vocabulary.ids(name))
        scores = logits[0, -1, allowed]
        if slot == "adjective":
            p = 0.03 * (scores / 1.5).softmax(-1) + 0.97 / len(allowed)
        else:
            p = (scores / 0.7).softmax(-1)
            ordered, index = p.sort(descending=True)
            kept = ordered.cumsum(-1) <= 0.9
            kept[0] = True
            p = torch.zeros_like(p).scatter(0, index[kept], ordered[kept])
        choice = int(torch.multinomial(p, 1, generator=generator))
        if slot == "punctuation" and positive:
            choice = vocabulary.ids("punctuation").index(vocabulary.id("!"))
        ids.append(int(allowed[choice]))
    return vocabulary.decode(ids)
