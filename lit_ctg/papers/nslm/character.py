"""Character RNNs, one a class (the CRNN baseline): P(w | c, h) by the chain rule over characters and an end symbol.

Shape letters: N contexts, D hidden size of the language model, H hidden size, K members of the class, L characters,
A characters of the class's alphabet with the end symbol (0), X class tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

END = 0
CELLS = 200_000  # members times contexts that are scored at one time


class CharacterRNN(nn.Module):
    """GRU over the characters of a token whose first state is a function of the language model's.

    Args:
        tokens: members of the class, in its order.
        context_dim: D.
        dim: H.
    """

    padded_KL: Tensor
    length_K: Tensor

    def __init__(self, tokens: Sequence[str], *, context_dim: int, dim: int) -> None:
        super().__init__()
        alphabet = {character: 1 + i for i, character in enumerate(sorted(set("".join(tokens))))}
        longest = 1 + max(map(len, tokens), default=0)
        padded_KL = torch.full((len(tokens), longest), END)
        for row, token in enumerate(tokens):
            padded_KL[row, : len(token)] = torch.tensor([alphabet[character] for character in token])
        self.register_buffer("padded_KL", padded_KL, persistent=False)
        self.register_buffer("length_K", torch.tensor([len(token) + 1 for token in tokens]), persistent=False)
        self.levels = _trie([[alphabet[c] for c in token] + [END] for token in tokens])
        self.embedding = nn.Embedding(len(alphabet) + 1, dim)
        self.first = nn.Linear(context_dim, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.output = nn.Linear(dim, len(alphabet) + 1)

    def forward(self, context_ND: Tensor, member_N: Tensor) -> Tensor:
        """Return log P of one member a context by the chain rule, [N]; strings outside the class have a share too."""
        length_N = self.length_K[member_N]
        text_NL = self.padded_KL[member_N][:, : int(length_N.max())]
        # the end symbol begins a token too
        input_NL = F.pad(text_NL[:, :-1], (1, 0), value=END)
        hidden_NLH, _ = self.rnn(self.embedding(input_NL), self._first(context_ND).unsqueeze(0))
        log_NL = self.output(hidden_NLH).float().log_softmax(-1).gather(2, text_NL.unsqueeze(2)).squeeze(2)
        inside_NL = torch.arange(text_NL.shape[1], device=text_NL.device) < length_N.unsqueeze(1)
        return (log_NL * inside_NL).sum(1)

    def log_probs(self, context_ND: Tensor) -> Tensor:
        """Return log P by the chain rule of all members, [N, K], prefixes computed once (the rows sum to less than 1).

        ``log_softmax`` over K renormalises them over the class.
        """
        count = len(context_ND)
        state_NPH = self._first(context_ND).unsqueeze(1)
        log_NP = state_NPH.new_zeros(count, 1, dtype=torch.float32)
        symbol_P = torch.tensor([END], device=context_ND.device)
        result_NK = log_NP.new_full((count, len(self.length_K)), -torch.inf)
        for parent, symbol, ends, members in self.levels:
            step = self.embedding(symbol_P).expand(count, -1, -1).flatten(0, 1).unsqueeze(1)
            hidden, _ = self.rnn(step, state_NPH.flatten(0, 1).unsqueeze(0))
            state_NPH = hidden.view(count, len(symbol_P), hidden.shape[-1])
            log_NPA = self.output(state_NPH).float().log_softmax(-1) + log_NP.unsqueeze(2)
            result_NK[:, members] = log_NPA[:, ends, END]
            log_NP = log_NPA[:, parent, symbol]
            state_NPH, symbol_P = state_NPH[:, parent], symbol.to(context_ND.device)
        return result_NK

    def _first(self, context_ND: Tensor) -> Tensor:
        return self.first(context_ND).tanh()


Level = tuple[Tensor, Tensor, Tensor, Tensor]


def _trie(texts: Sequence[Sequence[int]]) -> list[Level]:
    """Return for every depth: parent prefix and symbol of each longer prefix; prefix and member of each end."""
    levels: list[Level] = []
    prefixes: dict[tuple[int, ...], int] = {(): 0}
    depth = 0
    while prefixes:
        longer: dict[tuple[int, ...], int] = {}
        ends, members = [], []
        for member, text in enumerate(texts):
            if len(text) <= depth:
                continue
            if text[depth] == END:
                ends.append(prefixes[tuple(text[:depth])])
                members.append(member)
            else:
                longer.setdefault(tuple(text[: depth + 1]), len(longer))
        parent = [prefixes[prefix[:-1]] for prefix in longer]
        symbol = [prefix[-1] for prefix in longer]
        columns = (parent, symbol, ends, members)
        levels.append(tuple(torch.tensor(column, dtype=torch.long) for column in columns))  # type: ignore[arg-type]
        prefixes, depth = longer, depth + 1
    return levels


class CharacterRNNs(nn.ModuleList):
    """The networks of all classes. They learn from the language model's states, which do not learn from them.

    Args:
        classes: the members of each.
        context_dim, dim: D and H.
        every: steps whose class tokens are gathered for one step of the networks.
        renormalise: probabilities are renormalised over the class vocabulary.

    Attributes:
        ready: class tokens of ``every`` steps have been gathered.
    """

    def __init__(
        self, classes: Sequence[Sequence[str]], *, context_dim: int, dim: int, every: int, renormalise: bool
    ) -> None:
        super().__init__(CharacterRNN(tokens, context_dim=context_dim, dim=dim) for tokens in classes)
        self.every, self.renormalise = every, renormalise
        self.gathered: list[tuple[Tensor, np.ndarray, np.ndarray]] = []

    @property
    def ready(self) -> bool:
        return len(self.gathered) >= self.every

    def gather(self, hidden_XD: Tensor, class_X: np.ndarray, index_X: np.ndarray) -> None:
        """Keep the class tokens of a step: states before them, classes, members."""
        self.gathered.append((hidden_XD.detach(), class_X, index_X))

    def forget(self) -> None:
        """Drop what was gathered."""
        self.gathered = []

    def cost(self) -> Tensor:
        """Return the mean -log P of the gathered class tokens in nats, (); the gathering begins anew."""
        hidden_XD = torch.cat([part[0] for part in self.gathered])
        class_X, index_X = (np.concatenate([part[place] for part in self.gathered]) for place in (1, 2))
        self.forget()
        cost = hidden_XD.new_zeros((), dtype=torch.float32)
        for number in np.unique(class_X):
            rows = torch.from_numpy(np.flatnonzero(class_X == number)).to(hidden_XD.device)
            index = torch.from_numpy(index_X).to(hidden_XD.device)[rows]
            cost = cost - self[number](hidden_XD[rows], index).sum()
        return cost / len(class_X)

    def log_probs(self, hidden_XD: Tensor, number: int) -> Tensor:
        """Return log P of all members of a class, [X, K], renormalised over them or not."""
        log_XK = self[number].log_probs(hidden_XD)
        return log_XK.log_softmax(1) if self.renormalise else log_XK

    def log_prob_of(self, hidden_XD: Tensor, index_X: Tensor, number: int) -> Tensor:
        """Return log P of one member of a class at each position, [X]."""
        if not self.renormalise:
            return self[number](hidden_XD, index_X)
        blocks = hidden_XD.split(max(1, CELLS // len(self[number].length_K)))
        log_XK = torch.cat([self.log_probs(block, number) for block in blocks])
        return log_XK.gather(1, index_X.unsqueeze(1)).squeeze(1)
