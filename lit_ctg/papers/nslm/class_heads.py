"""What all output layers have in common: tags of classes and softmaxes over the members of each (Eq. 3 and 4).

Shape letters: N positions, D hidden size, V words, C classes, S left-context states, R class members, class by class,
K members of one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_table import ClassTable


@dataclass
class HeadScores:
    """Log-probabilities of the targets, [N] each, in nats.

    Attributes:
        nnlm_N: log P(w), softmax over all words (Eq. 2).
        tag_N: log P(c(w)), or of the word itself outside the classes (first factor of Eq. 3 and 4).
        within_N: log P(w | c(w)), neural (second factor of Eq. 3); 0 outside the classes.
        mass_N: log of all that the NNLM gives to members of c(w) (the single-task P(c) of the AWD-LSTM experiments);
            outside the classes that of the word.
    """

    nnlm_N: Tensor
    tag_N: Tensor
    within_N: Tensor
    mass_N: Tensor


class ClassHeads(nn.Module, ABC):
    """Rows of class tags, and rows of their own for members within their class; derived classes have those of words.

    Args:
        dim: hidden size D.
        table: classes of the vocabulary; at least one must have members.
        init_range: rows start uniform in [-init_range, init_range], biases at 0.

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
        self.tag_CD, self.tag_bias_C1 = rows(len(table), dim, init_range)
        self.within_RD, self.within_bias_R1 = rows(sum(self.sizes), dim, init_range)

    @abstractmethod
    def make_words(self, dim: int, table: ClassTable, init_range: float) -> None:
        """Create the parameters of words."""

    @abstractmethod
    def costs(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return summed negative log-probabilities of NNLM and tag in nats, () each, for training."""

    @abstractmethod
    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        """Return exact log-probabilities of the targets under every head."""

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log P of all words [N, V] (Eq. 2), and of the tagged vocabulary: words [N, V] and tags [N, C].

        A word that is in a class where it stands is -inf in the second, a class that does not exist there in the third.
        """

    @abstractmethod
    def conditional(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return the NNLM's log P(w | c): its softmax over the members of one class, [N, K]."""

    def losses(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> dict[str, Tensor]:
        """Return summed negative log-probabilities of NNLM, tag and within-class softmax, in nats; () each."""
        nnlm, tag = self.costs(hidden_ND, target_N, state_N)
        return {"nnlm": nnlm, "tag": tag, "within": -self.within(hidden_ND, target_N, state_N).sum()}

    def class_of(self, target_N: Tensor, state_N: Tensor) -> Tensor:
        """Return the class of each target where it stands, -1 for none."""
        return self.class_of_SV[state_N, target_N]

    def within(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> Tensor:
        """Return log P(w | c(w)) of the targets, [N]; 0 outside the classes."""
        class_N = self.class_of(target_N, state_N)
        result_N = torch.zeros(len(target_N), device=hidden_ND.device)
        for number in range(len(self.sizes)):
            rows = (class_N == number).nonzero().squeeze(1)
            if len(rows):
                index_X1 = self.index_CV[number, target_N[rows]].unsqueeze(1)
                chosen_X = self.within_class(hidden_ND[rows], number).gather(1, index_X1).squeeze(1)
                result_N = result_N.index_put((rows,), chosen_X)
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
        """Return the score of the class's tag where there is a class, else that of the word itself, [N]."""
        tag_N = tags_NC.gather(1, class_N.clamp(min=0).unsqueeze(1)).squeeze(1)
        return torch.where(class_N >= 0, tag_N, own_N)

    def tags(self, hidden_ND: Tensor, state_N: Tensor) -> Tensor:
        """Return logits [N, C]; a class that does not exist in a state has -inf."""
        tags_NC = linear(hidden_ND, self.tag_CD, self.tag_bias_C1)
        return tags_NC.masked_fill(~self.available_SC[state_N], -torch.inf)


def rows(count: int, dim: int, init_range: float) -> tuple[nn.Parameter, nn.Parameter]:
    """Return uniform rows [count, dim] and zero biases [count, 1]."""
    weight = torch.empty(count, dim).uniform_(-init_range, init_range)
    return nn.Parameter(weight), nn.Parameter(torch.zeros(count, 1))


def linear(hidden_ND: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return logits in float32, whatever precision the product is computed in."""
    return F.linear(hidden_ND, weight).float() + bias.squeeze(1)
