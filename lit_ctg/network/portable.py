"""Our language models as Hugging Face models that do not need this package (`lit-ctg export-model`).

A model of a stock architecture becomes one (``stock_of``). Any other has a subclass of ``PortableLM`` in its paper's
``portable.py``, made of the very layers that were trained; ``lit_ctg/standalone.py`` writes the class and all its
dependencies as one file into the exported folder.

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, GPT2Config, GPT2LMHeadModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.huggingface import HuggingFaceBackbone


@dataclass(frozen=True)
class Portable:
    """A model ready to be saved.

    Attributes:
        model: the Hugging Face model, in evaluation mode.
        ours: the scores [B, T, V] with which it must agree, for ids [B, T] without padding.
        options: further arguments of its ``forward`` with which ``ours`` was computed.
        about: its lines in the model card.
        tokenizer: its tokenizer; None takes the vocabulary's own.
        generation: generation settings by the run's decoding, beside those that have one name in both.
    """

    model: Any
    ours: Callable[[Tensor], Tensor]
    options: Mapping[str, Tensor] = field(default_factory=dict)
    about: str = ""
    tokenizer: Any = None
    generation: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda decoding: {}


class PortableConfig(PretrainedConfig):
    """Plain values from which a model of ours is rebuilt: ``sizes`` holds the arguments of its parts."""

    model_type = "lit_ctg"

    sizes = None


class RowGenerationMixin(GenerationMixin):
    """Generation of a model of ours whose ``forward`` takes arguments for all rows together or for each.

    ``generate`` repeats the rows of tensors for beams and further sequences, and leaves anything else as it is.

    Attributes:
        row_arguments: name -> dimensions of one row's value: 0 for a number, 1 for a vector.
    """

    row_arguments = dict[str, int]()
    # the loss is a mean over its own batch: a trainer that accumulates gradients has to divide by their number
    accepts_loss_kwargs = False

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Any = None, **kwargs: Any
    ) -> Any:
        for name, dimensions in self.row_arguments.items():
            if kwargs.get(name) is not None:
                value = torch.as_tensor(kwargs[name])
                value = value.unsqueeze(0) if value.dim() == dimensions else value
                kwargs[name] = value.expand(len(input_ids), *value.shape[1:]) if len(value) == 1 else value
        return super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=is_encoder_decoder, input_ids=input_ids, **kwargs
        )


class PortableLM(PreTrainedModel, RowGenerationMixin):
    """What the classes of all papers share: rows may be padded on either side, and there is no cache.

    A subclass builds its parts, calls ``finish`` and has ``scores(ids_BT)``: the logits or log-probabilities [B, T, V]
    of rows without padding on the left. One with further arguments has its own ``forward``, which calls ``aligned``.
    """

    config_class = PortableConfig
    base_model_prefix = "model"
    # the layers see a padded row with its padding at the end (``aligned``), whatever side the caller put it on
    padding_last = True

    def finish(self) -> None:
        """Keep every buffer in the weights file: a model is first built without values, which are then read."""
        for part in self.modules():
            for name, value in list(part.named_buffers(recurse=False)):
                part.register_buffer(name, value)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: all values are read from the file."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Return what ``scores`` gives, [B, T, V], as logits, and the loss over labels."""
        return self.aligned(input_ids, attention_mask, self.scores, labels)

    def aligned(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        scores: Callable[[Tensor], Tensor],
        labels: Tensor | None,
    ) -> CausalLMOutput:
        """Return logits of rows that may be padded, and the mean loss over labels (-100: ignored) if there are any.

        Padding is moved to the end of its row, where no token of a causal model sees it.
        """
        if attention_mask is None or bool(attention_mask.all()):
            logits_BTV = scores(input_ids)
        else:
            order_BT = (attention_mask == 0).long().argsort(dim=1, stable=True)
            shifted_BTV = scores(input_ids.gather(1, order_BT))
            back_BT1 = order_BT.argsort(dim=1).unsqueeze(-1)
            logits_BTV = shifted_BTV.gather(1, back_BT1.expand_as(shifted_BTV))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits_BTV)


def stock_of(backbone: Any, embedding: nn.Embedding | None, vocabulary: Any) -> Any:
    """Return the language model under a paper's method as a stock architecture: our stack as GPT-2, a pretrained model
    that was trained further (``backbone.frozen=false``) as itself, its LoRA adapters added to its weights.

    Raises:
        UserError: another backbone, or a frozen one.
    """
    if isinstance(backbone, HuggingFaceBackbone) and not backbone.frozen:
        return merged(backbone.model)
    check_gpt2(backbone, embedding)
    assert embedding is not None, "check_gpt2 refuses a model without one"
    model = GPT2LMHeadModel(GPT2Config(**gpt2_settings(backbone, vocabulary))).eval()
    model.load_state_dict({**gpt2_state(backbone, embedding), "lm_head.weight": embedding.weight})
    return model


def merged(model: Any) -> Any:
    """Return a copy of a Hugging Face model in evaluation mode, its LoRA adapters added to its weights."""
    model = copy.deepcopy(model).eval()
    for name, layer in list(model.named_modules()):
        if hasattr(layer, "lora_A"):
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer.get_base_layer())
    return model


def check_gpt2(backbone: Any, embedding: nn.Embedding | None) -> None:
    """Refuse a model on a stack other than ours; ``UserError`` says what to do with it."""
    if not isinstance(backbone, GPT2Backbone) or embedding is None:
        raise UserError(
            f"a model on {type(backbone).__name__} is not exported: a frozen pretrained one is at backbone.path "
            "already, and what was trained on it is a control (lit-ctg export)"
        )


def gpt2_settings(backbone: GPT2Backbone, vocabulary: Any) -> dict[str, Any]:
    """Return the arguments of our stack's ``GPT2Config``."""
    ends = {"bos_token_id": vocabulary.bos_id, "eos_token_id": vocabulary.eos_id}
    return {"vocab_size": len(vocabulary), **ends, **backbone.sizes()}


def stack_arguments(backbone: GPT2Backbone) -> dict[str, Any]:
    """Return the arguments that make our stack again: for a model of ours that is not a stock GPT-2."""
    own = backbone.sizes()
    names = {"n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_positions": "context",
             "n_inner": "feedforward_dim", "embd_pdrop": "dropout", "resid_pdrop": "branch_dropout",
             "attn_pdrop": "attention_dropout"}  # fmt: skip
    return {ours: own[theirs] for theirs, ours in names.items()}


def gpt2_state(backbone: GPT2Backbone, embedding: nn.Embedding) -> dict[str, Tensor]:
    """Return the weights of our stack under the names of ``GPT2LMHeadModel``, its head left out."""
    state = {f"transformer.{name}": value for name, value in backbone.to_hugging_face().items()}
    state["transformer.wte.weight"] = embedding.weight
    return {name: value.detach() for name, value in state.items()}


def check_causal(module: Any) -> None:
    """Refuse a model whose positions see later ones: it cannot be generated from step by step."""
    if not module.causal:
        raise UserError(
            "this model sees the tokens that it predicts (regime=as_published), so it is not a causal language model: "
            "export a run of regime=corrected"
        )


def plain_batch(ids_BT: Tensor) -> Any:
    """Return a batch of whole rows without padding."""
    mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    targets_BT = ids_BT.roll(-1, dims=1)
    return {"input_ids_BT": ids_BT, "target_ids_BT": targets_BT, "mask_input_BT": mask_BT, "mask_target_BT": mask_BT}
