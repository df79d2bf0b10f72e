"""Reviews generated with each output layer: BLEU against held-out reviews, perplexity, time (Tables 2, 3, 5 and 8).

Shape suffixes: B texts, T positions, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from lightning import LightningModule

from lit_ctg.core.metric import token_nll
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.decoding.filters import Nucleus, Temperature
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.judge_perplexity import HuggingFaceJudge, NgramJudge, text_perplexity
from lit_ctg.papers.graphmax.ngram_bleu import NgramBleu, References, words_of
from lit_ctg.papers.graphmax.trial_scene import Fold, Measure, logits_of
from lit_ctg.papers.graphmax.trial_setting import check_real, check_softmax, check_whole, checked_methods
from lit_ctg.papers.graphmax.variant import VariantRule

NO_END = -1
PARTS = "callback.graphmax_trial.parts"


class Sampler:
    """Draws continuations through one output layer after the other, with the same noise for all.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``; a null variant is left out.
        temperature, top_p: applied to what the output layer gives; the paper states none.

    Raises:
        UserError: an unknown variant, or a number out of its range.
    """

    def __init__(self, *, methods: Mapping[str, Mapping[str, Any]], temperature: float, top_p: float) -> None:
        self.methods = checked_methods(f"{PARTS}.*.sampler.methods", methods)
        check_real(f"{PARTS}.*.sampler", above=0, temperature=temperature)
        check_real(f"{PARTS}.*.sampler", above=0, most=1, top_p=top_p)
        self.temperature, self.top_p = temperature, top_p

    def continue_ids(
        self, fold: Fold, module: LightningModule, method: str, prompts: Sequence[Sequence[int]], new_tokens: int
    ) -> list[list[int]]:
        """Return prompt and continuation (its ``<eos>`` too); row i is a function of (seed, i) and the method."""
        setting = self.methods[method]
        rules = RuleList(
            [
                VariantRule(fold.variant(setting["variant"]), float(setting.get("strength", 1.0))),
                Temperature(self.temperature),
                Nucleus(self.top_p, keep_crossing=True),
            ]
        )
        end = fold.vocabulary.eos_id
        options = {"seed": fold.seed, "max_new_tokens": new_tokens, "eos_id": NO_END if end is None else end}
        return generate(module, prompts, rules, **options)  # type: ignore[arg-type]


class ReviewGeneration:
    """Continue the first words of held-out reviews and compare with the held-out reviews.

    References are those of the fold: all of them (``bleu``) and some drawn from them (``bleu_sampled``). Only the
    continuation counts, not the prompt, which is a reviewer's. The judge is an n-gram model of the held-out reviews.

    ``<eos>`` ends a continuation and is no part of it: neither of its words nor of what a judge reads, who has met no
    end. Nor does the language model score it, so that every perplexity of a text counts the same tokens. A continuation
    without a token before its end has no n-gram, its length (0) counts for BLEU's brevity, and no perplexity.

    Args:
        sampler: output layers and how to draw.
        texts: continuations of each method a fold.
        prompt_tokens, new_tokens: lengths.
        sampled: references drawn for ``bleu_sampled``.
        judge_order: n of the judge.
        samples_kept: texts kept for each method, of the first fold.
        judge_path: a pretrained language model as a second judge, folder or hub name; None for none.

    Names: ``bleu/<scene>/<method>/bleu_<n>`` and ``.../precision_<n>``, ``bleu_sampled/...``,
    ``perplexity_lm/<scene>/<method>`` (under softmax of the language model itself), ``perplexity_judge/...``, and with
    a second judge ``perplexity_pretrained_judge/...``.

    Raises:
        UserError: a number out of its range, or methods without softmax.
    """

    first_fold_only = False

    def __init__(
        self,
        *,
        sampler: Sampler,
        texts: int,
        prompt_tokens: int,
        new_tokens: int,
        sampled: int,
        judge_order: int,
        samples_kept: int = 2,
        judge_path: str | None = None,
    ) -> None:
        where = f"{PARTS}.generation"
        lengths = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
        check_whole(where, 1, texts=texts, sampled=sampled, judge_order=judge_order, **lengths)
        check_whole(where, 0, samples_kept=samples_kept)
        check_softmax(f"{where}.sampler.methods", sampler.methods)
        if judge_path is not None and not isinstance(judge_path, str):
            raise UserError(f"{where}.judge_path={judge_path}: give a folder or a hub name, or null")
        self.sampler, self.texts, self.judge_path = sampler, texts, judge_path
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens
        self.sampled, self.judge_order, self.samples_kept = sampled, judge_order, samples_kept

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return the positions of the language model that are needed: the last token is not read again."""
        return self.prompt_tokens + self.new_tokens - 1

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        rng = fold.rng(2)
        references = [words_of(text) for text in fold.texts]
        drawn = rng.choice(len(references), min(self.sampled, len(references)), replace=False)
        protocols = {"bleu": References(references), "bleu_sampled": References([references[i] for i in drawn])}
        judge = NgramJudge((ids.tolist() for ids in fold.ids), len(fold.vocabulary), order=self.judge_order)
        begun = rng.choice(len(fold.ids), self.texts, replace=len(fold.ids) < self.texts)
        prompts = [fold.ids[i][: self.prompt_tokens].tolist() for i in begun]
        numbers: dict[str, Measure] = {}
        samples: list[dict[str, Any]] = []
        for method in self.sampler.methods:
            drawn_ids = self.sampler.continue_ids(fold, module, method, prompts, self.new_tokens)
            found = [
                without_end(row, len(p), fold.vocabulary.eos_id) for row, p in zip(drawn_ids, prompts, strict=True)
            ]
            texts = [fold.vocabulary.decode(row[len(p) :]) for row, p in zip(found, prompts, strict=True)]
            for protocol, known in protocols.items():
                numbers |= self._bleu(protocol, known, fold.scene, method, texts)
            numbers |= self._perplexity(fold, module, method, judge, found, prompts)
            if fold.number == 0:
                kept = found[: self.samples_kept]
                samples += [self._sample(fold, method, row, p) for row, p in zip(kept, prompts, strict=False)]
        return numbers, samples

    @cached_property
    def pretrained_judge(self) -> HuggingFaceJudge | None:
        """The second judge, loaded when first needed."""
        return None if self.judge_path is None else HuggingFaceJudge(self.judge_path)

    def _bleu(
        self, protocol: str, references: References, scene: str, method: str, texts: Sequence[str]
    ) -> dict[str, Measure]:
        metric = NgramBleu(references, sync_on_compute=False)
        metric.update([words_of(text) for text in texts])
        return {
            f"{protocol}/{scene}/{method}/{name}": Measure(
                result.value, result.unit, result.direction, result.n, f"{protocol}/{scene}/softmax/{name}"
            )
            for name, result in metric.result().items()
        }

    def _perplexity(
        self,
        fold: Fold,
        module: LightningModule,
        method: str,
        judge: NgramJudge,
        found: Sequence[Sequence[int]],
        prompts: Sequence[Sequence[int]],
    ) -> dict[str, Measure]:
        starts = [len(prompt) for prompt in prompts]
        judged = [judge.nll(row, start) for row, start in zip(found, starts, strict=True)]
        own = [own_nll(module, row, start) for row, start in zip(found, starts, strict=True)]
        numbers = {}
        pairs_by_name = {"perplexity_lm": own, "perplexity_judge": judged}
        if self.pretrained_judge is not None:
            read = fold.vocabulary.decode
            pairs_by_name["perplexity_pretrained_judge"] = [
                self.pretrained_judge.nll(read(row[:start]), read(row[start:]))
                for row, start in zip(found, starts, strict=True)
            ]
        for name, pairs in pairs_by_name.items():
            result = text_perplexity([nats for nats, _ in pairs], [tokens for _, tokens in pairs])
            base = f"{name}/{fold.scene}/softmax"
            numbers[f"{name}/{fold.scene}/{method}"] = Measure(
                result.value, result.unit, result.direction, result.n, base
            )
        return numbers

    def _sample(self, fold: Fold, method: str, row: Sequence[int], prompt: Sequence[int]) -> dict[str, Any]:
        text = fold.vocabulary.decode(row[len(prompt) :])
        return {"scene": fold.scene, "method": method, "prompt": fold.vocabulary.decode(prompt), "text": text}


def without_end(ids: Sequence[int], start: int, eos_id: int | None) -> list[int]:
    """Return prompt and continuation up to the first ``<eos>`` at or after ``start``, without it."""
    ends = [place for place in range(start, len(ids)) if ids[place] == eos_id]
    return list(ids[: ends[0]] if ends else ids)


def own_nll(module: LightningModule, ids: Sequence[int], start: int) -> tuple[float, int]:
    """Return (nats, tokens) of ``ids[start:]`` under softmax of the language model."""
    if len(ids) == start:
        return 0.0, 0
    scores_BTV = logits_of(module, [ids[:-1]], len(ids) - 1)[:, start - 1 :]
    target_BT = torch.tensor([ids[start:]], device=scores_BTV.device)
    nll_BT = token_nll(scores_BTV, target_BT, torch.ones_like(target_BT, dtype=torch.bool))
    return nll_BT.sum().item(), len(ids) - start


class DecodingTime:
    """Seconds a token of single-text generation with each output layer, prompt by prompt (Table 3).

    The language model of this run, with its cache, is timed; the first token's set-up (graph, prepared operator) is
    warmed up before.

    Names: ``seconds/<scene>/<method>/prompt_<k>``, ``time_ratio/<scene>/<method>/prompt_<k>`` (over softmax) and
    ``time_ratio/<scene>/<method>``, of all prompts. An ``<eos>`` took a step as every token did, so it counts.

    Raises:
        UserError: a number out of its range, or methods without softmax.
    """

    first_fold_only = True

    def __init__(self, *, sampler: Sampler, prompts: int, prompt_tokens: int, new_tokens: int) -> None:
        where = f"{PARTS}.time"
        check_whole(where, 1, prompts=prompts, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
        check_softmax(f"{where}.sampler.methods", sampler.methods)
        self.sampler, self.prompts = sampler, prompts
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return the positions of the language model that are needed."""
        return self.prompt_tokens + self.new_tokens - 1

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        chosen = fold.rng(3).choice(len(fold.ids), self.prompts, replace=len(fold.ids) < self.prompts)
        prompts = [fold.ids[i][: self.prompt_tokens].tolist() for i in chosen]
        seconds: dict[str, list[float]] = {method: [] for method in self.sampler.methods}
        for method in seconds:
            self.sampler.continue_ids(fold, module, method, prompts[:1], 2)
            for prompt in prompts:
                began = time.perf_counter()
                found = self.sampler.continue_ids(fold, module, method, [prompt], self.new_tokens)
                seconds[method].append((time.perf_counter() - began) / (len(found[0]) - len(prompt)))
        numbers: dict[str, Measure] = {}
        for method, taken in seconds.items():
            name = f"{fold.scene}/{method}"
            for number, value in enumerate(taken, start=1):
                numbers[f"seconds/{name}/prompt_{number}"] = Measure(value, "s/token", "lower", self.new_tokens)
                ratio = value / seconds["softmax"][number - 1]
                numbers[f"time_ratio/{name}/prompt_{number}"] = Measure(ratio, "ratio", "lower", self.new_tokens)
            ratio = sum(taken) / sum(seconds["softmax"])
            numbers[f"time_ratio/{name}"] = Measure(ratio, "ratio", "lower", self.new_tokens * len(taken))
        return numbers, []
