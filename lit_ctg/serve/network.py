"""vLLM's models whose hidden states controls read and change: registered under the names of the originals.

The rows of layers are tokens, those of ``compute_logits`` requests. vLLM joins layers that read the same input, so a
layer of the Hugging Face model may be a part of one here.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.llama import LlamaForCausalLM as _Llama
from vllm.model_executor.models.mistral import MistralForCausalLM as _Mistral
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM as _Qwen2
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM as _Qwen3

from lit_ctg.errors import UserError
from lit_ctg.serve.plugin import shared

# a layer of the Hugging Face model -> the layer here, and which of its parts
JOINED = {
    **{f"{name}_proj": ("qkv_proj", place) for place, name in enumerate("qkv")},
    **{f"{name}_proj": ("gate_up_proj", place) for place, name in enumerate(("gate", "up"))},
}


class _Controlled:
    """Runs the hooks of the twin on what the layers compute, and keeps what the output layer reads."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg] # of the model beside
        self._shared = shared(vllm_config)
        served = self._shared.served
        if served is not None and served.in_layers:
            served.place(next(self.parameters()))  # type: ignore[attr-defined] # as above
            for path in served.paths():
                self._hook(path)

    def _hook(self, path: str) -> None:
        above, _, name = path.rpartition(".")
        own, part = JOINED.get(name, (name, None))
        try:
            layer = self.get_submodule(f"{above}.{own}")  # type: ignore[attr-defined] # as above
        except AttributeError:
            layer = None
        if layer is None or not above:
            raise UserError(f"a control changes {path}, which vLLM does not run as a layer of tokens")

        def put(_module: Any, inputs: Any, output: Any) -> Any:
            served = self._shared.served
            first, second = output if isinstance(output, tuple) else (output, None)
            if hasattr(layer, "input_layernorm"):  # of a block: what it adds, and the stream before it
                return served.changed(path, inputs, first + second), torch.zeros_like(second)
            if part is None:
                changed = served.changed(path, inputs, first)
            else:
                parts = list(first.split(layer.output_sizes, dim=-1))
                parts[part] = served.changed(path, inputs, parts[part])
                changed = torch.cat(parts, dim=-1)
            return (changed, second) if isinstance(output, tuple) else changed

        layer.register_forward_hook(put)

    def forward(self, input_ids: Any, positions: Any, *rest: Any, **options: Any) -> Any:
        served = self._shared.served
        if served is not None and served.in_layers:
            known = get_forward_context().attn_metadata
            if isinstance(known, dict):
                starts = next(iter(known.values())).query_start_loc.cpu().long()
                slots = self._shared.slots
                requests = [slots[row] for row in range(len(slots))]
                counts = starts.diff()[: len(requests)]
                row_T = torch.arange(len(requests)).repeat_interleave(counts)
                row_T = torch.cat([row_T, row_T[-1:].expand(len(positions) - len(row_T))])  # padding
                served.attach(requests, row_T, positions.cpu().long())
            else:  # a pass that measures memory
                served.detach()
        return super().forward(input_ids, positions, *rest, **options)  # type: ignore[misc] # as above

    def compute_logits(self, hidden_states: Any, *rest: Any) -> Any:
        self._shared.states, self._shared.head = hidden_states, self.lm_head.weight  # type: ignore[attr-defined]
        return super().compute_logits(hidden_states, *rest)  # type: ignore[misc] # as above


class LlamaForCausalLM(_Controlled, _Llama):
    pass


class MistralForCausalLM(_Controlled, _Mistral):
    pass


class Qwen2ForCausalLM(_Controlled, _Qwen2):
    pass


class Qwen3ForCausalLM(_Controlled, _Qwen3):
    pass
