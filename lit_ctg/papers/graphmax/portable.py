"""The language model below graphmax as a stock GPT-2 (`lit-ctg export-model`)."""

from __future__ import annotations

from typing import Any

from lit_ctg.errors import UserError
from lit_ctg.network.portable import Portable, gpt2_of, plain_batch
from lit_ctg.papers.graphmax.model import GraphmaxModule


def portable(module: Any, datamodule: Any) -> Portable:
    """Return a run's model: its logits, without the run's output layer.

    Raises:
        UserError: a translation model, a Bayesian output layer, or a pretrained backbone.
    """
    if not isinstance(module, GraphmaxModule):
        raise UserError(f"a {type(module).__name__} translates: it is no causal language model")
    if module.bayesian is not None:
        raise UserError("a kernelised Bayesian softmax (model.training_output=bayesian) has no stock architecture")
    model = gpt2_of(module.backbone, module.embedding, module.vocabulary)
    about = ""
    if module.output != "softmax" or module.training_output != "softmax":
        about = f"These are the logits z below the output layer ({module.output}): that one is a control."
    return Portable(model, lambda ids_BT: module(plain_batch(ids_BT)).logits_BTV, {}, about)
