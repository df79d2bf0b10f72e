"""The clause corpora as LightningDataModules: the paper's (sec. 3.1) and a coupled one, with their exact floors.

The paper's corpus draws every slot independently, so a channel that knows what an unseen adjective means can gain
nothing there. In the coupled one (beyond the paper; same surface grammar) earlier words have consequences of known
size; the tables are numbers in ``conf/data/clause_coupled.yaml``:

========================  =====================  ===============================================================
slot                      depends on             table (conf)
========================  =====================  ===============================================================
verb, both clauses        subject                two favourites: .45 and .25, the other three .10 each
2nd clause's intensifier  1st clause's           the same again .70, each other .10
2nd clause's polarity     1st's and conjunction  kept with .97 after "and", with .03 after "but"
final mark . ! ?          intensifier and        slightly    + .75 .22 .03   - .75 .03 .22
                          polarity of the last   moderately  + .30 .67 .03   - .30 .03 .67
                          adjective phrase       very        + .06 .91 .03   - .06 .03 .91
                                                 extremely   + .02 .96 .02   - .02 .02 .96
========================  =====================  ===============================================================

As in the paper's corpus, subject, object and conjunction are uniform, the first clause's polarity is 50/50 and its
intensifier has the paper's weights. Held-out adjectives occur in validation *contexts*, where their polarity determines
what follows; ``floor_given_polarity_unknown`` is the exact cost of not knowing it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lit_ctg.core.batch import Fingerprint, checksum
from lit_ctg.core.build import link
from lit_ctg.core.result import MetricResult
from lit_ctg.data.loader import SentenceBatches, SentenceDataModule
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, Fields, Fraction, Weight, Whole, checked
from lit_ctg.metric.bigram import Bigrams, Unigrams
from lit_ctg.papers.semantic_fusion.clause import (
    CONJUNCTIONS,
    ONE_CLAUSE,
    PAPER,
    PUNCTUATION,
    TWO_CLAUSES,
    AddedWords,
    ClauseTables,
    ClauseVocabulary,
    adjectives,
    check_keys,
    check_words,
    generate_clauses,
    resolve_held_out,
    uncoupled_tables,
    uniform,
    weight_row,
    word_table,
)
from lit_ctg.papers.semantic_fusion.floor import EntropyFloor, entropy_floor, sentence_nats

# the paper's corpus ---------------------------------------------------------------------------------------------------

# spawn keys of the seed: each split is drawn from its own stream
_STREAMS = {"train": 0, "val": 1, "test": 2}
CorpusTransform = Callable[[Tensor, Tensor], Mapping[str, Tensor]]


class ClauseCorpusDataModule(SentenceDataModule):
    """Sentences from probability tables, held in tensors and served in whole batches.

    Training sentences use only the trained adjectives; validation and test sentences (two streams, same distribution)
    use all ten. Batches are those of ``SentenceBatches``.

    Args:
        train_size, val_size: numbers of sentences; the test split also has ``val_size``.
        max_length: maximum length in tokens with ``<bos>`` and ``<eos>``; sentences are padded to it (at least to 19).
        held_out: adjectives kept out of training, see ``resolve_held_out``.
        seed: of the three corpora and of the training order, each its own stream.
        order_seed: of the training order instead.
        crop: crop batches to their longest sentence.
        num_workers: DataLoader processes (0 is fastest: a batch is one indexing operation).

    Attributes:
        held_out_words, held_out_ids: the adjectives kept out of training.
        corpus_transform: None, or a function of (ids_NT, lengths_N) returning tensors with N rows that batches carry
            along; called once per split, by ``setup``.

    Raises:
        UserError: a maximum length too small for the grammar, an invalid held-out set.
    """

    splits = tuple(_STREAMS)
    tables_of: ClassVar[Callable[..., ClauseTables]]

    def __init__(
        self,
        *,
        train_size: Count,
        val_size: Count,
        max_length: int,
        batch_size: Count,
        held_out: Mapping[str, Sequence[str]] | Literal["shuffled"],
        seed: Whole,
        order_seed: Whole | None = None,
        crop: bool = True,
        num_workers: Whole = 0,
        words: Annotated[Mapping[str, Any], Fields(AddedWords)] | None = None,
        **weights: Any,
    ) -> None:
        super().__init__()
        plain = ClauseVocabulary(words)
        tables = self.tables_of(**weights, vocabulary=plain)
        longest = TWO_CLAUSES if tables.second_clause > 0 else ONE_CLAUSE
        if max_length < longest:
            raise UserError(
                f"data.max_length={max_length}: the longest sentence has {longest} tokens with <bos> and <eos>"
            )
        self.held_out_words = resolve_held_out(held_out, seed, plain)
        self.vocabulary = ClauseVocabulary(words, self.held_out_words)
        self.tables = tables
        self.sizes = {"train": train_size, "val": val_size, "test": val_size}
        self.max_length, self.batch_size = max_length, batch_size
        self.seed, self.order_seed = seed, order_seed
        self.crop, self.num_workers = crop, num_workers
        self.held_out_ids = tuple(sorted(self.vocabulary.id(word) for word in self.held_out_words))
        self._corpora: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._datasets: dict[str, SentenceBatches] = {}
        self._corpus_transform: CorpusTransform | None = None

    @property
    def corpus_transform(self) -> CorpusTransform | None:
        """Function called once per split on the whole padded corpus; a new one takes effect at the next use."""
        return self._corpus_transform

    @corpus_transform.setter
    def corpus_transform(self, transform: CorpusTransform | None) -> None:
        self._corpus_transform = transform
        self._datasets.clear()

    def setup(self, stage: str | None = None) -> None:
        """Generate the splits of the stage (None: all) and their extra tensors, each only once."""
        every = tuple(_STREAMS)
        if (model := getattr(self.trainer, "lightning_module", None)) is not None:
            link(model, self)  # before the splits get their extra tensors
        splits = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}.get(stage or "", every)
        for split in splits:
            self.dataset(split)

    def corpus(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids_NT, lengths_N) of "train", "val" or "test", generated on first use."""
        check_words("split", [split], _STREAMS)
        if split not in self._corpora:
            stream = np.random.SeedSequence(self.seed, spawn_key=(_STREAMS[split],))
            # one column more than the longest sentence, so that a cropped input can end with its <eos>
            self._corpora[split] = generate_clauses(
                self.tables,
                self._words_PA(split),
                size=self.sizes[split],
                rng=np.random.default_rng(stream),
                width=max(self.max_length, TWO_CLAUSES + 1),
                vocabulary=self.vocabulary,
            )
        return self._corpora[split]

    def fingerprint(self) -> Fingerprint:
        """Return the checksums of the sentences of all splits and of the vocabulary."""
        ids = {
            split: hashlib.sha256(self.corpus(split)[0].astype("<i8").tobytes()).hexdigest() for split in self.splits
        }
        return {"text": checksum(ids), "vocabulary": checksum(self.vocabulary.tokens)}

    def dataset(self, split: str) -> SentenceBatches:
        """Return a split as tensors, with the results of ``corpus_transform``."""
        if split not in self._datasets:
            ids_NT, lengths_N = (torch.from_numpy(array) for array in self.corpus(split))
            extras = self._corpus_transform(ids_NT, lengths_N) if self._corpus_transform else {}
            self._datasets[split] = SentenceBatches(
                ids_NT, lengths_N, pad_id=self.vocabulary.pad_id, extras=extras, crop=self.crop
            )
        return self._datasets[split]

    def _words_PA(self, split: str) -> np.ndarray:
        return word_table(self.held_out_words if split == "train" else (), self.vocabulary)

    @property
    def _trained_PA(self) -> np.ndarray:
        return np.array(
            [[word not in self.held_out_words for word in row] for row in adjectives(self.vocabulary)], float
        )

    def entropy_floor(self, split: str = "val") -> EntropyFloor:
        """Return the exact floor of the split's distribution (nothing is sampled)."""
        return self._floor(split, polarity_known=True)

    def floor_given_polarity_unknown(self, split: str = "val") -> EntropyFloor:
        """Return the floor of the best predictor that does not know the polarity of held-out adjectives it has read.

        Its distance to ``entropy_floor`` is the most that a channel with that knowledge can gain; it is 0 where nothing
        depends on an adjective.
        """
        return self._floor(split, polarity_known=False)

    def _floor(self, split: str, polarity_known: bool) -> EntropyFloor:
        check_words("split", [split], _STREAMS)
        words_PA, trained_PA = self._words_PA(split), self._trained_PA
        return entropy_floor(self.tables, words_PA, trained_PA, split=split, polarity_known=polarity_known)

    def sentence_nats(self, ids_NT: Any, split: str = "val", *, trained_only: bool = False) -> np.ndarray:
        """Return nats_NT, the exact -log probability of each token of given sentences (ids with bos, eos, padding).

        Row sums are sentence costs; a sentence outside the grammar costs +inf where it leaves it. ``trained_only`` puts
        all adjective mass on the trained words.
        """
        check_words("split", [split], _STREAMS)
        only_PA = self._trained_PA if trained_only else None
        words_PA = self._words_PA(split)
        return sentence_nats(np.asarray(ids_NT), self.tables, words_PA, only_PA=only_PA, vocabulary=self.vocabulary)

    def count_references(self) -> dict[str, MetricResult]:
        """Return the perplexity of models of counts and of the generator itself, on the tokens that a model's counts.

        Names as those of the model's metrics: ``reference/val/<unigram|bigram|generator>_perplexity``,
        ``..._seen_only`` and ``..._after_held_out``. The generator's is the floor of these sentences; it knows the
        held-out words, so its seen-only value is above the floor of a model that never expects them.
        """
        size = len(self.vocabulary)
        train_N = np.concatenate([row[:length] for row, length in zip(*self.corpus("train"), strict=True)])
        ids_NT, lengths_N = self.corpus("val")
        held_NT = np.isin(ids_NT, self.held_out_ids)
        predicted_NT = np.arange(1, ids_NT.shape[1]) < lengths_N[:, None]
        seen_NT = predicted_NT & ~held_NT[:, 1:]
        counted = {
            "": predicted_NT,
            "_seen_only": seen_NT,
            "_after_held_out": seen_NT & (held_NT[:, :-1].cumsum(1) > 0),
        }
        nll = {"generator": self.sentence_nats(ids_NT)[:, 1 : ids_NT.shape[1]]}
        for name, model in (("unigram", Unigrams), ("bigram", Bigrams)):
            pairs = ids_NT[:, :-1].ravel(), ids_NT[:, 1:].ravel()
            nll[name] = model(train_N, size).nll(*pairs).reshape(predicted_NT.shape)
        return {
            f"reference/val/{name}_perplexity{suffix}": MetricResult(
                float(np.exp(nll_NT[keep_NT].mean())), "perplexity", "lower", int(keep_NT.sum()), None, 1
            )
            for name, nll_NT in nll.items()
            for suffix, keep_NT in counted.items()
        }

    def overlap(self, split: str = "val") -> tuple[int, int]:
        """Return how many sentences of a split occur in training, and their number (paper's set-up: 106 of 1,200)."""
        train = {row.tobytes() for row in self.corpus("train")[0]}
        rows = self.corpus(split)[0]
        return sum(row.tobytes() in train for row in rows), len(rows)

    def texts(self, n: int, split: str = "train") -> list[str]:
        """Return the first ``n`` sentences of a split as text."""
        return [self.vocabulary.decode(row) for row in self.corpus(split)[0][:n]]

    def facts(self) -> dict[str, str]:
        """Return what `lit-ctg data info` prints: sizes, held-out words, overlap, exact floors."""
        shown = {"vocabulary": f"{len(self.vocabulary)} tokens", "held out": ", ".join(self.held_out_words)}
        for split in _STREAMS:
            lengths_N = self.corpus(split)[1]
            shown[split] = f"{len(lengths_N):,} sentences, {int((lengths_N - 1).sum()):,} predicted tokens"
        shown["val sentences in train"] = "{} of {}".format(*self.overlap())
        floors = self.entropy_floor().metrics()
        return shown | {f"floor {name}": f"{value:.4f}" for name, value in floors.items()}


class ClauseDataModule(ClauseCorpusDataModule):
    """The paper's corpus: every slot is drawn independently; only the pronoun depends on earlier words."""

    tables_of = staticmethod(uncoupled_tables)

    def __init__(self, **options: Annotated[Any, Fields(uncoupled_tables)]) -> None:
        """Take the arguments of ``ClauseCorpusDataModule`` and of ``uncoupled_tables``, except the vocabulary."""
        super().__init__(**options)


# the coupled corpus ---------------------------------------------------------------------------------------------------


@checked
def coupled_tables(
    *,
    second_clause_probability: Fraction,
    intensifier_weights: Mapping[str, Weight],
    verb_weights: Mapping[str, Mapping[str, Weight]],
    intensifier_next_weights: Mapping[str, Mapping[str, Weight]],
    polarity_keep_probability: Mapping[str, Fraction],
    punctuation_weights: Mapping[str, Mapping[str, Mapping[str, Weight]]],
    vocabulary: ClauseVocabulary = PAPER,
) -> ClauseTables:
    """Return the tables of the configuration's nested weights.

    Args:
        second_clause_probability: that a sentence has two clauses.
        intensifier_weights: weight of each intensifier in the first clause.
        verb_weights: subject -> verb -> weight, in both clauses.
        intensifier_next_weights: first clause's intensifier -> second clause's -> weight.
        polarity_keep_probability: conjunction -> probability that the second clause keeps the first's polarity.
        punctuation_weights: intensifier -> "positive" or "negative" -> mark -> weight, by the last adjective phrase.

    Raises:
        UserError: a word missing or unknown, invalid weights or probabilities; names the place.
    """
    groups = vocabulary.groups
    intensifiers, subjects = groups["intensifier"], groups["subject"]
    keep_C = [float(value) for _, value in _rows("polarity_keep_probability", polarity_keep_probability, CONJUNCTIONS)]
    marks_IPQ = [
        [
            weight_row(f"punctuation_weights.{word}.{sign}", weights, PUNCTUATION)
            for sign, weights in _rows(f"punctuation_weights.{word}", by_sign, ("positive", "negative"))
        ]
        for word, by_sign in _rows("punctuation_weights", punctuation_weights, intensifiers)
    ]
    return ClauseTables(
        second_clause=float(second_clause_probability),
        subject_S=uniform(subjects),
        verb_SV=_table("verb_weights", verb_weights, subjects, groups["verb"]),
        object_O=uniform(groups["object"]),
        intensifier_I=weight_row("intensifier_weights", intensifier_weights, intensifiers),
        intensifier_next_II=_table("intensifier_next_weights", intensifier_next_weights, intensifiers, intensifiers),
        polarity_P=np.full(2, 0.5),
        conjunction_C=uniform(CONJUNCTIONS),
        polarity_next_CPP=np.array([[[keep, 1 - keep], [1 - keep, keep]] for keep in keep_C]),
        punctuation_IPQ=np.array(marks_IPQ),
    )


def _rows(what: str, table: Any, words: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the entries of a mapping in the order of ``words``, which must be exactly its keys."""
    check_keys(what, table, words)
    return [(word, table[word]) for word in words]


def _table(what: str, table: Any, contexts: tuple[str, ...], outcomes: tuple[str, ...]) -> np.ndarray:
    """Return a table of conditional probabilities, one row per context."""
    return np.array([weight_row(f"{what}.{word}", row, outcomes) for word, row in _rows(what, table, contexts)])


class ClauseCoupledDataModule(ClauseCorpusDataModule):
    """Clauses in which earlier words have consequences; interface and batches as in ``ClauseDataModule``."""

    tables_of = staticmethod(coupled_tables)

    def __init__(self, **options: Annotated[Any, Fields(coupled_tables)]) -> None:
        """Take the arguments of ``ClauseCorpusDataModule`` and of ``coupled_tables``, except the vocabulary."""
        super().__init__(**options)
