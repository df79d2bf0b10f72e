"""Low-rank adapters as a control: x A^T B^T is added to the outputs of layers (Hu et al., arXiv 2106.09685, sec. 4.1).

A run on a pretrained model that trains adapters beside its own parts (``backbone.lora``) exports them as this control:
what else it exports was trained on the states of the adapted model.

Shape letters: N rows, T positions, R rank, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import Control, Prefix, Stage, Values, layer_named, row_values
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError
from lit_ctg.files import replacing
from lit_ctg.network.layers import linear_sizes

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class LoRA(Control):
    """Adds low-rank updates to the outputs of layers (LoRA), as they were trained or a multiple of them.

    Args:
        adapters: path of a layer in the model (``transformer.h.0.attn.c_attn``) -> A [R, I] and B [O, R], the scale of
            the adapter in B.

    Raises:
        UserError: no adapter, or matrices that do not fit together.
    """

    kind, stage = "lora", Stage.NETWORK

    def __init__(self, adapters: Mapping[str, tuple[Tensor, Tensor]], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.adapters = {path: (down.detach(), up.detach()) for path, (down, up) in adapters.items()}
        wrong = [path for path, (down, up) in self.adapters.items() if down.shape[:1] != up.shape[1:]]
        if wrong or not self.adapters:
            raise UserError(f"control {self.name}: {wrong[0] if wrong else 'it'} has no two matrices of one rank")

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (ControlSetting("strength", "multiplies the updates: 1 as trained, 0 the model itself", 1.0, low=0.0),)

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        for path, (down_RI, up_OR) in self.adapters.items():
            sizes = linear_sizes(layer_named(model, path, self.name)) or ()
            if sizes != (down_RI.shape[1], up_OR.shape[0]):
                raise UserError(
                    f"control {self.name}: {path} is made for {down_RI.shape[1]} inputs and {up_OR.shape[0]} outputs, "
                    f"this model's has {' and '.join(map(str, sizes)) or 'none'}: use the model it was made for"
                )

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        return [
            layer_named(model, path, self.name).register_forward_hook(_Update(*pair, values["strength"], prefix))
            for path, pair in self.adapters.items()
        ]

    def config(self) -> dict[str, Any]:
        return {"layers": list(self.adapters)}

    def tensors(self) -> dict[str, Tensor]:
        pairs = self.adapters.items()
        return {f"{part}.{path}": pair[number] for path, pair in pairs for number, part in enumerate(("A", "B"))}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> LoRA:
        return cls({path: (tensors[f"A.{path}"], tensors[f"B.{path}"]) for path in config["layers"]})

    def save_adapter(self, folder: str | Path) -> None:
        """Write the adapters as peft and vLLM's ``--enable-lora`` read them; zeros make their ranks equal.

        Raises:
            UserError: the folder cannot be written.
        """
        from safetensors.torch import save_file

        rank, tensors = max(len(down) for down, _ in self.adapters.values()), {}
        for path, (down_RI, up_OR) in self.adapters.items():
            more = rank - len(down_RI)
            tensors[f"base_model.model.{path}.lora_A.weight"] = nn.functional.pad(down_RI, (0, 0, 0, more)).contiguous()
            tensors[f"base_model.model.{path}.lora_B.weight"] = nn.functional.pad(up_OR, (0, more)).contiguous()
        # the scale is lora_alpha / r
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none"}
        with replacing(folder) as temporary:
            temporary.mkdir(parents=True, exist_ok=True)
            save_file(tensors, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
            content = json.dumps({**config, "target_modules": list(self.adapters)}, indent=1)
            (temporary / "adapter_config.json").write_text(content + "\n", encoding="utf-8")


class _Update:
    """A forward hook: adds a multiple of x A^T B^T, a number for each row; a row of 0 keeps its output."""

    def __init__(self, down_RI: Tensor, up_OR: Tensor, strength_B: Tensor, prefix: Prefix) -> None:
        self.down_RI, self.up_OR, self.strength_B, self.prefix = down_RI, up_OR, strength_B, prefix

    def __call__(self, _module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        read = inputs[0]
        if self.down_RI.device != read.device or self.down_RI.dtype != read.dtype:  # once a decoding
            self.down_RI, self.up_OR = self.down_RI.to(read), self.up_OR.to(read)
        # some layers (not GPT-2's) may see the positions of all rows as one row
        strength_N = row_values(self.strength_B, len(output)).to(output)
        strength = strength_N.view(-1, *([1] * (output.dim() - 1)))
        update = nn.functional.linear(nn.functional.linear(read, self.down_RI), self.up_OR)
        off = strength == 0
        if self.prefix.reply is not None and output.dim() == 3:
            real_Nt = self.prefix.real(len(output), output.shape[1])
            off = off if real_Nt is None else off | ~real_Nt.unsqueeze(-1)
        return torch.where(off, output, output + strength * update.to(output))
