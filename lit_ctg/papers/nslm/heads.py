"""Output layer shared by NNLM, HNLM and NSLM: words, class tags, and members within a class (Eq. 2 to 4).

A word has one row for both vocabularies: the NNLM's softmax runs over all words, the tag softmax over one tag a class
and the words that are in no class where the token stands. So all models have equal parameters (sec. 5.2: 50 million
for the medium LSTM leave no room for a second table).

Shape letters: N positions, D hidden size, V words, C classes, S left-context states, O words in no class in any state,
M words in some class, K members of one class, J sampled words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.adaptive import AdaptiveHeads
from lit_ctg.papers.nslm.class_heads import ClassHeads, HeadScores, linear, rows
from lit_ctg.papers.nslm.class_table import ClassTable

BLOCK = 64  # positions scored at one time
Rows = tuple[Tensor, Tensor]


class OutputHeads(ClassHeads):
    """Rows of all words, trained by a full or a sampled softmax.

    Args:
        dim, table, init_range: see ``ClassHeads``.
        samples: words that a sampled softmax draws (Jean et al. 2015); None trains the full softmax.
        sparse: a sampled softmax gives sparse gradients (plain SGD takes them, Adam does not).

    Raises:
        UserError: no word of the vocabulary is in any class, or ``samples`` is not positive.
    """

    outside_O: Tensor
    member_M: Tensor
    column_V: Tensor

    def __init__(
        self, *, dim: int, table: ClassTable, init_range: float, samples: int | None = None, sparse: bool = False
    ) -> None:
        if samples is not None and samples < 1:
            raise UserError(f"model.samples={samples}: give a positive number of words, or null for the full softmax")
        super().__init__(dim=dim, table=table, init_range=init_range)
        self.samples, self.sparse = samples, sparse

    def make_words(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create one row a word, and note which are in no class."""
        in_class_V = torch.from_numpy(table.any_class_V)
        parts = (in_class_V.logical_not().nonzero().squeeze(1), in_class_V.nonzero().squeeze(1))
        column_V = torch.empty(len(in_class_V), dtype=torch.long)
        for part in parts:
            column_V[part] = torch.arange(len(part))
        for name, value in {"outside_O": parts[0], "member_M": parts[1], "column_V": column_V}.items():
            self.register_buffer(name, value, persistent=False)
        self.word_VD, self.word_bias_V1 = rows(len(column_V), dim, init_range)

    # training ------------------------------------------------------------------------------------------------------

    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return summed negative log-probabilities of NNLM and tag in nats, () each.

        With ``samples``, the denominators are unbiased estimates: the target, and words drawn by a log-uniform law (the
        vocabulary is sorted by frequency) over their expected counts.
        """
        sampled = self.samples is not None and self.samples < len(self.column_V)
        return (self._sampled if sampled else self._full)(hidden_ND, target_N, state_N)

    def _full(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        words_NV, tags_NC = self._words(hidden_ND), self.tags(hidden_ND, state_N)
        own_N = words_NV.gather(1, target_N.unsqueeze(1)).squeeze(1)
        outside_NV = words_NV.masked_fill(self.class_of_SV[state_N] >= 0, -torch.inf)
        # one sum: a state without classes has only -inf tags, and their own log-sum would have no gradient
        total_N = torch.cat((outside_NV, tags_NC), 1).logsumexp(1)
        chosen_N = self.tag_or_word(tags_NC, own_N, self.class_of(target_N, state_N))
        return (words_NV.logsumexp(1) - own_N).sum(), (total_N - chosen_N).sum()

    def _sampled(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        drawn_J, log_count_V = self._draw()
        count = len(drawn_J)
        # a step touches a few thousand rows, not the whole table
        touched = torch.cat((drawn_J, target_N))
        row_XD, bias_X1 = (
            F.embedding(touched, table, sparse=self.sparse) for table in (self.word_VD, self.word_bias_V1)
        )
        logits_NJ = F.linear(hidden_ND, row_XD[:count]).float() + (bias_X1[:count, 0] - log_count_V[drawn_J])
        logits_NJ = logits_NJ.masked_fill(drawn_J == target_N.unsqueeze(1), -torch.inf)
        own_N = (hidden_ND.float() * row_XD[count:]).sum(1) + bias_X1[count:, 0]
        nnlm_N = torch.logaddexp(logits_NJ.logsumexp(1), own_N) - own_N
        # tags are always among the candidates, so their expected count is 1
        tags_NC, class_N = self.tags(hidden_ND, state_N), self.class_of(target_N, state_N)
        outside_NJ = logits_NJ.masked_fill(self.class_of_SV[:, drawn_J][state_N] >= 0, -torch.inf)
        own_outside_N = own_N.masked_fill(class_N >= 0, -torch.inf)
        total_N = torch.cat((outside_NJ, tags_NC, own_outside_N.unsqueeze(1)), 1).logsumexp(1)
        return nnlm_N.sum(), (total_N - self.tag_or_word(tags_NC, own_N, class_N)).sum()

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
        """Return exact log-probabilities of the targets under every head."""
        rows = tuple(self._ready(part) for part in (self.outside_O, self.member_M))
        blocks = zip(*(part.split(BLOCK) for part in (hidden_ND, target_N, state_N)), strict=True)
        parts = [self._score(*block, rows) for block in blocks]
        within_N = self.within(hidden_ND, target_N, state_N)
        nnlm_N, tag_N, mass_N = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return HeadScores(nnlm_N, tag_N, within_N, mass_N)

    def _score(
        self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor, rows: tuple[Rows, Rows]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return nnlm, tag and mass of a few positions: what is in the processor's cache is read again for free."""
        class_N = self.class_of(target_N, state_N)
        outside_NO, member_NM = (linear(hidden_ND, *part) for part in rows)
        own_N = self._own(outside_NO, member_NM, target_N)
        class_NM = self.class_of_SV[:, self.member_M][state_N]
        tags_NC = self.tags(hidden_ND, state_N)
        outside_N = outside_NO.logsumexp(1)
        total_N = torch.logaddexp(outside_N, member_NM.logsumexp(1))
        # members of a class that is not there in this state stand for themselves
        free_N = member_NM.masked_fill(class_NM >= 0, -torch.inf).logsumexp(1)
        tagged_N = torch.logaddexp(torch.logaddexp(outside_N, free_N), tags_NC.logsumexp(1))
        mass_N = own_N.clone()
        inside = (class_N >= 0).nonzero().squeeze(1)
        same_XM = class_NM[inside] == class_N[inside].unsqueeze(1)
        mass_N[inside] = member_NM[inside].masked_fill(~same_XM, -torch.inf).logsumexp(1)
        return own_N - total_N, self.tag_or_word(tags_NC, own_N, class_N) - tagged_N, mass_N - total_N

    def _ready(self, ids: Tensor) -> Rows:
        """Return rows and biases of some words, in the precision products are computed in (once, not a block)."""
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
        """Return log P of all words [N, V] (Eq. 2), and of the tagged vocabulary: words [N, V] and tags [N, C].

        A word that is in a class where it stands is -inf in the second, a class that does not exist there in the third.
        """
        words_NV, tags_NC = self._words(hidden_ND), self.tags(hidden_ND, state_N)
        outside_NV = words_NV.masked_fill(self.class_of_SV[state_N] >= 0, -torch.inf)
        total_N1 = torch.logaddexp(outside_NV.logsumexp(1), tags_NC.logsumexp(1)).unsqueeze(1)
        return words_NV.log_softmax(1), outside_NV - total_N1, tags_NC - total_N1

    def _words(self, hidden_ND: Tensor) -> Tensor:
        return linear(hidden_ND, self.word_VD, self.word_bias_V1)

    def conditional(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return the NNLM's log P(w | c): its softmax over the members of one class, [N, K]."""
        ids_K = self.members(number)
        return linear(hidden_ND, self.word_VD[ids_K], self.word_bias_V1[ids_K]).log_softmax(1)


def make_heads(
    *,
    dim: int,
    table: ClassTable,
    init_range: float,
    samples: int | None,
    cutoffs: Sequence[int] | None,
    sparse: bool,
) -> ClassHeads:
    """Return the heads with a full, a sampled (``samples``) or an adaptive softmax (``cutoffs``).

    Raises:
        UserError: both are asked for; see also ``OutputHeads`` and ``AdaptiveHeads``.
    """
    if cutoffs is None:
        return OutputHeads(dim=dim, table=table, init_range=init_range, samples=samples, sparse=sparse)
    if samples is not None:
        raise UserError(f"model.samples={samples} and model.cutoffs are two softmaxes: set one of them to null")
    return AdaptiveHeads(dim=dim, table=table, init_range=init_range, cutoffs=cutoffs)
