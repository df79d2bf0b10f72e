"""What every model says about the tokens of a text, token by token: all perplexities and errors are sums over it.

Shape letters: N tokens, X tokens of one class, K members of a class, D hidden size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lit_ctg.papers.nslm.metric_function import arc
from lit_ctg.papers.nslm.mixture import mix, with_cache
from lit_ctg.papers.nslm.occurrence import Contexts

if TYPE_CHECKING:
    from lit_ctg.papers.nslm.module import NSLMModule

EARTH_RADIUS_KM = 6371.0
# whose best guess at the member is measured
GUESSERS = ("nnlm", "hnlm", "nslm", "mixture")


@dataclass(frozen=True)
class TokenScores:
    """One row a target, float64 log-probabilities in nats.

    Attributes:
        target_N: token ids.
        class_N: their classes where they stand, -1 for none.
        first_N: no earlier member of the class in the document (False outside the classes).
        nnlm_N, tag_N, mass_N: see ``HeadScores``.
        within_N, characters_N, micro_N: log P(w | c) of HNLM, character RNN (NaN: not computed) and micro-model; 0
            outside the classes.
        cache_N: log P of the neural cache; NaN where it is empty.
        error_NG: distance of the best guess at the member (years, km, ...) from the target, a column for each of
            ``GUESSERS``; NaN outside the classes and where members have no numbers.
    """

    target_N: np.ndarray
    class_N: np.ndarray
    first_N: np.ndarray
    nnlm_N: np.ndarray
    tag_N: np.ndarray
    mass_N: np.ndarray
    within_N: np.ndarray
    characters_N: np.ndarray
    micro_N: np.ndarray
    cache_N: np.ndarray
    error_NG: np.ndarray

    def __len__(self) -> int:
        return len(self.target_N)

    @classmethod
    def join(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Put the rows of several batches one behind the other."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def models(self, weight: float) -> dict[str, np.ndarray]:
        """Return log P(w) of each model, [N]: the columns of Tables 2 and 3.

        ``nslm_alone`` is Eq. 4; ``nslm`` its mixture with the NNLM, the paper's final model; ``summed`` has P(c) summed
        over the NNLM's members instead of a tag's.

        Args:
            weight: of Eq. 4 in the mixture.
        """
        alone_N = self.tag_N + self.micro_N
        models = {
            "nnlm": self.nnlm_N,
            "hnlm": self.tag_N + self.within_N,
            "crnn": self.tag_N + self.characters_N,
            "nslm_alone": alone_N,
            "nslm": mix(self.nnlm_N, alone_N, weight),
            "summed": self.mass_N + self.micro_N,
        }
        return {name: values_N for name, values_N in models.items() if not np.isnan(values_N).any()}

    def cached(self, models: dict[str, np.ndarray], weight: float) -> dict[str, np.ndarray]:
        """Return the same models mixed with the neural cache."""
        return {f"{name}_cache": with_cache(values_N, self.cache_N, weight) for name, values_N in models.items()}


def score_batch(
    module: NSLMModule,
    batch: Mapping[str, Tensor],
    hidden_BTD: Tensor,
    contexts: Contexts,
    cached_BT: Tensor,
    characters: bool,
) -> TokenScores:
    """Return the scores of a batch's counted targets, row by row.

    Args:
        module: a module with fitted micro-models.
        batch: as the data module makes it.
        hidden_BTD: states of its positions.
        contexts: what stands before the token after each.
        cached_BT: log-probabilities of the neural cache.
        characters: whether the character RNNs are asked too.
    """
    mask_BT = batch["mask_target_BT"]
    counted_BT = mask_BT.cpu().numpy()
    hidden_ND, target_N = hidden_BTD[mask_BT], batch["target_ids_BT"][mask_BT]
    state_N = torch.from_numpy(contexts.state_BT[counted_BT]).to(target_N.device)
    scores = module.heads.score(hidden_ND, target_N, state_N)
    nnlm_N, tag_N, mass_N = (_numpy(part) for part in (scores.nnlm_N, scores.tag_N, scores.mass_N))
    targets_N, joint_N2 = target_N.cpu().numpy(), np.stack((mass_N, tag_N), 1)
    inside = class_scores(module, hidden_ND, targets_N, contexts, counted_BT, joint_N2, characters)
    cached_N = _numpy(cached_BT[mask_BT])
    return TokenScores(targets_N, nnlm_N=nnlm_N, tag_N=tag_N, mass_N=mass_N, cache_N=cached_N, **inside)


def class_scores(
    module: NSLMModule,
    hidden_ND: Tensor,
    target_N: np.ndarray,
    contexts: Contexts,
    chosen_BT: np.ndarray,
    joint_N2: np.ndarray,
    characters: bool,
) -> dict[str, np.ndarray]:
    """Return what is said within the classes: within, characters, micro, first and error (see ``TokenScores``).

    Args:
        module: a module with fitted micro-models.
        hidden_ND: states of the counted positions.
        target_N: their targets.
        contexts: what stands before each position of the batch.
        chosen_BT: the counted positions.
        joint_N2: log mass and log tag of the target's class.
        characters: whether the character RNNs are asked too.
    """
    count = len(target_N)
    state_N = contexts.state_BT[chosen_BT]
    class_N = module.table.class_of_SV[state_N, target_N]
    zeros = np.zeros(count)
    unasked = zeros if characters else np.where(class_N >= 0, np.nan, 0.0)
    result = {
        "class_N": class_N,
        "first_N": zeros.astype(bool),
        "within_N": zeros.copy(),
        "characters_N": unasked.copy(),
        "micro_N": zeros.copy(),
        "error_NG": np.full((count, len(GUESSERS)), np.nan),
    }
    places_BT = np.flatnonzero(chosen_BT)
    for number in np.unique(class_N[class_N >= 0]):
        rows_X = np.flatnonzero(class_N == number)
        inside_BT = np.zeros(chosen_BT.shape, dtype=bool)
        inside_BT.reshape(-1)[places_BT[rows_X]] = True
        evidence = contexts.evidence(number, inside_BT)
        index_X = module.table.index_CV[number, target_N[rows_X]]
        hidden_XD = hidden_ND[torch.from_numpy(rows_X)]
        micro_XK = module.micro_models[number].log_prob(evidence)
        within_XK = _numpy(module.heads.within_class(hidden_XD, number))
        each = np.arange(len(rows_X))
        result["micro_N"][rows_X] = micro_XK[each, index_X]
        result["within_N"][rows_X] = within_XK[each, index_X]
        result["first_N"][rows_X] = evidence.previous_N < 0
        if characters:
            index = torch.from_numpy(index_X)
            result["characters_N"][rows_X] = _numpy(module.characters.log_prob_of(hidden_XD, index, number))
        attributes_KD = module.table.classes[number].attributes_KD
        if attributes_KD.shape[1] and not np.isnan(attributes_KD).any():
            neural_XK = _numpy(module.heads.conditional(hidden_XD, number))
            mass_X1, tag_X1 = joint_N2[rows_X, :1], joint_N2[rows_X, 1:]
            mixed_XK = mix(mass_X1 + neural_XK, tag_X1 + micro_XK, float(module.mixture_weight))
            for column, guess_XK in enumerate((neural_XK, within_XK, micro_XK, mixed_XK)):
                guess_XD = attributes_KD[guess_XK.argmax(1)]
                result["error_NG"][rows_X, column] = distance(guess_XD, attributes_KD[index_X])
    return result


def distance(guess_XD: np.ndarray, truth_XD: np.ndarray) -> np.ndarray:
    """Return absolute differences of values, or kilometres on the globe between (latitude, longitude) pairs, [X]."""
    if truth_XD.shape[1] == 1:
        return np.abs(guess_XD - truth_XD)[:, 0]
    return EARTH_RADIUS_KM * arc(np.radians(guess_XD), np.radians(truth_XD))


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
