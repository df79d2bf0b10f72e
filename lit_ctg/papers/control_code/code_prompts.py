"""Prompts, references and judge of the control-code trials, cut from a packed corpus at fixed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.metric.control_success import ControlSuccess
from lit_ctg.papers.control_code.source_classifier import SourceClassifier

FROM = ("held_out", "whole_text")


@dataclass(frozen=True)
class Prompt:
    """The beginning of a generation, what the text really goes on with, and the source it is from."""

    ids: list[int]
    reference: list[int]
    source: int


def source_texts(datamodule: Any, split: str) -> dict[int, np.ndarray]:
    """Return source -> its token ids in a split.

    Raises:
        UserError: the split mixes its sources.
    """
    batches = datamodule.batches(split)
    ids_T = batches.packed.ids(split)
    return {source: ids_T[first:stop] for source, first, stop in batches.source_ranges()}


def cut(ids_T: np.ndarray, n: int, length: int) -> list[np.ndarray]:
    """Return up to ``n`` windows of ``length`` at even distances; fewer where they would overlap."""
    starts = np.linspace(0, max(0, len(ids_T) - length), num=min(n, len(ids_T) // length)).astype(np.int64)
    return [np.asarray(ids_T[start : start + length]) for start in starts]


def prompts_of(datamodule: Any, *, n: int, prompt_tokens: int, new_tokens: int, prompts_from: str) -> list[Prompt]:
    """Cut ``n`` prompts, as many of each source as can be, with their continuations.

    Args:
        datamodule: set up, with ``data.by_source``.
        n: prompts in all, at least one a source.
        prompt_tokens, new_tokens: lengths of prompt and reference.
        prompts_from: ``held_out`` is the validation part; ``whole_text`` training and validation part, as the authors
            drew theirs, so that nearly all of them were trained on.

    Raises:
        UserError: unknown ``prompts_from``, or a source is shorter than one prompt with its reference.
    """
    if prompts_from not in FROM:
        hint = did_you_mean(prompts_from, FROM)
        raise UserError(f"callback.code_trial.prompts_from={prompts_from}: use one of {', '.join(FROM)}{hint}")
    texts = source_texts(datamodule, "val")
    if prompts_from == "whole_text":
        training = source_texts(datamodule, "train")
        texts = {source: np.concatenate([training[source], held_out]) for source, held_out in texts.items()}
    prompts = []
    for source, ids_T in texts.items():
        windows = cut(ids_T, max(1, n // len(texts)), prompt_tokens + new_tokens)
        if not windows:
            raise UserError(
                f"callback.code_trial: source '{datamodule.sources[source]}' has {len(ids_T)} tokens to prompt from, "
                f"fewer than {prompt_tokens} + {new_tokens}; give more text or lower new_tokens"
            )
        prompts += [Prompt(w[:prompt_tokens].tolist(), w[prompt_tokens:].tolist(), source) for w in windows]
    return prompts


def train_judge(datamodule: Any, *, chunks: int, length: int) -> tuple[SourceClassifier, ControlSuccess]:
    """Train the source classifier on chunks of the training split; return it and its accuracy on held-out chunks.

    Args:
        datamodule: set up, with ``data.by_source``.
        chunks: at most so many of each source and split.
        length: tokens of a chunk: that of the generations it is to judge.
    """
    vocabulary = datamodule.vocabulary
    # training text holds no <unk> where the vocabulary was built on it, held-out text does
    ignored = [i for i in (vocabulary.unknown_id, vocabulary.eos_id, vocabulary.pad_id) if i is not None]
    known = [(c, s) for s, ids_T in source_texts(datamodule, "train").items() for c in cut(ids_T, chunks, length)]
    unseen = [(c, s) for s, ids_T in source_texts(datamodule, "val").items() for c in cut(ids_T, chunks, length)]
    judge = SourceClassifier(len(vocabulary), ignored).fit(*zip(*known, strict=True))
    return judge, judged(judge, *zip(*unseen, strict=True))


def judged(judge: SourceClassifier, chunks: Sequence[Sequence[int]], source_N: Sequence[int]) -> ControlSuccess:
    """Return how many chunks the judge takes for their source."""
    accuracy = ControlSuccess(sync_on_compute=False)
    accuracy.update((judge.predict(chunks) == np.asarray(source_N)).tolist())
    return accuracy


def unigram_nats(datamodule: Any) -> tuple[float, int]:
    """Return the mean cost in nats of validation text by word frequencies (training counts + 1), and its tokens."""
    packed, size = datamodule.prepare(), len(datamodule.vocabulary)
    count_V = np.bincount(packed.ids("train"), minlength=size) + 1.0
    ids_T = np.asarray(packed.ids("val"))
    return float(-np.log(count_V / count_V.sum())[ids_T].mean()), len(ids_T)


def frequency_nats(datamodule: Any) -> float:
    """Return the mean cost in nats of training text by each source's own word frequencies in it.

    No model that knows its source but no context can do better on this text.
    """
    size, total, cost = len(datamodule.vocabulary), 0, 0.0
    for ids_T in source_texts(datamodule, "train").values():
        count_V = np.bincount(ids_T, minlength=size)
        count_V = count_V[count_V > 0]
        cost -= float((count_V * np.log(count_V / count_V.sum())).sum())
        total += len(ids_T)
    return cost / total
