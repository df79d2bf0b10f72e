"""Everything that touches Lightning's private parts: the one file to check when its version changes.

Written for Lightning 2.6 and tested with 2.6.6. Each function says what Lightning does and what that breaks.
"""

from __future__ import annotations

from lightning import Trainer


def tell_epochs_by_progress(trainer: Trainer) -> None:
    """Let Lightning recognise an epoch's end by the progress alone, whether or not it has max_steps.

    Lightning takes every checkpoint of a trainer with max_steps for one within an epoch: resumed at an epoch's end, it
    ends that epoch a second time, and all later epochs get another epoch's batches and random numbers.
    """
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]  # on purpose


def put_loaders_where_the_checkpoint_was(trainer: Trainer) -> None:
    """Restore the training loaders' position in their epoch from the checkpoint.

    Lightning does so when it builds the loaders, which ``estimated_stepping_batches`` has done before it is known that
    the run is resumed. (It also sets a sampler's epoch too late, its issue 21938; our loaders allow for that.)
    """
    trainer.fit_loop._load_combined_loader_states()
