"""Translation BLEU with each output layer in the decoder (sec. 5.2, Tables 6 to 8)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch import Callback

from lit_ctg.callback.graphmax_setting import check_whole, checked_methods
from lit_ctg.errors import UserError
from lit_ctg.metric.bleu import Bleu
from lit_ctg.model.graphmax.variant import VariantRule, chosen


class GraphmaxTranslation(Callback):
    """Translate the validation split in ``trainer.validate``, which ends every run, and score it by sacrebleu.

    References are the raw target sentences, hypotheses the decoded ids; both go through sacrebleu's own tokenizer.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``; a null variant is left out.
        sentences: how many of the split's first pairs; null for all.
        beams: 1 is greedy.
        max_new_tokens: of a translation.
        lower: whether references are lower-cased, as the data module's tokenizer does with what the model sees.
        resamples: of the bootstrap over sentences.

    Attributes:
        results: ``bleu/<method>`` on the 0 to 1 scale of the paper.
        samples: dicts with method, prompt (the source) and text, the first few.

    Raises:
        UserError: an unknown variant, or a number out of its range.
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
    ) -> None:
        super().__init__()
        where = "callback.graphmax_translation"
        self.methods = checked_methods(f"{where}.methods", methods)
        check_whole(where, 1, beams=beams, max_new_tokens=max_new_tokens, resamples=resamples)
        check_whole(where, 1, **({} if sentences is None else {"sentences": sentences}))
        check_whole(where, 0, samples_kept=samples_kept)
        self.sentences, self.beams, self.max_new_tokens = sentences, beams, max_new_tokens
        self.lower, self.resamples, self.samples_kept = lower, resamples, samples_kept
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
        for name, setting in self.methods.items():
            variant = chosen(setting["variant"], module.variants)  # type: ignore[arg-type]
            rule = (
                None if setting["variant"] == "softmax" else VariantRule(variant, float(setting.get("strength", 1.0)))
            )
            texts = self._translations(module, datamodule, rule, len(pairs))
            found = Bleu(references="aligned", resamples=self.resamples).score(texts, references).to_dict()
            found["value"] /= 100
            found["ci95"] = None if found["ci95"] is None else [bound / 100 for bound in found["ci95"]]
            self.results[f"bleu/{name}"] = {**found, "unit": "BLEU, 0 to 1"}
            for pair, text in list(zip(pairs, texts, strict=True))[: self.samples_kept]:
                self.samples.append({"method": name, "prompt": pair.text.strip(), "text": text})

    def _translations(self, module: Any, datamodule: Any, rule: VariantRule | None, count: int) -> list[str]:
        texts: list[str] = []
        for batch in datamodule.val_dataloader():
            if len(texts) >= count:
                break
            source_BS, mask_BS = batch["source_ids_BS"], batch["mask_source_BS"]
            placed = (source_BS.to(module.device), mask_BS.to(module.device))
            found = module.translate(*placed, rule, beams=self.beams, max_new_tokens=self.max_new_tokens)
            texts += [datamodule.vocabulary.decode(ids).strip() for ids in found]
        return texts[:count]
