"""Control-code trials: prompts and judge, the training curve, the cost of a wrong code, generations under each code.

Sources: sec. 4.4 and Table 3 (variation, degeneracy, BLEU, BERTScore), Figures 4 to 6 (training loss and perplexity);
code-swap gap, source accuracy and the word-frequency references are ours. Shape suffixes: B rows, T positions,
S sources, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.callback.progress import steps
from lit_ctg.core.generation import evaluating
from lit_ctg.core.metric import token_nll
from lit_ctg.core.model import datamodule_of
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.limits import Checked, Choice, Count, Whole, checked
from lit_ctg.metric.bleu import REFERENCES, Bleu
from lit_ctg.metric.control_success import ControlSuccess
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.control_code.metrics import (
    BertScore,
    CodeSwapGap,
    CrossEntropy,
    Degeneracy,
    SourceClassifier,
    Variation,
)
from lit_ctg.papers.control_code.model import codes_of
from lit_ctg.papers.control_code.verify import LEARNED
from lit_ctg.statistics import exp_or_inf

FROM = ("held_out", "whole_text")
MODES = ("greedy", "sampled")
CROSS_ENTROPY = "train/cross_entropy"
CURVE_UNITS = {
    CROSS_ENTROPY: "nats",
    "train/perplexity": "perplexity",
    "train/logged_loss": "nats",
    "train/logged_perplexity": "perplexity",
}


@dataclass(frozen=True)
class Prompt:
    """The beginning of a generation, its real continuation, and its source."""

    ids: list[int]
    reference: list[int]
    source: int


def source_texts(datamodule: Any, split: str) -> dict[int, np.ndarray]:
    """Return source -> its token ids in a split (``UserError``: the split mixes its sources)."""
    batches = datamodule.batches(split)
    ids_T = batches.packed.ids(split)
    return {source: ids_T[first:stop] for source, first, stop in batches.source_ranges()}


def cut(ids_T: np.ndarray, n: int, length: int) -> list[np.ndarray]:
    """Return up to ``n`` evenly spaced windows of ``length``; fewer if they would overlap."""
    starts = np.linspace(0, max(0, len(ids_T) - length), num=min(n, len(ids_T) // length)).astype(np.int64)
    return [np.asarray(ids_T[start : start + length]) for start in starts]


@checked
def prompts_of(
    datamodule: Any, *, n: int, prompt_tokens: int, new_tokens: int, prompts_from: Annotated[str, Choice(FROM)]
) -> list[Prompt]:
    """Cut ``n`` prompts, equally many per source if possible, with their continuations.

    Args:
        datamodule: set up, with ``data.by_source``.
        n: total number of prompts, at least one per source.
        prompts_from: ``held_out`` is the validation part; ``whole_text`` training and validation part, as for the
            authors, so that nearly all prompts were trained on.

    Raises:
        UserError: a source is shorter than one prompt with its reference.
    """
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
                f"fewer than {prompt_tokens} + {new_tokens}; give more text, or raise data.val_fraction"
            )
        prompts += [Prompt(w[:prompt_tokens].tolist(), w[prompt_tokens:].tolist(), source) for w in windows]
    return prompts


def train_judge(datamodule: Any, *, chunks: int, length: int) -> tuple[SourceClassifier, ControlSuccess]:
    """Train the source classifier on chunks of the training split; return it and its accuracy on held-out chunks.

    Args:
        datamodule: set up, with ``data.by_source``.
        chunks: maximum number per source and split.
        length: tokens of a chunk, as in the generations to be judged.
    """
    vocabulary = datamodule.vocabulary
    # training text has no <unk> if the vocabulary was built on it, held-out text does
    ignored = [i for i in (vocabulary.unknown_id, vocabulary.eos_id, vocabulary.pad_id) if i is not None]
    known = [(c, s) for s, ids_T in source_texts(datamodule, "train").items() for c in cut(ids_T, chunks, length)]
    unseen = [(c, s) for s, ids_T in source_texts(datamodule, "val").items() for c in cut(ids_T, chunks, length)]
    judge = SourceClassifier(len(vocabulary), ignored).fit(*zip(*known, strict=True))
    return judge, judged(judge, *zip(*unseen, strict=True))


def judged(judge: SourceClassifier, chunks: Sequence[Sequence[int]], source_N: Sequence[int]) -> ControlSuccess:
    """Return how many chunks the judge assigns to their source."""
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

    No model that knows the source but no context can do better on this text.
    """
    size, total, cost = len(datamodule.vocabulary), 0, 0.0
    for ids_T in source_texts(datamodule, "train").values():
        count_V = np.bincount(ids_T, minlength=size)
        count_V = count_V[count_V > 0]
        cost -= float((count_V * np.log(count_V / count_V.sum())).sum())
        total += len(ids_T)
    return cost / total


class TrainingCurve:
    """Training loss by epoch, as plotted in Figures 4 to 6: under dropout, with the weights at each step.

    ``train/cross_entropy`` is the mean cost of a token in nats, ``train/perplexity`` its exp. ``train/logged_loss`` is
    the value logged by the authors' code: the sum of an epoch's n batch losses divided by n - 1 (on Scripts n = 28, so
    it is 3.7% too high), and ``train/logged_perplexity``, printed in Figure 6, its exp.
    """

    def __init__(self) -> None:
        # total cost, tokens, sum of the batches' means, batches
        self.sums = torch.zeros(4, dtype=torch.float64)

    def add(self, loss: Tensor, tokens: Tensor) -> None:
        """Add the mean cost of a batch's tokens."""
        loss = loss.double()
        self.sums = self.sums.to(loss.device) + torch.stack((loss * tokens, tokens, loss, torch.ones_like(loss)))

    def close(self, strategy: Any) -> dict[str, float]:
        """Return an epoch's values over all processes, and begin the next epoch."""
        cost, tokens, means, batches = strategy.reduce(self.sums, reduce_op="sum").tolist()
        self.sums = torch.zeros(4, dtype=torch.float64)
        nats, logged = cost / max(tokens, 1.0), means / max(batches - 1.0, 1.0)
        values = (nats, exp_or_inf(nats), logged, exp_or_inf(logged))
        return dict(zip(CURVE_UNITS, values, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = torch.tensor(state["sums"], dtype=torch.float64)


class CodeGenerator(Protocol):
    """The trials' generator: ``decode.CodeGenerator``."""

    def continue_ids(
        self, prompts: list[list[int]], codes_BS: Tensor, *, seed: int | None, max_new_tokens: int
    ) -> list[list[int]]:
        """Continue each prompt under its mixture of codes; ``seed=None`` takes the best token."""


class CodeTrial(Checked, Callback):
    """Run the trials in ``trainer.validate``, which ends every run, and the generations also after chosen epochs.

    Every prompt is continued under every code. Where the code is that of the prompt's own source, the continuation is
    compared with the real one (variation, degeneracy, BLEU, BERTScore). Source accuracy is over all continuations
    without the prompt: a greedy model that ignores its code is right once in S, whatever the prompt reveals.

    Args:
        prompts: their number, spread over the sources and the text.
        new_tokens: of each generation; degeneracy and variation depend on it.
        prompts_from: ``held_out`` or ``whole_text``, see ``prompts_of``.
        bleu_references: ``aligned`` or ``flat``, see ``Bleu``.
        decoding: an object whose ``generator(module, datamodule)`` returns the generator.
        seed: of sampled generations; they neither read nor advance the global random state.
        epochs: after these epochs of training the generations also run, into ``history`` (Table 3).
        judge_chunks: chunks per source from which the source classifier learns.
        samples_kept: generations kept per (mode, source, code).
        test: at the end measure the test text, too (``test/...``): where validation text chose the weights.

    Attributes:
        results: run-record entries ``code_swap/...``, ``trial/<greedy|sampled>/...``, ``classifier/accuracy``,
            ``reference/...`` (real continuations, word frequencies), ``trial/learned`` (perplexity at least a tenth
            below that of word frequencies), ``trial/breakthrough_epoch``, ``train/...`` of the last epoch,
            ``corpus/train_tokens`` (Table 2), ``test/...``.
        history: ``train/...`` (see ``TrainingCurve``) and ``trial/...`` by epoch.
        samples: dicts with mode, source, code, prompt and text; mode "note" lists what was not measured.

    Raises:
        UserError: later, batches without control codes.
    """

    def __init__(
        self,
        *,
        prompts: Count,
        prompt_tokens: Count,
        new_tokens: Count,
        prompts_from: Annotated[str, Choice(FROM)],
        bleu_references: Annotated[str, Choice(REFERENCES)],
        decoding: Any,
        seed: Whole,
        epochs: Sequence[Whole] = (),
        bertscore: Mapping[str, Any] | None = None,
        judge_chunks: Count = 2000,
        samples_kept: Whole = 3,
        test: bool = False,
    ) -> None:
        super().__init__()
        self.prompts, self.prompt_tokens, self.new_tokens = prompts, prompt_tokens, new_tokens
        self.prompts_from, self.bleu = prompts_from, Bleu(references=bleu_references)
        self.decoding, self.seed, self.epochs = decoding, seed, frozenset(epochs)
        self.bertscore = dict(bertscore or {"path": None})
        self.judge_chunks, self.samples_kept, self.test = judge_chunks, samples_kept, test
        self.results: dict[str, dict[str, Any]] = {}
        self.curve = TrainingCurve()
        self.history: dict[str, list[list[float]]] = {}
        self.samples: list[dict[str, Any]] = []
        self.gap: CodeSwapGap | None = None
        self._trial: tuple[list[Prompt], SourceClassifier | None] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the history, so that a resumed run's record holds every epoch."""
        return {"history": self.history, "curve": self.curve.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]
        self.curve.load_state_dict(state_dict["curve"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cut the prompts, so that a source that is too short for them is refused before training."""
        self._prompts(datamodule_of(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the batch to the training curve, on the device, without waiting for it."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        # Lightning has divided the loss by the number of batches that a step adds up
        self.curve.add(loss.detach() * trainer.accumulate_grad_batches, batch["mask_target_BT"].sum())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, value in self.curve.close(trainer.strategy).items():
            self.history.setdefault(name, []).append([trainer.current_epoch + 1, value])

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sources = datamodule_of(trainer).sources
        wanted = trainer.state.fn == "validate" and len(sources) > 1
        self.gap = CodeSwapGap(sources=sources) if wanted else None

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Score the batch again under every wrong code (the loop has put the module into evaluation mode)."""
        if self.gap is None:
            return
        codes_of(batch, "callback code_trial")
        _swap(self.gap, trainer, pl_module, outputs, batch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate: at the end of the run for the results, after the chosen epochs for the history."""
        datamodule = datamodule_of(trainer)
        epoch = trainer.current_epoch + 1
        if trainer.state.fn == "validate":
            self.samples = []
            self._keep_references(datamodule)
            self._keep_gap(datamodule)
            self._keep_curve(datamodule)
            if self.test:
                self._keep_test(trainer, pl_module, datamodule)
            self._keep(self.run(pl_module, datamodule))
        elif trainer.state.fn == "fit" and not trainer.sanity_checking and epoch in self.epochs:
            for name, result in self.run(pl_module, datamodule).items():
                self.history.setdefault(name, []).append([epoch, result.value])

    def run(self, module: LightningModule, datamodule: Any) -> dict[str, MetricResult]:
        """Generate in all modes and measure; ``samples`` replaces those of an earlier call."""
        prompts, judge = self._prepared(datamodule)
        codes = [(prompt, code) for prompt in prompts for code in range(len(datamodule.sources))]
        codes_BS = torch.eye(len(datamodule.sources), device=module.device)[[code for _, code in codes]]
        self.samples = [sample for sample in self.samples if sample["mode"] not in MODES]
        found: dict[str, MetricResult] = {}
        with evaluating(module):
            generator = self.decoding.generator(module, datamodule)
            for mode in steps(MODES, "codes, texts"):
                ids = generator.continue_ids(
                    [prompt.ids for prompt, _ in codes],
                    codes_BS,
                    seed=None if mode == "greedy" else self.seed,
                    max_new_tokens=self.new_tokens,
                )
                new = [tokens[len(prompt.ids) :] for tokens, (prompt, _) in zip(ids, codes, strict=True)]
                for name, result in self._measure(new, codes, judge, datamodule).items():
                    found[f"trial/{mode}/{name}"] = result
                self._sample(mode, new, codes, datamodule)
        return found

    def _prepared(self, datamodule: Any) -> tuple[list[Prompt], SourceClassifier | None]:
        """Cut the prompts and train the judge (of two sources or more), once per run."""
        if self._trial is None:
            prompts, judge = self._prompts(datamodule), None
            if len(datamodule.sources) > 1:  # one source cannot be confused
                judge, accuracy = train_judge(datamodule, chunks=self.judge_chunks, length=self.new_tokens)
                self._keep({"classifier/accuracy": accuracy.number()})
            self._trial = prompts, judge
        return self._trial

    def _prompts(self, datamodule: Any) -> list[Prompt]:
        return prompts_of(
            datamodule,
            n=self.prompts,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            prompts_from=self.prompts_from,
        )

    def _measure(
        self,
        new: Sequence[list[int]],
        codes: Sequence[tuple[Prompt, int]],
        judge: SourceClassifier | None,
        datamodule: Any,
    ) -> dict[str, MetricResult]:
        own = [(tokens, prompt) for tokens, (prompt, code) in zip(new, codes, strict=True) if code == prompt.source]
        found = self._text_metrics([tokens for tokens, _ in own], [prompt for _, prompt in own], datamodule)
        if judge is None:
            return found
        asked = [code for _, code in codes]
        found["source_accuracy"] = judged(judge, new, asked).number()
        for number, source in enumerate(datamodule.sources):
            mine = [tokens for tokens, code in zip(new, asked, strict=True) if code == number]
            found[f"source_accuracy/{source}"] = judged(judge, mine, [number] * len(mine)).number()
        return found

    def _text_metrics(
        self, new: Sequence[list[int]], prompts: Sequence[Prompt], datamodule: Any
    ) -> dict[str, MetricResult]:
        decode = datamodule.vocabulary.decode
        texts, references = [decode(ids) for ids in new], [decode(prompt.reference) for prompt in prompts]
        found = _token_metrics(new)
        found["bleu"] = self.bleu.score(texts, references)
        bertscore = BertScore(**self.bertscore, sync_on_compute=False)
        if bertscore.missing is None:
            bertscore.update(texts, references)
            found["bertscore"] = bertscore.number()
        return found

    def _keep_references(self, datamodule: Any) -> None:
        """Record the size of the corpus, the scores of its real continuations, and why BERTScore may be missing."""
        tokens = len(datamodule.prepare().ids("train"))
        self._keep({"corpus/train_tokens": MetricResult(float(tokens), "count", "none", tokens, None, 1)})
        prompts, judge = self._prepared(datamodule)
        real, source_N = [prompt.reference for prompt in prompts], [prompt.source for prompt in prompts]
        found = _token_metrics(real)
        if judge is not None:
            found["source_accuracy"] = judged(judge, real, source_N).number()
        self._keep({f"reference/{name}": result for name, result in found.items()})
        if (reason := BertScore(**self.bertscore).missing) is not None:
            self.samples.append({"mode": "note", "text": reason})

    def _keep_gap(self, datamodule: Any) -> None:
        """Record the code-swap gap, and whether the model learned more than word frequencies."""
        nats, tokens = unigram_nats(datamodule)
        frequencies = float(torch.tensor(nats, dtype=torch.float64).exp())
        self._keep({"reference/unigram_perplexity": MetricResult(frequencies, "perplexity", "lower", tokens, None, 1)})
        if self.gap is not None:
            with self.gap.merged():  # every process has seen its share of the text
                learned = float(self.gap.perplexity() < LEARNED * frequencies)
            self._keep({f"code_swap/{name}": result for name, result in self.gap.named().items()})
            self._keep({"trial/learned": MetricResult(learned, "truth value", "higher", tokens, None, 2)})

    def _keep_curve(self, datamodule: Any) -> None:
        """Record the last epoch's training loss, and the epoch from which it shows that context is used."""
        if CROSS_ENTROPY not in self.history:
            return
        tokens = len(datamodule.prepare().ids("train"))
        floor = frequency_nats(datamodule)
        costs = self.history[CROSS_ENTROPY]
        above = [epoch for epoch, nats in costs if not nats < floor]
        later = [epoch for epoch, _ in costs if not above or epoch > above[-1]]
        breakthrough = later[0] if later else math.inf
        self._keep({"reference/source_frequencies": MetricResult(floor, "nats", "lower", tokens, None, 1)})
        # n is the number of epochs since: 0 if it has not happened, which is not a divergence
        self._keep({"trial/breakthrough_epoch": MetricResult(breakthrough, "epoch", "lower", len(later), None, 1)})
        for name, unit in CURVE_UNITS.items():
            self._keep({name: MetricResult(self.history[name][-1][1], unit, "lower", tokens, None, 1)})

    def _keep_test(self, trainer: Trainer, module: LightningModule, datamodule: Any) -> None:
        """Record the cost of the test text, and what a wrong code costs there."""
        sources = datamodule.sources
        gap, costs = CodeSwapGap(sources=sources), {"cross_entropy": CrossEntropy(), "perplexity": Perplexity()}
        with torch.no_grad(), evaluating(module):
            for batch in datamodule.test_dataloader():
                there = trainer.strategy.batch_to_device(batch)
                with trainer.precision_plugin.forward_context():
                    output = module(there)
                for cost in costs.values():
                    cost.update_from(output, there)
                if len(sources) > 1:
                    _swap(gap, trainer, module, output, there)
        self._keep({f"test/{name}": cost.number() for name, cost in costs.items()})
        if len(sources) > 1:
            self._keep({f"test/code_swap/{name}": result for name, result in gap.named().items()})

    def _keep(self, results: Mapping[str, MetricResult]) -> None:
        self.results |= {name: result.to_dict() for name, result in results.items()}

    def _sample(
        self, mode: str, new: Sequence[list[int]], codes: Sequence[tuple[Prompt, int]], datamodule: Any
    ) -> None:
        kept: dict[tuple[int, int], int] = {}
        names, decode = datamodule.sources, datamodule.vocabulary.decode
        for tokens, (prompt, code) in zip(new, codes, strict=True):
            kept[prompt.source, code] = kept.get((prompt.source, code), 0) + 1
            if kept[prompt.source, code] <= self.samples_kept:
                place = {"mode": mode, "source": names[prompt.source], "code": names[code]}
                self.samples.append({**place, "prompt": decode(prompt.ids), "text": decode(tokens)})


def _swap(gap: CodeSwapGap, trainer: Trainer, module: LightningModule, output: Any, batch: Any) -> None:
    """Score a batch again under every wrong code, and add both costs to the gap."""
    code_B, count = batch["control_code_B"], len(gap.sources)
    wrong_BT = torch.zeros((), dtype=torch.float64)
    for shift in range(1, count):
        swapped = {**batch, "control_code_B": (code_B + shift) % count}
        with trainer.precision_plugin.forward_context():
            scores_BTV = module(swapped).scores_BTV
        cost_BT = token_nll(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])
        wrong_BT = wrong_BT.to(cost_BT) + cost_BT / (count - 1)
    right_BT = token_nll(output.scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])
    gap.update(wrong_BT.sum(1), right_BT.sum(1), batch["mask_target_BT"].sum(1), code_B)


def _token_metrics(generations: Sequence[Sequence[int]]) -> dict[str, MetricResult]:
    measured = {"variation": Variation(sync_on_compute=False), "degeneracy": Degeneracy(sync_on_compute=False)}
    for metric in measured.values():
        metric.update(generations)
    return {name: metric.number() for name, metric in measured.items()}
