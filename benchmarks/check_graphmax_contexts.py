"""Graphmax on contexts of real text against an independent float64 reference; top-k, warm starts, Algorithm 1.

    python benchmarks/check_graphmax_contexts.py [--wikipedia local/wikipedia] [--yelp local/yelp]
        [--bpe local/gpt2_bpe] [--graph wikipedia|yelp] [--contexts 200] [--strengths 0.1 1 10] [--published 48]
        [--device cpu]

The language model is a bigram model (Witten-Bell) of encyclopedia text in GPT-2's tokens, the graph is counted on the
same text or on reviews, the contexts are runs of eight places of held-out reviews. The reference is Newton's method
with conjugate gradients over scipy's products, in float64 to a gap of 1e-12 nats; it shares no line with the solver.
Exit code 1 when a bound of docs/papers/graphmax.md does not hold.

Shape suffixes: N contexts, V vocabulary.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from lit_ctg.config import compose
from lit_ctg.data.byte_pair import GPT2Tokenizer
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.papers.graphmax import AlgorithmOne, CooccurrenceGraph, certify, graphmax
from lit_ctg.papers.graphmax.graph import token_ids
from lit_ctg.run.build import build_datamodule

RUN, BLOCK = 8, 16
# total variation to the reference; certificate anew in float64; products
DISTANCE, RECHECK, MEAN_PRODUCTS, MOST_PRODUCTS = 1e-3, 2e-6, 2.5, 5
TOP_K = (50, 500, 5000)
CLAMPS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-4)
ALGORITHM_ONE = Path(__file__).resolve().parents[1] / "conf" / "model" / "graphmax" / "algorithm_one.yaml"
PUBLISHED: AlgorithmOne = instantiate(OmegaConf.load(ALGORITHM_ONE))


@dataclass(frozen=True)
class Problem:
    """Contexts, the tokens that came, and the graph."""

    graph: CooccurrenceGraph
    logits_NV: Tensor
    target_N: Tensor


def corpus(name: str, root: str, *more: str) -> CorpusDataModule:
    """Return a corpus of a local folder."""
    words = [f"data={name}", "data.source=local", f"data.root={root}", "size=paper", "paper=graphmax", "name=check"]
    return build_datamodule(compose([*words, *more], experiment=False))


def problem(arguments: argparse.Namespace) -> Problem:
    """Count model and graph, draw the contexts."""
    vocabulary = GPT2Tokenizer(root=arguments.bpe)
    vocabulary.train([])
    yelp = corpus("reviews", arguments.yelp, "data.corpus=yelp")
    text = CooccurrenceGraph.from_token_ids(
        token_ids(corpus("wikipedia", arguments.wikipedia), "train", vocabulary), len(vocabulary)
    )
    graph = text
    if arguments.graph == "yelp":
        graph = CooccurrenceGraph.from_token_ids(token_ids(yelp, "train", vocabulary), len(vocabulary))
    rng = np.random.default_rng(0)
    reviews = [ids for ids in token_ids(yelp, "val", vocabulary) if len(ids) > RUN]
    places: list[np.ndarray] = []
    while sum(map(len, places)) < arguments.contexts:
        ids = reviews[rng.integers(len(reviews))]
        start = rng.integers(len(ids) - RUN)
        places.append(np.stack([ids[start : start + RUN], ids[start + 1 : start + RUN + 1]], axis=1))
    last_N, target_N = np.concatenate(places)[: arguments.contexts].T
    logits_NV = torch.from_numpy(np.log(bigram_probabilities(text, last_N))).float()
    return Problem(graph, logits_NV.to(arguments.device), torch.from_numpy(target_N).to(arguments.device))


def bigram_probabilities(text: CooccurrenceGraph, last_N: np.ndarray) -> np.ndarray:
    """Return ``[N, V]``: (c(v, w) + t(v) p(w)) / (c(v) + t(v)) with t(v) the number of words seen after v."""
    total_V = np.asarray(text.total_V, dtype=np.float64)
    seen_V = np.diff(text.matrix.indptr)
    unigram_V = np.asarray((sp.diags_array(total_V) @ text.matrix).sum(axis=0)).reshape(-1) + 1
    unigram_V /= unigram_V.sum()
    count_N1, kinds_N1 = total_V[last_N, None], np.maximum(seen_V[last_N, None], 1)
    return (count_N1 * text.matrix[last_N].toarray() + kinds_N1 * unigram_V) / (count_N1 + kinds_N1)


def log_softmax(z_V: np.ndarray) -> np.ndarray:
    """Return ``z - log sum exp z``."""
    z_V = z_V - z_V.max()
    return z_V - np.log(np.exp(z_V).sum())


class Reference:
    """Minimise Eq. 3 in float64: Newton steps in log x, each solved by conjugate gradients on the tangent space."""

    def __init__(self, matrix: sp.csr_array) -> None:
        self.forward = sp.csr_array(matrix, dtype=np.float64)
        self.backward = self.forward.T.tocsr()

    def product(self, x_V: np.ndarray) -> np.ndarray:
        """Return M x."""
        residual_V = x_V - self.forward @ x_V
        return residual_V - self.backward @ residual_V

    def objective(self, x_V: np.ndarray, z_V: np.ndarray, strength: float) -> float:
        """Return Eq. 3's objective as it stands."""
        residual_V = x_V - self.forward @ x_V
        entropy = x_V @ np.log(np.maximum(x_V, 1e-300))
        return float(-x_V @ z_V + entropy + strength * residual_V @ residual_V)

    def solve(self, z_V: np.ndarray, strength: float, tol: float = 1e-12) -> np.ndarray:
        """Return the optimum; ``RuntimeError`` when its gap does not come below ``tol`` nats."""
        u_V = log_softmax(z_V)
        for _ in range(200):
            x_V = np.exp(u_V)
            y_V = z_V - 2 * strength * self.product(x_V)
            if x_V @ (u_V - log_softmax(y_V)) < tol:
                return x_V
            root_V = np.sqrt(x_V)
            step_V = self._tangent(root_V, -root_V * (u_V - y_V), strength)
            change_V = log_softmax(y_V - 2 * strength * self.product(root_V * step_V)) - u_V
            size, before = 1.0, self.objective(x_V, z_V, strength)
            while self.objective(np.exp(log_softmax(u_V + size * change_V)), z_V, strength) > before + 1e-13:
                size /= 2
                if size < 1e-8:
                    raise RuntimeError("the reference found no way down")
            u_V = log_softmax(u_V + size * change_V)
        raise RuntimeError("the reference did not come to its gap")

    def _tangent(self, root_V: np.ndarray, side_V: np.ndarray, strength: float) -> np.ndarray:
        """Solve P (I + 2 lambda sqrt(x) M sqrt(x)) P s = P side, P the projection along sqrt(x)."""

        def project(v_V: np.ndarray) -> np.ndarray:
            return v_V - root_V * (root_V @ v_V)

        residual_V = project(side_V)
        s_V, way_V, square = np.zeros_like(side_V), residual_V, residual_V @ residual_V
        goal = 1e-8 * square
        for _ in range(200):
            if square <= goal:
                break
            image_V = project(way_V + 2 * strength * root_V * self.product(root_V * way_V))
            length = square / (way_V @ image_V)
            s_V, residual_V = s_V + length * way_V, residual_V - length * image_V
            square, old = residual_V @ residual_V, square
            way_V = residual_V + (square / old) * way_V
        return s_V


def distance(a_NV: Tensor, b_NV: Tensor) -> Tensor:
    """Return the total variation of each row."""
    return (a_NV.double() - b_NV.double()).abs().sum(dim=-1) / 2


def check(given: Problem, reference: Reference, strength: float) -> tuple[Tensor, bool]:
    """Print one line of the table; return the optimum and whether the bounds hold."""
    began = time.perf_counter()
    found = graphmax(given.logits_NV, given.graph, strength)
    seconds = (time.perf_counter() - began) / len(given.logits_NV)
    pairs = zip(found.log_probs_BV.split(BLOCK), given.logits_NV.split(BLOCK), strict=True)
    gap_N = torch.cat([certify(log_x, z, given.graph, strength) for log_x, z in pairs])
    again = ((gap_N >= 0) & (gap_N <= RECHECK)).double().mean().item()
    certified = found.converged_B.double().mean().item()
    far = 0.0
    for z_V, x_V in zip(given.logits_NV.double().cpu().numpy(), found.probs_BV.double().cpu(), strict=True):
        far = max(far, float(distance(x_V, torch.from_numpy(reference.solve(z_V, strength)))))
    softmax_NV = given.logits_NV.softmax(dim=-1)
    top = (softmax_NV.argmax(dim=-1) != found.probs_BV.argmax(dim=-1)).double().mean().item()
    nll = -found.log_probs_BV.gather(1, given.target_N[:, None]).double().mean().item()
    products_N = found.products_B.double()
    shift = distance(softmax_NV, found.probs_BV).median()
    cells = [f"{strength:g}", f"{products_N.mean():.2f}", f"{products_N.max():.0f}", f"{certified:.1%}", f"{again:.1%}"]
    cells += [f"{far:.1e}", f"{shift:.2f}", f"{top:.0%}", f"{nll:.2f}", f"{1e3 * seconds:.0f}"]
    print(f"| {' | '.join(cells)} |", flush=True)
    few = strength != 1 or (products_N.mean() <= MEAN_PRODUCTS and products_N.max() <= MOST_PRODUCTS)
    return found.log_probs_BV, certified == again == 1 and far <= DISTANCE and bool(few)


def beside(given: Problem, log_x_NV: Tensor, contexts: int) -> None:
    """Print what top-k, warm starts and Algorithm 1 give at lambda 1."""
    x_NV = log_x_NV.exp()
    for k in TOP_K:
        kept_NV = given.logits_NV.topk(k).values[:, -1:]
        some = graphmax(given.logits_NV.masked_fill(given.logits_NV < kept_NV, -torch.inf), given.graph, 1.0)
        far_N, cut_N = distance(some.probs_BV, x_NV), (x_NV * (given.logits_NV < kept_NV)).sum(dim=-1)
        print(f"top-{k}: TV to the optimum median {far_N.median():.3f}, max {far_N.max():.3f}", end="; ")
        print(f"mass of the optimum outside, median {cut_N.median():.3f}")
    later = torch.arange(len(x_NV), device=x_NV.device) % RUN > 0
    warm = graphmax(given.logits_NV[later], given.graph, 1.0, warm_start_BV=log_x_NV.roll(1, 0)[later])
    cold = graphmax(given.logits_NV[later], given.graph, 1.0)
    print(f"products from the last place's solution: {warm.products_B.double().mean():.2f}", end=", ")
    print(f"cold: {cold.products_B.double().mean():.2f}")
    logits_NV, x_NV = given.logits_NV[:contexts], x_NV[:contexts]
    softmax = distance(logits_NV.softmax(dim=-1), x_NV)
    print(f"softmax: TV to the optimum mean {softmax.mean():.2f}, median {softmax.median():.2f}")
    for clamp in CLAMPS:
        ends = [
            graphmax(logits_NV, given.graph, strength, solver=replace(PUBLISHED, log_floor=clamp))
            for strength in (0.0, 1.0)
        ]
        far_N, moved_N = distance(ends[1].probs_BV, x_NV), distance(ends[0].probs_BV, ends[1].probs_BV)
        stopped = (ends[1].iterations_B < PUBLISHED.steps).double().mean()
        print(f"Algorithm 1, clamp {clamp:g}: TV mean {far_N.mean():.2f}, median {far_N.median():.2f}", end="; ")
        print(f"lambda 1 against 0: {moved_N.mean():.4f}; met its stop before step 20: {stopped:.0%}")


def main() -> int:
    """Run everything; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("wikipedia", "yelp"):
        parser.add_argument(f"--{name}", default=f"local/{name}")
    parser.add_argument("--bpe", default="local/gpt2_bpe")
    parser.add_argument("--graph", choices=("wikipedia", "yelp"), default="wikipedia")
    parser.add_argument("--contexts", type=int, default=200)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--published", type=int, default=48)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = problem(arguments)
    reference = Reference(given.graph.matrix)
    hub = float(given.graph.operator(torch.zeros(1)).diagonal_V.max())
    print(f"{given.graph.vocab_size:,} tokens, {given.graph.edges:,} edges, largest M_jj {hub:,.0f}")
    softmax = -given.logits_NV.log_softmax(dim=-1).gather(1, given.target_N[:, None]).double().mean().item()
    print(f"{len(given.logits_NV)} contexts, NLL of softmax {softmax:.2f}")
    print("| lambda | products mean | max | certified | rechecked | TV to the reference, max | median TV to softmax |")
    print("top word changes | NLL | ms a context |")
    graphmax(given.logits_NV[:BLOCK], given.graph)  # the first call compiles
    sound, log_x_NV = True, None
    for strength in arguments.strengths:
        found_NV, holds = check(given, reference, strength)
        sound &= holds
        log_x_NV = found_NV if strength == 1 else log_x_NV
    if log_x_NV is not None:
        beside(given, log_x_NV, arguments.published)
    if not sound:
        print("MISSED: a bound")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
