"""The control-code models as Hugging Face models: `generate(ids, control_code=...)` (`lit-ctg export-model`).

Shape letters: B rows, T positions, S sources, C code size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from lit_ctg.errors import UserError
from lit_ctg.network.portable import Portable, PortableConfig, PortableLM
from lit_ctg.network.transformer import SinusoidalPosition
from lit_ctg.papers.control_code.model import (
    LONGEST,
    CodeGRUBackbone,
    CodeLinear,
    CodeState,
    CodeTransformerBackbone,
    ControlCodeModule,
)


class ControlCodeConfig(PortableConfig):
    """Sizes of a control-code model; ``sources`` are the names of the codes."""

    model_type = "lit_ctg_control_code"


class ControlCodeForCausalLM(PortableLM):
    """Transformer or GRU conditioned on one code per row (sec. 3): as a first token, in every layer, or not at all.

    ``forward`` and ``generate`` take ``control_code`` (an index into ``config.sources`` for each row) or
    ``control_weights`` [B, S], which mix the codes; a model with codes needs one of them.
    """

    config_class = ControlCodeConfig
    row_arguments = {"control_code": 0, "control_weights": 1}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sizes = config.sizes
        dim, code_dim = sizes["dim"], sizes["code_dim"]
        self.embedding = nn.Embedding(config.vocab_size, dim)
        self.output = CodeLinear(dim, config.vocab_size, code_dim * sizes["code_in_output"], quick=True)
        kind = CodeGRUBackbone if sizes["recurrent"] else CodeTransformerBackbone
        self.backbone = kind(**sizes["backbone"], dim=dim, code_dim=code_dim, code_layers=sizes["code_layers"])
        size = code_dim or dim * sizes["code_token"]
        self.code = nn.Embedding(len(config.sources), size) if size else None
        self.position = SinusoidalPosition(dim, LONGEST) if sizes["positions"] else None
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        control_code: Tensor | Sequence[int] | int | None = None,
        control_weights: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Return logits [B, T, V] of [h; c] W + b (sec. 3.3)."""
        code_BC = self.codes(len(input_ids), control_code, control_weights)
        return self.aligned(input_ids, attention_mask, lambda ids_BT: self.scores(ids_BT, code_BC), labels)

    def codes(
        self, rows: int, control_code: Tensor | Sequence[int] | int | None, control_weights: Tensor | None
    ) -> Tensor | None:
        """Return the code [B, C] of every row; None for a model without codes.

        Raises:
            ValueError: no code, an unknown one, or neither one nor ``rows`` of them; weights of another shape.
        """
        if self.code is None:
            return None
        table_SC, sources = self.code.weight, self.config.sources
        if control_weights is not None:
            weights_BS = torch.as_tensor(control_weights).to(table_SC)
            if weights_BS.shape not in ((rows, len(sources)), (1, len(sources)), (len(sources),)):
                raise ValueError(f"control_weights has shape {tuple(weights_BS.shape)}: give {len(sources)} weights, "
                                 f"or as many for each of the {rows} rows")  # fmt: skip
            return (weights_BS @ table_SC).expand(rows, -1) * self.config.sizes["code_scale"]
        named = f"({', '.join(f'{number}: {name}' for number, name in enumerate(sources))})"
        if control_code is None:
            raise ValueError(f"this model needs a code: give control_code=<number> {named}, one or one a row")
        code_B = torch.as_tensor(control_code, device=table_SC.device).reshape(-1)
        if code_B.is_floating_point() or not ((code_B >= 0) & (code_B < len(sources))).all():
            raise ValueError(f"control_code={code_B.tolist()}: the codes are {named}")
        if len(code_B) not in (1, rows):
            raise ValueError(f"control_code has {len(code_B)} codes for {rows} rows: give one, or one a row")
        return table_SC[code_B.expand(rows)] * self.config.sizes["code_scale"]

    def scores(self, ids_BT: Tensor, code_BC: Tensor | None) -> Tensor:
        """Return the logits of rows without padding on the left."""
        sizes = self.config.sizes
        hidden_BTD = self.embedding(ids_BT) * sizes["word_scale"]
        in_layers_BC = code_BC if sizes["code_dim"] else None
        in_front = sizes["code_token"] and code_BC is not None
        if in_front and code_BC is not None:
            hidden_BTD = torch.cat((code_BC.unsqueeze(1), hidden_BTD), dim=1)
        if self.position is not None:
            hidden_BTD = hidden_BTD + self.position(torch.arange(hidden_BTD.shape[1], device=ids_BT.device))
        hidden_BTD = self.backbone(hidden_BTD, in_layers_BC)
        return self.output(hidden_BTD[:, 1:] if in_front else hidden_BTD, in_layers_BC)


def portable(module: Any, datamodule: Any) -> Portable:
    """Return a run's model.

    Raises:
        UserError: codes on a pretrained model; the published positions, which depend on the row's index in its batch.
    """
    if not isinstance(module, ControlCodeModule):
        raise UserError(
            f"a {type(module).__name__} is not exported: its model is at backbone.path already, and the codes that "
            "were trained on it are a control (lit-ctg export)"
        )
    if module.by_row:
        raise UserError(
            "model.position=batch_row: the scores of such a model depend on the row's place in its batch, which "
            "no exported model knows: export a run of regime=corrected"
        )
    if not module.sources:
        module.bind(datamodule.sources)
    backbone, places = module.backbone, module.places
    recurrent = isinstance(backbone, CodeGRUBackbone)
    parts: dict[str, Any] = {"layers": len(backbone.layers)}
    if recurrent:
        parts["dropout"] = backbone.dropout
    else:
        first = backbone.layers[0]
        parts |= {"heads": first.self_attn.num_heads, "feedforward_dim": first.linear1.out_features}
        parts |= {"dropout": first.dropout.p, "identical_layers": False, "quick": True}
        parts |= {"code_attention": places.attention}
    sizes = {
        "dim": backbone.dim,
        "recurrent": recurrent,
        "backbone": parts,
        "code_dim": places.code_dim,
        "code_layers": list(places.layers),
        "code_in_output": bool(places.output),
        "code_token": bool(places.token),
        "positions": module.position is not None,
        "word_scale": module.word_scale,
        "code_scale": module.code_scale,
    }
    config = ControlCodeConfig(
        sizes=sizes,
        vocab_size=len(module.vocabulary),
        hidden_size=backbone.dim,
        max_position_embeddings=module.context or LONGEST,
        sources=list(module.sources),
    )
    model = ControlCodeForCausalLM(config).eval()
    model.load_state_dict(module.state_dict(), strict=False)
    codes = torch.tensor([0, module.codes - 1])
    options = {"control_code": codes} if module.code is not None else {}

    def ours(ids_BT: Tensor) -> Tensor:
        weights = nn.functional.one_hot(codes, module.codes) if options else None
        state: CodeState = module.start(len(ids_BT), weights)
        return module.scores(module.hidden(ids_BT, state), state)

    named = ", ".join(f"{number} {name}" for number, name in enumerate(module.sources))
    about = f"`model.generate(ids, control_code=torch.tensor([0]))`; the codes: {named}." if options else ""
    never = [number for number in (module.vocabulary.unknown_id,) if number is not None]
    return Portable(model, ours, options, about, generation=partial(generation, never=never))


def generation(decoding: Mapping[str, Any], *, never: Sequence[int]) -> dict[str, Any]:
    """Return how ``CodeDecoding`` of these settings writes, as transformers names it.

    Of the authors' uniform draws it has the cut, not that the tokens left are equally likely.

    Args:
        decoding: ``choice``, ``top_k``, ``top_p``, ``new_tokens`` (see ``CodeDecoding``).
    """
    # texts end by their length alone
    options: dict[str, Any] = {"max_new_tokens": decoding["new_tokens"], "suppress_tokens": list(never) or None,
                            "eos_token_id": None}  # fmt: skip
    if decoding["choice"] == "greedy":
        return {**options, "do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if decoding["choice"] == "sample":
        return {**options, "top_k": 0}
    return {**options, "temperature": 1.0, "top_p": 1.0}
