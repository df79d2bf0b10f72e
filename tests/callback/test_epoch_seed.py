from __future__ import annotations

from types import SimpleNamespace

import torch

from lit_ctg.callback.epoch_seed import EpochSeed, epoch_seed


def test_seeds_are_far_apart_and_fit_torch() -> None:
    seeds = {epoch_seed(seed, epoch) for seed in range(40) for epoch in range(40)}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**63 for seed in seeds)
    # a run is repeated with the numbers that it was made with
    assert [epoch_seed(*each) for each in ((0, 0), (3, 1))] == [4685109482889842056, 941444804525363856]


def test_each_epoch_has_numbers_of_its_own() -> None:
    for epoch in (0, 4):
        EpochSeed(seed=3).on_train_epoch_start(SimpleNamespace(current_epoch=epoch), None)
        assert torch.initial_seed() == epoch_seed(3, epoch)


def test_an_epochs_random_numbers_do_not_depend_on_what_ran_before(tiny, trainer_of) -> None:
    def weights_after(noise: int) -> torch.Tensor:
        module, data = tiny()
        torch.rand(noise)
        trainer_of(EpochSeed(seed=3), max_epochs=2).fit(module, data)
        return module.embedding.weight.detach().clone()

    assert torch.equal(weights_after(0), weights_after(1000))


def test_a_checkpoint_brings_the_random_numbers_back_inside_an_epoch_only(tiny, trainer_of) -> None:
    trainer, (module, _) = trainer_of(), tiny()
    checkpoint: dict = {}
    EpochSeed(seed=3).on_save_checkpoint(trainer, module, checkpoint)
    expected = torch.rand(4)

    def drawn(new_epoch: bool) -> torch.Tensor:
        callback = EpochSeed(seed=3)
        callback.on_load_checkpoint(trainer, module, checkpoint)
        torch.rand(7)
        if new_epoch:
            callback.on_train_epoch_start(trainer, module)
        callback.on_train_batch_start(trainer, module, {}, 0)
        first = torch.rand(4)
        callback.on_train_batch_start(trainer, module, {}, 1)
        assert not torch.equal(torch.rand(4), first), "only once"
        return first

    assert torch.equal(drawn(new_epoch=False), expected)
    torch.manual_seed(epoch_seed(3, trainer.current_epoch))
    began = torch.rand(4)
    assert torch.equal(drawn(new_epoch=True), began)
