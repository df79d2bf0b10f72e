"""Semantic fusion: our training and generation against the straight rendering of the paper, as ratios in one run.

    python benchmarks/bench_semantic_fusion.py [--epochs 6] [--threads 2]

Trains both for the same number of epochs on the same sentences and compares seconds and validation perplexity, then
generates 200 controlled clauses in one batch and, straight, one at a time. Prints ratios; absolute times are this
machine's and this moment's business. Perplexity of one seed says little in the published set-up (see the tables).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from straight_semantic_fusion import SentenceDataset, StraightFusion, generate_one, perplexity, train

from lit_ctg.config import compose
from lit_ctg.run.build import build, build_datamodule, build_model, instantiate


def ours(regime: str, epochs: int, seed: int, folder: Path) -> tuple[float, float, object]:
    """Return (seconds, perplexity with the input mask, experiment) of `lit-ctg train`'s own objects."""
    words = ["experiment=semantic_fusion/main", f"regime={regime}", "size=paper", f"seed={seed}", "logger=none"]
    words += [f"trainer.max_epochs={epochs}", "callback=[epoch_seed]", "metric=[perplexity]"]
    words += ["trainer.limit_val_batches=0", "trainer.enable_progress_bar=false", "trainer.accelerator=cpu"]
    began = time.perf_counter()
    experiment = build(compose(words), folder, loggers=False)
    experiment.trainer.fit(experiment.module, experiment.datamodule)
    seconds = time.perf_counter() - began
    cfg = compose([*words, "trainer.limit_val_batches=1.0"])
    checker = build(cfg, folder, loggers=False)
    result = checker.trainer.validate(experiment.module, experiment.datamodule, verbose=False)[0]
    return seconds, result["val/perplexity_input_mask"], experiment


def straight(experiment: object, regime: str, epochs: int, seed: int) -> tuple[float, float]:
    """Return the same for the straight rendering, on the same sentences."""
    datamodule, causal = experiment.datamodule, regime == "corrected"  # type: ignore[attr-defined]
    torch.manual_seed(seed)
    std = 1.0 if regime == "as_published" else 0.02
    began = time.perf_counter()
    data = SentenceDataset(*map(torch.from_numpy, datamodule.corpus("train")), datamodule.vocabulary)
    model = StraightFusion(len(datamodule.vocabulary), causal, std)
    train(model, data, epochs, seed=seed)
    seconds = time.perf_counter() - began
    held = SentenceDataset(*map(torch.from_numpy, datamodule.corpus("val")), datamodule.vocabulary)
    return seconds, perplexity(model, held)


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--regime", default="as_published", choices=["as_published", "corrected"])
    parser.add_argument("--seed", type=int, default=111)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        fast_s, fast_ppl, experiment = ours(options.regime, options.epochs, options.seed, Path(folder))
    slow_s, slow_ppl = straight(experiment, options.regime, options.epochs, options.seed)
    print(f"training, {options.regime}, {options.epochs} epochs, {options.threads} threads")
    print(f"  validation perplexity (input mask): ours {fast_ppl:.3f}, straight {slow_ppl:.3f}")
    print(f"  straight / ours: {slow_s / fast_s:.2f} times")
    for regime in ("corrected", "as_published"):
        generation(regime, options.samples)


def generation(regime: str, samples: int) -> None:
    """Compare ``samples`` controlled clauses in one batch with one at a time, the prefix recomputed for each token.

    Speed does not depend on the weights, so both models are untrained. Corrected has a key-value cache; the published
    model is not causal and cannot have one.
    """
    cfg = compose(["experiment=semantic_fusion/main", f"regime={regime}", "size=paper", "seed=111"])
    datamodule = build_datamodule(cfg)
    module, model = build_model(cfg, datamodule), StraightFusion(len(datamodule.vocabulary), regime == "corrected", 1.0)
    decoding = instantiate(cfg.decoding, "decoding")
    generator = decoding.generator(module, datamodule)
    control = {"pos_high": 0.95, "str_high": 0.9}
    generator.generate(samples, control=control, routes=("hard", "soft"), seed=0)
    began = time.perf_counter()
    texts = generator.generate(samples, control=control, routes=("hard", "soft"), seed=0)
    fast = time.perf_counter() - began
    noise = torch.Generator().manual_seed(0)
    began = time.perf_counter()
    singles = [generate_one(model, datamodule.vocabulary, True, noise) for _ in range(samples)]
    slow = time.perf_counter() - began
    hits = sum(text.polarity == "positive" for text in texts), sum(text.endswith("!") for text in singles)
    print(f"generation of {samples} controlled clauses, {regime}: success {hits[0]}/{samples} and {hits[1]}/{samples}")
    print(f"  one at a time / one batch: {slow / fast:.0f} times")


if __name__ == "__main__":
    main()
