"""What graphmax does, as pictures: convergence of the solvers (Fig. 2), and which words it recommends (Fig. 6).

Shape suffixes: B contexts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.function import graphmax, warn_uncertified
from lit_ctg.papers.graphmax.trial_scene import Fold, Measure, contexts_of, logits_of
from lit_ctg.papers.graphmax.trial_setting import check_strength, check_whole, checked_methods


class Convergence:
    """How far the solvers get, iteration by iteration.

    Names: ``convergence/<scene>/published/step_<t>`` (mean ``||x_t - x_{t-1}||_2`` of Algorithm 1, the quantity of Fig.
    2, as if it did not stop), ``stopped/<scene>/published`` (share of contexts whose move came below Algorithm 1's
    threshold within its steps), ``distance/<scene>/published/step_<t>`` (mean total variation to the optimum, of rows
    that stop where they stop), ``distance/<scene>/softmax``, ``gap/<scene>/certified/iterate_<t>`` (mean certificate in
    nats), ``products/<scene>/certified`` (mean full products with M).

    Args:
        contexts: next-word problems, of the first fold.
        length: most tokens of left context.
        strength: lambda.
        iterates: how many of the certified solver are shown.

    Raises:
        UserError: a number out of its range.
    """

    first_fold_only = True

    def __init__(self, *, contexts: int, length: int, strength: float, iterates: int = 4) -> None:
        where = "callback.graphmax_trial.parts.convergence"
        check_whole(where, 1, contexts=contexts, length=length, iterates=iterates)
        check_strength(f"{where}.strength", strength)
        self.contexts, self.length, self.strength, self.iterates = contexts, length, strength, iterates

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return the positions of the language model that are needed."""
        return self.length

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        if fold.published is None:
            raise UserError("the picture of convergence needs the numbers of Algorithm 1 (callback.graphmax_trial)")
        logits_BV = contexts_of(fold, module, contexts=self.contexts, length=self.length).logits_NV
        n, scene = len(logits_BV), fold.scene
        best = graphmax(logits_BV, fold.graph, self.strength)
        warn_uncertified(best, "convergence of the solvers")
        fold.certificates.add("graphmax", best)
        numbers = {
            f"distance/{scene}/softmax": _distance(logits_BV.softmax(dim=-1), best.probs_BV),
            f"products/{scene}/certified": Measure(float(best.products_B.double().mean()), "products", "lower", n),
        }
        before_BV = stopped_BV = torch.zeros_like(logits_BV)
        open_B = torch.ones(n, dtype=torch.bool, device=logits_BV.device)
        for step in range(1, fold.published.steps + 1):
            # with its threshold a row that has stopped would count as one that moves no more
            solver = replace(fold.published, steps=step, threshold=0.0)
            x_BV = graphmax(logits_BV, fold.graph, self.strength, solver=solver).probs_BV
            moved_B = (x_BV - before_BV).norm(dim=-1)
            stopped_BV = torch.where(open_B.unsqueeze(1), x_BV, stopped_BV)
            open_B = open_B & ~(moved_B < fold.published.threshold)
            moved = Measure(float(moved_B.mean()), "l2 norm", "lower", n)
            numbers[f"convergence/{scene}/published/step_{step}"] = moved
            numbers[f"distance/{scene}/published/step_{step}"] = _distance(stopped_BV, best.probs_BV)
            before_BV = x_BV
        stopped = float((~open_B).double().mean())
        numbers[f"stopped/{scene}/published"] = Measure(stopped, "share of contexts", "higher", n)
        for iterate in range(1, self.iterates + 1):
            found = graphmax(logits_BV, fold.graph, self.strength, max_iterations=iterate)
            gap = float(found.gap_B.mean())
            numbers[f"gap/{scene}/certified/iterate_{iterate}"] = Measure(gap, "nats", "lower", n)
        return numbers, []


def _distance(x_BV: Tensor, best_BV: Tensor) -> Measure:
    value = float((x_BV - best_BV).abs().sum(dim=-1).mean()) / 2
    return Measure(value, "total variation", "lower", len(x_BV))


class TopWords:
    """The best words after some contexts under each output layer (Fig. 6).

    Names: ``top_shared/<scene>/<method>``: share of softmax's best words that are among this method's. The lists
    themselves are samples with method ``top/<method>`` and prompt the context.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``, softmax among them.
        contexts: texts.
        words: how many.

    Raises:
        UserError: an unknown variant, no words or no contexts.
    """

    first_fold_only = True

    def __init__(self, *, methods: Mapping[str, Mapping[str, Any]], contexts: Sequence[str], words: int) -> None:
        where = "callback.graphmax_trial.parts.top_words"
        check_whole(where, 1, words=words)
        if not contexts:
            raise UserError(f"{where}.contexts is empty: give one text or more")
        self.methods = checked_methods(f"{where}.methods", methods)
        self.contexts, self.words = list(contexts), words

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return the positions of the language model that are needed.

        Raises:
            UserError: a context without a token.
        """
        lengths = [len(vocabulary.encode(text)) for text in self.contexts]
        if 0 in lengths:
            empty = self.contexts[lengths.index(0)]
            raise UserError(f"callback.graphmax_trial.parts.top_words.contexts: '{empty}' has no token, leave it out")
        return max(lengths)

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        rows = [fold.vocabulary.encode(text) for text in self.contexts]
        logits_BV = torch.cat([logits_of(module, [row], len(row))[:, -1] for row in rows]).float()
        last_B = torch.tensor([row[-1] for row in rows], device=logits_BV.device)
        plain_BK = logits_BV.topk(self.words).indices
        numbers, samples = {}, []
        for method, setting in self.methods.items():
            variant = fold.variant(setting["variant"])
            best = variant(logits_BV, last_B, float(setting.get("strength", 1.0))).exp().topk(self.words)
            shared = (best.indices.unsqueeze(2) == plain_BK.unsqueeze(1)).any(dim=2).double().mean()
            name = f"top_shared/{fold.scene}/{method}"
            numbers[name] = Measure(float(shared), "rate", "none", len(rows) * self.words)
            for text, ids, probs in zip(self.contexts, best.indices.tolist(), best.values.tolist(), strict=True):
                words = [fold.vocabulary.decode([token]).strip() for token in ids]
                listed = ", ".join(f"{word} {prob:.3f}" for word, prob in zip(words, probs, strict=True))
                samples.append({"scene": fold.scene, "method": f"top/{method}", "prompt": text, "text": listed})
        return numbers, samples
