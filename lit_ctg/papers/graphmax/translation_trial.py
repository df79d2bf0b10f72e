"""Translation BLEU and held-out likelihood with each output layer in the decoder (sec. 5.2, Tables 6 to 8).

Shape suffixes: B pairs, S source positions, T target positions, P ids before the first target, V vocabulary, N targets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch import Callback
from torch import Tensor

from lit_ctg.core.batch import Batch
from lit_ctg.core.model import evaluating
from lit_ctg.core.result import MetricResult
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.metric.bleu import Bleu
from lit_ctg.papers.graphmax.nll_trial import FLOOR, target_nll
from lit_ctg.papers.graphmax.trial_setting import check_real, check_softmax, check_whole, checked_methods
from lit_ctg.papers.graphmax.variant import VariantRule, chosen
from lit_ctg.statistics import ratio_interval

VERSION = 1


def reference_nll(
    rule: ScoreRule | None,
    scores_BTV: Tensor,
    decoder_ids_BT: Tensor,
    target_ids_BT: Tensor,
    counted_BT: Tensor,
    floor: float,
) -> tuple[Tensor, Tensor]:
    """Return NLL in nats and "has no probability" of every reference token ``[B, T]``, float64, 0 where not counted.

    The rule gets at each place what it gets in decoding: the ids before the target, and the decoder's scores.

    Args:
        rule: what becomes of the scores; None for softmax.
        scores_BTV: the decoder's, with the references as its input.
        decoder_ids_BT: what the decoder read, ``[B, P + T - 1]``.
        target_ids_BT: the references.
        counted_BT: which of them count.
        floor: uniform share mixed into a distribution with zeros (``target_nll``).
    """
    nll_BT = torch.zeros(target_ids_BT.shape, dtype=torch.float64, device=scores_BTV.device)
    zero_BT = torch.zeros_like(nll_BT)
    places = target_ids_BT.shape[1]
    before = decoder_ids_BT.shape[1] - places + 1
    for t in range(places):
        row_B = counted_BT[:, t]
        if not row_B.any():
            continue
        scores_NV = scores_BTV[row_B, t]
        if rule is not None:
            scores_NV = rule(decoder_ids_BT[row_B, : before + t], scores_NV)
        log_x_NV = scores_NV.double().log_softmax(dim=-1)
        nll_N, zero_N = target_nll(log_x_NV, target_ids_BT[row_B, t], floor)
        nll_BT[row_B, t], zero_BT[row_B, t] = nll_N, zero_N.double()
    return nll_BT, zero_BT


def per_token(total_B: Tensor, count_B: Tensor, unit: str) -> MetricResult:
    """Return the mean over the tokens of B sentences (sums and counts of each), its interval over sentences."""
    total_B, count_B = total_B.double(), count_B.double()
    interval = ratio_interval(
        total=float(total_B.sum()),
        count=float(count_B.sum()),
        total_sq=float(total_B.square().sum()),
        cross=float((total_B * count_B).sum()),
        count_sq=float(count_B.square().sum()),
        rows=int((count_B > 0).sum()),
    )
    return MetricResult(float(total_B.sum() / count_B.sum()), unit, "lower", int(count_B.sum()), interval, VERSION)


class GraphmaxTranslation(Callback):
    """Translate the validation split in ``trainer.validate``, which ends every run, and score it by sacrebleu.

    References are the raw target sentences, hypotheses the decoded ids; both go through sacrebleu's own tokenizer.
    The NLL is that of the references' tokens, <unk> and <eos> among them, each given the reference before it; as in
    ``val/perplexity``, references are cut at the data module's length. Zeros are dealt with as in ``NextWordNll``.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``; a null variant is left out. Softmax must be among them.
        sentences: how many of the split's first pairs; null for all.
        beams: 1 is greedy.
        max_new_tokens: of a translation.
        lower: whether references are lower-cased, as the data module's tokenizer does with what the model sees.
        resamples: of BLEU's bootstrap over sentences.
        floor: uniform share mixed in where there are zeros.

    Attributes:
        results: ``bleu/<method>`` on the 0 to 1 scale of the paper; ``nll/<method>`` in nats a token,
            ``nll/<method>_change``, the difference to softmax paired by sentence, and ``zero/<method>``, the share of
            reference tokens without any probability. Intervals are over sentences.
        samples: dicts with method, prompt (the source) and text, the first few.

    Raises:
        UserError: an unknown variant, methods without softmax, or a number out of its range.
    """

    def __init__(
        self,
        *,
        methods: Mapping[str, Mapping[str, Any]],
        sentences: int | None,
        beams: int,
        max_new_tokens: int,
        lower: bool,
        resamples: int = 200,
        samples_kept: int = 3,
        floor: float = FLOOR,
    ) -> None:
        super().__init__()
        where = "callback.graphmax_translation"
        self.methods = checked_methods(f"{where}.methods", methods)
        check_softmax(f"{where}.methods", self.methods)
        check_whole(where, 1, beams=beams, max_new_tokens=max_new_tokens, resamples=resamples)
        check_whole(where, 1, **({} if sentences is None else {"sentences": sentences}))
        check_whole(where, 0, samples_kept=samples_kept)
        check_real(where, above=0, most=1, floor=floor)
        self.sentences, self.beams, self.max_new_tokens = sentences, beams, max_new_tokens
        self.lower, self.resamples, self.samples_kept, self.floor = lower, resamples, samples_kept, floor
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse, before any training, a model that does not translate.

        Raises:
            UserError: the model is no translation model.
        """
        if not hasattr(pl_module, "translate"):
            raise UserError("callback.graphmax_translation needs a translation model: model=graphmax/translation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the model that ``trainer.validate`` was given."""
        if trainer.state.fn == "validate":
            self.run(pl_module, trainer.datamodule)  # type: ignore[attr-defined]

    def run(self, module: LightningModule, datamodule: Any) -> None:
        """Fill ``results`` and ``samples``."""
        pairs = list(itertools.islice(datamodule.pairs("val"), self.sentences))
        references = [pair.meta["target"].strip() for pair in pairs]
        if self.lower:
            references = [reference.lower() for reference in references]
        self.results, self.samples = {}, []
        rules = {name: self._rule(module, setting) for name, setting in self.methods.items()}
        for name, rule in rules.items():
            texts = self._translations(module, datamodule, rule, len(pairs))
            found = Bleu(references="aligned", resamples=self.resamples).score(texts, references).to_dict()
            found["value"] /= 100
            found["ci95"] = None if found["ci95"] is None else [bound / 100 for bound in found["ci95"]]
            self.results[f"bleu/{name}"] = {**found, "unit": "BLEU, 0 to 1"}
            for pair, text in list(zip(pairs, texts, strict=True))[: self.samples_kept]:
                self.samples.append({"method": name, "prompt": pair.text.strip(), "text": text})
        for name, result in self._likelihood(module, datamodule, rules, len(pairs)).items():
            self.results[name] = result.to_dict()

    def _rule(self, module: Any, setting: Mapping[str, Any]) -> ScoreRule | None:
        if setting["variant"] == "softmax":
            return None
        return VariantRule(chosen(setting["variant"], module.variants), float(setting.get("strength", 1.0)))

    def _translations(self, module: Any, datamodule: Any, rule: ScoreRule | None, count: int) -> list[str]:
        texts: list[str] = []
        for batch in _batches(datamodule, count, module):
            found = module.translate(
                batch["source_ids_BS"],
                batch["mask_source_BS"],
                rule,
                beams=self.beams,
                max_new_tokens=self.max_new_tokens,
            )
            texts += [datamodule.vocabulary.decode(ids).strip() for ids in found]
        return texts

    def _likelihood(
        self, module: Any, datamodule: Any, rules: Mapping[str, ScoreRule | None], count: int
    ) -> dict[str, MetricResult]:
        sums: dict[str, list[Tensor]] = {f"{what}/{name}": [] for what in ("nll", "zero") for name in rules}
        counts: list[Tensor] = []
        for batch in _batches(datamodule, count, module):
            with evaluating(module), torch.no_grad():
                scores_BTV = module(batch).scores_BTV.float()
            decoder_ids_BT = module.decoder_ids(batch["input_ids_BT"])
            counted_BT = batch["mask_target_BT"]
            counts.append(counted_BT.sum(1))
            for name, rule in rules.items():
                nll_BT, zero_BT = reference_nll(
                    rule, scores_BTV, decoder_ids_BT, batch["target_ids_BT"], counted_BT, self.floor
                )
                sums[f"nll/{name}"].append(nll_BT.sum(1))
                sums[f"zero/{name}"].append(zero_BT.sum(1))
        count_B, sum_B = torch.cat(counts), {key: torch.cat(values) for key, values in sums.items()}
        results = {}
        for name in rules:
            results[f"nll/{name}"] = per_token(sum_B[f"nll/{name}"], count_B, "nats")
            results[f"zero/{name}"] = per_token(sum_B[f"zero/{name}"], count_B, "rate")
            if name != "softmax":
                change_B = sum_B[f"nll/{name}"] - sum_B["nll/softmax"]
                results[f"nll/{name}_change"] = per_token(change_B, count_B, "nats")
        return results


def _batches(datamodule: Any, count: int, module: LightningModule) -> Iterator[Batch]:
    """Yield the validation batches, without the pairs beyond the first ``count``."""
    for batch in datamodule.val_dataloader():
        if count <= 0:
            return
        kept = {key: value[:count].to(module.device) for key, value in batch.items()}
        count -= len(kept["source_ids_BS"])
        yield kept
