"""Adaptive softmax (Grave et al. 2017) under the heads of NNLM, HNLM and NSLM: a short list, clusters of rarer words.

A word has one row for both vocabularies, as in ``OutputHeads``. In the tagged one the members of classes are left out
of the short list and of their clusters, the tags stand beside the short list, and a cluster of nothing but members
falls out. So both sum to 1 exactly, in training and in evaluation; training touches only the clusters of its targets.

Shape letters: N positions, X some of them, D hidden size, V words, C classes, S left-context states, H words of the
short list and clusters, E words of a cluster, K members of one class.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_heads import ClassHeads, HeadScores
from lit_ctg.papers.nslm.class_table import ClassTable

BLOCK = 64  # positions whose whole vocabulary is computed at one time


class AdaptiveHeads(ClassHeads):
    """Words by ``torch.nn.AdaptiveLogSoftmaxWithLoss``; the vocabulary must be sorted by frequency, as ours are.

    Args:
        dim, table, init_range: see ``ClassHeads``; the words start as torch makes them.
        cutoffs: first ids of the clusters, ascending.
        shrink: rows of a cluster have so many times fewer dimensions than those before.

    Raises:
        UserError: no word of the vocabulary is in any class, or cut-offs that do not ascend inside the vocabulary.
    """

    closed_SH: Tensor

    def __init__(
        self, *, dim: int, table: ClassTable, init_range: float, cutoffs: Sequence[int], shrink: float = 4.0
    ) -> None:
        size = table.class_of_SV.shape[1]
        edges = [0, *map(int, cutoffs), size]
        if len(edges) < 3 or any(low >= high for low, high in itertools.pairwise(edges)):
            raise UserError(f"model.cutoffs={edges[1:-1]}: give ascending ids above 0 and below {size}, the vocabulary")
        if dim < shrink ** (len(edges) - 2):
            raise UserError(f"model.cutoffs={edges[1:-1]}: backbone.dim={dim} is too little for so many clusters")
        self.edges, self.shrink = edges, shrink
        super().__init__(dim=dim, table=table, init_range=init_range)

    def make_words(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create short list and clusters, and note which of them the tagged vocabulary does not have in each state."""
        self.words = nn.AdaptiveLogSoftmaxWithLoss(dim, self.edges[-1], self.edges[1:-1], self.shrink)
        inside_SV = self.class_of_SV >= 0
        dead = [inside_SV[:, low:high].all(1, keepdim=True) for low, high in itertools.pairwise(self.edges[1:])]
        self.register_buffer("closed_SH", torch.cat((inside_SV[:, : self.edges[1]], *dead), 1), persistent=False)

    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return summed negative log-probabilities of NNLM and tag in nats, () each; exact."""
        nnlm_N, tag_N = self._targets(hidden_ND, target_N, state_N)
        return -nnlm_N.sum(), -tag_N.sum()

    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        """Return exact log-probabilities of the targets under every head."""
        nnlm_N, tag_N = self._targets(hidden_ND, target_N, state_N)
        class_N, mass_N = self.class_of(target_N, state_N), nnlm_N.clone()
        for rows_X in (class_N >= 0).nonzero().squeeze(1).split(BLOCK):
            words_XV = self._words(hidden_ND[rows_X])
            same_XV = self.class_of_SV[state_N[rows_X]] == class_N[rows_X].unsqueeze(1)
            mass_N[rows_X] = words_XV.masked_fill(~same_XV, -torch.inf).logsumexp(1)
        return HeadScores(nnlm_N, tag_N, self.within(hidden_ND, target_N, state_N), mass_N)

    def log_probs(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log P of all words [N, V] (Eq. 2), and of the tagged vocabulary: words [N, V] and tags [N, C].

        A word that is in a class where it stands is -inf in the second, a class that does not exist there in the third.
        """
        words_NH, tagged_NH, tags_NC = self._heads(hidden_ND, state_N)
        inside_NV, short = self.class_of_SV[state_N] >= 0, self.edges[1]
        words, outside = [words_NH[:, :short]], [tagged_NH[:, :short]]
        for place, low, high, network in self._clusters():
            logits_NE = network(hidden_ND).float()
            open_NE = logits_NE.masked_fill(inside_NV[:, low:high], -torch.inf)
            words.append(words_NH[:, place : place + 1] + logits_NE.log_softmax(1))
            outside.append(tagged_NH[:, place : place + 1] + open_NE.log_softmax(1))
        # a cluster without an open word has no softmax
        return torch.cat(words, 1), torch.cat(outside, 1).masked_fill(inside_NV, -torch.inf), tags_NC

    def conditional(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return the NNLM's log P(w | c): its softmax over the members of one class, [N, K]."""
        ids_K = self.members(number)
        return torch.cat([self._words(block)[:, ids_K] for block in hidden_ND.split(BLOCK)]).log_softmax(1)

    def _words(self, hidden_ND: Tensor) -> Tensor:
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
        """Yield the place beside the short list, the first id, the one behind the last, and the network of each."""
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
