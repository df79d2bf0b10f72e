"""Tables 2, 3 and Fig. 3 of NSLM: perplexity of every model by class, occurrence and rarity, and errors of guesses.

Shape letters: N tokens, G groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from rich.console import Console

from lit_ctg.core.model import evaluating
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_perplexity import ClassPerplexity
from lit_ctg.papers.nslm.mixture import tune
from lit_ctg.papers.nslm.token_scores import GUESSERS, TokenScores

FINAL = "val/perplexity"
CURVES = ("nnlm", "tag")
SHOWN = 3  # pairs of each class that are printed
UNITS = {1: "difference of values", 2: "km"}


class NSLMEvaluation(Callback):
    """Score validation text after epochs and at the end, tune the mixture on it, and score test text at the end.

    Args:
        total: what the tokens of all classes are called: numbers, places.
        rarity: lower bounds of the groups by count in training text (Fig. 3).

    Attributes:
        results: ``<split>/<model>[_cache]/<group>`` perplexities: a class, ``total``, ``global``, ``first``, ``later``
            (class tokens without and with an earlier member in the document), ``rarity_<from>_<to>`` (class tokens);
            ``<split>/<model>/<class>/median_error`` and ``mean_error`` of the best guess; ``mixture_weight``;
            ``val/perplexity`` of the final model; ``grid/...`` and ``micro_model/...`` (see ``Selection.results``).
        history: ``val/perplexity`` of the epochs that were validated; ``train/nnlm`` and ``train/tag`` of all (means of
            the steps, nats a token).
    """

    def __init__(self, *, total: str, rarity: Sequence[int]) -> None:
        super().__init__()
        self.total, self.rarity = total, tuple(rarity)
        self.results: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[list[float]]] = {}
        self._parts: list[TokenScores] = []
        self._sums: dict[str, Any] = {}
        self._steps = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the best pairs of the grid search; the record has all."""
        selection = getattr(pl_module, "selection", None)
        if selection is not None and trainer.is_global_zero:
            Console(soft_wrap=True, highlight=False).print(selection.table(most=SHOWN), markup=False)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sum up anew."""
        self._sums, self._steps = dict.fromkeys(CURVES, 0.0), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add up the step's costs, on the device, without waiting for it."""
        logged = trainer.callback_metrics
        self._sums = {name: total + logged[f"train/{name}"] for name, total in self._sums.items()}
        self._steps += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the epoch's means: a curve of training even where no epoch is validated."""
        for name, total in self._sums.items():
            mean = float(total) / max(1, self._steps)
            self.history.setdefault(f"train/{name}", []).append([trainer.current_epoch + 1, mean])

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from nothing."""
        if not hasattr(pl_module, "token_scores"):
            raise UserError(f"callback nslm_evaluation: {type(pl_module).__name__} is no NSLM; remove the callback")
        self._parts = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the batch's scores."""
        self._parts.append(outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tune the mixture and keep the results; at the end of the run the same for test text."""
        module: Any = pl_module
        scores = TokenScores.join(self._parts)
        if module.tuned:
            module.mixture_weight.fill_(tune(scores.nnlm_N, scores.tag_N + scores.micro_N))
        self.evaluate(trainer, module, scores, "val")
        final = self.results["val/nslm/global"]
        self.results[FINAL] = final
        self.results["mixture_weight"] = _plain(float(module.mixture_weight), "weight", len(scores))
        pl_module.log_dict({FINAL: final["value"], "val/mixture_weight": float(module.mixture_weight)})
        if trainer.state.fn == "fit":
            self.history.setdefault(FINAL, []).append([trainer.current_epoch + 1, final["value"]])
        else:
            self.results |= module.selection.results()
            self.evaluate(trainer, module, TokenScores.join(list(self._test(trainer, module))), "test")

    def _test(self, trainer: Trainer, module: Any) -> Iterator[TokenScores]:
        """Yield the scores of test text, character RNNs included."""
        module.on_test_epoch_start()
        limit = trainer.limit_test_batches if isinstance(trainer.limit_test_batches, int) else None
        with evaluating(module), torch.no_grad(), trainer.precision_plugin.forward_context():
            for index, batch in itertools.islice(enumerate(trainer.datamodule.test_dataloader()), limit):  # type: ignore[attr-defined]
                yield module.test_step(trainer.strategy.batch_to_device(batch), index)

    def evaluate(self, trainer: Trainer, module: Any, scores: TokenScores, split: str) -> None:
        """Put the perplexities and errors of a split into ``results``."""
        count_V = np.bincount(
            trainer.datamodule.prepare().ids("train"),  # type: ignore[attr-defined]
            minlength=len(module.vocabulary),
        )
        groups = self.groups(scores, module.table.names, count_V)
        member_NG = torch.from_numpy(np.stack(list(groups.values()), 1))
        models = scores.models(float(module.mixture_weight))
        models |= scores.cached(models, module.cache.weight)
        for model, log_prob_N in models.items():
            metric = ClassPerplexity(groups=list(groups), sync_on_compute=False)
            metric.update(torch.from_numpy(log_prob_N), member_NG)
            for group, result in metric.result().items():  # type: ignore[union-attr]
                if result.n:
                    self.results[f"{split}/{model}/{group}"] = result.to_dict()
        for number, members in enumerate(module.table.classes):
            inside_N = scores.class_N == number
            unit = members.unit or UNITS.get(members.attributes_KD.shape[1], "")
            self._errors(scores, inside_N, f"{split}/{{}}/{members.name}", unit)

    def groups(self, scores: TokenScores, names: Sequence[str], count_V: np.ndarray) -> dict[str, np.ndarray]:
        """Return which tokens are in which group, [N] bool each."""
        inside_N = scores.class_N >= 0
        groups = {name: scores.class_N == number for number, name in enumerate(names)}
        groups |= {self.total: inside_N, "global": np.ones(len(scores), dtype=bool)}
        groups |= {"first": inside_N & scores.first_N, "later": inside_N & ~scores.first_N}
        count_N = count_V[scores.target_N]
        for low, high in itertools.pairwise((*self.rarity, None)):
            below_N = count_N < high if high is not None else True
            groups[f"rarity_{low}_{'more' if high is None else high - 1}"] = inside_N & (count_N >= low) & below_N
        return groups

    def _errors(self, scores: TokenScores, inside_N: np.ndarray, name: str, unit: str) -> None:
        """Keep median and mean absolute error of the best guesses at the member."""
        for column, guesser in enumerate(GUESSERS):
            error_N = scores.error_NG[inside_N, column]
            error_N = error_N[~np.isnan(error_N)]
            if len(error_N):
                where = name.format({"mixture": "nslm", "nslm": "nslm_alone"}.get(guesser, guesser))
                self.results[f"{where}/median_error"] = _plain(float(np.median(error_N)), unit, len(error_N), "lower")
                self.results[f"{where}/mean_error"] = _plain(float(error_N.mean()), unit, len(error_N), "lower")

    def state_dict(self) -> dict[str, Any]:
        """Return the history, so that a resumed run's record holds every epoch."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the history of the epochs before the interruption."""
        self.history = state_dict["history"]


def _plain(value: float, unit: str, n: int, direction: Any = "none") -> dict[str, Any]:
    return MetricResult(value, unit, direction, n, None, 1).to_dict()
