"""Semantic fusion and its baseline as Hugging Face models, features and all (`lit-ctg export-model`).

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lit_ctg.errors import UserError, refuse
from lit_ctg.network.portable import Portable, PortableConfig, PortableLM, check_causal, stock_of
from lit_ctg.network.transformer import SinusoidalPosition, TransformerBackbone
from lit_ctg.papers.semantic_fusion.adapter import TextFusionModule
from lit_ctg.papers.semantic_fusion.channel import NAMES, GatedFusion
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.model import (
    LONGEST,
    ClauseAnnotator,
    Memberships,
    SemanticFusionModule,
    assemble,
)
from lit_ctg.papers.semantic_fusion.trial import prefix_scores


class SemanticFusionConfig(PortableConfig):
    """Sizes of a model, and ``words``: the vocabulary information of its features."""

    model_type = "lit_ctg_semantic_fusion"


class Words(SimpleNamespace):
    """The vocabulary in the form that the annotator needs."""

    def id(self, token: str) -> int:
        """Return the id of a token."""
        return list(self.tokens).index(token)

    def ids(self, group: str) -> list[int]:
        """Return the ids of a group's words."""
        return [self.id(word) for word in self.groups[group]]


class SemanticFusionForCausalLM(PortableLM):
    """Transformer with a gated channel of fuzzy features of the tokens so far (Eq. 1 to 4); the baseline has none."""

    config_class = SemanticFusionConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sizes = config.sizes
        dim = sizes["backbone"]["dim"]
        self.embedding = nn.Embedding(config.vocab_size, dim)
        self.position = SinusoidalPosition(dim, LONGEST)
        self.backbone = TransformerBackbone(**sizes["backbone"], causal=True)
        self.fuse = None
        if sizes["fusion"]:
            self.fuse = GatedFusion(dim, len(NAMES), sizes["gate"])
            self.annotator = ClauseAnnotator(
                cast(ClauseVocabulary, Words(**config.words)),
                prefix_only=True,
                exclamation_nudge=sizes["exclamation_nudge"],
            )
            self.memberships = Memberships(**sizes["memberships"])
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def scores(self, ids_BT: Tensor) -> Tensor:
        hidden_BTD = self.embedding(ids_BT) * self.config.sizes["embedding_scale"]
        if self.fuse is not None:
            length = ids_BT.shape[1]
            # prefix-only features do not need the length of the sentence
            predicates, scalars = self.annotator(ids_BT, ids_BT.new_full((len(ids_BT),), length))
            features_BTF = assemble(predicates, self.memberships(scalars))
            if not self.memberships.learnable:
                features_BTF = features_BTF * (ids_BT != self.annotator.pad_id).unsqueeze(-1)
            hidden_BTD = self.fuse(hidden_BTD, features_BTF.to(hidden_BTD.dtype))
        places_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        return self.backbone(hidden_BTD + self.position(places_T)) @ self.embedding.weight.T


def portable(module: Any, datamodule: Any) -> Portable:
    """Return a run's model (``UserError``: a model that sees later tokens, or one on a pretrained backbone)."""
    if isinstance(module, TextFusionModule):
        return _text_model(module)
    other = f"a {type(module).__name__} is not a model of semantic fusion: it is not exported"
    refuse({other: not isinstance(module, SemanticFusionModule)})
    check_causal(module)
    if module.fusion and not module.annotator.prefix_only:
        raise UserError("features of the whole sentence (model.prefix_only_features=false) see later tokens: "
                        "export a run of regime=corrected")  # fmt: skip
    vocabulary = module.vocabulary
    about = "Requests to its feature channel are a control (lit-ctg export)." if module.fusion else ""
    config = SemanticFusionConfig(
        sizes=_sizes(module),
        vocab_size=len(vocabulary),
        hidden_size=module.backbone.dim,
        max_position_embeddings=LONGEST,
        words=_words(vocabulary),
        pad_token_id=vocabulary.pad_id,
        bos_token_id=vocabulary.bos_id,
        eos_token_id=vocabulary.eos_id,
    )
    model = SemanticFusionForCausalLM(config).eval()
    model.load_state_dict(module.state_dict(), strict=False)

    return Portable(model, partial(prefix_scores, module), {}, about, clause_tokenizer(vocabulary))


def _sizes(module: SemanticFusionModule) -> dict[str, Any]:
    """Return what the shape of the network and its features depend on."""
    backbone, first = module.backbone, module.backbone.layers[0]
    sizes: dict[str, Any] = {
        "fusion": module.fusion,
        "embedding_scale": module.embedding_scale,
        "backbone": {
            "dim": backbone.dim,
            "layers": len(backbone.layers),
            "heads": backbone.heads,
            "feedforward_dim": first.linear1.out_features,
            "dropout": first.dropout.p,
            "norm_position": backbone.norm_position,
            "activation": "relu" if first.activation is nn.functional.relu else "gelu",
        },
    }
    if module.fusion:
        memberships = module.memberships
        sizes["gate"] = module.fuse.gate is not None
        sizes["exclamation_nudge"] = module.annotator.exclamation_nudge
        sizes["memberships"] = {
            "centres": memberships.fixed_33[0].tolist(),
            "temperature": float(memberships.fixed_temperature_31[0]),
            "learnable": memberships.learnable,
        }
    return sizes


def _words(vocabulary: ClauseVocabulary) -> dict[str, Any]:
    """Return the vocabulary as plain values (see ``Words``)."""
    groups = {name: list(members) for name, members in vocabulary.groups.items()}
    names = ("polarity", "intensity", "pad_id", "bos_id", "eos_id")
    return {"tokens": list(vocabulary.tokens), "groups": groups, **{name: getattr(vocabulary, name) for name in names}}


def _text_model(module: TextFusionModule) -> Portable:
    """Return the stack of a model of text as a stock architecture; the channel above its embedding is a control."""
    model = stock_of(module.backbone, module.embedding, module.vocabulary)
    about = ""
    if module.fusion:
        about = ("These are the logits without the feature channel, which is a control (lit-ctg export). At its "
                 "strength 1 this is the model of the run.")  # fmt: skip
    return Portable(model, lambda ids_BT: module._logits(module.backbone(module._embed(ids_BT, None))), {}, about)


def clause_tokenizer(vocabulary: Any) -> Any:
    """Return the fast tokenizer of the clause corpus: case folded, ``<bos>`` prepended, unknown words refused."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    engine = Tokenizer(models.WordLevel({token: number for number, token in enumerate(vocabulary.tokens)}))
    capitals = [token for token in vocabulary.tokens if token != token.lower()]
    spelled = [normalizers.Replace(Regex(rf"\b{token.lower()}\b"), token) for token in capitals]
    engine.normalizer = normalizers.Sequence([normalizers.Lowercase(), *spelled])
    pieces = pre_tokenizers.Split(Regex(r"[A-Za-z]+|[^\sA-Za-z]"), "isolated")
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    engine.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary.bos_id)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=LONGEST
    )
