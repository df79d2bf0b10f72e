"""Everything here touches what Lightning calls private: the one place to look at when its version moves.

Written for Lightning 2.6 and tried with 2.6.6. Each function says what Lightning does and what that breaks.
"""

from __future__ import annotations

from lightning import Trainer
from lightning.fabric.utilities.data import _set_sampler_epoch


def tell_epochs_by_progress(trainer: Trainer) -> None:
    """Let Lightning tell an epoch's end from its midst by the progress alone, whether or not it has max_steps.

    Lightning takes every checkpoint of a trainer with max_steps for one inside an epoch: resumed at an epoch's end, it
    ends that epoch a second time, and all later ones meet another epoch's batches and random numbers.
    """
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]


def start_loaders_where_training_goes_on(trainer: Trainer) -> None:
    """Give the training loaders their epoch and their place in it before a resumed run takes its first batch.

    Lightning makes the loader's iterator first and tells the sampler its epoch afterwards (its issue 21938): worker
    processes have begun to read the batches of epoch 0 by then. It restores a loader's own state only when it makes the
    loader, which ``estimated_stepping_batches`` has done too early, before it is known that the run is resumed.
    """
    loop = trainer.fit_loop
    if loop._combined_loader is None or not loop.restarting:
        return
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
    loop._load_combined_loader_states()
    assert loop._data_fetcher is not None
    iter(loop._data_fetcher)
