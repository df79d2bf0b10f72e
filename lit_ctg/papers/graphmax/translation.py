"""Encoder-decoders into whose decoder graphmax is plugged (sec. 5.2): what they share, and a small BART trained here.

The networks are Hugging Face's own classes, so a score rule enters by ``generate(logits_processor=...)``. Shape
letters: B pairs, S source positions, T target positions, P ids before a target, V vocabulary, D hidden size.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig, LogitsProcessorList

from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine, evaluating
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.scene import SceneGraph
from lit_ctg.papers.graphmax.variant import Variant, variants

UNBOUNDED = 1 << 20  # positions of a network that names no limit


class TranslationModel(LitLanguageModel):
    """What a trained and a pretrained encoder-decoder share: the graph of the target language, scores, translations.

    Subclasses set ``network`` (a Hugging Face encoder-decoder), ``vocabulary``, ``published``, ``scene``,
    ``decoder_start`` (the ids before a target's first token) and ``silent`` (ids that are no text).
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
        """The graph of the target language; ``prepare_graph`` first, where there is no scene."""
        if self.scene is None:
            raise UserError("the graph of the target language is counted from the data module: train or evaluate first")
        return self.scene.graph(self.vocabulary)

    @property
    def rows(self) -> int:
        """Tokens that the network scores."""
        return self.network.get_output_embeddings().weight.shape[0]

    @property
    def positions(self) -> int:
        """Most positions of the decoder."""
        return getattr(self.network.config, "max_position_embeddings", None) or UNBOUNDED

    def source(self, source_ids_BS: Tensor, mask_source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and mask as the encoder wants them; a batch has the sentence and <eos>."""
        return source_ids_BS, mask_source_BS

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """Every output layer over that graph by name."""
        return variants(self.graph, published=self.published)

    def setup(self, stage: str | None = None) -> None:
        """Without a scene, count the target side of the training split (sec. 5.2)."""
        if self.scene is None and "graph" not in self.__dict__:
            packed = self.trainer.datamodule.prepare()  # type: ignore[attr-defined]
            count = packed.meta["splits"]["train.target"]["documents"]
            sentences = (packed.document("train.target", number) for number in range(count))
            self.__dict__["graph"] = CooccurrenceGraph.from_token_ids(sentences, self.rows)

    def forward(self, batch: Batch) -> LMOutput:
        """Score every target position from the whole source and the target before it."""
        source_BS, mask_BS = self.source(batch["source_ids_BS"], batch["mask_source_BS"])
        found = self.network(
            input_ids=source_BS,
            attention_mask=mask_BS,
            decoder_input_ids=self.decoder_ids(batch["input_ids_BT"]),
            use_cache=False,
            output_hidden_states=True,
        )
        # of the ids that start a target only the last one predicts
        first, real_BT1 = len(self.decoder_start) - 1, batch["mask_input_BT"].unsqueeze(-1)
        hidden_BTD = found.decoder_hidden_states[-1][:, first:]
        return LMOutput(found.logits[:, first:] * real_BT1, hidden_BTD * real_BT1)

    def decoder_ids(self, input_ids_BT: Tensor) -> Tensor:
        """Return what the decoder reads, ``[B, P + T - 1]``: its own start in the place of the batch's <bos>."""
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
            source_ids_BS, mask_source_BS: as in a batch.
            rule: what becomes of the scores, e.g. ``GraphmaxRule(module.graph)``; None for softmax. Beam search
                hands it log-probabilities.
            beams: 1 is greedy.
            max_new_tokens: length at most.
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


class GraphmaxTranslationModule(TranslationModel):
    """Translates ``source_ids_BS`` into ``target_ids_BT`` (batches of ``data=translation``).

    Args:
        vocabulary: of both languages; needs <pad>, <bos> and <eos>.
        dim, layers, heads, feedforward_dim, dropout: of encoder and decoder alike.
        max_length: most positions of either side.
        label_smoothing: of the training loss.
        scene: where the graph of the target language comes from; None counts the target side of the training split.
        published: numbers of Algorithm 1.
        learning_rate, weight_decay, warmup_fraction: AdamW with warm-up and cosine.

    Raises:
        UserError: a vocabulary without those tokens.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        dim: int = 128,
        layers: int = 2,
        heads: int = 4,
        feedforward_dim: int = 512,
        dropout: float = 0.1,
        max_length: int = 128,
        label_smoothing: float = 0.1,
        scene: SceneGraph | None = None,
        published: AlgorithmOne | None = None,
        learning_rate: float,
        weight_decay: float = 0.01,
        warmup_fraction: float = 0.1,
    ):
        super().__init__()
        if None in (vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id):
            raise UserError(
                "translation needs a vocabulary with <pad>, <bos> and <eos>: see conf/data/translation.yaml"
            )
        self.vocabulary, self.scene, self.published = vocabulary, scene, published
        self.label_smoothing = label_smoothing
        self.decoder_start = (vocabulary.bos_id,)
        self.silent = frozenset([vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id])
        self.optimizer_settings = {
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "warmup_fraction": warmup_fraction,
        }
        config = BartConfig(
            vocab_size=len(vocabulary),
            d_model=dim,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=feedforward_dim,
            decoder_ffn_dim=feedforward_dim,
            dropout=dropout,
            attention_dropout=dropout,
            max_position_embeddings=max_length,
            scale_embedding=True,
            pad_token_id=vocabulary.pad_id,
            bos_token_id=vocabulary.bos_id,
            eos_token_id=vocabulary.eos_id,
            decoder_start_token_id=vocabulary.bos_id,
            forced_eos_token_id=None,
        )
        self.network = BartForConditionalGeneration(config)

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with warm-up and cosine."""
        return adamw_warmup_cosine(
            self.parameters(),
            **self.optimizer_settings,
            decay_matrices_only=True,
            warmup_from_zero=False,
            total_steps=int(self.trainer.estimated_stepping_batches),
        )
