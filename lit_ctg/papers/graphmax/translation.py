"""Encoder-decoders with graphmax in the decoder (sec. 5.2): their common base, a small BART trained here, their scores.

The networks are Hugging Face's own classes, so a score rule enters through ``generate(logits_processor=...)``. Shape
letters: B pairs, S source positions, T target positions, P ids before a target, V vocabulary, D hidden size, N targets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, cast

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch import Callback
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig, LogitsProcessorList

from lit_ctg import limits
from lit_ctg.core.batch import Batch, require
from lit_ctg.core.generation import evaluating
from lit_ctg.core.model import AdamW, LitLanguageModel, LMOutput, datamodule_of
from lit_ctg.core.result import MetricResult
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.limits import Checked, Count, Dropout, Fields, Fraction, Pretrained, Whole, checked, grouped
from lit_ctg.metric.bleu import Bleu
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph, SceneGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne, check_runs
from lit_ctg.papers.graphmax.translation_corpus import TranslationBatch
from lit_ctg.papers.graphmax.trial import Methods, checked_methods
from lit_ctg.papers.graphmax.trial_parts import FLOOR, target_nll
from lit_ctg.papers.graphmax.variant import Variant, VariantRule, variants
from lit_ctg.statistics import interval_of_rows

SIDES = ("encoder", "decoder")
UNBOUNDED = 1 << 20  # positions of a network without a stated limit


class TranslationModel(LitLanguageModel):
    """Common base of trained and pretrained encoder-decoders: the graph of the target language, scores, translations.

    Subclasses set ``network`` (a Hugging Face encoder-decoder), ``vocabulary``, ``published``, ``scene``,
    ``decoder_start`` (the ids before a target's first token) and ``silent`` (ids that are not text).
    """

    network: Any
    vocabulary: Tokenizer
    scene: SceneGraph | None
    published: AlgorithmOne | None
    decoder_start: tuple[int, ...]
    silent: frozenset[int]
    label_smoothing: float = 0.0

    @cached_property
    def graph(self) -> CooccurrenceGraph:
        """The graph of the target language; without a scene, call ``prepare_graph`` first."""
        assert self.scene is not None, "counted from the data module by setup"
        return self.scene.graph(self.vocabulary)

    @property
    def rows(self) -> int:
        """Number of tokens that the network scores."""
        return self.network.get_output_embeddings().weight.shape[0]

    @property
    def positions(self) -> int:
        """Maximum positions of the decoder."""
        return getattr(self.network.config, "max_position_embeddings", None) or UNBOUNDED

    def source(self, source_ids_BS: Tensor, mask_source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and mask for the encoder; a batch has the sentence and <eos>."""
        return source_ids_BS, mask_source_BS

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """Every output layer over that graph by name."""
        return variants(self.graph, published=self.published)

    def bind_data(self, datamodule: Any) -> None:
        """Without a scene, count the target side of the training split (sec. 5.2)."""
        if self.scene is None and "graph" not in self.__dict__:
            packed = require(datamodule, "prepare").prepare()
            count = packed.meta["splits"]["train.target"]["documents"]
            sentences = (packed.document("train.target", number) for number in range(count))
            self.__dict__["graph"] = CooccurrenceGraph.from_token_ids(sentences, self.rows)

    def forward(self, batch: TranslationBatch) -> LMOutput:  # type: ignore[override]  # it needs a source
        """Score every target position from the whole source and the target before it."""
        source_BS, mask_BS = self.source(batch["source_ids_BS"], batch["mask_source_BS"])
        found = self.network(
            input_ids=source_BS,
            attention_mask=mask_BS,
            decoder_input_ids=self.decoder_ids(batch["input_ids_BT"]),
            use_cache=False,
            output_hidden_states=True,
        )
        # among the ids that start a target only the last one predicts
        first, real_BT1 = len(self.decoder_start) - 1, batch["mask_input_BT"].unsqueeze(-1)
        hidden_BTD = found.decoder_hidden_states[-1][:, first:]
        return LMOutput(found.logits[:, first:] * real_BT1, hidden_BTD * real_BT1)

    def decoder_ids(self, input_ids_BT: Tensor) -> Tensor:
        """Return the decoder's input, ``[B, P + T - 1]``: its own start instead of the batch's <bos>."""
        return torch.cat([self._start(input_ids_BT), input_ids_BT[:, 1:]], dim=1)

    def _start(self, like_BT: Tensor) -> Tensor:
        return torch.tensor([self.decoder_start], device=like_BT.device).expand(len(like_BT), -1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the smoothed cross-entropy of the target tokens."""
        counts_BT = batch["mask_target_BT"]
        scores_NV, target_N = self(batch).scores_BTV[counts_BT], batch["target_ids_BT"][counts_BT]
        return {
            "loss": F.cross_entropy(scores_NV, target_N, label_smoothing=self.label_smoothing),
            "nll": F.cross_entropy(scores_NV.detach(), target_N),
        }

    def translate(
        self,
        source_ids_BS: Tensor,
        mask_source_BS: Tensor,
        rule: ScoreRule | None = None,
        *,
        beams: int = 1,
        max_new_tokens: int = 60,
    ) -> list[list[int]]:
        """Return the target ids of each sentence without <bos> and <eos>: greedy, or by beam search.

        Args:
            rule: applied to the scores; None for softmax. Beam search passes it log-probabilities.
            beams: 1 is greedy.
            max_new_tokens: maximum length.
        """
        source_BS, mask_BS = self.source(source_ids_BS, mask_source_BS)
        start_BP = self._start(source_BS)
        settings = GenerationConfig(
            num_beams=beams,
            do_sample=False,
            max_new_tokens=min(max_new_tokens, self.positions - start_BP.shape[1]),
            pad_token_id=self.vocabulary.pad_id,
            eos_token_id=self.vocabulary.eos_id,
            decoder_start_token_id=self.decoder_start[0],
        )
        with evaluating(self), torch.no_grad():
            found_BT = self.network.generate(
                source_BS,
                attention_mask=mask_BS.long(),
                decoder_input_ids=start_BP,
                generation_config=settings,
                logits_processor=LogitsProcessorList([] if rule is None else [rule]),
            )
        return [[number for number in row if number not in self.silent] for row in found_BT.tolist()]


@checked
@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of encoder and decoder alike; ``max_length`` is the maximum number of positions of either side."""

    dim: Count = 128
    layers: Count = 2
    heads: Count = 4
    feedforward_dim: Count = 512
    dropout: Dropout = 0.1
    max_length: Count = 128


class GraphmaxTranslationModule(TranslationModel):
    """Translates ``source_ids_BS`` into ``target_ids_BT`` (batches of ``data=translation``).

    Args:
        vocabulary: of both languages; needs <pad>, <bos> and <eos>.
        scene: the source of the graph of the target language; None counts the target side of the training split.
        published: numbers of Algorithm 1.

    Raises:
        UserError: a vocabulary without those tokens.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        label_smoothing: Fraction = 0.1,
        scene: SceneGraph | None = None,
        published: AlgorithmOne | None = None,
        **settings: Annotated[Any, Fields(Shape), Fields(AdamW)],
    ):
        super().__init__()
        check_runs(published, "model.published")
        pad_id, bos_id, eos_id = vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id
        if pad_id is None or bos_id is None or eos_id is None:
            raise UserError(
                "translation needs a vocabulary with <pad>, <bos> and <eos>: see conf/data/translation.yaml"
            )
        self.vocabulary, self.scene, self.published = vocabulary, scene, published
        self.label_smoothing = label_smoothing
        self.decoder_start = (bos_id,)
        self.silent = frozenset([pad_id, bos_id, eos_id])
        shape, self.adamw = grouped({"weight_decay": 0.01, "warmup_fraction": 0.1, **settings}, Shape, AdamW)
        config = BartConfig(
            vocab_size=len(vocabulary),
            d_model=shape.dim,
            **{f"{side}_layers": shape.layers for side in SIDES},
            **{f"{side}_attention_heads": shape.heads for side in SIDES},
            **{f"{side}_ffn_dim": shape.feedforward_dim for side in SIDES},
            dropout=shape.dropout,
            attention_dropout=shape.dropout,
            max_position_embeddings=shape.max_length,
            scale_embedding=True,
            pad_token_id=pad_id,
            bos_token_id=bos_id,
            eos_token_id=eos_id,
            decoder_start_token_id=bos_id,
            forced_eos_token_id=None,
        )
        self.network = BartForConditionalGeneration(config)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return self.adamw.configure(self)


# A pretrained encoder-decoder (BART, mBART, T5, Marian, ...) by folder or name, with graphmax in its decoder.
#
# It is evaluated (sec. 5.2), not trained.


class PretrainedTranslationModule(TranslationModel):
    """Translates with a pretrained model; special tokens are placed as by its tokenizer.

    Args:
        vocabulary: the model's own tokenizer (``data/tokenizer=huggingface``).
        path: a folder that ``save_pretrained`` wrote, or a hub name.
        source_language, target_language: the tokenizer's codes (mBART: ``ro_RO``, ``en_XX``); None if it has none.
        task: words before every source sentence (T5: ``translate English to Romanian: ``).
        published: numbers of Algorithm 1.

    Raises:
        UserError: nothing to load there, a different tokenizer, an unknown language, or no token to start a
            translation.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        path: Pretrained,
        revision: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        task: str = "",
        published: AlgorithmOne | None = None,
    ):
        super().__init__()
        check_runs(published, "model.published")
        engine = getattr(vocabulary, "engine", None)
        self.vocabulary, self.scene, self.published = vocabulary, None, published
        self.network = _load(path, revision).requires_grad_(False)
        if engine is None or self.rows < len(vocabulary):
            raise UserError(
                f"model.path={path} has {self.rows} tokens, the tokenizer {len(vocabulary)}: a pretrained translation "
                "model needs its own tokenizer, data/tokenizer=huggingface"
            )
        for name, code in (("src_lang", source_language), ("tgt_lang", target_language)):
            if code is not None:
                if not hasattr(engine, name) or code not in engine.get_vocab():
                    raise UserError(
                        f"{type(engine).__name__} has no language '{code}': give model.source_language and "
                        ".target_language its own codes, such as ro_RO, or leave them out"
                    )
                setattr(engine, name, code)
        self.before, self.after = _around(engine, task)
        self.decoder_start = (*_first(self.network, engine, target_language), *_around(engine, target=True)[0])
        self.silent = frozenset([*engine.all_special_ids, *self.decoder_start])

    def source(self, source_ids_BS: Tensor, mask_source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and mask with the model's special tokens in place of the batch's <eos>."""
        rows = [
            torch.tensor([*self.before, *ids_S[mask_S].tolist()[:-1], *self.after], device=ids_S.device)
            for ids_S, mask_S in zip(source_ids_BS, mask_source_BS, strict=True)
        ]
        ones = [torch.ones_like(row_S, dtype=torch.bool) for row_S in rows]
        padding = float(self.vocabulary.pad_id or 0)
        ids_BS = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
        return ids_BS, nn.utils.rnn.pad_sequence(ones, batch_first=True)

    def configure_optimizers(self) -> None:
        """Return None: nothing is trained."""


def _load(path: str, revision: str | None) -> Any:
    """Return the network in float32; if it is missing, the error is one line."""
    from transformers import AutoModelForSeq2SeqLM

    try:
        return AutoModelForSeq2SeqLM.from_pretrained(
            path, revision=revision, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"model.path={path}: no encoder-decoder could be loaded ({reason})") from error


def _around(engine: Any, task: str = "", *, target: bool = False) -> tuple[list[int], list[int]]:
    """Return the ids before and after a sentence: special tokens, and the words of the task."""
    plain = engine("a", add_special_tokens=False)["input_ids"]
    whole = (engine(text_target="a") if target else engine(task + "a"))["input_ids"]
    for first in range(len(whole) - len(plain), -1, -1):
        if whole[first : first + len(plain)] == plain:
            return whole[:first], whole[first + len(plain) :]
    raise UserError(
        f"model.task={task!r}: the tokenizer joins its end to the sentence; end it with ': ' or leave it out"
    )


def _first(network: Any, engine: Any, target_language: str | None) -> list[int]:
    """Return the token that the decoder starts with."""
    settings = (network.generation_config, network.config)
    found = next(
        (one for one in (getattr(s, "decoder_start_token_id", None) for s in settings) if one is not None), None
    )
    if found is None and target_language is not None:
        found = engine.convert_tokens_to_ids(target_language)
    if found is None:
        raise UserError("the model names no decoder_start_token_id: give model.target_language")
    return [found]


# Translation BLEU and held-out likelihood with each output layer in the decoder (sec. 5.2, Tables 6 to 8).
#
# N counts targets.


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

    The rule gets the same input as in decoding: the ids before the target, and the decoder's scores.

    Args:
        rule: applied to the scores; None for softmax.
        scores_BTV: the decoder's, with the references as its input.
        decoder_ids_BT: the decoder's input, ``[B, P + T - 1]``.
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
    """Return the mean over the tokens of B sentences (from sums and counts), with its interval over sentences."""
    total_B, count_B = total_B.double().cpu(), count_B.double().cpu()
    interval = interval_of_rows(total_B, count_B)
    return MetricResult(float(total_B.sum() / count_B.sum()), unit, "lower", int(count_B.sum()), interval, VERSION)


class GraphmaxTranslation(Checked, Callback):
    """Translate the validation split in ``trainer.validate``, which ends every run, and score it by sacrebleu.

    References are the raw target sentences, hypotheses the decoded ids; both go through sacrebleu's own tokenizer.
    The NLL is that of the references' tokens, including <unk> and <eos>, each given the preceding reference; as in
    ``val/perplexity``, references are cut at the data module's length. Zeros are handled as in ``NextWordNll``.

    Args:
        methods: name -> ``{variant: ..., strength: ...}``; a null variant is left out. Softmax must be among them.
        sentences: how many of the split's first pairs; null for all.
        beams: 1 is greedy.
        lower: whether references are lower-cased, as the data module's tokenizer does with the model's input.
        floor: uniform share mixed into distributions with zeros.

    Attributes:
        results: ``bleu/<method>`` on the 0 to 1 scale of the paper; ``nll/<method>`` in nats per token,
            ``nll/<method>_change``, the difference from softmax paired by sentence, and ``zero/<method>``, the share of
            reference tokens of probability 0. Intervals are over sentences.
        samples: dicts with method, prompt (the source) and text, the first few.
    """

    def __init__(
        self,
        *,
        methods: Methods,
        sentences: Count | None,
        beams: Count,
        max_new_tokens: Count,
        lower: bool,
        resamples: Count = 200,
        samples_kept: Whole = 3,
        floor: limits.Nucleus = FLOOR,
    ) -> None:
        super().__init__()
        where = "callback.graphmax_translation"
        self.methods = checked_methods(f"{where}.methods", methods, reference=True)
        self.sentences, self.beams, self.max_new_tokens = sentences, beams, max_new_tokens
        self.lower, self.resamples, self.samples_kept, self.floor = lower, resamples, samples_kept, floor
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse, before any training, a model that does not translate."""
        if not hasattr(pl_module, "translate"):
            raise UserError("callback.graphmax_translation needs a translation model: model=graphmax/translation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.run(pl_module, datamodule_of(trainer))

    def run(self, module: LightningModule, datamodule: Any) -> None:
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
        return VariantRule.named(setting["variant"], module.variants, float(setting.get("strength", 1.0)))

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


def _batches(datamodule: Any, count: int, module: LightningModule) -> Iterator[TranslationBatch]:
    """Yield the batches of the first ``count`` validation pairs; all of them in each of several processes."""
    batches = datamodule.pair_batches("val", False)
    for index in range(len(batches)):
        if count <= 0:
            return
        batch = batches[0, index]
        kept = cast(TranslationBatch, {key: value[:count].to(module.device) for key, value in batch.items()})
        count -= len(kept["source_ids_BS"])
        yield kept
