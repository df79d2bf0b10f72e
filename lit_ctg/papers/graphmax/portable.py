"""The language model that graphmax is plugged into, as a stock GPT-2 (`lit-ctg export-model`).

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.portable import (
    Portable,
    PortableConfig,
    PortableLM,
    check_gpt2,
    plain_batch,
    stack_arguments,
    stock_of,
)
from lit_ctg.papers.graphmax.model import GraphmaxModule, KernelBayesianSoftmax


class BayesianConfig(PortableConfig):
    """Sizes of a model with several senses a word."""

    model_type = "lit_ctg_bayesian"


class BayesianForCausalLM(PortableLM):
    """GPT-2's stack under a kernelised Bayesian softmax (Miao et al., 2019), a baseline of Fig. 5."""

    config_class = BayesianConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        dim = config.sizes["backbone"]["dim"]
        self.embedding = nn.Embedding(config.vocab_size, dim)
        self.backbone = GPT2Backbone(**config.sizes["backbone"])
        self.bayesian = KernelBayesianSoftmax(config.vocab_size, dim, senses=config.sizes["senses"])
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def scores(self, ids_BT: Tensor) -> Tensor:
        """Return the log-probabilities of rows without padding on the left."""
        hidden_BTD = self.backbone(self.embedding(ids_BT))
        return self.bayesian(hidden_BTD.flatten(0, 1)).unflatten(0, ids_BT.shape)


def portable(module: Any, datamodule: Any) -> Portable:
    """Return a run's model: its logits, whatever output layer over a graph the run puts over them.

    Raises:
        UserError: a translation model, or a frozen pretrained backbone.
    """
    if not isinstance(module, GraphmaxModule):
        raise UserError(f"a {type(module).__name__} translates: it is not a causal language model")

    def ours(ids_BT: Tensor) -> Tensor:
        return module(plain_batch(ids_BT)).logits_BTV

    if module.bayesian is not None:
        return Portable(_bayesian(module), ours)
    model = stock_of(module.backbone, module.embedding, module.vocabulary)
    about = ""
    if module.output != "softmax" or module.training_output != "softmax":
        about = f"These are the logits z below the output layer ({module.output}): that one is a control."
    return Portable(model, ours, {}, about)


def _bayesian(module: GraphmaxModule) -> BayesianForCausalLM:
    check_gpt2(module.backbone, module.embedding)
    backbone, layer = cast(GPT2Backbone, module.backbone), cast(KernelBayesianSoftmax, module.bayesian)
    config = BayesianConfig(
        sizes={"backbone": stack_arguments(backbone), "senses": layer.senses},
        vocab_size=len(module.vocabulary),
        hidden_size=backbone.dim,
        max_position_embeddings=backbone.context,
    )
    model = BayesianForCausalLM(config).eval()
    model.load_state_dict(module.state_dict())
    return model
