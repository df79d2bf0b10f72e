"""Judges of texts: tf-idf with logistic regression, a fine-tuned sentence encoder, and a language model for fluency.

Both learn from human texts that no base model here, no method and no classifier of a method has seen. Each is tried on
held-out human passages first; a task whose judges are not accurate enough is not run.

Shape letters: B texts, T tokens, D hidden size, C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control.base import added_ids
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.errors import UserError, only_errors_of
from lit_ctg.field.task import Example, pieces, words_of
from lit_ctg.field.tune import check_kept, optimise, read_kept
from lit_ctg.network.pretrained import resolve
from lit_ctg.statistics import Interval, wilson_interval

WEIGHTS = "judge.pt"
# tokens of a text that the encoder reads; 60 words have about 80
LONGEST = 128


class Judge(Protocol):
    """Assigns a class to each text."""

    name: str

    def judge(self, texts: Sequence[str]) -> list[str]: ...


@dataclass(frozen=True)
class Proof:
    """A judge's results on held-out human texts.

    Attributes:
        recall: class -> share of its texts that the judge recognises.
        interval: of right/of, 95%.
    """

    recall: dict[str, float]
    right: int
    of: int
    interval: Interval | None

    @property
    def balanced(self) -> float:
        """Mean recall over the classes, 1/C for guessing."""
        return float(np.mean(list(self.recall.values())))


def prove(judge: Judge, examples: Sequence[Example]) -> Proof:
    """Return how well a judge recognises the classes of human texts."""
    if not examples:
        raise UserError("no held-out human text to try the judges on: give more text")
    made = judge.judge([example.text for example in examples])
    hits = np.array([own == example.label for own, example in zip(made, examples, strict=True)])
    labels = np.array([example.label for example in examples])
    recall = {label: float(hits[labels == label].mean()) for label in sorted(set(labels))}
    return Proof(recall, int(hits.sum()), len(hits), wilson_interval(int(hits.sum()), len(hits)))


def snippets(examples: Sequence[Example], shortest: int, longest: int, each: int, seed: int) -> list[Example]:
    """Return pieces of ``shortest`` to ``longest`` words from random positions in passages, ``each`` per passage."""
    generator = np.random.default_rng(seed)
    found = []
    for example in examples:
        words = pieces(example.text)
        for _ in range(each):
            length = int(generator.integers(shortest, longest + 1))
            start = int(generator.integers(0, max(1, len(words) - length + 1)))
            found.append(Example("".join(words[start : start + length]).rstrip(), example.label))
    return found


def balanced(examples: Sequence[Example], seed: int) -> list[Example]:
    """Return equally many examples of every class (as many as the rarest has), in random order."""
    generator = np.random.default_rng(seed)
    by_label: dict[str, list[Example]] = {}
    for example in examples:
        by_label.setdefault(example.label, []).append(example)
    least = min(map(len, by_label.values()))
    chosen = [
        own[place]
        for _, own in sorted(by_label.items())
        for place in sorted(generator.permutation(len(own))[:least].tolist())
    ]
    return [chosen[place] for place in generator.permutation(len(chosen))]


class BagJudge:
    """Logistic regression over the tf-idf of words and word pairs, scikit-learn's."""

    name = "tfidf"

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        self.model = make_pipeline(
            TfidfVectorizer(analyzer=_words_and_pairs, min_df=2, sublinear_tf=True),
            LogisticRegression(max_iter=1000, C=4.0, random_state=seed),
        )
        try:
            self.model.fit([example.text for example in examples], [example.label for example in examples])
        except ValueError as error:  # one class, or no repeated word
            raise UserError(f"the judge cannot be trained ({str(error)[:120]}): give more text") from error

    def judge(self, texts: Sequence[str]) -> list[str]:
        return [str(label) for label in self.model.predict(list(texts))] if len(texts) else []

    def log_odds(self, texts: Sequence[str], label: str) -> list[float]:
        """Return how much more likely a class is than the others together, in nats."""
        share_B = self.model.predict_proba(list(texts))[:, list(self.model.classes_).index(label)].clip(1e-9, 1 - 1e-9)
        return list(np.log(share_B / (1 - share_B)))


def _words_and_pairs(text: str) -> list[str]:
    words = words_of(text)
    return words + [f"{a} {b}" for a, b in itertools.pairwise(words)]


class EncoderJudge(nn.Module):
    """A sentence encoder, its states averaged over the tokens, and a linear layer; all of it is fine-tuned.

    Args:
        encoder: a name of ``lit-ctg model list`` or a folder.
        labels: the classes, in order.

    Raises:
        UserError: the encoder cannot be loaded.
    """

    name = "encoder"

    def __init__(self, encoder: str, labels: Sequence[str]) -> None:
        super().__init__()
        from transformers import AutoModel, AutoTokenizer

        place = resolve(encoder, "judges.encoder")
        try:
            with only_errors_of("transformers"):
                self.encoder: Any = AutoModel.from_pretrained(place, dtype=torch.float32, trust_remote_code=False)
                self.tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except Exception as error:  # those of safetensors, torch and the hub have no common class
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"judges.encoder={encoder} cannot be loaded: {reason}") from error
        self.labels = list(labels)
        self.head = nn.Linear(self.encoder.config.hidden_size, len(self.labels))

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return the scores of the classes [B, C]."""
        read = self.tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        state_BTD = self.encoder(**read).last_hidden_state
        real_BT1 = read["attention_mask"].unsqueeze(-1).to(state_BTD)
        return self.head((state_BTD * real_BT1).sum(1) / real_BT1.sum(1).clamp(min=1))

    def fit(
        self, examples: Sequence[Example], *, steps: int, batch: int, learning_rate: float, seed: int,
        checkpoint: Path | None = None,
    ) -> None:  # fmt: skip
        """Fine-tune on random batches of examples, from the checkpoint where there is one."""
        labels = torch.tensor([self.labels.index(example.label) for example in examples])

        def loss_of(generator: np.random.Generator) -> Tensor:
            chosen = generator.integers(0, len(examples), size=batch)
            return nn.functional.cross_entropy(self([examples[place].text for place in chosen]), labels[chosen])

        self.train()
        optimise(self.parameters(), loss_of, steps=steps, learning_rate=learning_rate, seed=seed, checkpoint=checkpoint)
        self.eval()

    def save(self, folder: Path) -> None:
        torch.save(self.state_dict(), folder / WEIGHTS)

    def load(self, folder: Path) -> EncoderJudge:
        """Read what ``save`` wrote (``UserError``: the file is damaged)."""
        path = folder / WEIGHTS
        self.load_state_dict(check_kept(read_kept(path, folder), self.state_dict(), path, folder))
        return self.eval()

    @torch.no_grad()
    def judge(self, texts: Sequence[str]) -> list[str]:
        parts = [texts[start : start + 64] for start in range(0, len(texts), 64)]
        return [self.labels[place] for part in parts for place in self(part).argmax(1).tolist()]


@torch.no_grad()
def text_cost(
    model: Any, tokenizer: Any, prompts: Sequence[str], texts: Sequence[str], batch: int = 8
) -> list[tuple[float, int]]:
    """Return (nats, tokens) of each continuation after its prompt under a language model.

    The texts are tokenised for this model, whatever wrote them. An empty continuation has (0, 0).

    Args:
        model: a Hugging Face causal language model, in evaluation mode.
    """
    # what the tokenizer puts before a text (Gemma's <bos>), else the end of another text
    start, found = added_ids(tokenizer)[0] or [int(tokenizer.eos_token_id)], []
    longest = int(getattr(model.config, "max_position_embeddings", 1024))
    reader = HuggingFaceTokenizer.of(tokenizer)
    for first in range(0, len(texts), batch):
        rows, kept = [], []
        for prompt, text in zip(prompts[first : first + batch], texts[first : first + batch], strict=True):
            (own,) = ids_behind(reader, prompt, [text])
            rows.append((start + reader.encode(prompt) + own)[-longest:])
            kept.append(len(own))
        width = max(map(len, rows))
        padded = [row + start[-1:] * (width - len(row)) for row in rows]
        ids_BT = torch.tensor(padded, device=model.device)
        logits_BTV = model(input_ids=ids_BT).logits
        # row by row: a large vocabulary in float32 takes much memory
        for logits_TV, ids_T, row, new in zip(logits_BTV, ids_BT, rows, kept, strict=True):
            last = len(row) - 1
            begin = max(0, last - new)
            cost_T = nn.functional.cross_entropy(
                logits_TV[begin:last].float(), ids_T[begin + 1 : last + 1], reduction="none"
            )
            found.append((float(cost_T.double().sum()), min(new, last)))
    return found
