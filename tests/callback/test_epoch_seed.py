from __future__ import annotations

import torch

from lit_ctg.callback.epoch_seed import EpochSeed, epoch_seed


def test_seeds_are_far_apart_and_fit_torch() -> None:
    seeds = {epoch_seed(seed, epoch) for seed in range(40) for epoch in range(40)}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_epochs_random_numbers_do_not_depend_on_what_ran_before(tiny, trainer_of) -> None:
    def weights_after(noise: int) -> torch.Tensor:
        module, data = tiny()
        torch.rand(noise)
        trainer_of(EpochSeed(seed=3), max_epochs=2).fit(module, data)
        return module.embedding.weight.detach().clone()

    assert torch.equal(weights_after(0), weights_after(1000))
