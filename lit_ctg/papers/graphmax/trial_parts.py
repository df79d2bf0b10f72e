"""The parts of graphmax's trial: next-word likelihood, generated reviews, time, convergence and recommended words.

Shape suffixes: N contexts, B texts or rows, T positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from annotated_types import Interval, MinLen
from lightning import LightningModule
from torch import Tensor

from lit_ctg import limits
from lit_ctg.core.metric import token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.decoding.filters import Nucleus, Temperature, nucleus
from lit_ctg.decoding.loop import StepModel, generate
from lit_ctg.decoding.ngram import ORDERS, NgramModel
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, NonNegative, Positive, Whole, checked
from lit_ctg.papers.graphmax.equation import graphmax, warn_uncertified
from lit_ctg.papers.graphmax.metrics import (
    HuggingFaceJudge,
    NgramBleu,
    NgramJudge,
    References,
    text_perplexity,
    words_of,
)
from lit_ctg.papers.graphmax.trial import (
    Contexts,
    Fold,
    Measure,
    Methods,
    check_softmax,
    checked_methods,
    contexts_of,
    logits_of,
    pretty,
    tokens_of,
    windows_of,
)
from lit_ctg.papers.graphmax.variant import Variant, VariantRule

BLOCK = 64
GENERATED = 2  # version of the numbers of generated texts; in 1 all folds drew with the same uniforms
NGRAMS = ("unigram", "bigram", "trigram")  # order 1, 2, 3
FLOOR = 1e-3  # uniform share mixed into a distribution with zeros


def target_nll(log_x_BV: Tensor, target_B: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the negative log-probability of each target ``[B]``, in nats, and whether its probability is 0 ``[B]``.

    The NLL of a distribution with zeros is that of its mixture with a uniform share ``floor``.
    """
    hit_B1 = target_B.unsqueeze(1)
    zero_BV = log_x_BV == -math.inf
    log_p_B = log_x_BV.gather(1, hit_B1).squeeze(1)
    floored_B = ((1 - floor) * log_p_B.exp() + floor / log_x_BV.shape[-1]).log()
    return -torch.where(zero_BV.any(dim=1), floored_B, log_p_B), zero_BV.gather(1, hit_B1).squeeze(1)


@checked
class NextWordNll:
    """Mean negative log-probability of the next word of held-out reviews, in nats.

    Half of a fold's contexts choose the strength of each variant, the other half measure it (``.../chosen``); the
    numbers of single strengths also use that other half.

    For comparison there are n-gram models of the text on which the graph is counted, *without* the language model: an
    output layer must beat them for its graph to be useful.

    A distribution with zeros (sparsemax, Algorithm 1) makes some words impossible and has an infinite NLL. Its share of
    impossible targets is reported as ``zero/...``; the NLL is then that of its mixture with a uniform share ``floor``.

    Args:
        variants: name -> ``{variant: ..., strengths: [...]}``; no strengths for one without. A null variant is left
            out.
        length: maximum tokens of left context.
        floor: uniform share mixed into distributions with zeros.

    Names: ``nll/<scene>/<name>[/<strength>|/chosen]``, ``zero/...``, and for every variant at every strength
    ``shift/...`` (mean total variation to softmax), ``top/...`` (share of contexts whose top word changes),
    ``attested/...`` (mean mass on attested successors of the last word). ``nll/<scene>/unigram``, ``.../bigram`` and
    ``.../trigram`` are the n-gram models alone, over the same contexts as the strengths.
    """

    first_fold_only = False

    def __init__(self, *, variants: Methods, contexts: Count, length: Count, floor: limits.Nucleus = FLOOR) -> None:
        where = "callback.graphmax_trial.parts.likelihood"
        self.variants = checked_methods(f"{where}.variants", variants, strengths="strengths", reference=True)
        self.contexts, self.length, self.floor = contexts, length, floor

    def positions(self, vocabulary: Tokenizer) -> int:
        return self.length

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        found = contexts_of(fold, module, contexts=2 * self.contexts, length=self.length)
        half = torch.arange(len(found.last_N), device=found.last_N.device) % 2 == 0
        base = f"nll/{fold.scene}/softmax"
        numbers: dict[str, Measure] = {}
        for name, setting in self.variants.items():
            variant, strengths = fold.variant(setting["variant"]), setting.get("strengths") or []
            prefix = f"{fold.scene}/{name}"
            if not strengths:
                numbers |= self._numbers(fold, variant, 1.0, found, ~half, prefix, base)[0]
            best = (math.inf, math.nan)
            for strength in strengths:
                measured, nll_N = self._numbers(
                    fold, variant, strength, found, ~half, f"{prefix}/{pretty(strength)}", base
                )
                numbers |= measured
                best = min(best, (float(nll_N[half].mean()), float(nll_N[~half].mean())))
            if strengths:
                numbers[f"nll/{prefix}/chosen"] = Measure(best[1], "nats", "lower", int((~half).sum()), base)
        return numbers | _ngrams_alone(fold, found.before_NK[~half].cpu(), found.target_N[~half].cpu(), base), []

    def references(self, fold: Fold) -> dict[str, Measure]:
        """Return the numbers of the n-gram models alone, over the same contexts as in ``measure``."""
        windows, picks = windows_of(fold, contexts=2 * self.contexts, length=self.length)
        _, target_N, before_NK = tokens_of(windows, picks)
        return _ngrams_alone(fold, before_NK[1::2], target_N[1::2])

    def _numbers(
        self, fold: Fold, variant: Variant, strength: float, found: Contexts, counted_N: Tensor, name: str, base: str
    ) -> tuple[dict[str, Measure], Tensor]:
        """Return the numbers over the counted contexts, and the NLL of every context."""
        columns = [
            self._block(fold, variant, strength, logits_BV, last_B, target_B)
            for logits_BV, last_B, target_B in zip(
                found.logits_NV.split(BLOCK), found.last_N.split(BLOCK), found.target_N.split(BLOCK), strict=True
            )
        ]
        values = {key: torch.cat([block[key] for block in columns]) for key in columns[0]}
        n = int(counted_N.sum())
        mean = {key: value_N[counted_N].double().mean().item() for key, value_N in values.items()}
        numbers = {
            f"nll/{name}": Measure(mean["nll"], "nats", "lower", n, base),
            f"zero/{name}": Measure(mean["zero"], "rate", "lower", n),
            f"shift/{name}": Measure(mean["shift"], "total variation", "none", n),
            f"top/{name}": Measure(mean["top"], "rate", "none", n),
            f"attested/{name}": Measure(mean["attested"], "probability", "higher", n, f"attested/{fold.scene}/softmax"),
        }
        return numbers, values["nll"]

    def _block(
        self, fold: Fold, variant: Variant, strength: float, logits_BV: Tensor, last_B: Tensor, target_B: Tensor
    ) -> dict[str, Tensor]:
        log_x_BV = variant(logits_BV, last_B, strength).double().log_softmax(dim=-1)
        x_BV, softmax_BV = log_x_BV.exp(), logits_BV.double().softmax(dim=-1)
        nll_B, zero_B = target_nll(log_x_BV, target_B, self.floor)
        attested_BV = fold.graph.successors(last_B, x_BV) > 0
        return {
            "nll": nll_B,
            "zero": zero_B,
            "shift": (x_BV - softmax_BV).abs().sum(dim=1) / 2,
            "top": x_BV.argmax(dim=1) != softmax_BV.argmax(dim=1),
            "attested": (x_BV * attested_BV).sum(dim=1),
        }


def _ngrams_alone(fold: Fold, before_NK: Tensor, target_N: Tensor, base: str | None = None) -> dict[str, Measure]:
    numbers = {}
    for order, name in enumerate(NGRAMS, start=1):
        prob_N = fold.ngrams(order).prob_of(before_NK, target_N)
        numbers[f"nll/{fold.scene}/{name}"] = Measure(-prob_N.log().mean().item(), "nats", "lower", len(prob_N), base)
    return numbers


# Reviews generated with each output layer: BLEU against held-out reviews, perplexity, time (Tables 2, 3, 5 and 8).


NO_END = -1
PARTS = "callback.graphmax_trial.parts"


@checked
class Sampler:
    """Draws continuations through one output layer after the other, with the same noise for all.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``; a null variant is left out.
        temperature, top_p: applied to what the output layer gives; the paper states none.
        model_temperature: divides the model's scores before the output layer sees them.
    """

    def __init__(
        self, *, methods: Methods, temperature: Positive, top_p: limits.Nucleus, model_temperature: Positive = 1.0
    ) -> None:
        self.methods = checked_methods(f"{PARTS}.*.sampler.methods", methods)
        self.temperature, self.top_p, self.model_temperature = temperature, top_p, model_temperature

    def continue_ids(
        self, fold: Fold, module: LightningModule, method: str, prompts: Sequence[Sequence[int]], new_tokens: int
    ) -> list[list[int]]:
        """Return prompt and continuation (including ``<eos>``); row i is a function of (fold, i) and the method."""
        setting = self.methods[method]
        before = [] if self.model_temperature == 1.0 else [Temperature(self.model_temperature)]
        rules = RuleList(
            [
                *before,
                VariantRule.named(setting["variant"], fold.variants, float(setting.get("strength", 1.0))),
                Temperature(self.temperature),
                Nucleus(self.top_p, keep_crossing=True),
            ]
        )
        end = fold.vocabulary.eos_id
        return generate(
            cast(StepModel, module),
            prompts,
            rules,
            seed=fold.text_seed,
            max_new_tokens=new_tokens,
            eos_id=NO_END if end is None else end,
        )


@checked
class ReviewGeneration:
    """Continue the first words of held-out reviews and compare with the held-out reviews.

    References are those of the fold: all of them (``bleu``) and some drawn from them (``bleu_sampled``). Only the
    continuation counts, not the prompt, which is a reviewer's. The judge is an n-gram model of the held-out reviews.

    ``<eos>`` ends a continuation without being part of it: neither of its words nor of the judge's input, because the
    judge has seen no end tokens. Nor does the language model score it, so that every perplexity of a text counts the
    same tokens. A continuation without a token before its end has no n-gram and no perplexity; its length (0) counts
    for BLEU's brevity penalty.

    Args:
        samples_kept: texts kept per method, from the first fold.
        judge_path: a pretrained language model as a second judge, folder or hub name, or None.
        prefix: a text that only the language model reads, before every prompt: CTRL's control code (sec. 5);
            or None.

    Names: ``bleu/<scene>/<method>/bleu_<n>`` and ``.../precision_<n>``, ``bleu_sampled/...``,
    ``perplexity_lm/<scene>/<method>`` (under the language model's own softmax), ``perplexity_judge/...``, and with a
    second judge ``perplexity_pretrained_judge/...``. What gives them a scale is in ``references``.
    """

    first_fold_only = False

    def __init__(
        self,
        *,
        sampler: Sampler,
        texts: Count,
        prompt_tokens: Count,
        new_tokens: Count,
        sampled: Count,
        judge_order: Annotated[int, Interval(ge=1, le=ORDERS[1])],
        samples_kept: Whole = 2,
        judge_path: str | None = None,
        prefix: str | None = None,
    ) -> None:
        where = f"{PARTS}.generation"
        check_softmax(f"{where}.sampler.methods", sampler.methods)
        self.prefix = prefix
        self.sampler, self.texts, self.judge_path = sampler, texts, judge_path
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens
        self.sampled, self.judge_order, self.samples_kept = sampled, judge_order, samples_kept

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return how many positions of the language model are needed: the last token is not read again.

        Raises:
            UserError: the second judge cannot be loaded.
        """
        if self.judge_path is not None:
            HuggingFaceJudge(self.judge_path)  # not kept: it would lie in memory while the model trains
        return len(self._prefix(vocabulary)) + self.prompt_tokens + self.new_tokens - 1

    def _prefix(self, vocabulary: Tokenizer) -> list[int]:
        return list(vocabulary.encode(self.prefix)) if self.prefix else []

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        drawn, prompts = self._drawn(fold)
        prefix = self._prefix(fold.vocabulary)
        references = [words_of(text) for text in fold.texts]
        protocols = {"bleu": References(references), "bleu_sampled": References([references[i] for i in drawn])}
        judge = NgramJudge((ids.tolist() for ids in fold.ids), len(fold.vocabulary), order=self.judge_order)
        numbers: dict[str, Measure] = {}
        samples: list[dict[str, Any]] = []
        for method in self.sampler.methods:
            begun = [prefix + prompt for prompt in prompts]
            drawn_ids = self.sampler.continue_ids(fold, module, method, begun, self.new_tokens)
            found = [
                without_end(row[len(prefix) :], len(p), fold.vocabulary.eos_id)
                for row, p in zip(drawn_ids, prompts, strict=True)
            ]
            texts = [fold.vocabulary.decode(row[len(p) :]) for row, p in zip(found, prompts, strict=True)]
            for protocol, known in protocols.items():
                numbers |= self._bleu(protocol, known, fold.scene, method, texts)
            numbers |= self._perplexity(fold, module, method, judge, found, prompts)
            if fold.number == 0:
                kept = found[: self.samples_kept]
                samples += [self._sample(fold, method, row, p) for row, p in zip(kept, prompts, strict=False)]
        return numbers, samples

    def references(self, fold: Fold) -> dict[str, Measure]:
        """Return BLEU and the judge's perplexity of texts without the language model, cut like the generated ones.

        ``reference/<scene>/real/...``: reviews of the other folds, on which the graph is counted, from the token on at
        which a continuation begins; ``unigram``, ``bigram``, ``trigram``: what n-gram models of these reviews write
        after the prompts of the generated texts.
        """
        rng = fold.rng(3)
        known = References([words_of(text) for text in fold.texts])
        judge = NgramJudge((ids.tolist() for ids in fold.ids), len(fold.vocabulary), order=self.judge_order)
        numbers = {}
        for kind, rows in self._without_model(fold, self._drawn(fold)[1], rng):
            texts = [fold.vocabulary.decode(row[start:]) for row, start in rows]
            pairs = [judge.nll(row, start) for row, start in rows]
            found = self._score(known, texts)
            found["perplexity_judge"] = text_perplexity([nats for nats, _ in pairs], [tokens for _, tokens in pairs])
            for name, result in found.items():
                numbers[f"reference/{fold.scene}/{kind}/{name}"] = Measure(
                    result.value, result.unit, result.direction, result.n
                )
        return numbers

    def _without_model(
        self, fold: Fold, prompts: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> Iterator[tuple[str, list[tuple[list[int], int]]]]:
        """Yield a name and rows of (ids, where the continuation begins)."""
        start, end = self.prompt_tokens, self.prompt_tokens + self.new_tokens
        long = [ids for ids in fold.others if len(ids) > start]
        if not long:
            raise UserError(f"scene {fold.scene} has no review of more than {start} tokens: lower prompt_tokens")
        drawn = rng.choice(len(long), len(prompts), replace=len(long) < len(prompts))
        yield "real", [(long[i][:end].tolist(), start) for i in drawn]
        for order, name in enumerate(NGRAMS, start=1):
            rows = ngram_texts(fold.ngrams(order), prompts, self.new_tokens, top_p=self.sampler.top_p, rng=rng)
            yield name, [([*p, *row], len(p)) for p, row in zip(prompts, rows, strict=True)]

    def _drawn(self, fold: Fold) -> tuple[list[int], list[list[int]]]:
        """Return which reviews ``bleu_sampled`` compares with, and the prompts."""
        rng = fold.rng(2)
        drawn = rng.choice(len(fold.texts), min(self.sampled, len(fold.texts)), replace=False)
        begun = rng.choice(len(fold.ids), self.texts, replace=len(fold.ids) < self.texts)
        return drawn.tolist(), [fold.ids[i][: self.prompt_tokens].tolist() for i in begun]

    @cached_property
    def pretrained_judge(self) -> HuggingFaceJudge | None:
        return None if self.judge_path is None else HuggingFaceJudge(self.judge_path)

    def _bleu(
        self, protocol: str, references: References, scene: str, method: str, texts: Sequence[str]
    ) -> dict[str, Measure]:
        return {
            f"{protocol}/{scene}/{method}/{name}": Measure(
                result.value, result.unit, result.direction, result.n, f"{protocol}/{scene}/softmax/{name}", GENERATED
            )
            for name, result in self._score(references, texts).items()
        }

    @staticmethod
    def _score(references: References, texts: Sequence[str]) -> dict[str, MetricResult]:
        metric = NgramBleu(references, sync_on_compute=False)
        metric.update([words_of(text) for text in texts])
        return metric.named()

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
        prefix = self._prefix(fold.vocabulary)
        own = [own_nll(module, [*prefix, *row], len(prefix) + start) for row, start in zip(found, starts, strict=True)]
        numbers = {}
        pairs_by_name = {"perplexity_lm": own, "perplexity_judge": judged}
        if self.pretrained_judge is not None:
            texts = [self._halves(fold, row, start) for row, start in zip(found, starts, strict=True)]
            pairs_by_name["perplexity_pretrained_judge"] = [self.pretrained_judge.nll(*halves) for halves in texts]
        for name, pairs in pairs_by_name.items():
            result = text_perplexity([nats for nats, _ in pairs], [tokens for _, tokens in pairs])
            base = f"{name}/{fold.scene}/softmax"
            numbers[f"{name}/{fold.scene}/{method}"] = Measure(
                result.value, result.unit, result.direction, result.n, base, GENERATED
            )
        return numbers

    @staticmethod
    def _halves(fold: Fold, row: Sequence[int], start: int) -> tuple[str, str]:
        """Return the texts of a prompt and of what follows it, with the space between them.

        Decoded alone, what follows would lose that space under tokenizers of the Llama family.
        """
        read = fold.vocabulary.decode
        prompt, whole = read(row[:start]), read(row)
        return prompt, whole[len(prompt) :] if whole.startswith(prompt) else read(row[start:])

    def _sample(self, fold: Fold, method: str, row: Sequence[int], prompt: Sequence[int]) -> dict[str, Any]:
        text = fold.vocabulary.decode(row[len(prompt) :])
        return {"scene": fold.scene, "method": method, "prompt": fold.vocabulary.decode(prompt), "text": text}


def ngram_texts(
    model: NgramModel, prompts: Sequence[Sequence[int]], new_tokens: int, *, top_p: float, rng: np.random.Generator
) -> list[list[int]]:
    """Return what an n-gram model writes after each prompt, drawn from its nucleus; it knows no end of text."""
    before = max(1, model.order - 1)
    rows = [list(prompt) for prompt in prompts]
    for _ in range(new_tokens):
        last_BK = torch.tensor([[-1] * (before - len(row)) + row[-before:] for row in rows])
        prob_BV = nucleus(model.probs(last_BK).log(), top_p, keep_crossing=True).softmax(dim=-1).numpy()
        # the first token at which the cumulative probability reaches a uniform draw
        sum_BV = prob_BV.cumsum(axis=1)
        for row, sum_V, draw in zip(rows, sum_BV, rng.random(len(rows)), strict=True):
            row.append(min(int(np.searchsorted(sum_V, draw * sum_V[-1], side="right")), len(sum_V) - 1))
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


def without_end(ids: Sequence[int], start: int, eos_id: int | None) -> list[int]:
    """Return prompt and continuation up to the first ``<eos>`` at or after ``start``, without it."""
    ends = [place for place in range(start, len(ids)) if ids[place] == eos_id]
    return list(ids[: ends[0]] if ends else ids)


def own_nll(module: LightningModule, ids: Sequence[int], start: int) -> tuple[float, int]:
    """Return (nats, tokens) of ``ids[start:]`` under the language model's softmax."""
    if len(ids) == start:
        return 0.0, 0
    scores_BTV = logits_of(module, [ids[:-1]], len(ids) - 1)[:, start - 1 :]
    target_BT = torch.tensor([ids[start:]], device=scores_BTV.device)
    nll_BT = token_nll(scores_BTV, target_BT, torch.ones_like(target_BT, dtype=torch.bool))
    return nll_BT.sum().item(), len(ids) - start


@checked
class DecodingTime:
    """Seconds per token of single-text generation with each output layer, prompt by prompt (Table 3).

    This times the run's language model with its cache; the set-up of the first token (graph, prepared operator) is
    warmed up before.

    Args:
        rounds: times that everything is timed, the output layers in turns; the least time of each counts.
        clock: ``wall``, or ``cpu`` for the time that this process had the processor, which other programs do not
            lengthen (of a model on the processor, with one thread).

    Names: ``seconds/<scene>/<method>/prompt_<k>``, ``time_ratio/<scene>/<method>/prompt_<k>`` (over softmax) and
    ``time_ratio/<scene>/<method>``, over all prompts. An ``<eos>`` takes a step like every token, so it counts.
    """

    first_fold_only = True

    def __init__(
        self,
        *,
        sampler: Sampler,
        prompts: Count,
        prompt_tokens: Count,
        new_tokens: Count,
        rounds: Count = 1,
        clock: Literal["wall", "cpu"] = "wall",
    ) -> None:
        where = f"{PARTS}.time"
        check_softmax(f"{where}.sampler.methods", sampler.methods)
        self.sampler, self.prompts = sampler, prompts
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens
        self.rounds, self.clock = rounds, clock

    def positions(self, vocabulary: Tokenizer) -> int:
        return self.prompt_tokens + self.new_tokens - 1

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        chosen = fold.rng(3).choice(len(fold.ids), self.prompts, replace=len(fold.ids) < self.prompts)
        prompts = [fold.ids[i][: self.prompt_tokens].tolist() for i in chosen]
        now = time.perf_counter if self.clock == "wall" else time.process_time
        seconds = {method: [math.inf] * len(prompts) for method in self.sampler.methods}
        for method in seconds:
            self.sampler.continue_ids(fold, module, method, prompts[:1], 2)
        for _ in range(self.rounds):
            for method, taken in seconds.items():
                for place, prompt in enumerate(prompts):
                    began = now()
                    found = self.sampler.continue_ids(fold, module, method, [prompt], self.new_tokens)
                    taken[place] = min(taken[place], (now() - began) / (len(found[0]) - len(prompt)))
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


# The effect of graphmax in pictures: convergence of the solvers (Fig. 2), and recommended words (Fig. 6).


@checked
class Convergence:
    """Progress of the solvers, iteration by iteration.

    Names: ``convergence/<scene>/published/step_<t>`` (mean ``||x_t - x_{t-1}||_2`` of Algorithm 1, the quantity of Fig.
    2, as if it did not stop), ``stopped/<scene>/published`` (share of contexts whose move fell below Algorithm 1's
    threshold within its steps), ``distance/<scene>/published/step_<t>`` (mean total variation to the optimum, with
    stopped rows where they stopped), ``distance/<scene>/softmax``, ``gap/<scene>/certified/iterate_<t>`` (mean
    certificate in nats), ``products/<scene>/certified`` (mean number of full products with M).

    Args:
        contexts: next-word problems, of the first fold.
        length: most tokens of left context.
        strength: lambda.
        iterates: how many iterates of the certified solver are shown.
    """

    first_fold_only = True

    def __init__(self, *, contexts: Count, length: Count, strength: NonNegative, iterates: Count = 4) -> None:
        self.contexts, self.length, self.strength, self.iterates = contexts, length, strength, iterates

    def positions(self, vocabulary: Tokenizer) -> int:
        return self.length

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        assert fold.published is not None, "a trial has the numbers of Algorithm 1"
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
            # with its threshold, a stopped row would count as one that no longer moves
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


@checked
class TopWords:
    """The best words after some contexts under each output layer (Fig. 6).

    Names: ``top_shared/<scene>/<method>``: share of softmax's best words that are among this method's. The lists
    themselves are samples with method ``top/<method>`` and the context as prompt.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``, softmax among them.
    """

    first_fold_only = True

    def __init__(self, *, methods: Methods, contexts: Annotated[Sequence[str], MinLen(1)], words: Count) -> None:
        self.methods = checked_methods("callback.graphmax_trial.parts.top_words.methods", methods)
        self.contexts, self.words = list(contexts), words

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return how many positions of the language model are needed (``UserError``: a context without a token)."""
        lengths = [len(vocabulary.encode(text)) for text in self.contexts]
        if 0 in lengths or self.words > len(vocabulary):
            raise UserError(
                f"{PARTS}.top_words: words={self.words} of a vocabulary of {len(vocabulary)}, contexts of {lengths} "
                "tokens; ask for fewer words, and leave out a context without a token"
            )
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
