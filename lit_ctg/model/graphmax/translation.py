"""A small encoder-decoder in the shape of BART (sec. 5.2), trained here, into whose decoder graphmax is plugged.

The network is Hugging Face's own class, so a score rule enters by its ``generate(logits_processor=...)`` as it would
for a pretrained BART. Shape letters: B pairs, S source positions, T target positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig, LogitsProcessorList

from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.model.base import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine, evaluating
from lit_ctg.model.graphmax.graph import CooccurrenceGraph
from lit_ctg.model.graphmax.published import AlgorithmOne
from lit_ctg.model.graphmax.scene import SceneGraph
from lit_ctg.model.graphmax.variant import Variant, variants


class GraphmaxTranslationModule(LitLanguageModel):
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
        self.max_length, self.label_smoothing = max_length, label_smoothing
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

    @cached_property
    def graph(self) -> CooccurrenceGraph:
        """The graph of the target language; ``prepare_graph`` first, where there is no scene."""
        if self.scene is None:
            raise UserError("the graph of the target language is counted from the data module: train or evaluate first")
        return self.scene.graph(self.vocabulary)

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
            self.__dict__["graph"] = CooccurrenceGraph.from_token_ids(sentences, len(self.vocabulary))

    def forward(self, batch: Batch) -> LMOutput:
        """Score every target position from the whole source and the target before it."""
        found = self.network.model(
            input_ids=batch["source_ids_BS"],
            attention_mask=batch["mask_source_BS"],
            decoder_input_ids=batch["input_ids_BT"],
            use_cache=False,
        )
        hidden_BTD = found.last_hidden_state
        scores_BTV = self.network.lm_head(hidden_BTD) + self.network.final_logits_bias
        real_BT1 = batch["mask_input_BT"].unsqueeze(-1)
        return LMOutput(scores_BTV * real_BT1, hidden_BTD * real_BT1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the smoothed cross-entropy of the target tokens."""
        counts_BT = batch["mask_target_BT"]
        scores_NV, target_N = self(batch).scores_BTV[counts_BT], batch["target_ids_BT"][counts_BT]
        return {
            "loss": F.cross_entropy(scores_NV, target_N, label_smoothing=self.label_smoothing),
            "nll": F.cross_entropy(scores_NV.detach(), target_N),
        }

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with warm-up and cosine."""
        return adamw_warmup_cosine(
            self.parameters(),
            **self.optimizer_settings,
            decay_matrices_only=True,
            warmup_from_zero=False,
            total_steps=int(self.trainer.estimated_stepping_batches),
        )

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
        settings = GenerationConfig(
            num_beams=beams,
            do_sample=False,
            max_new_tokens=min(max_new_tokens, self.max_length - 1),
            pad_token_id=self.vocabulary.pad_id,
            eos_token_id=self.vocabulary.eos_id,
            decoder_start_token_id=self.vocabulary.bos_id,
        )
        with evaluating(self), torch.no_grad():
            found_BT = self.network.generate(
                source_ids_BS,
                attention_mask=mask_source_BS.long(),
                generation_config=settings,
                logits_processor=LogitsProcessorList([] if rule is None else [rule]),
            )
        dropped = {self.vocabulary.pad_id, self.vocabulary.bos_id, self.vocabulary.eos_id}
        return [[number for number in row if number not in dropped] for row in found_BT.tolist()]
