"""Baselines and building blocks of NSLM: LSTM, character RNNs, neural cache, grounded embeddings (sec. 5.2, 6.2).

Shape letters: B streams, T positions, D hidden size of the language model, L layers (of the LSTM) or characters,
N contexts, H hidden size of a character RNN, K members of a class, A characters of its alphabet with the end symbol
(0), X class tokens, W cached positions, V vocabulary, G grounded dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.errors import UserError
from lit_ctg.files import check_regular
from lit_ctg.limits import Count, Dropout, Fraction, NonNegative, checked
from lit_ctg.network.backbone import ModuleListOf
from lit_ctg.papers.nslm.classes import ClassTable
from lit_ctg.papers.nslm.heads import moved

# hidden and cell states, [layers, B, size] each
State = tuple[Tensor, ...]


class StatefulBackbone(nn.Module, ABC):
    """A recurrent network whose state is carried from stretch to stretch.

    Attributes:
        dim: size D of inputs and outputs.
    """

    causal = True
    dim: int

    @abstractmethod
    def run(self, embedded_BTD: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return hidden states [B, T, D] and the state after the last position.

        Args:
            state: final state of the previous stretch; None starts afresh.
        """

    def penalty(self) -> Tensor | None:
        """Return what the last ``run`` in training adds to the cost of its step, (), once; None: nothing."""
        return None

    def forward(self, embedded_BTD: Tensor) -> Tensor:
        """Return hidden states [B, T, D] of texts that start here (zero state)."""
        return self.run(embedded_BTD, None)[0]

    def step(self, embedded_BD: Tensor, cache: State | None) -> tuple[Tensor, State]:
        """Run one position (generation); equal to the last column of ``forward`` on the whole prefix."""
        hidden_B1D, state = self.run(embedded_BD.unsqueeze(1), cache)
        return hidden_B1D.squeeze(1), state


@checked
class RecurrentBackbone(StatefulBackbone):
    """Regularised LSTM of Zaremba et al. (2014): dropout on non-recurrent connections only, input and output included.

    Args:
        dim: size D of inputs, states and outputs.
        dropout: probability, before every layer and after the last.
        init_range: weights and biases are initialised uniformly in [-init_range, init_range].
    """

    def __init__(self, *, dim: Count, layers: Count, dropout: Dropout, init_range: NonNegative) -> None:
        super().__init__()
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        # torch warns about dropout between layers when there is only one
        self.lstm = nn.LSTM(dim, dim, layers, dropout=dropout if layers > 1 else 0.0, batch_first=True)
        for parameter in self.lstm.parameters():
            nn.init.uniform_(parameter, -init_range, init_range)

    def run(self, embedded_BTD: Tensor, state: State | None) -> tuple[Tensor, State]:
        hidden_BTD, state = self.lstm(self.dropout(embedded_BTD), state)
        return self.dropout(hidden_BTD), state

    def start(self, rows: int) -> State:
        """Return the state before the first position, zeros [layers, B, D]."""
        zeros = next(self.lstm.parameters()).new_zeros(self.lstm.num_layers, rows, self.dim)
        return zeros, zeros.clone()


def forget(state: State, reset_B: Tensor) -> State:
    """Return the state, zeroed in the streams where ``reset_B`` is set, and detached from the graph."""
    keep_B1 = (~reset_B).unsqueeze(-1)
    return tuple(torch.where(keep_B1, part.detach(), 0.0) for part in state)


END = 0
CELLS = 200_000  # members times contexts scored at a time


class CharacterRNN(nn.Module):
    """GRU over the characters of a token whose initial state is a function of the language model's state.

    Args:
        tokens: members of the class, in order.
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
        self.lengths = np.array([len(token) + 1 for token in tokens], dtype=np.int64)
        self.register_buffer("length_K", torch.from_numpy(self.lengths), persistent=False)
        self.levels = _trie([[alphabet[c] for c in token] + [END] for token in tokens])
        self.embedding = nn.Embedding(len(alphabet) + 1, dim)
        self.first = nn.Linear(context_dim, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.output = nn.Linear(dim, len(alphabet) + 1)

    def forward(self, context_ND: Tensor, index_N: np.ndarray) -> Tensor:
        """Return log P of one member per context by the chain rule, [N]; strings outside the class also have mass."""
        return self.log_prob(context_ND, moved(index_N, context_ND), int(self.lengths[index_N].max()))

    def log_prob(self, context_ND: Tensor, member_N: Tensor, longest: int) -> Tensor:
        """Return the same for members on the device, of which none has more than ``longest`` characters and the end."""
        length_N = self.length_K[member_N]
        text_NL = self.padded_KL[member_N][:, :longest]
        # the end symbol also starts a token
        input_NL = F.pad(text_NL[:, :-1], (1, 0), value=END)
        hidden_NLH, _ = self.rnn(self.embedding(input_NL), self._first(context_ND).unsqueeze(0))
        log_NL = self.output(hidden_NLH).float().log_softmax(-1).gather(2, text_NL.unsqueeze(2)).squeeze(2)
        inside_NL = torch.arange(text_NL.shape[1], device=text_NL.device) < length_N.unsqueeze(1)
        return (log_NL * inside_NL).sum(1)

    def log_probs(self, context_ND: Tensor) -> Tensor:
        """Return log P of all members by the chain rule, [N, K], sharing prefixes (the rows sum to less than 1).

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
    """Return for every depth the parent prefix and symbol of each prefix, and the prefix and member of each end."""
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
        one, two, three, four = (torch.tensor(c, dtype=torch.long) for c in (parent, symbol, ends, members))
        levels.append((one, two, three, four))
        prefixes, depth = longer, depth + 1
    return levels


class CharacterRNNs(ModuleListOf[CharacterRNN]):
    """The networks of all classes. They learn from the language model's states, but send no gradient to it.

    Args:
        context_dim, dim: D and H.
        every: number of steps whose class tokens make one step of the networks.
        renormalise: whether probabilities are renormalised over the class vocabulary.

        Attributes:
            ready: class tokens of ``every`` steps have been collected.
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
        """Collect the class tokens of a step: states before them, classes, members."""
        self.gathered.append((hidden_XD.detach(), class_X, index_X))

    def forget(self) -> None:
        self.gathered = []

    def collected(self) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Return the states before the collected tokens, their classes and members, and start collecting afresh."""
        hidden_XD = torch.cat([part[0] for part in self.gathered])
        class_X, index_X = (np.concatenate([part[place] for part in self.gathered]) for place in (1, 2))
        self.forget()
        return hidden_XD, class_X, index_X

    def cost(self, hidden_XD: Tensor, class_X: np.ndarray, index_X: np.ndarray) -> Tensor:
        """Return the mean -log P of some class tokens in nats, ()."""
        cost = hidden_XD.new_zeros((), dtype=torch.float32)
        for number in np.unique(class_X):
            rows_X = np.flatnonzero(class_X == number)
            cost = cost - self[number](hidden_XD[moved(rows_X, hidden_XD)], index_X[rows_X]).sum()
        return cost / len(class_X)

    def log_probs(self, hidden_XD: Tensor, number: int) -> Tensor:
        """Return log P of all members of a class, [X, K], renormalised if set."""
        log_XK = self[number].log_probs(hidden_XD)
        return log_XK.log_softmax(1) if self.renormalise else log_XK

    def log_prob_of(self, hidden_XD: Tensor, index_X: np.ndarray, number: int) -> Tensor:
        """Return log P of one member of a class at each position, [X]."""
        if not self.renormalise:
            return self[number](hidden_XD, index_X)
        blocks = hidden_XD.split(max(1, CELLS // len(self[number].length_K)))
        log_XK = torch.cat([self.log_probs(block, number) for block in blocks])
        return log_XK.gather(1, moved(index_X, log_XK).unsqueeze(1)).squeeze(1)


@dataclass
class CacheState:
    """The last positions of every stream: hidden states [B, W, D] and the words after them [B, W], -1 for none."""

    hidden_BWD: Tensor
    word_BW: Tensor


@checked
@dataclass(frozen=True)
class NeuralCache:
    """p_cache(w | h_t) is proportional to the sum over cached i with x_{i+1} = w of exp(temperature * h_t . h_i).

    Attributes:
        window: cached positions (paper: 500).
        weight: of the cache in the mixture (paper: 0.25); an empty cache has weight 0.
        temperature: factor of the product of hidden states (paper: 0.75), as in Grave et al., eq. 5.
    """

    window: Count
    weight: Fraction
    temperature: float

    def start(self, hidden_BTD: Tensor) -> CacheState:
        """Return an empty cache for such streams."""
        batch, _, dim = hidden_BTD.shape
        empty = hidden_BTD.new_zeros(batch, 0, dim, dtype=torch.float32)
        return CacheState(empty, torch.zeros(batch, 0, dtype=torch.long, device=hidden_BTD.device))

    def attend(self, hidden_BTD: Tensor, word_BT: Tensor, state: CacheState) -> tuple[Tensor, Tensor, CacheState]:
        """Return log weights [B, T, W + T] over positions, the words there [B, W + T], and the extended cache.

        Args:
            word_BT: the words after them, -1 where there is none; position t attends only to earlier ones.

            Rows with an empty cache are -inf throughout.
        """
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            hidden_BTD = hidden_BTD.float()
            keys_BXD = torch.cat((state.hidden_BWD, hidden_BTD), 1)
            words_BX = torch.cat((state.word_BW, word_BT), 1)
            score_BTX = self.temperature * (hidden_BTD @ keys_BXD.mT)
        before, length = state.word_BW.shape[1], hidden_BTD.shape[1]
        at_T1 = before + torch.arange(length, device=score_BTX.device).unsqueeze(1)
        key_X = torch.arange(before + length, device=score_BTX.device)
        seen_BTX = (key_X < at_T1) & (key_X >= at_T1 - self.window) & (words_BX >= 0).unsqueeze(1)
        score_BTX = score_BTX.masked_fill(~seen_BTX, -torch.inf)
        total_BT1 = score_BTX.logsumexp(2, keepdim=True)
        log_BTX = torch.where(total_BT1 == -torch.inf, -torch.inf, score_BTX - total_BT1)
        kept = CacheState(keys_BXD[:, -self.window :], words_BX[:, -self.window :])
        return log_BTX, words_BX, kept

    def target(self, hidden_BTD: Tensor, word_BT: Tensor, state: CacheState) -> tuple[Tensor, CacheState]:
        """Return log p_cache of the words themselves [B, T] (NaN: the cache is empty), and the extended cache."""
        log_BTX, words_BX, state = self.attend(hidden_BTD, word_BT, state)
        same_BTX = words_BX.unsqueeze(1) == word_BT.unsqueeze(2)
        log_BT = log_BTX.masked_fill(~same_BTX, -torch.inf).logsumexp(2)
        empty_BT = (log_BTX == -torch.inf).all(2)
        return log_BT.masked_fill(empty_BT, torch.nan), state


def grounded_dimensions(table: ClassTable, size: int) -> Tensor:
    """Return the attributes of class tokens, [V, G] (sec. 6.2): a value or coordinates; zeros for other words.

    Values are log(1 + value), coordinates are radians, each scaled to a maximum absolute value of 1.
    """
    width = max((members.attributes_KD.shape[1] for members in table.classes), default=0)
    grounded_VG = np.zeros((size, width))
    for members in table.classes:
        columns = members.attributes_KD.shape[1]
        values_KD = np.nan_to_num(members.attributes_KD)
        scaled_KD = np.sign(values_KD) * np.log1p(np.abs(values_KD)) if columns == 1 else np.radians(values_KD)
        grounded_VG[members.ids_K, :columns] = scaled_KD
    largest_G = np.abs(grounded_VG).max(0, initial=0.0)
    return torch.from_numpy(grounded_VG / np.where(largest_G > 0, largest_G, 1.0)).float()


def read_vectors(path: str | Path, tokens: tuple[str, ...], dim: int) -> tuple[Tensor, Tensor]:
    """Return (vectors [V, D], found [V] bool) from a text file with a word and D numbers per line (GloVe's format).

    A missing token is looked up in lower case, like GloVe's 6B vocabulary.

    Raises:
        UserError: no such file, a line with a different number of values, or no word of the vocabulary in it.
    """
    vectors: dict[str, np.ndarray] = {}
    wanted, line_number = set(tokens) | {token.lower() for token in tokens}, 0
    try:
        check_regular(path)
        with open(path, encoding="utf-8") as file:
            for line_number, line in enumerate(file, start=1):  # noqa: B007 (for the message)
                word, _, values = line.rstrip("\n").partition(" ")
                fields = values.split() if word in wanted else []
                if len(fields) > dim and not _is_number(fields[-dim - 1]):
                    # some files have words with spaces in them, such as ". . ."; too many numbers are another mistake
                    word, fields = " ".join([word, *fields[:-dim]]), fields[-dim:]
                if word in wanted:
                    vectors[word] = np.array(fields, dtype=np.float64)
                    if len(fields) != dim:
                        raise ValueError(f"{len(fields)} numbers, the embedding trains {dim} (backbone.dim)")
        if not vectors:
            raise ValueError("no word of the vocabulary")
    except (OSError, ValueError) as error:
        where = f"model.embedding_file={path}, line {line_number}"
        raise UserError(f"{where}: {error}; give a text file of GloVe's format that fits backbone.dim") from error
    rows = [vectors.get(token, vectors.get(token.lower())) for token in tokens]
    found_V = torch.tensor([row is not None for row in rows])
    return torch.from_numpy(np.stack([np.zeros(dim) if row is None else row for row in rows])).float(), found_V


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
