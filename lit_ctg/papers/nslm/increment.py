"""Table 7, "Numbers and the Softmax Bottleneck": an LSTM learns f(i) = i + 1 on words; a micro-model knows it.

Shape letters: B pairs, T positions, D hidden size, V vocabulary, N pairs of a split.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Interval
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lit_ctg.core.batch import Fingerprint, checksum
from lit_ctg.core.generation import evaluating
from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, datamodule_of
from lit_ctg.data.loader import SentenceBatches, SentenceDataModule
from lit_ctg.limits import Checked, Count, NonNegative, Positive, Whole
from lit_ctg.papers.nslm.baselines import read_vectors
from lit_ctg.papers.nslm.classes import PatternRecogniser, class_table
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences
from lit_ctg.papers.nslm.selection import class_perplexity, entry, select

BLOCK = 1 << 24  # scores computed at a time
IN_CHUNKS = nn.LinearCrossEntropyOptions(batch_chunk_size=128)
MOST_PAIRS = 500  # pairs on which micro-models are chosen and tested: all are alike
MOST_SCORED = 10_000  # maximum pairs on which the LSTM is scored; beyond that, an evenly spaced sample
SPLITS = ("train", "val", "test")


class IntegerVocabulary:
    """The integers 0 to ``largest`` as words; the id of an integer is itself."""

    def __init__(self, largest: int) -> None:
        self.tokens = tuple(map(str, range(largest + 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    def decode(self, ids: Any) -> str:
        return " ".join(str(int(number)) for number in ids)


class IncrementDataModule(SentenceDataModule):
    """n pairs (i, i + 1), i from 0; some are held out for validation and as many for test ("unseen").

    Args:
        held_out: share of each of the two held-out parts, at least one pair each.
        batch_size: pairs in a batch; None: a fiftieth of n, at least 50.
        seed: of the split and of the training order.

    Attributes:
        vocabulary: the integers 0 to n.
    """

    splits = SPLITS

    def __init__(
        self,
        *,
        n: Annotated[int, Ge(3)],
        held_out: Annotated[float, Interval(gt=0, lt=0.5)],
        batch_size: Count | None,
        seed: Whole,
        num_workers: Whole = 0,
    ) -> None:
        super().__init__()
        size = max(1, int(n * held_out))
        self.n, self.batch_size, self.seed = n, batch_size or max(50, n // 50), seed
        self.num_workers = num_workers
        self.vocabulary = IntegerVocabulary(n)
        order = np.random.default_rng(seed).permutation(n)
        self.first = {"test": order[:size], "val": order[size : 2 * size], "train": order[2 * size :]}

    def pairs(self, split: str) -> Tensor:
        """Return pairs_N2 (long) of train, val or test."""
        first_N = torch.from_numpy(np.sort(self.first[split]))
        return torch.stack([first_N, first_N + 1], dim=1)

    def dataset(self, split: str) -> SentenceBatches:
        """Return the pairs of a split as sentences of two words."""
        pairs_N2 = self.pairs(split)
        # no padding word: all sentences are equally long
        return SentenceBatches(pairs_N2, torch.full((len(pairs_N2),), 2), pad_id=-1, extras={}, crop=False)

    def fingerprint(self) -> Fingerprint:
        """Return the checksums of the pairs of all splits and of the vocabulary."""
        pairs = {split: self.pairs(split).tolist() for split in self.splits}
        return {"text": checksum(pairs), "vocabulary": checksum(self.vocabulary.tokens)}

    def facts(self) -> dict[str, str]:
        return {split: f"{len(self.first[split]):,} pairs" for split in SPLITS}

    def texts(self, n: int, split: str = "train") -> list[str]:
        """Return the first ``n`` pairs of a split as text."""
        return [self.vocabulary.decode(row) for row in self.pairs(split)[:n].tolist()]


class IncrementModule(LitLanguageModel):
    """Embedding, one LSTM layer, untied softmax.

    Args:
        dim: of the embedding and the LSTM.
        embedding_file: text file of vectors (GloVe's format) that initialise the embeddings; None: random.
        initial_range: all parameters start uniform within plus or minus this; None: as torch does (embeddings N(0, 1)).
    """

    def __init__(
        self,
        *,
        vocabulary: Any,
        dim: Count,
        learning_rate: NonNegative,
        embedding_file: str | None = None,
        initial_range: Positive | None = None,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.embedding = nn.Embedding(len(vocabulary), dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.output = nn.Linear(dim, len(vocabulary))
        nn.init.zeros_(self.output.bias)
        if initial_range is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -initial_range, initial_range)
        self.vectors_found = 0
        if embedding_file is not None:
            vectors_VD, found_V = read_vectors(embedding_file, vocabulary.tokens, dim)
            self.embedding.weight.data[found_V] = vectors_VD[found_V]
            self.vectors_found = int(found_V.sum())

    def forward(self, batch: Batch) -> LMOutput:
        hidden_BTD = self._hidden(batch)
        return LMOutput(self.output(hidden_BTD), hidden_BTD)

    def _hidden(self, batch: Batch) -> Tensor:
        return self.lstm(self.embedding(batch["input_ids_BT"]))[0]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        target_N = batch["target_ids_BT"].flatten()
        if len(target_N) * self.output.out_features <= BLOCK:
            return {"loss": nn.functional.cross_entropy(self(batch).scores_BTV.flatten(0, 1), target_N)}
        # n = 100,000: scores of a whole batch would be 800 MB, their gradient as much
        hidden_ND = self._hidden(batch).flatten(0, 1)
        loss = nn.functional.linear_cross_entropy(
            hidden_ND, self.output.weight, target_N, linear_bias=self.output.bias, options=IN_CHUNKS
        )
        return {"loss": loss}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate, fused=True)

    @torch.no_grad()
    def score(self, pairs_N2: Tensor) -> tuple[float, float]:
        """Return (perplexity, accuracy) of the second integers of some pairs, float64 sums."""
        nll, hits = 0.0, 0
        with evaluating(self):
            for pairs_B2 in pairs_N2.split(max(1, BLOCK // self.output.out_features)):
                scores_BV = self({"input_ids_BT": pairs_B2[:, :1]}).scores_BTV[:, 0]
                target_B = pairs_B2[:, 1]
                nll += nn.functional.cross_entropy(scores_BV.double(), target_B, reduction="sum").item()
                hits += int((scores_BV.argmax(1) == target_B).sum())
        with np.errstate(over="ignore"):  # infinite for a model that diverged
            return float(np.exp(nll / len(pairs_N2))), hits / len(pairs_N2)


def micro_model_perplexities(datamodule: Any) -> tuple[dict[str, float], str]:
    """Choose a micro-model for the class of all integers; return its perplexity per split and its description.

    Every word is a number, so P_tag is 1 and NSLM is the micro-model. Large splits are sampled at even spacing.
    """
    number = PatternRecogniser(
        name="number", pattern=r"\d+", metrics=("difference",), densities=("multinomial", "gaussian", "mixture")
    )
    table = class_table(datamodule.vocabulary.tokens, [number])

    def occurrences(split: str, most: int | None = None) -> Occurrences:
        pairs_N2 = datamodule.pairs(split).numpy()
        if most is not None and len(pairs_N2) > most:
            pairs_N2 = pairs_N2[np.linspace(0, len(pairs_N2) - 1, most).astype(int)]
        places_N = np.arange(len(pairs_N2))
        return Occurrences(places_N, np.zeros_like(places_N), pairs_N2[:, 1], Evidence.of_previous(pairs_N2[:, 0]))

    chosen = select(table, occurrences("train"), occurrences("val", MOST_PAIRS)).models["number"]
    perplexities = {split: class_perplexity(chosen, occurrences(split, MOST_PAIRS)) for split in ("train", "test")}
    found = chosen.describe()
    return perplexities, f"{found['metric']}/{found['density']}"


class IncrementTrial(Checked, Callback):
    """Measure after every epoch on unseen (test) pairs, and everything at the end.

    Args:
        stop_at_loss: training ends when the last batch of an epoch costs at most this (nats), i.e. all pairs are
            learned.

    Attributes:
        results: ``increment/train``, ``increment/accuracy`` (of trained pairs), ``increment/unseen``,
            ``increment/unseen_best`` (over the untrained model and all epochs: what early stopping would report),
            ``increment/uniform`` (a guess without a model), ``increment/nslm_train``, ``increment/nslm_unseen``.
        history: ``increment/unseen``, [epoch, perplexity]; epoch 0 is the untrained model.
    """

    def __init__(self, *, stop_at_loss: NonNegative) -> None:
        super().__init__()
        self.stop_at_loss = stop_at_loss
        self.results: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[list[float]]] = {"increment/unseen": []}
        self.stopped = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test the untrained model; train no further if the run had stopped before it was interrupted."""
        if self.stopped:
            trainer.should_stop = True
        if trainer.global_step == 0:
            self._note(0, trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test the model of this epoch, or at the end of the run everything."""
        if trainer.sanity_checking:
            return
        if trainer.state.fn == "fit":
            self._note(trainer.current_epoch + 1, trainer, pl_module)
        else:
            datamodule = datamodule_of(trainer)
            train, accuracy, trained = self._score("train", trainer, pl_module)
            unseen, _, tried = self._score("test", trainer, pl_module)
            best = min([unseen, *(value for _, value in self.history["increment/unseen"])])
            nslm, _ = micro_model_perplexities(datamodule)
            found = {
                "train": (train, trained),
                "unseen": (unseen, tried),
                "unseen_best": (best, tried),
                "uniform": (float(len(datamodule.vocabulary)), tried),
                "nslm_train": (nslm["train"], min(MOST_PAIRS, len(datamodule.pairs("train")))),
                "nslm_unseen": (nslm["test"], min(MOST_PAIRS, len(datamodule.pairs("test")))),
            }
            entries = {name: entry(value, "perplexity", count, "lower") for name, (value, count) in found.items()}
            entries["accuracy"] = entry(accuracy, "rate", trained, "higher")
            self.results = {f"increment/{name}": value for name, value in entries.items()}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        learned = bool(trainer.callback_metrics["train/loss"] <= self.stop_at_loss)
        # either all processes stop or none: each has seen different pairs
        if trainer.strategy.reduce_boolean_decision(learned, all=True):
            self.stopped = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history, self.stopped = state_dict["history"], state_dict.get("stopped", False)

    def _score(self, split: str, trainer: Trainer, module: Any) -> tuple[float, float, int]:
        pairs_N2 = datamodule_of(trainer).pairs(split).to(module.device)
        if len(pairs_N2) > MOST_SCORED:
            pairs_N2 = pairs_N2[torch.linspace(0, len(pairs_N2) - 1, MOST_SCORED).long()]
        return *module.score(pairs_N2), len(pairs_N2)

    def _note(self, epoch: int, trainer: Trainer, module: LightningModule) -> None:
        self.history["increment/unseen"].append([epoch, self._score("test", trainer, module)[0]])
