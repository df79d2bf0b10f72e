"""Lower bounds for any causal predictor on the clause corpus, and the exact probability of given sentences.

Nothing here is sampled. Every expected cost is a conditional entropy -sum p(context, outcome) log p(outcome | context)
over a small joint table; the slots' entropies add up by the chain rule. Axis letters as in ``clause``; in addition, H
is 0 for a trained and 1 for a held-out word, and Z is what a predictor knows of an adjective it has read: 0 positive,
1 negative, 2 "held out, polarity unknown".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy

from lit_ctg.papers.semantic_fusion.clause import (
    ONE_CLAUSE,
    PAPER,
    TWO_CLAUSES,
    ClauseTables,
    ClauseVocabulary,
    adjectives,
    pronoun_table,
)

# the floor ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floor:
    """Expected cost of one predictor on one split; per-token values are ratios of expectations.

    Attributes:
        nats_per_sentence: expected -log probability of a sentence; inf if a possible word has probability 0.
        seen_nats_per_sentence: the same without the positions whose target is a held-out adjective.
        tokens_per_sentence: expected number of counted tokens with the target mask (words, marks and ``<eos>``).
        seen_tokens_per_sentence: the same without held-out targets.
    """

    nats_per_sentence: float
    seen_nats_per_sentence: float
    tokens_per_sentence: float
    seen_tokens_per_sentence: float

    def tokens(self, *, seen_only: bool = False, mask: str = "target") -> float:
        """Return expected counted tokens per sentence; the input mask also counts a pad target, which costs nothing."""
        if mask not in ("target", "input"):
            raise ValueError(f"mask={mask!r}: use 'target' or 'input'")
        counted = self.seen_tokens_per_sentence if seen_only else self.tokens_per_sentence
        return counted + (mask == "input")

    def perplexity(self, *, seen_only: bool = False, mask: str = "target") -> float:
        """Return exp of the mean cost of a counted token."""
        nats = self.seen_nats_per_sentence if seen_only else self.nats_per_sentence
        return math.exp(nats / self.tokens(seen_only=seen_only, mask=mask))


@dataclass(frozen=True)
class EntropyFloor:
    """Floors of one split.

    Attributes:
        exact: the generator itself; no causal predictor has a lower overall perplexity.
        trained_only: the generator conditioned on each adjective being a trained one, with all adjective mass on the
            trained words. No causal predictor has a lower seen-only perplexity; overall it is inf where held-out words
            occur.
    """

    split: str
    exact: Floor
    trained_only: Floor

    def metrics(self) -> dict[str, float]:
        """Return the four perplexities that no causal predictor can undercut, by their names in the run record."""
        return {
            "perplexity": self.exact.perplexity(),
            "perplexity_input_mask": self.exact.perplexity(mask="input"),
            "perplexity_seen_only": self.trained_only.perplexity(seen_only=True),
            "perplexity_seen_only_input_mask": self.trained_only.perplexity(seen_only=True, mask="input"),
        }


def conditional_nats(joint: np.ndarray, counted_K: np.ndarray | float = 1.0) -> float:
    """Return the expected -log p(k | the other axes) in nats over the outcomes k of the last axis that are counted.

    ``joint`` need not sum to 1: its sum is the probability that the slot occurs.
    """
    total = joint.sum(-1, keepdims=True)
    return float((xlogy(joint * counted_K, total) - xlogy(joint * counted_K, joint)).sum())


def entropy_floor(
    tables: ClauseTables,
    words_PA: np.ndarray,
    trained_PA: np.ndarray,
    *,
    split: str,
    polarity_known: bool = True,
) -> EntropyFloor:
    """Compute both floors of a split.

    Args:
        words_PA: probability of each adjective inside its class on this split.
        trained_PA: 1 for a trained adjective, 0 for a held-out one.
        polarity_known: False for the best predictor that does not know the polarity of a held-out adjective it has
            *read*: it marginalises over it, given everything else. Its knowledge of the following words is the same.
    """
    share_PH = np.stack([(words_PA * trained_PA).sum(1), (words_PA * (1 - trained_PA)).sum(1)], axis=1)
    view_PHZ = np.zeros((2, 2, 3))
    view_PHZ[0, :, 0] = view_PHZ[1, :, 1] = 1
    if not polarity_known:
        view_PHZ[:, 1] = (0, 0, 1)
    read_ZP = np.einsum("ph,phz->zp", share_PH, view_PHZ)  # p(reading | polarity of the adjective)

    two = tables.second_clause
    joint_CZP = np.einsum("c,p,zp->czp", tables.conjunction_C, tables.polarity_P, read_ZP)
    second_CZP = two * np.einsum("czp,cpr->czr", joint_CZP, tables.polarity_next_CPP)
    slots = _fixed_nats(tables) + _mark_nats(tables, read_ZP, second_CZP)

    exact = exact_seen = only = held_out = 0.0
    for joint in (tables.polarity_P, second_CZP):
        flat = (*joint.shape[:-1], words_PA.size)
        words_XK = (joint[..., None] * words_PA).reshape(flat)
        exact += conditional_nats(words_XK)
        exact_seen += conditional_nats(words_XK, trained_PA.reshape(-1))
        only += conditional_nats(words_XK * trained_PA.reshape(-1))
        held_out += float((joint @ share_PH)[..., 1].sum())

    tokens = ONE_CLAUSE - 1 + two * (TWO_CLAUSES - ONE_CLAUSE)
    count = {"tokens_per_sentence": tokens, "seen_tokens_per_sentence": tokens - held_out}
    return EntropyFloor(
        split=split,
        exact=Floor(slots + exact, slots + exact_seen, **count),
        trained_only=Floor(math.inf if held_out else slots + only, slots + only, **count),
    )


def _fixed_nats(tables: ClauseTables) -> float:
    """Return the cost of the slots whose context every predictor knows: all except adjectives and the final mark."""
    verb = conditional_nats(tables.subject_S[:, None] * tables.verb_SV)
    both = verb + conditional_nats(tables.object_O)
    first = conditional_nats(tables.subject_S) + both + conditional_nats(tables.intensifier_I)
    joint_II = tables.intensifier_I[:, None] * tables.intensifier_next_II
    second = conditional_nats(tables.conjunction_C) + both + conditional_nats(joint_II)
    goes_on = np.array([tables.second_clause, 1 - tables.second_clause])
    return first + conditional_nats(goes_on) + tables.second_clause * second


def _mark_nats(tables: ClauseTables, read_ZP: np.ndarray, second_CZP: np.ndarray) -> float:
    """Return the cost of the final mark after one clause (context I, Z) and after two (C, Z, then I, Z again)."""
    one_IZQ = np.einsum("i,p,zp,ipq->izq", tables.intensifier_I, tables.polarity_P, read_ZP, tables.punctuation_IPQ)
    next_I = tables.intensifier_I @ tables.intensifier_next_II
    two_CZIZQ = np.einsum("czp,i,yp,ipq->cziyq", second_CZP, next_I, read_ZP, tables.punctuation_IPQ)
    return (1 - tables.second_clause) * conditional_nats(one_IZQ) + conditional_nats(two_CZIZQ)


# the likelihood of given sentences ------------------------------------------------------------------------------------

_SECOND_CLAUSE = 8  # column of the conjunction, or of the final mark of a one-clause sentence


def sentence_nats(
    ids_NT: np.ndarray,
    tables: ClauseTables,
    words_PA: np.ndarray,
    *,
    only_PA: np.ndarray | None = None,
    vocabulary: ClauseVocabulary = PAPER,
) -> np.ndarray:
    """Return nats_NT, the exact -log p(token at t | tokens before t).

    Column 0 (``<bos>``) and padding cost 0, so a row's sum is the sentence's -log probability. An impossible token
    costs +inf (the rest is scored as if the group's first word were in its place); a missing end costs +inf in the last
    column.

    Args:
        ids_NT: sentences with ``<bos>`` and ``<eos>``, padded; any T.
        words_PA: probability of each adjective within its class.
        only_PA: if given (0/1), the predictor is the generator conditioned on its next adjective being one of these,
            with all its adjective mass on them.
        vocabulary: the words of the tables' outcomes.
    """
    width = ids_NT.shape[1]
    scorer = _Scorer(ids_NT, max(width, TWO_CLAUSES), vocabulary)
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
    scorer.charge(9, "pronoun", pronoun_table(vocabulary)[subject_N])
    intensifier_NI = tables.intensifier_next_II[first[0]]
    polarity_NP = tables.polarity_next_CPP[conjunction_N, first[1]]
    second = scorer.clause(10, tables, subject_N, intensifier_NI, polarity_NP, adjectives_PA)
    scorer.end(16, tables.punctuation_IPQ[second])

    nats_NT = scorer.nats_NT
    nats_NT[:, width - 1] += nats_NT[:, width:].sum(1)  # 0, or +inf for a missing end
    return nats_NT[:, :width]


class _Scorer:
    """Walks the slots of a batch of sentences and adds up their cost; ``where_N`` selects the rows of a call."""

    def __init__(self, ids_NT: np.ndarray, width: int, vocabulary: ClauseVocabulary) -> None:
        self.vocabulary = vocabulary
        self.ids_NT = np.full((len(ids_NT), width), self.vocabulary.pad_id, dtype=np.int64)
        self.ids_NT[:, : ids_NT.shape[1]] = ids_NT
        self.nats_NT = np.zeros(self.ids_NT.shape)
        self.where_N = np.ones(len(ids_NT), dtype=bool)
        groups = {**vocabulary.groups, "adjective": sum(adjectives(vocabulary), ())}
        # rank_GV: index of a token in its group, -1 if it is not in that group
        self.rank = {group: self._ranks(words) for group, words in groups.items()}

    def _ranks(self, words: tuple[str, ...]) -> np.ndarray:
        ranks_V = np.full(len(self.vocabulary), -1)
        for rank, word in enumerate(words):
            if word:
                ranks_V[self.vocabulary.id(word)] = rank
        return ranks_V

    def add(self, position: int, probability_N: np.ndarray) -> None:
        """Charge -log of a probability to the selected rows."""
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
        """Charge nothing if ``token`` is there, else +inf."""
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
        """Charge ``VERB the OBJ , INTENS ADJ`` from ``start``; return intensifier (N) and polarity (N)."""
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
