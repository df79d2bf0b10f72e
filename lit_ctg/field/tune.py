"""Training of controls and judges in one plain loop that resumes where it was stopped.

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.core.batch import Batch
from lit_ctg.core.chat import text_ids
from lit_ctg.errors import UserError
from lit_ctg.files import replacing

# steps between two checkpoints
EVERY = 100
# steps between two looks at held-out data
LOOK = 50
CLIP = 1.0
WARM_UP = 0.05


def damaged(path: Path, reason: object, remove: Path) -> UserError:
    """Return the error of a kept file that cannot be used; without ``remove`` it is made again."""
    text = " ".join(str(reason).split())[:160]
    return UserError(f"{path} is damaged ({text}): delete {remove}, and the same command makes it again")


def read_kept(path: Path, remove: Path) -> Any:
    """Return the tensors and plain values that ``torch.save`` wrote to a file.

    Raises:
        UserError: missing or damaged; names the file and what to ``remove``.
    """
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds, some of which advise to run the file's code
        raise damaged(path, f"no weights can be read, {type(error).__name__}", remove) from None


def check_kept(values: Any, like: Mapping[Any, Tensor], path: Path, remove: Path) -> dict[Any, Tensor]:
    """Return kept tensors if they have the names, shapes and kinds of ``like`` and are finite."""
    if not isinstance(values, dict) or set(values) != set(like):
        raise damaged(path, f"it does not hold the {len(like)} tensors that belong here", remove)
    for name, own in like.items():
        value = values[name]
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (own.shape, own.dtype):
            raise damaged(path, f"{name} is not a tensor {list(own.shape)} of {own.dtype}", remove)
        if not bool(value.isfinite().all()):
            raise damaged(path, f"{name} has numbers that are not finite", remove)
    return values


def optimise(
    parameters: Iterable[nn.Parameter],
    loss_of: Callable[[np.random.Generator], Tensor],
    *,
    steps: int,
    learning_rate: float,
    seed: int,
    weight_decay: float = 0.01,
    checkpoint: Path | None = None,
    held_out: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Minimise a loss by AdamW with a short warm-up and a cosine to zero.

    Args:
        loss_of: draws a batch with the given generator and returns its loss; every step has its own generator, so an
            interrupted run continues exactly.
        steps: updates, at least one.
        seed: of the batches and of dropout.
        checkpoint: file to resume from, written every ``EVERY`` steps; removed at the end.
        held_out: the loss on data that is not trained on, read every ``LOOK`` steps and after the last; the parameters
            of the least are kept.

    Returns:
        ``loss``, the mean of the last tenth of the steps, and ``seconds_before``, those that the calls took from whose
        checkpoint this one went on; with ``held_out`` also ``held_out_loss``, the least, and ``kept_step``.

    Raises:
        UserError: a loss that is not finite, the held-out one at every look.
    """
    trained = list(parameters)
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=weight_decay)
    first, losses, before, began = 0, [], 0.0, time.monotonic()
    best: dict[str, Any] = {"loss": math.inf, "step": 0, "parameters": []}
    if checkpoint is not None and checkpoint.is_file():
        kept, like = read_kept(checkpoint, checkpoint), dict(enumerate(trained))
        try:
            values = check_kept(dict(enumerate(kept["parameters"])), like, checkpoint, checkpoint)
            for place, value in values.items():
                trained[place].data.copy_(value)
            optimizer.load_state_dict(kept["optimizer"])
            first, losses, before = int(kept["step"]), list(map(float, kept["losses"])), float(kept.get("seconds", 0))
            best = kept.get("best", best)
            if best["parameters"]:
                check_kept(dict(enumerate(best["parameters"])), like, checkpoint, checkpoint)
            best["loss"] = float(best["loss"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise damaged(checkpoint, error, checkpoint) from None
    for step in range(first, steps):
        torch.manual_seed(seed * 1_000_003 + step)
        rate = min(1.0, (step + 1) / max(1.0, WARM_UP * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        loss = loss_of(np.random.default_rng([seed, step]))
        cost = float(loss.detach())
        if not math.isfinite(cost):
            raise UserError(f"training diverged at step {step} of {steps}: lower the learning rate")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        losses.append(cost)
        if held_out is not None and ((step + 1) % LOOK == 0 or step + 1 == steps):
            with torch.no_grad():
                unseen = held_out()
            if unseen < best["loss"]:
                best = {"loss": unseen, "step": step + 1, "parameters": [value.detach().clone() for value in trained]}
        if checkpoint is not None and (step + 1) % EVERY == 0:
            with replacing(checkpoint) as temporary:
                state = {"parameters": [value.detach() for value in trained], "optimizer": optimizer.state_dict()}
                spent = before + time.monotonic() - began
                torch.save({**state, "step": step + 1, "losses": losses, "seconds": spent, "best": best}, temporary)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    tail = losses[-max(1, steps // 10) :]
    result = {"loss": sum(tail) / len(tail), "seconds_before": before}
    if held_out is None:
        return result
    if not best["parameters"]:
        raise UserError(f"training diverged within {steps} steps: lower the learning rate")
    for own, value in zip(trained, best["parameters"], strict=True):
        own.data.copy_(value)
    return {**result, "held_out_loss": best["loss"], "kept_step": best["step"]}


class Stream:
    """Texts as one stream of ids, each followed by an end token, and random windows of it.

    Args:
        texts: at least as long together as a window.
        start: ids before every text.

    Raises:
        UserError: the texts are shorter than a window.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str], length: int, *, start: Sequence[int] = ()) -> None:
        rows = text_ids(tokenizer, texts)
        end = tokenizer.eos_token_id
        # an end token also comes first: a text may begin with it
        self.ids = np.array([end, *(number for row in rows for number in (*start, *row, end))], dtype=np.int64)
        self.length = length
        if len(self.ids) < length + 2:
            raise UserError(f"{len(self.ids)} tokens of text for windows of {length}: give more text")

    def windows(self, generator: np.random.Generator, rows: int) -> Tensor:
        """Return ``rows`` random windows [B, T + 1]."""
        starts_B = generator.integers(0, len(self.ids) - self.length, size=rows)
        return torch.from_numpy(self.ids[starts_B[:, None] + np.arange(self.length + 1)])


def batch_of(ids_BT: Tensor) -> Batch:
    """Return windows as a batch of the papers' modules: every token but the last, and what follows it."""
    given, following = ids_BT[:, :-1], ids_BT[:, 1:]
    real = torch.ones_like(given).bool()
    return Batch(input_ids_BT=given, target_ids_BT=following, mask_input_BT=real, mask_target_BT=real)


def next_token_loss(model: Any, ids_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy of every token after the first, nats."""
    logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
    return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
