"""BLEU-2 to BLEU-5 and n-gram precision of free generations against many references (graphmax, Tables 2, 5 and 8).

The paper states neither its references nor the weights of the orders. Here a protocol is a set of references: a whole
held-out corpus, or some texts drawn from it. Every hypothesis is compared with all of them: an n-gram counts at most as
often as it occurs in one of them (Papineni et al. 2002), but the references are counted once, not once per hypothesis.
Shape suffix: O orders.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.chat import quoted_special
from lit_ctg.core.metric import LitMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError
from lit_ctg.statistics import exp_or_inf, interval_of_rows

_WORD = re.compile(r"\w+|[^\w\s]")

Words = Sequence[str]


def words_of(text: str) -> list[str]:
    """Return runs of letters and digits, and every other character separately; case is kept."""
    return _WORD.findall(text)


def ngrams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))


class References:
    """Texts to compare with: for each n-gram its maximum count in one of them, and their lengths.

    Args:
        texts: words of each reference, at least one.
    """

    def __init__(self, texts: Iterable[Words], orders: int = 5) -> None:
        self.most: list[dict[tuple[str, ...], int]] = [{} for _ in range(orders)]
        lengths = set()
        for words in texts:
            lengths.add(len(words))
            for order, most in enumerate(self.most, start=1):
                for gram, count in ngrams(words, order).items():
                    if count > most.get(gram, 0):
                        most[gram] = count
        self.lengths = sorted(lengths)

    def matches(self, words: Words, order: int) -> tuple[int, int]:
        """Return (clipped matches, n-grams) of one hypothesis."""
        most, found = self.most[order - 1], ngrams(words, order)
        return sum(min(count, most.get(gram, 0)) for gram, count in found.items()), sum(found.values())

    def closest_length(self, length: int) -> int:
        """Return the reference length nearest to ``length``, the shorter one on a tie."""
        place = bisect_left(self.lengths, length)
        near = self.lengths[max(0, place - 1) : place + 1]
        return min(near, key=lambda other: (abs(other - length), other))


class NgramBleu(LitMetric):
    """Corpus BLEU-n for n = 2 .. ``orders`` (uniform weights over 1..n, brevity penalty), and precision of each n.

    Args:
        orders: the largest n, at most that of the references.
    """

    unit = "rate"
    direction = "higher"
    matches_O: Tensor
    totals_O: Tensor
    length: Tensor
    reference_length: Tensor
    texts: Tensor

    def __init__(self, references: References, *, orders: int = 5, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.references, self.orders = references, orders
        self.add_sum("matches_O", (orders,))
        self.add_sum("totals_O", (orders,))
        self.add_sum("length")
        self.add_sum("reference_length")
        self.add_sum("texts")

    def update(self, hypotheses: Iterable[Words]) -> None:
        """Add generated texts, each as words."""
        for words in hypotheses:
            pairs = [self.references.matches(words, order) for order in range(1, self.orders + 1)]
            matches_O, totals_O = torch.tensor(pairs, dtype=torch.float64).unbind(1)
            closest = self.references.closest_length(len(words))
            self.add(
                matches_O=matches_O,
                totals_O=totals_O,
                length=torch.tensor(len(words)),
                reference_length=torch.tensor(closest),
                texts=torch.tensor(1),
            )

    def precisions(self) -> Tensor:
        """Return the modified precision of each order, float64, (O,); 0 where all texts are too short."""
        return self.matches_O / self.totals_O.clamp(min=1)

    def compute(self) -> Tensor:
        """Return BLEU-1 .. BLEU-orders, float64, (O,): 0 where an order has no match."""
        logs_O = self.precisions().log().cumsum(0) / torch.arange(1, self.orders + 1, device=self.matches_O.device)
        shortfall = 1 - self.reference_length / self.length
        return (logs_O + shortfall.clamp(max=0)).exp()

    def _result(self) -> dict[str, MetricResult]:
        bleu, precision, n = self.compute().tolist(), self.precisions().tolist(), int(self.texts)

        def entry(value: float) -> MetricResult:
            value = math.nan if n == 0 else value
            return MetricResult(value, self.unit, self.direction, n, None, self.version)

        orders = range(2, self.orders + 1)
        return {f"bleu_{order}": entry(bleu[order - 1]) for order in orders} | {
            f"precision_{order}": entry(precision[order - 1]) for order in orders
        }


# The likelihood of generated texts under a judge: a language model that neither wrote nor steered them.
#
# ``NgramJudge`` is an interpolated n-gram model with Witten-Bell weights, fitted on held-out text of the scene: closed
# vocabulary, a proper distribution after every prefix, no download. ``HuggingFaceJudge`` is any pretrained model,
# with its own tokens.


Ids = Sequence[int]


class NgramJudge:
    """Interpolated n-gram model with Witten-Bell weights (``decoding/ngram.py``), in float64.

    Args:
        sequences: token ids of each text; n-grams never span two texts.
        vocab_size: V.
        order: n, at least 1.

    Raises:
        UserError: no token at all, or an unsupported order.
    """

    def __init__(self, sequences: Iterable[Ids], vocab_size: int, *, order: int = 3) -> None:
        self.model = NgramModel.count(sequences, vocab_size, order=order, smoothing="witten_bell", dtype=torch.float64)

    def nll(self, ids: Ids, start: int = 0) -> tuple[float, int]:
        """Return (nats, tokens) of ``ids[start:]`` given the preceding ids."""
        nll_T = self.model.nll(ids)[start:]
        return math.fsum(nll_T.tolist()), len(nll_T)


class HuggingFaceJudge:
    """A pretrained causal language model that reads the texts in its own tokens, on the CPU in float32.

    Its perplexity is per token of the judge, so only numbers of the same judge are comparable.

    Args:
        path: a folder with model and tokenizer, or a hub name.

    Raises:
        UserError: nothing to load there, or a tokenizer without the positions of its tokens in the text.
    """

    def __init__(self, path: str, revision: str | None = None) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
            model: Any = AutoModelForCausalLM.from_pretrained(
                path, revision=revision, dtype=torch.float32, trust_remote_code=False
            )
            if not self.tokenizer.is_fast:
                raise ValueError("its tokenizer gives no places in the text")
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"judge_path={path}: no causal language model could be loaded ({reason})") from error
        self.model = model.eval()
        self.positions = getattr(model.config, "max_position_embeddings", None)

    @torch.inference_mode()
    def nll(self, prompt: str, text: str) -> tuple[float, int]:
        """Return (nats, tokens) of ``text`` after ``prompt``; a token across their boundary belongs to the text.

        The text follows the judge's ``<bos>``, if it has one. Beyond the judge's positions the oldest tokens are left
        out, even those of the text.
        """
        quotes = bool(quoted_special(self.tokenizer).search(prompt + text))
        found = self.tokenizer(
            prompt + text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=quotes
        )
        bos = self.tokenizer.bos_token_id
        ids = ([] if bos is None else [bos]) + found["input_ids"]
        counts = ([] if bos is None else [False]) + [end > len(prompt) for _, end in found["offset_mapping"]]
        ids, counts = ids[-(self.positions or len(ids)) :], counts[-(self.positions or len(counts)) :]
        if len(ids) < 2:
            return 0.0, 0
        ids_1T = torch.tensor([ids], device=self.model.device)
        log_probs_TV = self.model(input_ids=ids_1T).logits[0, :-1].double().log_softmax(dim=-1)
        nll_T = -log_probs_TV.gather(1, ids_1T[0, 1:, None]).squeeze(1)
        counts_T = torch.tensor(counts[1:], device=nll_T.device)
        return float(nll_T[counts_T].sum()), int(counts_T.sum())


def text_perplexity(nats_N: Sequence[float], tokens_N: Sequence[int], version: int = 1) -> MetricResult:
    """Return exp(sum of nats / sum of tokens) over texts, with the delta-method interval over texts."""
    total, count = math.fsum(nats_N), sum(tokens_N)
    if count == 0:
        return MetricResult(math.nan, "perplexity", "lower", 0, None, version)
    interval = interval_of_rows(nats_N, tokens_N)
    ci95 = None if interval is None else (exp_or_inf(interval[0]), exp_or_inf(interval[1]))
    return MetricResult(exp_or_inf(total / count), "perplexity", "lower", count, ci95, version)
