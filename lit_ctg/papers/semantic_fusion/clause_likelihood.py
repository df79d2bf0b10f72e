"""Exact probability of given sentences under the clause corpus's generator, position by position.

Axis letters as in ``clause_corpus``.
"""

from __future__ import annotations

import numpy as np

from lit_ctg.papers.semantic_fusion.clause_corpus import PRONOUN_SR, TWO_CLAUSES, ClauseTables
from lit_ctg.papers.semantic_fusion.clause_vocabulary import GROUPS, ClauseVocabulary

_SECOND_CLAUSE = 8  # column of the conjunction, or of the final mark of a one-clause sentence


def sentence_nats(
    ids_NT: np.ndarray, tables: ClauseTables, words_PA: np.ndarray, *, only_PA: np.ndarray | None = None
) -> np.ndarray:
    """Return nats_NT, the exact -log p(token at t | tokens before t).

    Column 0 (``<bos>``) and padding cost 0, so a row's sum is the sentence's -log probability. A token that cannot
    stand where it stands costs +inf (what follows is scored as if the group's first word had stood there); a missing
    end costs +inf in the last column.

    Args:
        ids_NT: sentences with ``<bos>`` and ``<eos>``, padded; any T.
        tables: the generator's probabilities.
        words_PA: probability of each adjective inside its class.
        only_PA: if given (0/1), the predictor is the generator conditioned on its next adjective being one of these:
            all of its adjective mass lies on them.
    """
    width = ids_NT.shape[1]
    scorer = _Scorer(ids_NT, max(width, TWO_CLAUSES))
    adjectives_PA = words_PA if only_PA is None else words_PA * only_PA

    scorer.literal(0, "<bos>")
    subject_N = scorer.charge(1, "subject", tables.subject_S)
    first = scorer.clause(2, tables, subject_N, tables.intensifier_I, tables.polarity_P, adjectives_PA)

    two_N = scorer.stands_in(_SECOND_CLAUSE, "conjunction")
    goes_on_N = np.where(two_N, tables.second_clause, 1 - tables.second_clause)
    scorer.add(_SECOND_CLAUSE, goes_on_N)

    scorer.where_N = ~two_N
    scorer.end(_SECOND_CLAUSE, tables.punctuation_IPQ[first])

    scorer.where_N = two_N
    conjunction_N = scorer.charge(_SECOND_CLAUSE, "conjunction", tables.conjunction_C)
    scorer.charge(9, "pronoun", PRONOUN_SR[subject_N])
    intensifier_NI = tables.intensifier_next_II[first[0]]
    polarity_NP = tables.polarity_next_CPP[conjunction_N, first[1]]
    second = scorer.clause(10, tables, subject_N, intensifier_NI, polarity_NP, adjectives_PA)
    scorer.end(16, tables.punctuation_IPQ[second])

    nats_NT = scorer.nats_NT
    nats_NT[:, width - 1] += nats_NT[:, width:].sum(1)  # 0, or +inf for an end that is not there
    return nats_NT[:, :width]


class _Scorer:
    """Walks the slots of a batch of sentences and adds up their cost; ``where_N`` says which rows a call is about."""

    def __init__(self, ids_NT: np.ndarray, width: int) -> None:
        self.vocabulary = ClauseVocabulary()
        self.ids_NT = np.full((len(ids_NT), width), self.vocabulary.pad_id, dtype=np.int64)
        self.ids_NT[:, : ids_NT.shape[1]] = ids_NT
        self.nats_NT = np.zeros(self.ids_NT.shape)
        self.where_N = np.ones(len(ids_NT), dtype=bool)
        groups = {group: self.vocabulary.ids(group) for group in GROUPS}
        groups["adjective"] = groups["adjective_positive"] + groups["adjective_negative"]
        # rank_GV: place of a token in its group, -1 when it is not of that group
        self.rank = {group: self._ranks(ids) for group, ids in groups.items()}

    def _ranks(self, ids: tuple[int, ...]) -> np.ndarray:
        ranks_V = np.full(len(self.vocabulary), -1)
        ranks_V[list(ids)] = np.arange(len(ids))
        return ranks_V

    def add(self, position: int, probability_N: np.ndarray) -> None:
        """Charge -log of a probability to the rows in question."""
        with np.errstate(divide="ignore"):
            self.nats_NT[:, position] -= np.where(self.where_N, np.log(probability_N), 0.0)

    def stands_in(self, position: int, group: str) -> np.ndarray:
        """Return which rows have a token of ``group`` at ``position``."""
        return self.rank[group][self.ids_NT[:, position]] >= 0

    def charge(self, position: int, group: str, rows: np.ndarray) -> np.ndarray:
        """Charge the token at ``position`` by its row (K) or rows (N, K); return its rank in the group, 0 if alien."""
        rank_N = self.rank[group][self.ids_NT[:, position]]
        safe_N = np.maximum(rank_N, 0)
        rows_NK = np.broadcast_to(rows, (len(rank_N), rows.shape[-1]))
        chosen_N = np.take_along_axis(rows_NK, safe_N[:, None], axis=1)[:, 0]
        self.add(position, np.where(rank_N >= 0, chosen_N, 0.0))
        return safe_N

    def literal(self, position: int, token: str) -> None:
        """Charge nothing when ``token`` stands there, +inf otherwise."""
        self.add(position, (self.ids_NT[:, position] == self.vocabulary.id(token)).astype(float))

    def clause(
        self,
        start: int,
        tables: ClauseTables,
        subject_N: np.ndarray,
        intensifier: np.ndarray,
        polarity: np.ndarray,
        adjectives_PA: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Charge ``VERB the OBJ , INTENS ADJ`` from ``start`` on; return intensifier (N) and polarity (N)."""
        self.charge(start, "verb", tables.verb_SV[subject_N])
        self.literal(start + 1, "the")
        self.charge(start + 2, "object", tables.object_O)
        self.literal(start + 3, ",")
        intensifier_N = self.charge(start + 4, "intensifier", intensifier)
        rows = (polarity[..., None] * adjectives_PA).reshape(*polarity.shape[:-1], adjectives_PA.size)
        adjective_N = self.charge(start + 5, "adjective", rows / rows.sum(-1, keepdims=True))
        return intensifier_N, adjective_N // adjectives_PA.shape[1]

    def end(self, position: int, marks_NQ: np.ndarray) -> None:
        """Charge the final mark, ``<eos>`` and the padding."""
        self.charge(position, "punctuation", marks_NQ)
        self.literal(position + 1, "<eos>")
        for tail in range(position + 2, self.ids_NT.shape[1]):
            self.literal(tail, "<pad>")
