"""Graphmax and its variants as a portable control: a scene graph over a model's ids (sec. 2.4, Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from lit_ctg.control.base import Control, Prefix, Stage, Values
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, NonNegative
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne, check_runs
from lit_ctg.papers.graphmax.variant import NAMES, OTHER_NAMES, Variant, VariantRule, chosen, variants

# softmax is the model itself
CHANGING = tuple(name for name in NAMES if name != "softmax")


class Graphmax(Control):
    """Replaces softmax by graphmax, or by another output layer over a word graph.

    Args:
        graph: over the ids of the language model.
        variant: output layer, a name of ``variant.NAMES``.
        lam: the default strength lambda (sec. 5.1 sets 1).
        published: numbers of Algorithm 1, for ``variant="algorithm_one"``.

    Raises:
        UserError: no such variant, or one without effect.
    """

    kind, paper, stage = "graphmax", "graphmax", Stage.DISTRIBUTION
    excludes = frozenset({"graphmax"})
    not_weights = "row|column"

    def __init__(
        self,
        graph: CooccurrenceGraph,
        *,
        variant: Annotated[str, Choice(CHANGING, OTHER_NAMES)] = "graphmax",
        lam: NonNegative = 1.0,
        published: AlgorithmOne | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.variant = variant
        check_runs(published, "published", needed=variant == "algorithm_one")
        self.graph, self.lam, self.published = graph, lam, published

    @classmethod
    def counted(cls, texts: Sequence[Sequence[int]], size: int, **options: Any) -> Graphmax:
        """Return the control over the word pairs of texts."""
        return cls(CooccurrenceGraph.from_token_ids(texts, size), **options)

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (ControlSetting("strength", "lambda, the pull towards the word pairs; 0: softmax", self.lam, low=0.0),)

    @cached_property
    def layer(self) -> Variant:
        return chosen(self.variant, variants(self.graph, published=self.published))

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        return VariantRule(self.layer, values["strength"])

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.graph.vocab_size}

    def config(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "lam": self.lam,
            "published": None if self.published is None else asdict(self.published),
            "vocab_size": self.graph.vocab_size,
            "information": self.graph.information,
        }

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array) for name, array in self.graph.arrays().items()}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Graphmax:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        published = config["published"]
        return cls(
            CooccurrenceGraph.of_arrays(arrays, config["vocab_size"], config["information"]),
            variant=config["variant"],
            lam=config["lam"],
            published=None if published is None else AlgorithmOne(**published),
        )


def of_run(module: Any, datamodule: Any, decoding: Any) -> Graphmax:
    """Return the control of a finished run: its graph under the output layer of its decoding.

    Raises:
        UserError: a run without a graph or with plain softmax.
    """
    from lit_ctg.papers.graphmax.model import GraphmaxModule  # imports Lightning

    if not isinstance(module, GraphmaxModule):
        raise UserError(f"a {type(module).__name__} has no output layer over a graph: export a run of graphmax/main")
    variant = getattr(decoding, "variant", "graphmax")
    return Graphmax(
        module.graph,
        variant=variant,
        lam=float(getattr(decoding, "strength", module.strength)),
        published=module.published,
    )
