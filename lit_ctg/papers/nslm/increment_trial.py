"""Table 7 of NSLM: perplexity on trained and on unseen pairs, of the LSTM and of a micro-model."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.result import MetricResult
from lit_ctg.papers.nslm.increment import micro_model_perplexities

MOST_PAIRS = 10_000  # that are scored; of more an evenly spaced sample


class IncrementTrial(Callback):
    """Measure after every epoch on unseen (test) pairs, and everything at the end.

    Args:
        stop_at_loss: training ends when the last batch of an epoch costs at most this (nats): all pairs are learned.

    Attributes:
        results: ``increment/train``, ``increment/accuracy`` (of trained pairs), ``increment/unseen``,
            ``increment/unseen_best`` (of the untrained model and all epochs: what early stopping would report),
            ``increment/uniform`` (a guess without a model), ``increment/nslm_train``, ``increment/nslm_unseen``.
        history: ``increment/unseen``, [epoch, perplexity]; epoch 0 is the untrained model.
    """

    def __init__(self, *, stop_at_loss: float) -> None:
        super().__init__()
        self.stop_at_loss = stop_at_loss
        self.results: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[list[float]]] = {"increment/unseen": []}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the untrained model."""
        if trainer.global_step == 0:
            self._note(0, trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model of this epoch, or at the end of the run everything."""
        if trainer.state.fn == "fit":
            self._note(trainer.current_epoch + 1, trainer, pl_module)
        else:
            self._finish(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop when the pairs are learned."""
        learned = bool(trainer.callback_metrics["train/loss"] <= self.stop_at_loss)
        # all of several processes stop, or none: each has seen other pairs
        if trainer.strategy.reduce_boolean_decision(learned, all=True):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the epochs so far."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the epochs before an interruption."""
        self.history = state_dict["history"]

    def _score(self, split: str, trainer: Trainer, module: LightningModule) -> tuple[float, float, int]:
        pairs_N2 = trainer.datamodule.pairs(split).to(module.device)  # type: ignore[attr-defined]
        if len(pairs_N2) > MOST_PAIRS:
            pairs_N2 = pairs_N2[torch.linspace(0, len(pairs_N2) - 1, MOST_PAIRS).long()]
        return *module.score(pairs_N2), len(pairs_N2)

    def _note(self, epoch: int, trainer: Trainer, module: LightningModule) -> None:
        self.history["increment/unseen"].append([epoch, self._score("test", trainer, module)[0]])

    def _finish(self, trainer: Trainer, module: LightningModule) -> None:
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        train, accuracy, trained = self._score("train", trainer, module)
        unseen, _, tried = self._score("test", trainer, module)
        best = min([unseen, *(value for _, value in self.history["increment/unseen"])])
        nslm, _ = micro_model_perplexities(datamodule)
        found = {
            "train": (train, trained),
            "unseen": (unseen, tried),
            "unseen_best": (best, tried),
            "uniform": (float(len(datamodule.vocabulary)), tried),
            "nslm_train": (nslm["train"], trained),
            "nslm_unseen": (nslm["test"], tried),
        }
        self.results = {
            f"increment/{name}": MetricResult(value, "perplexity", "lower", count, None, 1).to_dict()
            for name, (value, count) in found.items()
        }
        hit = MetricResult(accuracy, "rate", "higher", trained, None, 1)
        self.results["increment/accuracy"] = hit.to_dict()
