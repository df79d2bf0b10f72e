"""The NNLM of a run as a Hugging Face model; the micro-models of the mixture are a control (`lit-ctg export-model`).

Shape letters: B rows, T positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.portable import Portable, PortableConfig, PortableLM, stack_arguments
from lit_ctg.papers.nslm.awd_lstm import AWDBackbone
from lit_ctg.papers.nslm.baselines import RecurrentBackbone, StatefulBackbone
from lit_ctg.papers.nslm.heads import AdaptiveHeads, OutputHeads


class NNLMConfig(PortableConfig):
    """Sizes of an NNLM."""

    model_type = "lit_ctg_nnlm"


class NNLMForCausalLM(PortableLM):
    """Embedding (with any grounded dimensions), LSTM, AWD-LSTM or GPT-2 stack, and Eq. 2 or an adaptive softmax."""

    config_class = NNLMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sizes = config.sizes
        self.embedding = nn.Embedding(config.vocab_size, sizes["dim"] - sizes["grounded"])
        self.register_buffer("grounded_VG", torch.zeros(config.vocab_size, sizes["grounded"]))
        kinds = {"lstm": RecurrentBackbone, "awd_lstm": AWDBackbone, "gpt2": GPT2Backbone}
        self.backbone = kinds[sizes["kind"]](**sizes["backbone"])
        self.output: nn.Linear | nn.AdaptiveLogSoftmaxWithLoss = nn.Linear(sizes["dim"], config.vocab_size)
        if sizes["cutoffs"]:
            clusters = sizes["cutoffs"], sizes["shrink"]
            self.output = nn.AdaptiveLogSoftmaxWithLoss(sizes["dim"], config.vocab_size, *clusters)
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        return self.output if isinstance(self.output, nn.Linear) else None

    def scores(self, ids_BT: Tensor) -> Tensor:
        embedded_BTD = torch.cat((self.embedding(ids_BT), self.grounded_VG[ids_BT]), -1)
        hidden_BTD = self.backbone(embedded_BTD)
        if isinstance(self.output, nn.Linear):
            return self.output(hidden_BTD)
        return self.output.log_prob(hidden_BTD.flatten(0, 1)).unflatten(0, hidden_BTD.shape[:2])


def portable(module: Any, datamodule: Any) -> Portable:
    """Return the NNLM of a run (``UserError``: the model of Table 7, or an unsupported backbone)."""
    heads, backbone = getattr(module, "heads", None), getattr(module, "backbone", None)
    if isinstance(backbone, RecurrentBackbone):
        lstm, kind = backbone.lstm, "lstm"
        parts = {"dim": backbone.dim, "layers": lstm.num_layers, "dropout": backbone.dropout.p, "init_range": 0.05}
    elif isinstance(backbone, AWDBackbone):
        kind, parts = "awd_lstm", backbone.arguments()
    elif isinstance(backbone, GPT2Backbone):
        kind, parts = "gpt2", stack_arguments(backbone)
    else:
        raise UserError(
            f"a {type(module).__name__} on {type(backbone).__name__} is not exported: use an NSLM with "
            "backbone=recurrent or gpt2 (the model of Table 7 reads no text)"
        )
    grounded = module.grounded_VG.shape[1]
    sizes = {"dim": backbone.dim, "kind": kind, "backbone": parts, "grounded": grounded}
    sizes |= (
        {"cutoffs": heads.edges[1:-1], "shrink": heads.shrink} if isinstance(heads, AdaptiveHeads) else {"cutoffs": []}
    )
    config = NNLMConfig(
        sizes=sizes,
        vocab_size=len(module.vocabulary),
        hidden_size=backbone.dim,
        max_position_embeddings=None if isinstance(backbone, StatefulBackbone) else backbone.context,
    )
    model = NNLMForCausalLM(config).eval()
    state = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    state |= {"embedding.weight": module.embedding.weight, "grounded_VG": module.grounded_VG}
    if isinstance(heads, AdaptiveHeads):
        state |= {f"output.{name}": value for name, value in heads.words.state_dict().items()}
    elif isinstance(heads, OutputHeads):
        state |= {"output.weight": heads.word_VD, "output.bias": heads.word_bias_V1.squeeze(1)}
    model.load_state_dict(state)

    def ours(ids_BT: Tensor) -> Tensor:
        hidden_BTD = backbone(module.embed(ids_BT))
        if isinstance(heads, AdaptiveHeads):
            return heads.log_words(hidden_BTD.flatten(0, 1)).unflatten(0, ids_BT.shape)
        assert isinstance(heads, OutputHeads)  # Eq. 2 before its softmax
        return nn.functional.linear(hidden_BTD, heads.word_VD) + heads.word_bias_V1.squeeze(1)

    about = "The neural language model of the run alone: class tags and micro-models are not in it."
    # a run's texts end by their length alone, and go on after the token of a line end
    return Portable(model, ours, {}, about, generation=lambda decoding: {"eos_token_id": None})
