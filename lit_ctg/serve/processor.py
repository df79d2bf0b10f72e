"""The logits processor that vLLM finds as an entry point: one class for both of its interfaces.

V1 reports which requests come, go and move between the rows of a batch. V2 gives each request a slot and, with every
step, the slot of each row. vLLM builds one processor for each worker, before the model in V1 and after it in V2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lit_ctg.errors import UserError
from lit_ctg.serve.batch import Request, ServedControls, checked, load_served
from lit_ctg.serve.plugin import check_engine, named, shared

try:
    from vllm.v1.sample.logits_processor import LogitsProcessor as V1
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2
except ImportError:  # the interface is tested without vLLM
    V1, V2 = type("V1", (), {}), type("V2", (), {})


class ControlProcessor(V1, V2):
    """Applies the controls of the engine to the scores; without controls it changes nothing.

    Args:
        vllm_config: of the engine.
        rest: V1: device and whether memory is pinned; V2: the states of the requests.

    Raises:
        UserError: a bundle is missing or does not fit, or the engine runs in a way that controls cannot follow.
    """

    def __init__(self, vllm_config: Any, *rest: Any) -> None:
        self.slots: dict[int, Request] = {}
        self.states = rest[0] if hasattr(rest[0], "all_token_ids") else None
        self.served: ServedControls | None = None
        if words := named(vllm_config):
            check_engine(vllm_config, words)
            from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer

            model = vllm_config.model_config
            tokenizer = load_tokenizer(model.tokenizer, model.tokenizer_revision, "tokenizer")
            self.served = ServedControls(words, model.hf_config, tokenizer)
        self.shared = shared(vllm_config)
        self.shared.served, self.shared.slots = self.served, self.slots

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with unknown settings (``ValueError``, which the server answers with 400)."""
        try:
            checked(load_served(named()), sampling_params.extra_args)
        except UserError as error:
            raise ValueError(str(error)) from error

    def is_argmax_invariant(self) -> bool:
        return False

    # V1 -------------------------------------------------------------------------------------------------------------

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests before a forward pass."""
        if self.served is None or batch_update is None:
            return
        for row in batch_update.removed:
            self.slots.pop(row, None)
        for row, params, prompt, output in batch_update.added:
            self.slots[row] = self.served.request(params.extra_args, prompt or (), output)
        for source, target, direction in batch_update.moved:
            moved, other = self.slots.pop(source, None), self.slots.pop(target, None)
            if moved is not None:
                self.slots[target] = moved
            if other is not None and direction.name == "SWAP":
                self.slots[source] = other

    # V2 -------------------------------------------------------------------------------------------------------------

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take the request of a slot; return whether a control acts on it."""
        if self.served is None:
            return False
        request = self.slots[req_idx] = self.served.request(sampling_params.extra_args, (), ())
        return bool(request.values) or request.failed

    def _rows(self, ctx: Any) -> Iterable[tuple[int, Request]]:
        """Yield the rows of a step with their requests, which know their texts."""
        states = self.states
        assert states is not None
        for row, (slot, length) in enumerate(zip(ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np, strict=True)):
            request = self.slots.get(int(slot))
            if request is not None and request.values:
                ids = states.all_token_ids.gpu[int(slot), : int(length)].tolist()
                prompt = int(states.prompt_len.np[int(slot)])
                request.prompt, request.output = ids[:prompt], ids[prompt:]
            if request is not None:
                yield row, request

    # both -----------------------------------------------------------------------------------------------------------

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """Return the scores [N, V] under the settings of each row's request."""
        if self.served is None:
            return logits
        rows = self.slots if ctx is None else dict(self._rows(ctx))
        head = self.shared.head
        self.served.place(logits if head is None else head, head)
        return self.served.apply(logits, rows, self.shared.states)
