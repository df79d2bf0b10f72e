"""What is carried from one stretch of the streams to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_ctg.core.model import Batch
from lit_ctg.papers.nslm.occurrence import Carry


@dataclass
class Stream:
    """State of the network, what stood before, and the neural cache; None at the beginning."""

    state: Any = None
    contexts: Carry | None = None
    cache: Any = None

    def enter(self, batch: Batch) -> None:
        """Forget everything before rows that are no streams, or other streams: they begin anew each time."""
        reset = batch.get("reset_B")
        if reset is None or self.contexts is None or len(self.contexts.document_B) != len(reset):
            self.state = self.contexts = self.cache = None
