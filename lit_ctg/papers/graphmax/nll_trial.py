"""Held-out next-word likelihood of what may stand in softmax's place: variant by strength, over contexts of a fold.

Shape suffixes: N contexts, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.papers.graphmax.trial_scene import Contexts, Fold, Measure, contexts_of, pretty
from lit_ctg.papers.graphmax.trial_setting import check_real, check_softmax, check_whole, checked_methods
from lit_ctg.papers.graphmax.variant import Variant

BLOCK = 64
FLOOR = 1e-3  # uniform share mixed into a distribution with zeros


def target_nll(log_x_BV: Tensor, target_B: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the negative log-probability of each target ``[B]``, in nats, and whether it has no probability ``[B]``.

    The NLL of a distribution with zeros is that of (1 - ``floor``) of it and ``floor`` uniform.
    """
    hit_B1 = target_B.unsqueeze(1)
    zero_BV = log_x_BV == -math.inf
    log_p_B = log_x_BV.gather(1, hit_B1).squeeze(1)
    floored_B = ((1 - floor) * log_p_B.exp() + floor / log_x_BV.shape[-1]).log()
    return -torch.where(zero_BV.any(dim=1), floored_B, log_p_B), zero_BV.gather(1, hit_B1).squeeze(1)


class NextWordNll:
    """Mean negative log-probability of the next word of held-out reviews, in nats.

    Half of a fold's contexts choose the strength of each variant, the other half measure it (``.../chosen``); the
    numbers of every single strength rest on that other half too.

    A distribution with zeros (sparsemax, Algorithm 1) gives some words no chance and has an infinite NLL. Its share of
    impossible targets is reported as ``zero/...``; the NLL is then that of (1 - ``floor``) of it and ``floor`` uniform.

    Args:
        variants: name -> ``{variant: ..., strengths: [...]}``; no strengths for one that has none. A null variant is
            left out.
        contexts: next-word problems a fold.
        length: most tokens of left context.
        floor: uniform share mixed in where there are zeros.

    Names: ``nll/<scene>/<name>[/<strength>|/chosen]``, ``zero/...``, and of every variant at every strength
    ``shift/...`` (mean total variation to softmax), ``top/...`` (share of contexts whose top word changes),
    ``attested/...`` (mean mass on attested successors of the last word).

    Raises:
        UserError: an unknown variant, variants without softmax, or a number out of its range.
    """

    first_fold_only = False

    def __init__(
        self, *, variants: Mapping[str, Mapping[str, Any]], contexts: int, length: int, floor: float = FLOOR
    ) -> None:
        where = "callback.graphmax_trial.parts.likelihood"
        self.variants = checked_methods(f"{where}.variants", variants, strengths="strengths")
        check_softmax(f"{where}.variants", self.variants)
        check_whole(where, 1, contexts=contexts, length=length)
        check_real(where, above=0, most=1, floor=floor)
        self.contexts, self.length, self.floor = contexts, length, floor

    def positions(self, vocabulary: Tokenizer) -> int:
        """Return the positions of the language model that are needed."""
        return self.length

    def measure(self, fold: Fold, module: LightningModule) -> tuple[dict[str, Measure], list[dict[str, Any]]]:
        found = contexts_of(fold, module, contexts=2 * self.contexts, length=self.length)
        half = torch.arange(len(found.last_N), device=found.last_N.device) % 2 == 0
        base = f"nll/{fold.scene}/softmax"
        numbers: dict[str, Measure] = {}
        for name, setting in self.variants.items():
            variant, strengths = fold.variant(setting["variant"]), setting.get("strengths") or []
            prefix = f"{fold.scene}/{name}"
            if not strengths:
                numbers |= self._numbers(fold, variant, 1.0, found, ~half, prefix, base)[0]
            best = (math.inf, math.nan)
            for strength in strengths:
                measured, nll_N = self._numbers(
                    fold, variant, strength, found, ~half, f"{prefix}/{pretty(strength)}", base
                )
                numbers |= measured
                best = min(best, (float(nll_N[half].mean()), float(nll_N[~half].mean())))
            if strengths:
                numbers[f"nll/{prefix}/chosen"] = Measure(best[1], "nats", "lower", int((~half).sum()), base)
        return numbers, []

    def _numbers(
        self,
        fold: Fold,
        variant: Variant,
        strength: float,
        found: Contexts,
        counted_N: Tensor,
        name: str,
        base: str,
    ) -> tuple[dict[str, Measure], Tensor]:
        """Return the numbers over the counted contexts, and the NLL of each of all contexts."""
        columns = [
            self._block(fold, variant, strength, logits_BV, last_B, target_B)
            for logits_BV, last_B, target_B in zip(
                found.logits_NV.split(BLOCK), found.last_N.split(BLOCK), found.target_N.split(BLOCK), strict=True
            )
        ]
        values = {key: torch.cat([block[key] for block in columns]) for key in columns[0]}
        n = int(counted_N.sum())
        mean = {key: value_N[counted_N].double().mean().item() for key, value_N in values.items()}
        numbers = {
            f"nll/{name}": Measure(mean["nll"], "nats", "lower", n, base),
            f"zero/{name}": Measure(mean["zero"], "rate", "lower", n),
            f"shift/{name}": Measure(mean["shift"], "total variation", "none", n),
            f"top/{name}": Measure(mean["top"], "rate", "none", n),
            f"attested/{name}": Measure(mean["attested"], "probability", "higher", n, f"attested/{fold.scene}/softmax"),
        }
        return numbers, values["nll"]

    def _block(
        self, fold: Fold, variant: Variant, strength: float, logits_BV: Tensor, last_B: Tensor, target_B: Tensor
    ) -> dict[str, Tensor]:
        log_x_BV = variant(logits_BV, last_B, strength).double().log_softmax(dim=-1)
        x_BV, softmax_BV = log_x_BV.exp(), logits_BV.double().softmax(dim=-1)
        nll_B, zero_B = target_nll(log_x_BV, target_B, self.floor)
        attested_BV = fold.graph.successors(last_B, x_BV) > 0
        return {
            "nll": nll_B,
            "zero": zero_B,
            "shift": (x_BV - softmax_BV).abs().sum(dim=1) / 2,
            "top": x_BV.argmax(dim=1) != softmax_BV.argmax(dim=1),
            "attested": (x_BV * attested_BV).sum(dim=1),
        }
