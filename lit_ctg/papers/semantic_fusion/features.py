"""The fuzzy feature bank (sec. 2 "Fuzzy semantic features", Appendix A): predicates, memberships, their assembly.

Published features look at the whole sentence and at fixed positions; corrected ones are functions of the tokens up to
their own position. Shape letters: N sentences, T positions, P predicates (13), F features (22).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary

# order of the bank: ten predicates, three memberships of three scalars, three predicates
NAMES = (
    *("is_noun", "is_verb", "is_adj", "is_subject", "is_object", "is_head"),
    *("is_bos", "is_eos", "is_comma", "is_question"),
    *("pos_low", "pos_med", "pos_high", "neg_low", "neg_med", "neg_high", "str_low", "str_med", "str_high"),
    *("coref_subject", "is_capitalized", "is_pronoun"),
)
LEADING = 10  # predicates before the memberships
COLUMN = {name: index for index, name in enumerate(NAMES)}


class ClauseAnnotator(nn.Module):
    """Turns token ids into predicates [.., 13] and the scalars [.., 3] positive, negative, strength.

    Args:
        vocabulary: of the clause corpus.
        prefix_only: corrected features (each a function of the tokens up to its position) instead of the published.
        exclamation_nudge: added to the strength where "!" counts (FACTS: 0.2), capped at 1.
    """

    def __init__(self, vocabulary: ClauseVocabulary, *, prefix_only: bool, exclamation_nudge: float) -> None:
        super().__init__()
        self.prefix_only, self.exclamation_nudge = prefix_only, exclamation_nudge
        self.exclamation_id, self.pad_id = vocabulary.id("!"), vocabulary.pad_id
        groups = {name: set(vocabulary.ids(name)) for name in ("subject", "verb", "object", "pronoun")}
        tokens = vocabulary.tokens
        adjectives = {vocabulary.id(word) for word in vocabulary.polarity}

        def table(members: set[int]) -> Tensor:
            return torch.tensor([float(index in members) for index in range(len(tokens))])

        words = {index for index, token in enumerate(tokens) if token.isalpha()}
        published_nouns = words - adjectives - groups["verb"] - groups["subject"] - groups["pronoun"]
        nouns = groups["object"] | groups["subject"] if prefix_only else published_nouns
        # what a token is, whatever stands around it
        static = {
            "is_noun": nouns,
            "is_verb": groups["verb"],
            "is_adj": adjectives,
            "is_subject": groups["subject"] | groups["pronoun"],
            "is_object": groups["object"],
            "is_head": groups["verb"],
            "is_bos": {vocabulary.bos_id},
            "is_eos": {vocabulary.eos_id},
            "is_comma": set(vocabulary.ids("comma")),
            "is_question": {vocabulary.id("?")},
            "is_name": groups["subject"],
            "is_capitalized": {index for index, token in enumerate(tokens) if token[0].isupper()},
            "is_pronoun": groups["pronoun"],
        }
        for name, members in static.items():
            self.register_buffer(name, table(members), persistent=False)
        polarity_V = torch.tensor([float(vocabulary.polarity.get(token, 0)) for token in tokens])
        self.register_buffer("polarity_V", polarity_V, persistent=False)
        intensity_V = torch.tensor([float(vocabulary.intensity.get(token, 0.0)) for token in tokens])
        self.register_buffer("intensity_V", intensity_V, persistent=False)

    def forward(self, ids_NT: Tensor, aligned_N: Tensor) -> tuple[Tensor, Tensor]:
        """Annotate sentences.

        Args:
            ids_NT: tokens, ``<bos>`` first, padding last.
            aligned_N: length of ``<bos> words <eos>`` of each sentence, also where the ids stop before ``<eos>``
                (a prefix in generation is annotated as if it were a whole sentence); only published features read it.

        Returns:
            predicates [N, T, 13] in {0, 1} and scalars [N, T, 3] in [0, 1]; rows of padding are zero.
        """
        valid_NT = (ids_NT != self.pad_id).float()
        roles = self._roles_of_tokens(ids_NT) if self.prefix_only else self._roles_of_positions(ids_NT, aligned_N)
        name_before_NT = (self.is_name[ids_NT].cumsum(1) - self.is_name[ids_NT]).clamp(max=1)
        coref_NT = self.is_pronoun[ids_NT] * name_before_NT
        columns = [self.is_noun[ids_NT], self.is_verb[ids_NT], self.is_adj[ids_NT], *roles]
        columns += [self.is_bos[ids_NT], self.is_eos[ids_NT], self.is_comma[ids_NT], self.is_question[ids_NT]]
        columns += [coref_NT, self.is_capitalized[ids_NT], self.is_pronoun[ids_NT]]
        polarity_NT = self.polarity_V[ids_NT]
        scalars = [polarity_NT.clamp(min=0), (-polarity_NT).clamp(min=0), self._strength(ids_NT, aligned_N)]
        mask_NT1 = valid_NT.unsqueeze(-1)
        return torch.stack(columns, dim=-1) * mask_NT1, torch.stack(scalars, dim=-1) * mask_NT1

    def _roles_of_tokens(self, ids_NT: Tensor) -> list[Tensor]:
        """Subject, object, head by the slot the word fills, in both clauses."""
        return [self.is_subject[ids_NT], self.is_object[ids_NT], self.is_head[ids_NT]]

    def _roles_of_positions(self, ids_NT: Tensor, aligned_N: Tensor) -> list[Tensor]:
        """Subject, object, head at the authors' fixed positions, which slide in short prefixes."""
        position_T = torch.arange(ids_NT.shape[1], device=ids_NT.device)
        length_N1 = aligned_N.to(ids_NT.device).unsqueeze(1)
        subject_N1 = torch.ones_like(length_N1)
        object_N1 = torch.where(length_N1 > 4, 4, length_N1 - 2)
        head_N1 = torch.where(length_N1 > 2, 2, 1)
        return [(position_T == where_N1).float() for where_N1 in (subject_N1, object_N1, head_N1)]

    def _strength(self, ids_NT: Tensor, aligned_N: Tensor) -> Tensor:
        """Intensity of the token before, plus the nudge of "!"."""
        before_NT = functional.pad(self.intensity_V[ids_NT][:, :-1], (1, 0))
        exclaims_NT = (ids_NT == self.exclamation_id).float()
        if self.prefix_only:
            nudged_NT = exclaims_NT.cummax(dim=1).values
        else:
            # the last word of the sentence decides for all of its positions
            last_N1 = (aligned_N.to(ids_NT.device) - 2).clamp(min=0, max=ids_NT.shape[1] - 1).unsqueeze(1)
            nudged_NT = exclaims_NT.gather(1, last_N1).expand_as(exclaims_NT)
        return (before_NT + self.exclamation_nudge * nudged_NT).clamp(max=1.0)


def membership(x: Tensor, centre: Tensor, temperature: Tensor) -> Tensor:
    """Eq. 1: 0.9 ** (|x - c| / tau), in (0, 1]."""
    return torch.pow(0.9, (x - centre).abs() / temperature)


class Memberships(nn.Module):
    """Low, medium and high membership of each scalar (Eq. 1).

    Args:
        centres: of low, medium, high; ascending.
        temperature: tau.
        learnable: temperature and centres become parameters, one set a scalar; tau stays positive and the centres
            ascending whatever the optimiser does.
    """

    def __init__(self, *, centres: tuple[float, float, float], temperature: float, learnable: bool) -> None:
        super().__init__()
        self.learnable = learnable
        centres_3 = torch.tensor(centres)
        gaps_2 = centres_3.diff()
        # per scalar (rows): first centre, then gaps and temperature through softplus
        for name, value in {
            "first_31": centres_3[:1].repeat(3, 1),
            "raw_gap_32": _softplus_inverse(gaps_2).repeat(3, 1),
            "raw_temperature_31": _softplus_inverse(torch.tensor([temperature])).repeat(3, 1),
        }.items():
            if learnable:
                self.register_parameter(name, nn.Parameter(value))
        self.register_buffer("fixed_33", centres_3.repeat(3, 1), persistent=False)
        self.register_buffer("fixed_temperature_31", torch.full((3, 1), float(temperature)), persistent=False)

    @property
    def centres_33(self) -> Tensor:
        """Centres, a row a scalar."""
        if not self.learnable:
            return self.fixed_33
        gaps_32 = functional.softplus(self.raw_gap_32)
        return torch.cat([self.first_31, self.first_31 + gaps_32.cumsum(1)], dim=1)

    @property
    def temperature_31(self) -> Tensor:
        """Temperatures, a row a scalar."""
        return functional.softplus(self.raw_temperature_31) if self.learnable else self.fixed_temperature_31

    def forward(self, scalars: Tensor) -> Tensor:
        """Return the memberships [.., 9] of scalars [.., 3]: low, med, high of positive, negative, strength."""
        return membership(scalars.unsqueeze(-1), self.centres_33, self.temperature_31).flatten(-2)


def assemble(predicates: Tensor, memberships: Tensor) -> Tensor:
    """Put predicates [.., 13] and memberships [.., 9] into the order of the bank [.., 22]."""
    return torch.cat([predicates[..., :LEADING], memberships, predicates[..., LEADING:]], dim=-1)


def _softplus_inverse(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))
