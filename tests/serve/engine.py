"""A small engine that calls a logits processor as vLLM does, on a Hugging Face model: rows come, go and move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lit_ctg.serve.processor import ControlProcessor

SWAP, ONE_WAY = SimpleNamespace(name="SWAP"), SimpleNamespace(name="UNIDIRECTIONAL")


def engine_config(model: Any, folder: str, **changes: Any) -> Any:
    """Return what the processor reads of vLLM's configuration."""
    own = {
        "model_config": SimpleNamespace(
            hf_config=model.config,
            tokenizer=folder,
            tokenizer_revision=None,
            architectures=["GPT2LMHeadModel"],
            enforce_eager=True,
        ),
        "parallel_config": SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        "scheduler_config": SimpleNamespace(async_scheduling=False),
        "cache_config": SimpleNamespace(enable_prefix_caching=False),
        "speculative_config": None,
        "use_v2_model_runner": False,
        "additional_config": {},
    }
    return SimpleNamespace(**(own | changes))


@dataclass(eq=False)
class Text:
    """One request."""

    prompt: list[int]
    settings: Mapping[str, Any]
    length: int
    output: list[int] = field(default_factory=list)

    @property
    def params(self) -> Any:
        return SimpleNamespace(extra_args=self.settings)


@dataclass
class Engine:
    """Writes greedily, at most ``most`` texts at a time; ``v2``: by the interface of the V2 runner."""

    model: Any
    processor: ControlProcessor
    most: int = 4
    v2: bool = False
    # of the newest step
    scores: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def logits(self, texts: Sequence[Text]) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([self.model(torch.tensor([[*t.prompt, *t.output]])).logits[:, -1] for t in texts])

    def write(self, texts: Sequence[Text]) -> list[list[int]]:
        (self._v2 if self.v2 else self._v1)(texts)
        return [text.output for text in texts]

    def _take(self, logits: torch.Tensor, rows: Sequence[Text]) -> None:
        self.scores = logits
        for text, token in zip(rows, logits.argmax(-1).tolist(), strict=True):
            text.output.append(token)

    def _v1(self, texts: Sequence[Text]) -> None:
        waiting, rows = list(texts), list[Text]()
        while waiting or rows:
            gone = [row for row, text in enumerate(rows) if len(text.output) == text.length]
            added, moved, kept = [], [], [None if row in gone else text for row, text in enumerate(rows)]
            free = [*gone, *range(len(kept), self.most)]
            while waiting and free:
                row = free.pop(0)
                text = waiting.pop(0)
                kept[row : row + 1] = [text]
                added.append((row, text.params, text.prompt, text.output))
            removed = [row for row in gone if kept[row] is None]
            while None in kept:  # the last row fills the first gap
                hole = kept.index(None)
                if (last := kept.pop()) is not None:
                    kept[hole] = last
                    moved.append((len(kept), hole, ONE_WAY))
            if len(kept) > 1 and len(kept[0].output) % 3 == 1:  # type: ignore[union-attr] # no gap is left
                kept[0], kept[-1] = kept[-1], kept[0]
                moved.append((0, len(kept) - 1, SWAP))
            rows = [text for text in kept if text is not None]
            changes = removed or added or moved
            update = SimpleNamespace(batch_size=len(rows), removed=removed, added=added, moved=moved)
            self.processor.update_state(update if changes else None)
            if rows:
                self._take(self.processor.apply(self.logits(rows)), rows)

    def _v2(self, texts: Sequence[Text]) -> None:
        states, waiting, slots = self.processor.states, list(texts), dict[int, Text]()
        while waiting or slots:
            slots = {slot: text for slot, text in slots.items() if len(text.output) < text.length}
            for slot in range(self.most):
                if waiting and slot not in slots:
                    slots[slot] = text = waiting.pop(0)
                    self.processor.add_request(slot, text.params)
                    states.prompt_len.np[slot] = len(text.prompt)
            order = sorted(slots, reverse=len(waiting) % 2 == 0)  # rows are in any order
            for slot, text in slots.items():
                ids = torch.tensor([*text.prompt, *text.output])
                states.all_token_ids.gpu[slot, : len(ids)] = ids
            rows = [slots[slot] for slot in order]
            lengths = np.array([len(text.prompt) + len(text.output) for text in rows])
            if rows:
                ctx = SimpleNamespace(idx_mapping_np=np.array(order), seq_lens_upper_bound_np=lengths)
                self._take(self.processor.apply(self.logits(rows), ctx), rows)


def v2_states(most: int) -> Any:
    """Return the states of the requests in the V2 runner."""
    ids = SimpleNamespace(gpu=torch.zeros(most, 64, dtype=torch.long))
    return SimpleNamespace(all_token_ids=ids, prompt_len=SimpleNamespace(np=np.zeros(most, dtype=np.int64)))
