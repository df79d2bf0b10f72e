"""Replacements of softmax: Eq. 3, its ablations and its baselines as functions of one signature.

Top to bottom: the baselines of sec. 5.1, pulls towards the last word's successors, all variants by name, and as a score
rule. Shape suffixes: B contexts or rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import entmax
import torch
from torch import Tensor

from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, check_value
from lit_ctg.papers.graphmax.equation import GraphmaxResult, graphmax, sound_inputs, warn_uncertified
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph, Successors
from lit_ctg.papers.graphmax.model_step import log_normalized, log_wright_omega, solve_separable
from lit_ctg.papers.graphmax.published import AlgorithmOne

# Baselines of graphmax (sec. 5.1): softmax and sparsemax, as functions of the logits.
#
# Kernelised Bayesian softmax, the third baseline, has several sense vectors per word inside the language model, so it
# is not a function of the logits: see ``model.py``.


def softmax(logits_BV: Tensor) -> Tensor:
    """Return ``argmin -<x,z> + <x, log x>`` on the simplex (Eq. 1 and 2)."""
    return logits_BV.softmax(dim=-1)


def sparsemax(logits_BV: Tensor) -> Tensor:
    """Return the Euclidean projection of the logits on the simplex (Martins & Astudillo 2016), exact."""
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    # the support is within 1 of the largest entry, so clamped entries get 0 either way, and -inf does no harm
    return entmax.sparsemax(shifted_BV.clamp(min=-2), dim=-1)


def flattened(logits_BV: Tensor, entropy_B1: Tensor) -> Tensor:
    """Return log softmax(z / T) with, row by row, the T at which its entropy (nats) is the given one.

    The control that separates how flat a distribution is from what the graph does to it. The entropy grows with T, so
    bisection finds it, within the range in which a float can tell (T from 1e-4 to 1e4).
    """
    low_B1, high_B1 = torch.full_like(entropy_B1, -4.0), torch.full_like(entropy_B1, 4.0)
    z_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    for _ in range(BISECTIONS):
        middle_B1 = (low_B1 + high_B1) / 2
        flatter_B1 = entropy((z_BV / 10**middle_B1).softmax(dim=-1)) > entropy_B1
        low_B1, high_B1 = torch.where(flatter_B1, low_B1, middle_B1), torch.where(flatter_B1, middle_B1, high_B1)
    return (z_BV / 10 ** ((low_B1 + high_B1) / 2)).log_softmax(dim=-1)


def entropy(probs_BV: Tensor) -> Tensor:
    """Return the entropy of each row in nats, ``[B, 1]``."""
    return torch.special.entr(probs_BV).sum(dim=-1, keepdim=True)


# Graph penalties that use the previous word: x is pulled towards its successors a, a row of A~ (not in the paper).
#
# All keep the first two terms of Eq. 3. A word without successors (``a = 0``) does not pull, so its row is softmax.


ITERATIONS = 60
BISECTIONS = 40  # of a range of 8 decades
TOL = {torch.float32: 1e-6, torch.float64: 1e-12}


def squared_pull(logits_BV: Tensor, target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    """Return log x of ``argmin -<x,z> + <x, log x> + lambda ||x - a||^2``: Eq. 3 with ``A~ x`` replaced by a.

    Separable (``M = I``, ``z + 2 lambda a``), so Lambert's W solves it exactly; ``-inf`` logits stay.
    """
    pull_B1 = _pull(target_BV, strength_B1)
    curvature_BV = (2 * pull_B1).expand_as(logits_BV)
    return solve_separable(logits_BV + 2 * pull_B1 * target_BV, curvature_BV, tol=TOL[logits_BV.dtype])


def divergence_pull(logits_BV: Tensor, target: Successors, strength_B1: Tensor) -> Tensor:
    """Return log x of ``argmin -<x,z> + <x, log x> + lambda KL(a || x)``, which moves from softmax to a.

    Optimality: ``x_j u_j = lambda a_j`` with ``u_j = log x_j - z_j + c``, so ``u_j = W(lambda a_j exp(c - z_j))``.
    The sum over x is convex and decreasing in c, which is between log-sum-exp z and that plus lambda. Masked tokens
    (``-inf``) are removed from a.
    """
    z_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    # only successors are pulled: the others decrease together with c
    z_BK = z_BV.gather(1, target.ids_BK)
    log_weight_BK = (strength_B1 * target.weight_BK).log().masked_fill(z_BK.isinf(), float("-inf"))
    z_BK = z_BK.masked_fill(target.spare_BK, float("-inf"))
    log_rest_B1 = z_BV.scatter(1, target.ids_BK, float("-inf")).logsumexp(dim=-1, keepdim=True)
    c_B1 = z_BV.logsumexp(dim=-1, keepdim=True)
    for _ in range(ITERATIONS):
        log_x_BK, u_BK = _pulled(z_BK, log_weight_BK, c_B1)
        log_x_BL = torch.cat([log_x_BK, log_rest_B1 - c_B1], dim=-1)
        log_sum_B1 = log_x_BL.logsumexp(dim=-1, keepdim=True)
        falls_BL = 1 / (1 + torch.nn.functional.pad(u_BK, (0, 1)))
        # the log of the sum is also convex in c, and Newton on it makes longer steps than on the sum where that is
        # large
        step_B1 = log_sum_B1 / ((log_x_BL - log_sum_B1).exp() * falls_BL).sum(dim=-1, keepdim=True)
        # c grows with the strength, and with it the rounding error of a step
        if (step_B1.abs() <= TOL[logits_BV.dtype] * (1 + c_B1.abs())).all():
            break
        c_B1 = c_B1 + step_B1
    # an unused place repeats the first, so the same value is written again
    log_x_BK = torch.where(target.spare_BK, log_x_BK[:, :1], log_x_BK)
    return log_normalized((z_BV - c_B1).scatter_(1, target.ids_BK, log_x_BK))


def _pulled(z_BK: Tensor, log_weight_BK: Tensor, c_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Return log x and u of some tokens at a given c; u = 0 where nothing pulls."""
    pulled_BK = log_weight_BK > float("-inf")
    log_u_BK = log_wright_omega((log_weight_BK - z_BK + c_B1).where(pulled_BK, 0))
    u_BK = log_u_BK.exp().where(pulled_BK, 0)
    # two equivalent forms: the second does not cancel where u is large
    return torch.where(u_BK > 1, log_weight_BK - log_u_BK, z_BK - c_B1 + u_BK), u_BK


def interpolation(logits_BV: Tensor, target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    """Return the log of the mixture ``(softmax(z) + lambda a) / (1 + lambda)``: the effect of a plain bigram model."""
    pull_B1 = _pull(target_BV, strength_B1)
    target_BV = target_BV.masked_fill(logits_BV.isinf(), 0)
    return log_normalized(torch.logaddexp(logits_BV.log_softmax(dim=-1), (pull_B1 * target_BV).log()))


def _pull(target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    return strength_B1 * (target_BV.amax(dim=-1, keepdim=True) > 0)


# All variants by name.


# (logits_BV, last_ids_B, strength) -> log_probs_BV
Variant = Callable[[Tensor, Tensor, PerRow], Tensor]

NAMES = {
    "softmax": "Eq. 1; strength is ignored",
    "sparsemax": "sec. 5.1; strength is ignored; -inf for tokens it drops",
    "graphmax": "Eq. 3, certified",
    "algorithm_one": "the published solver, where its numbers are given",
    "transposed": "Eq. 3 on predecessors: counts transposed, then row-normalised",
    "spectral": "Eq. 3 on raw counts over mu_max",
    "second_order": "Eq. 3 on A~ + A~^2 (sec. 5.3, {2,3,4,5}-grams)",
    "power_2": "Eq. 3 on A~^2 alone (sec. 5.3)",
    "power_3": "Eq. 3 on A~^3 alone",
    "flattened": "softmax at the temperature that gives it the entropy of graphmax (ours: a control without a graph)",
    "successor": "lambda ||x - a||^2 with a the successors of the last token",
    "successor_divergence": "lambda KL(a || x)",
    "interpolation": "(softmax + lambda a) / (1 + lambda)",
}
# strength 0 of these is not softmax: one has no strength, the other stops on the way
OTHERWISE_AT_0 = frozenset({"sparsemax", "algorithm_one"})
OTHER_NAMES = {"published": "algorithm_one", "squared": "successor", "certified": "graphmax"}
VariantName = Annotated[str, Choice(NAMES, OTHER_NAMES)]


@dataclass
class Certificates:
    """How many rows the certified solver received and how many it certified, by variant."""

    rows: dict[str, int] = field(default_factory=dict)
    certified: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, result: GraphmaxResult) -> None:
        """Count the rows of one call."""
        self.rows[name] = self.rows.get(name, 0) + result.converged_B.numel()
        self.certified[name] = self.certified.get(name, 0) + int(result.converged_B.sum())


def variants(
    graph: CooccurrenceGraph,
    *,
    published: AlgorithmOne | None = None,
    row_edges: int = 256,
    certificates: Certificates | None = None,
) -> dict[str, Variant]:
    """Return every variant over one scene graph by name (``NAMES`` says what each is).

    A variant maps logits ``[B, V]`` (``-inf`` allowed), the last token of each context ``[B]`` and a strength (one, or
    one per row) to log-probabilities ``[B, V]``, without gradient. Strength 0 is softmax (except for
    those in ``OTHERWISE_AT_0``). A row that the certified solver does not certify causes a warning, and the run
    continues.

    Args:
        graph: row-normalised, order 1, with its counts; other graphs are derived from it when first used.
        published: Algorithm 1; without it there is no ``algorithm_one``.
        row_edges: edges per row that are kept of powers of A~.

    Raises:
        UserError: from a variant, for anything that :func:`~lit_ctg.papers.graphmax.equation.graphmax` refuses, and for
        a graph without counts (``transposed``, ``spectral`` and powers).
    """

    @cache
    def derived(name: str) -> CooccurrenceGraph:
        settings: dict[str, dict[str, Any]] = {
            "transposed": {"transposed": True},
            "spectral": {"normalization": "spectral"},
            "second_order": {"order": 2, "row_edges": row_edges},
            **{f"power_{order}": {"order": order, "alone": True, "row_edges": row_edges} for order in (2, 3)},
        }
        return graph.reweighted(**settings[name]) if name in settings else graph

    def on_graph(name: str, solver: str | AlgorithmOne = "certified") -> Variant:
        def solve(logits_BV: Tensor, last_ids_B: Tensor, strength: PerRow) -> Tensor:
            strength_B1 = per_row(strength, logits_BV)
            with torch.no_grad():
                result = graphmax(logits_BV, derived(name), strength_B1, solver=solver)
            if solver == "certified":
                warn_uncertified(result, f"output layer {name}")
                if certificates is not None:
                    certificates.add(name, result)
            return result.log_probs_BV

        return solve

    def on_successors(pull: Callable[[Tensor, Any, Tensor], Tensor], rows: Callable[..., Any]) -> Variant:
        def solve(logits_BV: Tensor, last_ids_B: Tensor, strength: PerRow) -> Tensor:
            with torch.no_grad():
                flat_BV, strength_B1 = sound_inputs(logits_BV, graph, per_row(strength, logits_BV))
                return pull(flat_BV, rows(last_ids_B, flat_BV), strength_B1)

        return solve

    def plain(function: Callable[[Tensor], Tensor]) -> Variant:
        def solve(logits_BV: Tensor, last_ids_B: Tensor, strength: PerRow) -> Tensor:
            with torch.no_grad():
                return function(sound_inputs(logits_BV, graph, 0.0)[0])

        return solve

    def flat(logits_BV: Tensor, last_ids_B: Tensor, strength: PerRow) -> Tensor:
        solved_BV = on_graph("graphmax")(logits_BV, last_ids_B, strength)
        with torch.no_grad():
            logits_BV = sound_inputs(logits_BV, graph, 0.0)[0]
            softmax_BV = logits_BV.log_softmax(dim=-1)
            same_B1 = per_row(strength, logits_BV) == 0
            return torch.where(same_B1, softmax_BV, flattened(logits_BV, entropy(solved_BV.exp())))

    found = {
        "softmax": plain(lambda logits_BV: logits_BV.log_softmax(dim=-1)),
        "sparsemax": plain(lambda logits_BV: sparsemax(logits_BV).log()),
        "graphmax": on_graph("graphmax"),
        "transposed": on_graph("transposed"),
        "spectral": on_graph("spectral"),
        **{name: on_graph(name) for name in ("second_order", "power_2", "power_3")},
        "flattened": flat,
        "successor": on_successors(squared_pull, graph.successors),
        "successor_divergence": on_successors(divergence_pull, graph.successor_entries),
        "interpolation": on_successors(interpolation, graph.successors),
    }
    return found if published is None else {**found, "algorithm_one": on_graph("graphmax", published)}


def chosen(name: str, found: Mapping[str, Variant]) -> Variant:
    """Return the variant of that name (``UserError``: no such variant)."""
    check_value("variant", name, Annotated[str, Choice(found, OTHER_NAMES)])
    return found[name]


class VariantRule(ScoreRule):
    """Any variant as a score rule: in our decoding loop and in ``generate(logits_processor=[rule])``.

    It sees the last token of each prefix (the decoder's, for an encoder-decoder model), so the variants that pull
    towards its successors also work. A row with strength 0 keeps its scores.

    Args:
        softmax_at_0: False if strength 0 of the variant is not softmax (``OTHERWISE_AT_0``): no row keeps its scores.
    """

    def __init__(self, variant: Variant, strength: PerRow = 1.0, *, softmax_at_0: bool = True):
        self.variant, self.strength, self.softmax_at_0 = variant, strength, softmax_at_0

    @classmethod
    def named(cls, name: str, found: Mapping[str, Variant], strength: PerRow = 1.0) -> VariantRule:
        """Return the rule of one of ``variants``; ``UserError`` names an unknown one."""
        return cls(chosen(name, found), strength, softmax_at_0=name not in OTHERWISE_AT_0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.dim() != 2 or input_ids.shape[1] == 0:
            raise UserError(f"input_ids of shape {tuple(input_ids.shape)} have no last token: give [B, T] with T >= 1")
        strength_B1 = per_row(self.strength, scores)
        log_probs_BV = self.variant(scores, input_ids[:, -1], strength_B1)
        if not self.softmax_at_0 or bool((strength_B1 > 0).all()):
            return log_probs_BV
        # in half precision the result would differ from the certified distribution
        return torch.where(strength_B1 == 0, scores.to(log_probs_BV), log_probs_BV)
