"""The coupled clause corpus: the surface grammar of ``clause``, with dependencies of known size (beyond the paper).

The plain corpus draws every slot on its own, so a channel that knows what an unseen adjective means can gain nothing
there. Here what is said has consequences; the tables are numbers in ``conf/data/clause_coupled.yaml``:

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

As in the plain corpus subject, object and conjunction are uniform, the first clause's polarity is 50/50 and its
intensifier has the paper's weights. Held-out adjectives stand in validation *contexts*, where their polarity decides
what follows; ``floor_given_polarity_unknown`` says exactly what not knowing it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import ClauseCorpusDataModule
from lit_ctg.papers.semantic_fusion.clause_corpus import ClauseTables, probability, uniform, weight_row
from lit_ctg.papers.semantic_fusion.clause_vocabulary import (
    CONJUNCTIONS,
    INTENSIFIERS,
    OBJECTS,
    PUNCTUATION,
    SUBJECTS,
    VERBS,
    check_words,
)


def coupled_tables(
    *,
    second_clause_probability: float,
    intensifier_weights: Mapping[str, float],
    verb_weights: Mapping[str, Mapping[str, float]],
    intensifier_next_weights: Mapping[str, Mapping[str, float]],
    polarity_keep_probability: Mapping[str, float],
    punctuation_weights: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> ClauseTables:
    """Return the tables that the configuration's nested weights stand for (arguments as in the data module).

    Raises:
        UserError: a word missing or unknown, weights or probabilities that are none; names the place.
    """
    keep_C = [
        probability(f"polarity_keep_probability.{word}", value)
        for word, value in _rows("polarity_keep_probability", polarity_keep_probability, CONJUNCTIONS)
    ]
    marks_IPQ = [
        [
            weight_row(f"punctuation_weights.{word}.{sign}", weights, PUNCTUATION)
            for sign, weights in _rows(f"punctuation_weights.{word}", by_sign, ("positive", "negative"))
        ]
        for word, by_sign in _rows("punctuation_weights", punctuation_weights, INTENSIFIERS)
    ]
    return ClauseTables(
        second_clause=probability("second_clause_probability", second_clause_probability),
        subject_S=uniform(SUBJECTS),
        verb_SV=_table("verb_weights", verb_weights, SUBJECTS, VERBS),
        object_O=uniform(OBJECTS),
        intensifier_I=weight_row("intensifier_weights", intensifier_weights, INTENSIFIERS),
        intensifier_next_II=_table("intensifier_next_weights", intensifier_next_weights, INTENSIFIERS, INTENSIFIERS),
        polarity_P=np.full(2, 0.5),
        conjunction_C=uniform(CONJUNCTIONS),
        polarity_next_CPP=np.array([[[keep, 1 - keep], [1 - keep, keep]] for keep in keep_C]),
        punctuation_IPQ=np.array(marks_IPQ),
    )


def _rows(what: str, table: Any, words: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the entries of a mapping in the order of ``words``, all of which it must have, and no other."""
    if not isinstance(table, Mapping):
        raise UserError(f"{what}={table!r}: give an entry for each of {', '.join(words)}")
    check_words(what, table, words)
    for word in words:
        if word not in table:
            raise UserError(f"{what} has no entry for '{word}'")
    return [(word, table[word]) for word in words]


def _table(what: str, table: Any, contexts: tuple[str, ...], outcomes: tuple[str, ...]) -> np.ndarray:
    """Return a table of conditional probabilities, one row per context."""
    return np.array([weight_row(f"{what}.{word}", row, outcomes) for word, row in _rows(what, table, contexts)])


class ClauseCoupledDataModule(ClauseCorpusDataModule):
    """Clauses in which what is said has consequences; interface and batches of ``ClauseDataModule``.

    Args:
        second_clause_probability: that a sentence has two clauses.
        intensifier_weights: weight of each intensifier in the first clause.
        verb_weights: subject -> verb -> weight, in both clauses.
        intensifier_next_weights: first clause's intensifier -> second clause's -> weight.
        polarity_keep_probability: conjunction -> probability that the second clause keeps the first's polarity.
        punctuation_weights: intensifier -> "positive" or "negative" -> mark -> weight, by the last adjective phrase.
        others: see ``ClauseCorpusDataModule``.
    """

    def __init__(
        self,
        *,
        second_clause_probability: float,
        intensifier_weights: Mapping[str, float],
        verb_weights: Mapping[str, Mapping[str, float]],
        intensifier_next_weights: Mapping[str, Mapping[str, float]],
        polarity_keep_probability: Mapping[str, float],
        punctuation_weights: Mapping[str, Mapping[str, Mapping[str, float]]],
        train_size: int,
        val_size: int,
        max_length: int,
        batch_size: int,
        held_out: Mapping[str, Iterable[str]] | str,
        seed: int,
        crop: bool = True,
        num_workers: int = 0,
    ) -> None:
        tables = coupled_tables(
            second_clause_probability=second_clause_probability,
            intensifier_weights=intensifier_weights,
            verb_weights=verb_weights,
            intensifier_next_weights=intensifier_next_weights,
            polarity_keep_probability=polarity_keep_probability,
            punctuation_weights=punctuation_weights,
        )
        super().__init__(
            tables=tables,
            train_size=train_size,
            val_size=val_size,
            max_length=max_length,
            batch_size=batch_size,
            held_out=held_out,
            seed=seed,
            crop=crop,
            num_workers=num_workers,
        )
