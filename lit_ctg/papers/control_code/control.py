"""Control codes as portable controls: c W_c into layers of a frozen model, or a prefix of soft prompts.

y = [x; c] W + b (sec. 3.3) is x W_x + b, which a frozen layer already computes, plus c W_c, which is added here. The
prefix is the paper's other arm, the code before the text, with as many places as match the number of parameters.

Shape letters: B prompts, N rows, T positions, S sources, C code size, O outputs of a layer, P places, D hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import (
    Control,
    Prefix,
    Stage,
    StateHook,
    Values,
    generating,
    layer_named,
    row_values,
    shares,
)
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError, refuse
from lit_ctg.network.layers import linear_sizes, mixture_size

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class _Codes(Control):
    """Shared by both arms: one code per source, mixed by weights.

    A prompt's code is the weighted mean of the codes of its sources; without a weight the control is off.
    """

    paper, stage = "control_code", Stage.NETWORK

    def __init__(self, sources: Sequence[str], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.sources = tuple(sources)
        if len(set(self.sources)) < len(self.sources) or "strength" in self.sources or not self.sources:
            raise UserError(f"sources {', '.join(self.sources)}: give different names, none called strength")

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "weight of the code of {} beside the other codes; alone, any weight acts the same"
        weights = (ControlSetting(name, meaning.format(name), None, low=0.0) for name in self.sources)
        return (ControlSetting("strength", "factor of the code; 0: no code", 1.0, low=0.0), *weights)

    def weights(self, values: Values) -> Tensor:
        """Return the shares [B, S] of the sources, 0 for a prompt without any."""
        return shares(self.sources, values)

    def off(self, values: Values) -> Tensor:
        return super().off(values) | (self.weights(values).sum(1) == 0)


class NeuronCodes(_Codes):
    """Feeds the code of a source into layers of a frozen model by adding c W_c to their output.

    Args:
        weights: path of a layer in the model (``transformer.h.0.mlp.c_fc``) -> W_c, [O, C].
    """

    kind = "neuron_codes"

    def __init__(
        self, sources: Sequence[str], codes_SC: Tensor, weights: Mapping[str, Tensor], *, name: str | None = None
    ) -> None:
        super().__init__(sources, name=name)
        self.codes_SC = codes_SC.detach()
        self.layers = {path: weight.detach() for path, weight in weights.items()}
        wrong = [path for path, weight in self.layers.items() if weight.shape[1:] != codes_SC.shape[1:]]
        if len(codes_SC) != len(self.sources) or wrong or not self.layers:
            raise ValueError(f"{len(codes_SC)} codes for {len(self.sources)} sources, or weights of another code size")

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        for path, weight in self.layers.items():
            size = output_size(layer_named(model, path, self.name))
            if size != len(weight):
                raise UserError(f"control {self.name}: {path} gives {size} numbers, the code's weights {len(weight)}")

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        code_BC = values["strength"].unsqueeze(1) * (self.weights(values) @ self.codes_SC.double().cpu())
        off_B = self.off(values)
        # our exported models (``portable.py``) move padding to the end of its row, where no token sees it
        at_end = bool(getattr(generating(model), "padding_last", False))
        own = [model.register_forward_pre_hook(self._without_own, with_kwargs=True)] if _has_codes(model) else []
        return own + [
            layer_named(model, path, self.name).register_forward_hook(
                StateHook(torch.add, [code_BC @ weight.double().cpu().T], off_B, None if at_end else prefix)
            )
            for path, weight in self.layers.items()
        ]

    def _without_own(self, _module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let one of our exported models (``portable.py``) run without its own code: the code comes from here."""
        if options.get("control_weights") is None and options.get("control_code") is None:
            ids = options["input_ids"] if "input_ids" in options else inputs[0]
            options = {**options, "control_weights": torch.zeros(len(ids), len(self.sources), device=ids.device)}
        return inputs, options

    def config(self) -> dict[str, Any]:
        return {"sources": list(self.sources), "layers": list(self.layers)}

    def tensors(self) -> dict[str, Tensor]:
        return {"codes": self.codes_SC, **{f"weight.{path}": weight for path, weight in self.layers.items()}}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> NeuronCodes:
        weights = {path: tensors[f"weight.{path}"] for path in config["layers"]}
        return cls(config["sources"], tensors["codes"], weights)


def _has_codes(model: Any) -> bool:
    return "control_weights" in inspect.signature(model.forward).parameters


class SoftPrompt(_Codes):
    """Puts soft prompts of a source before the text; only in ``Steered``, which reserves places for them.

    Args:
        prompts_SPD: P embeddings per source.
    """

    kind = "soft_prompt"
    excludes = frozenset({"soft_prompt"})

    def __init__(self, sources: Sequence[str], prompts_SPD: Tensor, *, name: str | None = None) -> None:
        super().__init__(sources, name=name)
        if prompts_SPD.dim() != 3 or len(prompts_SPD) != len(self.sources):
            raise ValueError(f"soft prompts of shape {tuple(prompts_SPD.shape)} for {len(self.sources)} sources")
        self.prompts_SPD = prompts_SPD.detach()

    def columns(self, settings: Mapping[str, Any], rows: int) -> int:
        off_B = self.off(self.values(settings, rows))
        if bool(off_B.any()) and not bool(off_B.all()):
            raise UserError(
                f"control {self.name}: the prompts of a batch all have a code in front or none; give those without "
                "one (strength 0, or no weight) another batch"
            )
        return 0 if bool(off_B.all()) else self.prompts_SPD.shape[1]

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        places = self.prompts_SPD.shape[1]
        if prefix.hidden != places:
            raise UserError(f"control {self.name} needs places before the prompts: generate with Steered(model, ...)")
        shares_BS = values["strength"].unsqueeze(1) * self.weights(values)
        given_BPD = torch.einsum("bs,spd->bpd", shares_BS, self.prompts_SPD.double().cpu())

        def put(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            length = prefix.newest(inputs[0]).shape[1]
            first = length - output.shape[1]  # column of the prefix at which the text begins
            if first >= places:
                return output
            given_NPD = row_values(given_BPD, len(output))[:, first : first + output.shape[1]].to(output)
            return torch.cat([given_NPD, output[:, given_NPD.shape[1] :]], dim=1)

        return [model.get_input_embeddings().register_forward_hook(put)]

    def shape(self) -> dict[str, int]:
        return {"hidden_size": self.prompts_SPD.shape[2]}

    def config(self) -> dict[str, Any]:
        return {"sources": list(self.sources)}

    def tensors(self) -> dict[str, Tensor]:
        return {"prompts": self.prompts_SPD}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> SoftPrompt:
        return cls(config["sources"], tensors["prompts"])


def of_run(module: Any, datamodule: Any, decoding: Any) -> Control:
    """Return the control of a finished run: the codes of an adapter, or of one of our own Transformers.

    The latter fit the model of ``lit-ctg export-model``, whose layers have the same names as here.

    Raises:
        UserError: a run without codes, or with codes that are part of the network: before the text, or in the cells.
    """
    from lit_ctg.papers.control_code.model import CodeGRUBackbone, CodeLinear, ControlCodeModule  # imports Lightning

    if hasattr(module, "control"):
        adapted: Control = module.control()
        return adapted
    code = module.code if isinstance(module, ControlCodeModule) else None
    layers = {path: layer for path, layer in module.named_modules() if isinstance(layer, CodeLinear) and layer.code_dim}
    refuse({
        "this run has no codes: export one with injection=neuron or prompt": code is None,
        "the codes of this run are part of its network (a token in front, or inputs of cells): lit-ctg export-model "
        "exports it with them; a control can be made of a run of control_code/transformer with injection=neuron, or of "
        "control_code/pretrained": not layers or isinstance(module.backbone, CodeGRUBackbone),
        "model.injection_attention=true: these codes also enter the attention, where a control cannot put them: "
        "lit-ctg export-model exports the model with them": code is not None and module.places.attention,
    })  # fmt: skip
    assert code is not None
    weights = {path: layer.weight[:, layer.in_features - layer.code_dim :].detach() for path, layer in layers.items()}
    return NeuronCodes(module.sources, code.weight.detach() * module.code_scale, weights)


def output_size(layer: nn.Module) -> int:
    """Return the output size of a linear layer or of a mixture of experts (``UserError``: it is neither)."""
    if (sizes := linear_sizes(layer)) is not None:
        return sizes[1]
    if (size := mixture_size(layer)) is not None:
        return size
    raise UserError(f"a {type(layer).__name__} is not a linear layer: codes enter linear layers")
