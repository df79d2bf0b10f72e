"""Semantic fusion on a user's text: a bank of features, fused at the embedding of any causal backbone.

The method is that of ``model.py`` (Eq. 2-8) with the bank of ``bank.py`` instead of the clauses' 22 features. On a
frozen pretrained model only fusion and auxiliary head are trained; the fusion is after the blocks of its upper half.

Shape letters: B rows, T positions, N counted positions, F features, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn

from lit_ctg import limits
from lit_ctg.core.batch import Batch
from lit_ctg.core.generation import ControlSetting, GeneratedText, Generator
from lit_ctg.core.model import AdamW, LMOutput
from lit_ctg.decoding.filters import Nucleus, Temperature
from lit_ctg.decoding.grammar import GrammarMask
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, Fields, Fraction, Positive, Whole, checked, grouped
from lit_ctg.network.backbone import Backbone, PretrainedBackbone, vocabulary_size
from lit_ctg.network.layers import blocks
from lit_ctg.papers.semantic_fusion.bank import FeatureBank
from lit_ctg.papers.semantic_fusion.channel import BlockFusion, ChannelSetting, GatedFusion
from lit_ctg.papers.semantic_fusion.grammar import CompiledGrammar, compile_for_text, load_grammar
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon
from lit_ctg.papers.semantic_fusion.model import (
    FusionModule,
    FusionOutput,
    GenerationState,
    LossSettings,
    auxiliary_head,
    drop_and_replace,
)

EMBEDDING_STD = 0.02  # GPT-2's


class TextFusionModule(FusionModule):
    """A language model over a causal backbone with the feature channel (``fusion``), or without (its baseline).

    A backbone with ``embed`` and ``head_weight`` (a Hugging Face model) has its own embedding and head; the fusion then
    starts as the identity: an untrained adapter does not change a pretrained model. Otherwise both are one matrix here.
    The fusion is then after the blocks of its upper half (``BlockFusion``), not at the embedding.

    Training never shows a held-out word of the lexicon: in a row, what comes from the first one on is not counted.

    Args:
        vocabulary: tokenizer of the corpus.
        backbone: causal stack with ``dim``.
        bank: features; bound to the tokenizer here.
        fusion: False is the baseline.
        gate: Eq. 2; False is h0 = e + u.
        feature_dropout: see ``model.drop_and_replace``; 1 never trains the channel as a control.
        uniformizer_classes: classes of the lexicon whose words (those of one token) Eq. 8 makes uniform.
        uniformizer_words: ``"all"`` words of a class or the ``"trained"`` ones.
        seed: of the weights and of the channel's draws.
        deep: False fuses a pretrained model at its embedding, as the paper does (Eq. 2, 3).
        word_weight: in the token loss (Eq. 6), of the targets with which a word of the lexicon begins, in rows with a
            control; others have 1. Few targets are such, and what all targets share is learned first.
        settings: fields of ``LossSettings`` and ``AdamW``.

    Raises:
        UserError: an unknown class, a feature that looks ahead or does not fit the corpus.
    """

    held_out_words: Tensor

    def __init__(
        self,
        *,
        vocabulary: Any,
        backbone: Backbone,
        bank: FeatureBank,
        fusion: bool,
        gate: bool,
        feature_dropout: Fraction,
        uniformizer_classes: Sequence[str],
        uniformizer_words: Literal["all", "trained"],
        seed: Whole,
        deep: bool = True,
        word_weight: Positive = 1.0,
        **settings: Annotated[Any, Fields(LossSettings), Fields(AdamW)],
    ) -> None:
        super().__init__()
        vocabulary_size(vocabulary, backbone)
        self.vocabulary, self.backbone, self.bank, self.fusion = vocabulary, backbone, bank, fusion
        bank.bind(vocabulary)
        self.feature_dropout, self.word_weight = feature_dropout, word_weight
        self.weights, self.adamw = grouped(settings, LossSettings, AdamW)
        self.seed, self.channel_generator = seed, torch.Generator()
        own = not hasattr(backbone, "embed")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(len(vocabulary), backbone.dim) if own else None
            if self.embedding is not None:
                nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
            self.fuse: GatedFusion | None = None
            self.blocks: BlockFusion | None = None
            if fusion:
                torch.manual_seed(seed + 1)
                if own or not deep:
                    self.fuse = GatedFusion(backbone.dim, len(bank.names), gate)
                    if not own:
                        nn.init.zeros_(self.fuse.project.weight)
                        nn.init.zeros_(self.fuse.project.bias)
                else:
                    paths = [path for path, _ in blocks(cast(Any, backbone).model)]
                    self.blocks = BlockFusion(paths[len(paths) // 2 :], backbone.dim, len(bank.names))
                self.auxiliary = auxiliary_head(backbone.dim, len(bank.names))
        self.classes = [
            self._class_ids(name, bank.lexicon, trained=uniformizer_words == "trained") for name in uniformizer_classes
        ]
        kept_out = set(bank.lexicon.held_out)
        held = [number for number, word in enumerate(bank.lexicon.words) if word in kept_out]
        self.register_buffer("held_out_words", torch.tensor(held, dtype=torch.long), persistent=False)

    def _class_ids(self, name: str, lexicon: Lexicon, *, trained: bool) -> Tensor:
        """Return the tokens that are words of a class."""
        members = [word for word in lexicon.of_class(name) if not (trained and word in lexicon.held_out)]
        spellings = [self.bank.finder.spellings[lexicon.words.index(word)] for word in members]
        return torch.tensor(sorted({ids[0] for some in spellings for ids in some if len(ids) == 1}), dtype=torch.long)

    @property
    def has_channel(self) -> bool:
        """Whether features can be set from a control."""
        return self.fusion

    # the network ---------------------------------------------------------------------------------------------------

    @property
    def head_weight(self) -> Tensor:
        """The output head [V, D]."""
        return cast(PretrainedBackbone, self.backbone).head_weight if self.embedding is None else self.embedding.weight

    def _embed(self, ids: Tensor, features: Tensor | None) -> Tensor:
        """Embedding, and fusion if it is there (Eq. 2, 3)."""
        embedded = cast(PretrainedBackbone, self.backbone).embed(ids) if self.embedding is None else self.embedding(ids)
        return embedded if features is None or self.fuse is None else self.fuse(embedded, features.to(embedded.dtype))

    @contextmanager
    def _fused(self, features: Tensor | None) -> Iterator[None]:
        """Fuse blocks with features [B, T, F] or [B, F]."""
        if self.blocks is None or features is None:
            yield
            return
        model, features_BTF = cast(Any, self.backbone).model, features.view(len(features), -1, features.shape[-1])
        weight = next(self.blocks.parameters())
        layers = [model.get_submodule(path) for path in self.blocks.paths]
        handles = self.blocks.attach(layers, lambda: (features_BTF.to(weight), 1))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hidden(self, ids_BT: Tensor, features_BTF: Tensor | None) -> Tensor:
        with self._fused(features_BTF):
            return self.backbone(self._embed(ids_BT, features_BTF))

    def _logits(self, hidden: Tensor) -> Tensor:
        own = self.embedding is None
        return cast(PretrainedBackbone, self.backbone).head(hidden) if own else hidden @ self.head_weight.T

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position, with the text's own features and no control."""
        features_BTF = self.bank(batch["input_ids_BT"]) if self.fusion else None
        hidden_BTD = self._hidden(batch["input_ids_BT"], features_BTF)
        scores_BTV = self._logits(hidden_BTD)
        if features_BTF is None:
            return LMOutput(scores_BTV, hidden_BTD)
        return FusionOutput(
            scores_BTV,
            hidden_BTD,
            features_BTF=features_BTF,
            aux_BTF=torch.sigmoid(self.auxiliary(hidden_BTD)),
            aux_target_BTF=features_BTF,
        )

    def bare_scores(self, ids_BT: Tensor) -> Tensor:
        """Return the scores [B, T, V] without the channel: of a frozen model, its own."""
        return self._logits(self._hidden(ids_BT, None))

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the scores where the channel asks for what the text has next, and for what the next row's text has."""
        if not self.fusion:
            return None
        asked_BTF = self.bank.hindsight(_whole(batch))[:, :-1]
        right, wrong = (self._hidden(batch["input_ids_BT"], each) for each in (asked_BTF, asked_BTF.roll(1, dims=0)))
        return self._logits(right), self._logits(wrong)

    # training ------------------------------------------------------------------------------------------------------

    def begun(self, ids_BT: Tensor, words: Tensor | None = None) -> Tensor:
        """Return where a word of the lexicon begins, one of ``words`` (indices) if they are given; [B, T] bool."""
        word_BT, length_BT = self.bank.finder.spans(ids_BT)
        if words is not None:
            length_BT = length_BT * torch.isin(word_BT, words)
        begun_BT = torch.zeros_like(word_BT, dtype=torch.bool)
        for length in self.bank.finder.lengths:
            if length <= word_BT.shape[1]:
                begun_BT[:, : word_BT.shape[1] - length + 1] |= length_BT[:, length - 1 :] == length
        return begun_BT

    def trained_mask(self, batch: Batch) -> Tensor:
        """Return the targets that count in training: those before the first held-out word of the row, [B, T] bool."""
        mask_BT = batch["mask_target_BT"]
        if not len(self.held_out_words):
            return mask_BT
        shown_BT = self.begun(_whole(batch), self.held_out_words).cummax(1).values
        return mask_BT & ~shown_BT[:, 1:]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 5 as "loss" and its three parts, over the counted targets."""
        ids_BT, counted_BT = batch["input_ids_BT"], self.trained_mask(batch)
        features_BTF = controlled_BTF = self.bank(ids_BT) if self.fusion else None
        if features_BTF is not None and self.feature_dropout < 1:
            controlled_BTF = drop_and_replace(
                features_BTF,
                self.bank.hindsight(_whole(batch))[:, :-1],
                feature_dropout=self.feature_dropout,
                generator=self.channel_generator,
                names=self.bank.names,
                groups=self.bank.groups,
            )
        hidden_ND = self._hidden(ids_BT, controlled_BTF)[counted_BT]
        target_N = batch["target_ids_BT"][counted_BT]
        logits_NV = self._logits(hidden_ND)
        if not len(target_N):  # when every row begins with a held-out word
            return {"loss": logits_NV.sum() * 0.0}
        classes = [ids.to(target_N.device) for ids in self.classes if len(ids)]
        auxiliary = None if features_BTF is None else (self.auxiliary(hidden_ND), features_BTF[counted_BT])
        weight_N = None
        if self.word_weight != 1 and features_BTF is not None and controlled_BTF is not None:
            asked_B1 = (controlled_BTF != features_BTF).flatten(1).any(1, keepdim=True)
            said_BT = self.begun(_whole(batch))[:, 1:] & asked_B1
            weight_N = torch.where(said_BT[counted_BT], self.word_weight, 1.0)
        return self.weighted(logits_NV, target_N, classes, auxiliary, weight_N)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: Sequence[Mapping[str, float]] | None = None) -> GenerationState:
        """Return the state of empty prefixes; ``controls`` (checked, one per row) go through the feature channel."""
        channel = None
        if controls and any(controls):
            like = next(cast(nn.Module, self.fuse or self.blocks).parameters())
            channel = ChannelSetting.of_rows(controls, like, self.bank.names, self.bank.groups)
        return GenerationState(torch.zeros(batch_size, 0, dtype=torch.long, device=self.device), channel)

    def step(self, ids_B1: Tensor, state: GenerationState) -> tuple[Tensor, GenerationState]:
        """Take the newest tokens; return the scores [B, V] of the next ones."""
        ids_BT = torch.cat([state.ids_BT, ids_B1], dim=1)
        features_BF = None
        if self.fusion:
            features_BF = self.bank(ids_BT)[:, -1]
            if state.channel is not None:
                features_BF = state.channel.apply(features_BF)
        with self._fused(features_BF):
            hidden_BD, cache = self.backbone.step(self._embed(ids_B1[:, 0], features_BF), state.cache)
        return self._logits(hidden_BD), GenerationState(ids_BT, state.channel, cache)


def _whole(batch: Batch) -> Tensor:
    """Return the inputs and the last target, [B, T + 1]."""
    return torch.cat([batch["input_ids_BT"], batch["target_ids_BT"][:, -1:]], dim=1)


@dataclass(frozen=True, kw_only=True)
class LexiconText(GeneratedText):
    """A text and the lexicon words in its continuation, in order.

    Attributes:
        hits: the words.
        polarity: the sum of their polarities.
    """

    hits: tuple[str, ...]
    polarity: float

    def note(self) -> str:
        """Return the hits with their polarity."""
        return f"{', '.join(self.hits)} ({self.polarity:+.2f})" if self.hits else ""


@checked
class TextDecoding:
    """Sampling settings for text, as in ``conf/decoding/semantic_fusion_text.yaml``.

    Args:
        temperature: > 0.
        top_p: nucleus, in (0, 1].
        max_new_tokens: length of a continuation.
        grammar: path of a YAML file (see ``grammar``) that continuations must follow, or null.
    """

    def __init__(
        self, *, temperature: Positive, top_p: limits.Nucleus, max_new_tokens: Count, grammar: str | None = None
    ) -> None:
        self.temperature, self.top_p, self.max_new_tokens = temperature, top_p, max_new_tokens
        self.grammar = None if grammar is None else load_grammar(grammar)

    def generator(self, module: TextFusionModule, datamodule: Any) -> TextGenerator:
        """Combine these settings with a model and its tokenizer."""
        return TextGenerator(module, self, datamodule.vocabulary)


class TextGenerator(Generator[LexiconText]):
    """Continues prompts with the feature channel set from ``control.<column of the bank>``.

    Raises:
        UserError: a grammar for a tokenizer without a token for the beginning or end of a text, or one that does not
            fit.
    """

    def __init__(self, module: TextFusionModule, decoding: TextDecoding, vocabulary: Any) -> None:
        super().__init__(module, max_new_tokens=decoding.max_new_tokens)
        self.decoding, self.vocabulary = decoding, vocabulary
        self.start_id = next(
            (i for i in (vocabulary.bos_id, vocabulary.eos_id, _known(vocabulary, "<|endoftext|>")) if i is not None),
            None,
        )
        self.grammar: CompiledGrammar | None = None
        if decoding.grammar is not None:
            self.grammar = self._compiled(*decoding.grammar)

    def _compiled(self, where: str, content: Any) -> CompiledGrammar:
        vocabulary, lexicon = self.vocabulary, self.module.bank.lexicon
        end: Any = self.start_id if vocabulary.eos_id is None else vocabulary.eos_id
        self.eos_id = self.pad_id = end  # anything may follow the end
        groups = {kind: lexicon.of_class(kind) for kind in sorted(set(lexicon.classes) - {""})}
        return compile_for_text(where, content, vocabulary, groups, start_id=self.start_id, end_id=end)

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        return self.module.bank.settings if self.module.has_channel else ()

    def prompt_ids(self, text: str) -> list[int]:
        ids = list(self.vocabulary.encode(text)) if text else []
        if (self.grammar is not None or not ids) and self.start_id is not None:
            ids = [self.start_id, *ids]
        if not ids:
            raise UserError("this tokenizer has no token that begins a text: give a prompt")
        if self.grammar is not None:
            self.grammar.machine.state_after(ids)
        return ids

    def state(self, controls: Sequence[dict[str, Any]], routes: Collection[str]) -> Any:
        return controls

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        mask: list[ScoreRule] = [] if self.grammar is None else [GrammarMask(self.grammar.machine, self.pad_id)]
        shaped = [Temperature(self.decoding.temperature), Nucleus(self.decoding.top_p, keep_crossing=True)]
        return RuleList([*mask, *shaped])

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> LexiconText:
        """Find the lexicon words after the prompt; the beginning of a longer word is none."""
        bank = self.module.bank
        found = bank.finder.whole(torch.tensor([ids], device=self.module.device))[0, prompt_length:].tolist()
        numbers = [number for number in found if number >= 0]
        polarity = bank.lexicon.column("polarity")
        shown = [i for i in ids if i not in (self.start_id, self.eos_id)]
        return LexiconText(
            text=self.vocabulary.decode(shown),
            ids=tuple(ids),
            prompt_length=prompt_length,
            control=control,
            hits=tuple(bank.lexicon.words[number] for number in numbers),
            polarity=float(sum(polarity[number] for number in numbers)),
        )


def _known(vocabulary: Any, token: str) -> int | None:
    return vocabulary.id(token) if token in vocabulary.tokens else None
