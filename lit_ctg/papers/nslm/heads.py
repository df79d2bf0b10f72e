"""Output layers shared by NNLM, HNLM and NSLM: words, class tags, and members within a class (Eq. 2 to 4).

A word has one row for both vocabularies: the NNLM's softmax runs over all words, the tag softmax over one tag per class
and the words that are in no class in the token's context. So all models have equal parameters (sec. 5.2: 50 million for
the medium LSTM leave no room for a second table).

Shape letters: N positions, X some of them, D hidden size, V words, C classes, S left-context states, O words in no
class in any state, M words in some class, R class members, class by class, K members of one class, J sampled words,
H words of the short list and clusters, E words of a cluster.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, NonNegative, checked
from lit_ctg.papers.nslm.classes import ClassTable
from lit_ctg.papers.nslm.fast import BothSoftmaxes

BLOCK = 64  # number of positions whose whole vocabulary is computed at a time
CHUNK = 256  # the same in training with the NNLM's full softmax alone
Rows = tuple[Tensor, Tensor]
Costs = tuple[Tensor, Tensor, Tensor]
FAST = ("auto", "off")


@checked
@dataclass(frozen=True, kw_only=True)
class Words:
    """The rows of the words: embeddings and softmax.

    Attributes:
        samples: words of the sampled softmax in training; None for the full one. Evaluation is always exact.
        cutoffs: of an adaptive softmax (``AdaptiveHeads``) instead.
        single_task: no heads for tags and members; P(c) is a sum over the NNLM's words (``SingleTaskHeads``).
        tied: input and output rows of a word are the same.
        fast: see ``OutputHeads``; ``off`` also makes all gradients dense if the softmax is full.
        grounding: fixed embedding dimensions with values or coordinates (Table 6).
        embedding_file: text file of vectors that initialise the embeddings (Table 5).
    """

    init_range: NonNegative
    samples: Count | None = None
    cutoffs: Sequence[Count] | None = None
    single_task: bool = False
    tied: bool = False
    fast: Annotated[str, Choice(FAST)] = "auto"
    grounding: bool = False
    embedding_file: str | None = None

    def __post_init__(self) -> None:
        adaptive = self.cutoffs is not None
        for wrong, fault in (
            (adaptive and self.single_task, "model.cutoffs: a single-task model has a full or a sampled softmax"),
            (adaptive and self.samples is not None, f"model.samples={self.samples}, model.cutoffs: two softmaxes"),
            (adaptive and self.tied, "model.tied=true, model.cutoffs: an adaptive softmax has rows of several sizes"),
            (self.grounding and self.tied, "model.grounding=true: tied output rows would be grounded too"),
        ):
            if wrong:
                raise UserError(f"{fault}; set one of them to null or false")


@dataclass
class HeadScores:
    """Log-probabilities of the targets, [N] each, in nats.

    Attributes:
        nnlm_N: log P(w), softmax over all words (Eq. 2).
        tag_N: log P(c(w)), or of the word itself outside the classes (first factor of Eq. 3 and 4).
        within_N: log P(w | c(w)), neural (second factor of Eq. 3); 0 outside the classes.
        mass_N: log of the NNLM's total probability of the members of c(w) (the single-task P(c) of the AWD-LSTM
            experiments); outside the classes that of the word.
    """

    nnlm_N: Tensor
    tag_N: Tensor
    within_N: Tensor
    mass_N: Tensor


class ClassHeads(nn.Module, ABC):
    """Rows of class tags, and separate rows for members within their class; derived classes add those of words.

    Args:
        dim: hidden size D.
        table: classes of the vocabulary; at least one must have members.
        init_range: rows are initialised uniformly in [-init_range, init_range], biases at 0.

    Raises:
        UserError: no word of the vocabulary is in any class.
    """

    class_of_SV: Tensor
    index_CV: Tensor
    available_SC: Tensor

    def __init__(self, *, dim: int, table: ClassTable, init_range: float) -> None:
        super().__init__()
        if not len(table):
            raise UserError("no word of the vocabulary is in any class: choose model.classes that fit the corpus")
        self.sizes = tuple(map(len, table.classes))
        for name in ("class_of_SV", "index_CV", "available_SC"):
            self.register_buffer(name, torch.from_numpy(getattr(table, name)), persistent=False)
        self.make_words(dim, table, init_range)
        self.make_classes(dim, table, init_range)

    def make_classes(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create the rows of class tags and of members within their class."""
        self.tag_CD, self.tag_bias_C1 = rows(len(table), dim, init_range)
        self.within_RD, self.within_bias_R1 = rows(sum(self.sizes), dim, init_range)

    @abstractmethod
    def make_words(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create the parameters of words."""

    @abstractmethod
    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> Costs:
        """Return summed negative log-probabilities in nats for training: of NNLM and tag together, and of each."""

    @abstractmethod
    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        """Return exact log-probabilities of the targets under every head."""

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log P of all words [N, V] (Eq. 2), and of the tagged vocabulary: words [N, V] and tags [N, C].

        A word in a class in its context is -inf in the second, a class that does not exist there in the third.
        """

    @abstractmethod
    def conditional(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return the NNLM's log P(w | c): its softmax over the members of one class, [N, K]."""

    def losses(
        self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor, class_N: np.ndarray | None = None
    ) -> dict[str, Tensor]:
        """Return summed negative log-probabilities of NNLM, tag and within-class softmax, in nats; () each.

        ``all`` is their sum, the only one that always has a gradient. ``class_N`` is ``class_of`` the targets, for
        callers that know it: to fetch it from a device waits for the device.
        """
        both, nnlm, tag = self.costs(hidden_ND, target_N, state_N)
        within = -self.within(hidden_ND, target_N, state_N, class_N).sum()
        return {"nnlm": nnlm, "tag": tag, "within": within, "all": both + within}

    def class_of(self, target_N: Tensor, state_N: Tensor) -> Tensor:
        """Return the class of each target in its context, -1 for none."""
        return self.class_of_SV[state_N, target_N]

    def within(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor, class_N: np.ndarray | None = None) -> Tensor:
        """Return log P(w | c(w)) of the targets, [N]; 0 outside the classes."""
        class_N = self.class_of(target_N, state_N).cpu().numpy() if class_N is None else class_N
        # in half precision (bf16-true) log_softmax may give either
        result_N = torch.zeros(
            len(target_N), dtype=torch.promote_types(hidden_ND.dtype, torch.float32), device=hidden_ND.device
        )
        for number in range(len(self.sizes)):
            rows_X = np.flatnonzero(class_N == number)
            if len(rows_X):
                rows = moved(rows_X, hidden_ND)
                index_X1 = self.index_CV[number, target_N[rows]].unsqueeze(1)
                chosen_X = self.within_class(hidden_ND[rows], number).gather(1, index_X1).squeeze(1)
                result_N = result_N.index_put((rows,), chosen_X.to(result_N))
        return result_N

    def within_class(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return log P(w | c) of all members of one class, [N, K]."""
        start = sum(self.sizes[:number])
        part = slice(start, start + self.sizes[number])
        return linear(hidden_ND, self.within_RD[part], self.within_bias_R1[part]).log_softmax(1)

    def members(self, number: int) -> Tensor:
        """Return the ids of one class's members, [K]."""
        return (self.index_CV[number] >= 0).nonzero().squeeze(1)

    @staticmethod
    def tag_or_word(tags_NC: Tensor, own_N: Tensor, class_N: Tensor) -> Tensor:
        """Return the score of the class's tag if there is a class, else of the word itself, [N]."""
        tag_N = tags_NC.gather(1, class_N.clamp(min=0).unsqueeze(1)).squeeze(1)
        return torch.where(class_N >= 0, tag_N, own_N)

    def tags(self, hidden_ND: Tensor, state_N: Tensor) -> Tensor:
        """Return logits [N, C]; -inf for a class that does not exist in a state."""
        tags_NC = linear(hidden_ND, self.tag_CD, self.tag_bias_C1)
        return tags_NC.masked_fill(~self.available_SC[state_N], -torch.inf)


def moved(values: np.ndarray, beside: Tensor) -> Tensor:
    """Return values on another tensor's device, without waiting for its work so far."""
    return torch.from_numpy(values).to(beside.device, non_blocking=True)


def rows(count: int, dim: int, init_range: float) -> tuple[nn.Parameter, nn.Parameter]:
    """Return uniform rows [count, dim] and zero biases [count, 1]."""
    weight = torch.empty(count, dim).uniform_(-init_range, init_range)
    return nn.Parameter(weight), nn.Parameter(torch.zeros(count, 1))


def linear(hidden_ND: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return logits in float32, whatever the precision of the product."""
    return F.linear(hidden_ND, weight).float() + bias.squeeze(1)


class OutputHeads(ClassHeads):
    """Rows of all words, trained by a full or a sampled softmax.

    Args:
        samples: number of words drawn by a sampled softmax (Jean et al. 2015); None trains the full softmax.
        sparse: a sampled softmax gives sparse gradients (plain SGD accepts them, Adam does not).
        fast: ``auto`` trains the full softmax by ``BothSoftmaxes``, ``off`` by the plain form; costs and gradients are
            equal up to rounding.

    Raises:
        UserError: no word of the vocabulary is in any class, ``samples`` is not positive, or no such ``fast``.
    """

    outside_O: Tensor
    member_M: Tensor
    column_V: Tensor

    def __init__(
        self,
        *,
        dim: int,
        table: ClassTable,
        init_range: float,
        samples: Count | None = None,
        sparse: bool = False,
        fast: Annotated[str, Choice(FAST)] = "auto",
    ) -> None:
        super().__init__(dim=dim, table=table, init_range=init_range)
        self.samples, self.sparse, self.fast = samples, sparse, fast

    def make_words(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create one row per word, and find the words in no class."""
        in_class_V = torch.from_numpy(table.any_class_V)
        parts = (in_class_V.logical_not().nonzero().squeeze(1), in_class_V.nonzero().squeeze(1))
        column_V = torch.empty(len(in_class_V), dtype=torch.long)
        for part in parts:
            column_V[part] = torch.arange(len(part))
        for name, value in {"outside_O": parts[0], "member_M": parts[1], "column_V": column_V}.items():
            self.register_buffer(name, value, persistent=False)
        self.word_VD, self.word_bias_V1 = rows(len(column_V), dim, init_range)

    @property
    def sampled(self) -> bool:
        """Whether training draws words; as many samples as there are words are the full softmax."""
        return self.samples is not None and self.samples < len(self.column_V)

    @property
    def in_one_pass(self) -> bool:
        """Whether training computes both full softmaxes by ``BothSoftmaxes``."""
        return self.fast == "auto" and not self.sampled

    # training ------------------------------------------------------------------------------------------------------

    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> Costs:
        """Return summed negative log-probabilities in nats: of NNLM and tag together, and of each; () each.

        With ``samples``, the denominators are unbiased estimates: the target, plus words drawn log-uniformly (the
        vocabulary is sorted by frequency) divided by their expected counts.
        """
        if self.sampled:
            nnlm, tag = self._sampled(hidden_ND, target_N, state_N)
        elif self.in_one_pass:
            inside_NM = (self.class_of_SV[:, self.member_M] >= 0)[state_N]
            tags_NC, class_N = self.tags(hidden_ND, state_N), self.class_of(target_N, state_N)
            words = self.word_VD, self.word_bias_V1
            return BothSoftmaxes.apply(hidden_ND, *words, tags_NC, target_N, class_N, self.member_M, inside_NM)
        else:
            nnlm, tag = self.plain(hidden_ND, target_N, state_N)
        return nnlm + tag, nnlm, tag

    def plain(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the costs of NNLM and tag, () each, as in the equations."""
        words_NV, tags_NC = self._words(hidden_ND), self.tags(hidden_ND, state_N)
        own_N = words_NV.gather(1, target_N.unsqueeze(1)).squeeze(1)
        outside_NV = words_NV.masked_fill(self.class_of_SV[state_N] >= 0, -torch.inf)
        # one sum: a state without classes has only -inf tags, whose separate log-sum would have no gradient
        total_N = torch.cat((outside_NV, tags_NC), 1).logsumexp(1)
        chosen_N = self.tag_or_word(tags_NC, own_N, self.class_of(target_N, state_N))
        return (words_NV.logsumexp(1) - own_N).sum(), (total_N - chosen_N).sum()

    def _sampled(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        drawn_J, logits_NJ, own_N = self._sample(hidden_ND, target_N)
        nnlm_N = torch.logaddexp(logits_NJ.logsumexp(1), own_N) - own_N
        # tags are always among the candidates, so their expected count is 1
        tags_NC, class_N = self.tags(hidden_ND, state_N), self.class_of(target_N, state_N)
        outside_NJ = logits_NJ.masked_fill(self.class_of_SV[:, drawn_J][state_N] >= 0, -torch.inf)
        own_outside_N = own_N.masked_fill(class_N >= 0, -torch.inf)
        total_N = torch.cat((outside_NJ, tags_NC, own_outside_N.unsqueeze(1)), 1).logsumexp(1)
        return nnlm_N.sum(), (total_N - self.tag_or_word(tags_NC, own_N, class_N)).sum()

    def _sample(self, hidden_ND: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the drawn words [J], their logits less log expected counts [N, J], and those of the targets [N].

        A drawn word that is the target is -inf.
        """
        drawn_J, log_count_V = self._draw()
        count = len(drawn_J)
        # a step touches only a few thousand rows of the table
        touched = torch.cat((drawn_J, target_N))
        row_XD, bias_X1 = (
            F.embedding(touched, table, sparse=self.sparse) for table in (self.word_VD, self.word_bias_V1)
        )
        logits_NJ = F.linear(hidden_ND, row_XD[:count]).float() + (bias_X1[:count, 0] - log_count_V[drawn_J])
        logits_NJ = logits_NJ.masked_fill(drawn_J == target_N.unsqueeze(1), -torch.inf)
        own_N = (hidden_ND.float() * row_XD[count:]).sum(1) + bias_X1[count:, 0]
        return drawn_J, logits_NJ, own_N

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Return the distinct words of ``samples`` log-uniform draws [J], and every word's log expected count [V]."""
        assert self.samples is not None
        size, device = len(self.column_V), self.word_VD.device
        uniform = torch.rand(self.samples, device=device)
        drawn_J = ((uniform * math.log(size + 1)).exp() - 1).long().clamp(max=size - 1).unique()
        rank_V = torch.arange(size, device=device, dtype=torch.float32)
        chance_V = torch.log1p(1 / (rank_V + 1)) / math.log(size + 1)
        return drawn_J, (-torch.expm1(self.samples * torch.log1p(-chance_V))).log()

    # evaluation ----------------------------------------------------------------------------------------------------

    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        rows = self._ready(self.outside_O), self._ready(self.member_M)
        blocks = zip(hidden_ND.split(BLOCK), target_N.split(BLOCK), state_N.split(BLOCK), strict=True)
        parts = [self._score(*block, rows) for block in blocks]
        within_N = self.within(hidden_ND, target_N, state_N)
        nnlm_N, tag_N, mass_N = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return HeadScores(nnlm_N, tag_N, within_N, mass_N)

    def _score(
        self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor, rows: tuple[Rows, Rows]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return nnlm, tag and mass of a few positions, whose logits stay in the processor's cache."""
        class_N = self.class_of(target_N, state_N)
        outside_NO, member_NM = (linear(hidden_ND, *part) for part in rows)
        own_N = self._own(outside_NO, member_NM, target_N)
        class_NM = self.class_of_SV[:, self.member_M][state_N]
        outside_N = outside_NO.logsumexp(1)
        total_N = torch.logaddexp(outside_N, member_NM.logsumexp(1))
        mass_N = own_N.clone()
        inside = (class_N >= 0).nonzero().squeeze(1)
        same_XM = class_NM[inside] == class_N[inside].unsqueeze(1)
        mass_N[inside] = member_NM[inside].masked_fill(~same_XM, -torch.inf).logsumexp(1)
        mass_N = mass_N - total_N
        # members of a class that does not exist in this state stand for themselves
        free_N = torch.logaddexp(outside_N, member_NM.masked_fill(class_NM >= 0, -torch.inf).logsumexp(1))
        return own_N - total_N, self.tagged(hidden_ND, state_N, class_N, own_N, free_N, mass_N), mass_N

    def tagged(
        self, hidden_ND: Tensor, state_N: Tensor, class_N: Tensor, own_N: Tensor, free_N: Tensor, mass_N: Tensor
    ) -> Tensor:
        """Return log P of the target's tag, or of the word itself outside the classes, [N].

        Args:
            hidden_ND, state_N: states of the network and of the left context.
            free_N: log of the sum over the words that are in no class there.
        """
        tags_NC = self.tags(hidden_ND, state_N)
        return self.tag_or_word(tags_NC, own_N, class_N) - torch.logaddexp(free_N, tags_NC.logsumexp(1))

    def _ready(self, ids: Tensor) -> Rows:
        """Return rows and biases of some words in the precision of the products (converted once, not per block)."""
        weight, kind = self.word_VD[ids], self.word_VD.device.type
        if torch.is_autocast_enabled(kind):
            weight = weight.to(torch.get_autocast_dtype(kind))
        return weight, self.word_bias_V1[ids]

    def _own(self, outside_NO: Tensor, member_NM: Tensor, target_N: Tensor) -> Tensor:
        """Return the logit of each target from the two parts of the vocabulary."""
        both_NV = (outside_NO, member_NM)
        inside_N, column_N = (self.index_CV >= 0).any(0)[target_N], self.column_V[target_N]
        part_N = [
            part.gather(1, column_N.masked_fill(skip, 0).unsqueeze(1)).squeeze(1) if part.shape[1] else part.sum(1)
            for part, skip in zip(both_NV, (inside_N, ~inside_N), strict=True)
        ]
        return torch.where(inside_N, part_N[1], part_N[0])

    def log_probs(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words_NV, tags_NC = self._words(hidden_ND), self.tags(hidden_ND, state_N)
        outside_NV = words_NV.masked_fill(self.class_of_SV[state_N] >= 0, -torch.inf)
        total_N1 = torch.logaddexp(outside_NV.logsumexp(1), tags_NC.logsumexp(1)).unsqueeze(1)
        return words_NV.log_softmax(1), outside_NV - total_N1, tags_NC - total_N1

    def _words(self, hidden_ND: Tensor) -> Tensor:
        return linear(hidden_ND, self.word_VD, self.word_bias_V1)

    def conditional(self, hidden_ND: Tensor, number: int) -> Tensor:
        ids_K = self.members(number)
        return linear(hidden_ND, self.word_VD[ids_K], self.word_bias_V1[ids_K]).log_softmax(1)


class SingleTaskHeads(OutputHeads):
    """The NNLM's softmax alone: P(c) is the sum over the words of the class (the paper's AWD-LSTM experiments).

    P(w | c) is the NNLM's own share, so that HNLM equals NNLM. Arguments: see ``OutputHeads``.
    """

    def make_classes(self, dim: int, table: ClassTable, init_range: float) -> None:
        """There are no tags."""

    def losses(
        self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor, class_N: np.ndarray | None = None
    ) -> dict[str, Tensor]:
        """Return the summed negative log-probability of the words in nats, () each: ``nnlm`` is ``all`` there is."""
        cost, nnlm, _ = self.costs(hidden_ND, target_N, state_N)
        return {"nnlm": nnlm, "all": cost}

    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> Costs:
        """Return the summed negative log-probability of the words in nats, twice, and 0: tags cost nothing."""
        if self.sampled:
            _, logits_NJ, own_N = self._sample(hidden_ND, target_N)
            cost = (torch.logaddexp(logits_NJ.logsumexp(1), own_N) - own_N).sum()
        else:
            with torch.autocast(hidden_ND.device.type, enabled=False):
                # the logits of all positions never exist at the same time
                cost = F.linear_cross_entropy(
                    hidden_ND.float(),
                    self.word_VD,
                    target_N,
                    linear_bias=self.word_bias_V1.squeeze(1),
                    reduction="sum",
                    options=nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK),
                )
        return cost, cost, torch.zeros_like(cost)

    def tagged(
        self, hidden_ND: Tensor, state_N: Tensor, class_N: Tensor, own_N: Tensor, free_N: Tensor, mass_N: Tensor
    ) -> Tensor:
        """Return the class's sum, or the word itself, [N]."""
        return mass_N

    def within_class(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return log P(w | c) of all members of one class, [N, K]: the NNLM's."""
        return self.conditional(hidden_ND, number)

    def log_probs(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words_NV, class_NV = self._words(hidden_ND).log_softmax(1), self.class_of_SV[state_N]
        tags = [words_NV.masked_fill(class_NV != c, -torch.inf).logsumexp(1) for c in range(len(self.sizes))]
        return words_NV, words_NV.masked_fill(class_NV >= 0, -torch.inf), torch.stack(tags, 1)


def make_heads(words: Words, *, dim: int, table: ClassTable, sparse: bool) -> ClassHeads:
    """Return the heads with a full, a sampled or an adaptive softmax, or those of a single task."""
    if words.cutoffs is not None:
        return AdaptiveHeads(dim=dim, table=table, init_range=words.init_range, cutoffs=words.cutoffs)
    kind = SingleTaskHeads if words.single_task else OutputHeads
    return kind(
        dim=dim, table=table, init_range=words.init_range, samples=words.samples, sparse=sparse, fast=words.fast
    )


class AdaptiveHeads(ClassHeads):
    """Words by ``torch.nn.AdaptiveLogSoftmaxWithLoss``; the vocabulary must be sorted by frequency, as ours are.

    Args:
        dim, table, init_range: see ``ClassHeads``; the words have torch's initial values.
        cutoffs: first ids of the clusters, ascending.
        shrink: factor by which the dimension of the rows falls from one cluster to the next.

    Raises:
        UserError: no word of the vocabulary is in any class, or cut-offs that do not ascend inside the vocabulary.
    """

    closed_SH: Tensor

    def __init__(
        self, *, dim: int, table: ClassTable, init_range: float, cutoffs: Sequence[int], shrink: float = 4.0
    ) -> None:
        size = table.class_of_SV.shape[1]
        edges = [0, *map(int, cutoffs), size]
        ascending = len(edges) > 2 and all(low < high for low, high in itertools.pairwise(edges))
        if not ascending or dim < shrink ** (len(edges) - 2):
            raise UserError(
                f"model.cutoffs={edges[1:-1]}: give ascending ids above 0 and below {size}, the vocabulary, and no "
                f"more than backbone.dim={dim} has rows for"
            )
        self.edges, self.shrink = edges, shrink
        super().__init__(dim=dim, table=table, init_range=init_range)

    def make_words(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create short list and clusters, and find which words the tagged vocabulary lacks in each state."""
        self.words = nn.AdaptiveLogSoftmaxWithLoss(dim, self.edges[-1], self.edges[1:-1], self.shrink)
        inside_SV = self.class_of_SV >= 0
        dead = [inside_SV[:, low:high].all(1, keepdim=True) for low, high in itertools.pairwise(self.edges[1:])]
        self.register_buffer("closed_SH", torch.cat((inside_SV[:, : self.edges[1]], *dead), 1), persistent=False)

    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> Costs:
        nnlm_N, tag_N = self._targets(hidden_ND, target_N, state_N)
        nnlm, tag = -nnlm_N.sum(), -tag_N.sum()
        return nnlm + tag, nnlm, tag

    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        nnlm_N, tag_N = self._targets(hidden_ND, target_N, state_N)
        class_N, mass_N = self.class_of(target_N, state_N), nnlm_N.clone()
        for rows_X in (class_N >= 0).nonzero().squeeze(1).split(BLOCK):
            words_XV = self.log_words(hidden_ND[rows_X])
            same_XV = self.class_of_SV[state_N[rows_X]] == class_N[rows_X].unsqueeze(1)
            mass_N[rows_X] = words_XV.masked_fill(~same_XV, -torch.inf).logsumexp(1)
        return HeadScores(nnlm_N, tag_N, self.within(hidden_ND, target_N, state_N), mass_N)

    def log_probs(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words_NH, tagged_NH, tags_NC = self._heads(hidden_ND, state_N)
        inside_NV, short = self.class_of_SV[state_N] >= 0, self.edges[1]
        words, outside = [words_NH[:, :short]], [tagged_NH[:, :short]]
        for place, low, high, network in self._clusters():
            logits_NE = network(hidden_ND).float()
            open_NE = logits_NE.masked_fill(inside_NV[:, low:high], -torch.inf)
            words.append(words_NH[:, place : place + 1] + logits_NE.log_softmax(1))
            outside.append(tagged_NH[:, place : place + 1] + open_NE.log_softmax(1))
        # a cluster without any open word has no softmax
        return torch.cat(words, 1), torch.cat(outside, 1).masked_fill(inside_NV, -torch.inf), tags_NC

    def conditional(self, hidden_ND: Tensor, number: int) -> Tensor:
        ids_K = self.members(number)
        return torch.cat([self.log_words(block)[:, ids_K] for block in hidden_ND.split(BLOCK)]).log_softmax(1)

    def log_words(self, hidden_ND: Tensor) -> Tensor:
        """Return log P of all words under the NNLM, [N, V]; torch's ``log_prob`` keeps the precision of the states."""
        head_NH = self.words.head(hidden_ND).float().log_softmax(1)
        parts = [network(hidden_ND).float().log_softmax(1) for network in self.words.tail]
        shares = head_NH[:, self.edges[1] :].split(1, 1)
        return torch.cat([head_NH[:, : self.edges[1]], *map(torch.add, shares, parts)], 1)

    def _heads(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log P of short list and clusters in both vocabularies, [N, H] each, and of the tags, [N, C]."""
        head_NH, tags_NC = self.words.head(hidden_ND).float(), self.tags(hidden_ND, state_N)
        open_NH = head_NH.masked_fill(self.closed_SH[state_N], -torch.inf)
        joint = torch.cat((open_NH, tags_NC), 1).log_softmax(1)
        return head_NH.log_softmax(1), *joint.split((open_NH.shape[1], tags_NC.shape[1]), 1)

    def _clusters(self) -> Iterator[tuple[int, int, int, nn.Module]]:
        """Yield the index after the short list, the first id, the end id and the network of each cluster."""
        for number, (edges, network) in enumerate(
            zip(itertools.pairwise(self.edges[1:]), self.words.tail, strict=True)
        ):
            yield self.edges[1] + number, *edges, network

    def _targets(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the targets under NNLM and tag, [N] each."""
        words_NH, tagged_NH, tags_NC = self._heads(hidden_ND, state_N)
        class_N, place_N = self.class_of(target_N, state_N), target_N
        for place, low, high, _ in self._clusters():
            place_N = torch.where((target_N >= low) & (target_N < high), place, place_N)
        nnlm_N, word_N = (part.gather(1, place_N.unsqueeze(1)).squeeze(1) for part in (words_NH, tagged_NH))
        tag_N = self.tag_or_word(tags_NC, word_N, class_N)
        for place, low, high, network in self._clusters():
            rows_X = (place_N == place).nonzero().squeeze(1)
            logits_XE, column_X1 = network(hidden_ND[rows_X]).float(), (target_N[rows_X] - low).unsqueeze(1)
            own_X = logits_XE.log_softmax(1).gather(1, column_X1).squeeze(1)
            nnlm_N = nnlm_N.index_add(0, rows_X, own_X)
            # members of a class have a tag; the others share the cluster without them
            plain_X = class_N[rows_X] < 0
            inside_XE = self.class_of_SV[:, low:high][state_N[rows_X[plain_X]]] >= 0
            open_XE = logits_XE[plain_X].masked_fill(inside_XE, -torch.inf)
            own_X = open_XE.log_softmax(1).gather(1, column_X1[plain_X]).squeeze(1)
            tag_N = tag_N.index_add(0, rows_X[plain_X], own_X)
        return nnlm_N, tag_N
