"""A feature bank over text: small functions of the prefix, each with its control group, hindsight rule and membership.

A feature is a class with ``values``; the ones here are configured in YAML (``conf/model/semantic_fusion_text.yaml``),
your own is a subclass named by ``_target_``. Features may read only tokens 0 .. t: ``FeatureBank.bind`` probes each.

Shape letters: B rows, T positions, F columns of the bank, V vocabulary.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from lit_ctg.core.generation import ControlSetting
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import Checked, Choice, Positive, checked
from lit_ctg.papers.semantic_fusion.channel import at_next, membership
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon, WordFinder, table_of

LEVELS = ("low", "med", "high")
MEMBERSHIPS = ("identity", "low_med_high")
HINDSIGHT = ("next", "any", "rest")


class Reading:
    """A batch of prefixes as seen by features.

    Attributes:
        word_BT: index of the lexicon word that ends at each position, or -1.
    """

    def __init__(self, ids_BT: Tensor, finder: WordFinder, vocabulary: Any) -> None:
        self.ids_BT, self.finder, self.vocabulary = ids_BT, finder, vocabulary

    @cached_property
    def word_BT(self) -> Tensor:
        return self.finder(self.ids_BT)

    def of_words(self, values: Sequence[float] | Tensor) -> Tensor:
        """Return at each position the value (one per lexicon word) of the word that ends there, or 0.

        Args:
            values: numbers, or once and for all what ``table_of`` makes of them.
        """
        whole = isinstance(values, Tensor) and len(values) == len(self.finder.lexicon.words) + 1
        table = values if isinstance(values, Tensor) and whole else table_of(list(values))
        return table.to(self.ids_BT.device)[self.word_BT]

    def before(self, values_BT: Tensor) -> Tensor:
        """Return the values one position earlier, 0 at the first."""
        return nn.functional.pad(values_BT[:, :-1], (1, 0))


class Feature(Checked, abc.ABC):
    """One graded property of the prefix.

    Args:
        group: its control group; None: it cannot be set.
        hindsight: what a user would have asked for at a position, from the row's own future: ``next`` is the value at
            the group's next event (or at the last one), ``any`` the largest of the whole row, ``rest`` the mean over
            the following positions.
        membership: ``identity``, one column; ``low_med_high``, three columns (Eq. 1).
    """

    def __init__(
        self,
        *,
        group: str | None = None,
        hindsight: Annotated[str, Choice(HINDSIGHT)] = "next",
        membership: Annotated[str, Choice(MEMBERSHIPS)] = "identity",
    ) -> None:
        self.group, self.hindsight, self.membership = group, hindsight, membership

    def bind(self, lexicon: Lexicon, vocabulary: Any) -> None:
        """Look up what the feature needs in lexicon and vocabulary; ``UserError`` if it is missing."""
        return None

    @abc.abstractmethod
    def values(self, reading: Reading) -> Tensor:
        """Return the feature at each position, [B, T] in [0, 1], a function of tokens 0 .. t."""

    def columns(self, name: str) -> tuple[str, ...]:
        """Return the names of its columns in the bank."""
        return (name,) if self.membership == "identity" else tuple(f"{name}_{level}" for level in LEVELS)


class Graded(Feature):
    """A graded column of the lexicon: the positive (``sign=1``) or negative part for the word that ends here.

    Args:
        column: ``polarity``, ``strength`` or another of the file.
        sign: 1 or -1.
    """

    def __init__(self, *, column: str, sign: Literal[1, -1] = 1, **options: Any) -> None:
        super().__init__(**options)
        self.column, self.sign = column, sign

    def bind(self, lexicon: Lexicon, vocabulary: Any) -> None:
        self.graded = table_of([max(self.sign * value, 0.0) for value in lexicon.column(self.column)])

    def values(self, reading: Reading) -> Tensor:
        return reading.of_words(self.graded)


class WordClass(Feature):
    """1 where a word of a class of the lexicon ends."""

    def __init__(self, *, word_class: str, **options: Any) -> None:
        super().__init__(**options)
        self.word_class = word_class

    def bind(self, lexicon: Lexicon, vocabulary: Any) -> None:
        members = set(lexicon.of_class(self.word_class))
        self.member = table_of([float(word in members) for word in lexicon.words])

    def values(self, reading: Reading) -> Tensor:
        return reading.of_words(self.member)


class Mark(Feature):
    """1 at certain tokens, such as a question mark.

    Args:
        marks: texts; each must be a token.
    """

    def __init__(self, *, marks: str | Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.marks = [marks] if isinstance(marks, str) else list(marks)

    def bind(self, lexicon: Lexicon, vocabulary: Any) -> None:
        self.ids = []
        for mark, ids in zip(self.marks, ids_behind(vocabulary, "a", self.marks), strict=True):
            if len(ids) != 1 or ids[0] == getattr(vocabulary, "unknown_id", None):
                raise UserError(f"feature Mark: '{mark}' is not a token of the corpus's vocabulary: leave it out")
            self.ids.append(ids[0])

    def values(self, reading: Reading) -> Tensor:
        return torch.isin(reading.ids_BT, reading.ids_BT.new_tensor(self.ids)).float()


class Recent(Graded):
    """A decaying mean of a graded column over the lexicon words so far: the mood of the text.

    Args:
        half_life: number of positions after which a word counts half.
    """

    def __init__(self, *, half_life: Positive = 20.0, **options: Any) -> None:
        super().__init__(**options)
        self.half_life = half_life

    def values(self, reading: Reading) -> Tensor:
        value_BT, word_BT = super().values(reading), (reading.word_BT >= 0).float()
        # the weight at t of a word at s, as one product, because a decoding step reads whole prefixes
        age_TT = torch.arange(value_BT.shape[1], device=value_BT.device)
        age_TT = age_TT.unsqueeze(0) - age_TT.unsqueeze(1)
        kept_TT = torch.where(age_TT >= 0, 0.5 ** (age_TT.clamp(min=0) / self.half_life), 0.0).to(value_BT)
        return ((value_BT @ kept_TT) / (word_BT @ kept_TT).clamp(min=1e-9)).clamp(max=1.0)


@checked
class FeatureBank(nn.Module):
    """The features of a text model in the order of the configuration.

    Args:
        features: name -> feature.
        centres, temperature: of the memberships (Eq. 1).

    Attributes:
        names: columns, F.
        groups: control group -> its columns.
    """

    centres_3: Tensor
    temperature: Tensor

    def __init__(
        self,
        *,
        lexicon: Lexicon,
        features: Mapping[str, Feature],
        centres: Sequence[float],
        temperature: Positive,
    ) -> None:
        super().__init__()
        given = {name: feature for name, feature in features.items() if feature is not None}
        foreign = [name for name, feature in given.items() if not isinstance(feature, Feature)]
        columns = [column for name, one in given.items() if name not in foreign for column in one.columns(name)]
        self.groups: dict[str, tuple[str, ...]] = {}
        for name, one in given.items():
            if name not in foreign and one.group is not None:
                self.groups[one.group] = (*self.groups.get(one.group, ()), *one.columns(name))
        asked = [column for members in self.groups.values() for column in members]
        refuse({
            " is empty: give at least one feature": not given,
            f".{''.join(foreign[:1])}: give a subclass of Feature": foreign,
            f": two features have a column of the same name ({', '.join(columns)})": len(set(columns)) < len(columns),
            ".strength: the control has a setting of this name; rename the feature": "strength" in asked,
        }, "model.bank.features")  # fmt: skip
        self.lexicon, self.features, self.names = lexicon, given, tuple(columns)
        self.register_buffer("centres_3", torch.tensor([float(c) for c in centres]), persistent=False)
        self.register_buffer("temperature", torch.tensor(float(temperature)), persistent=False)

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        """The features that a user can set: those with a group."""
        return tuple(
            ControlSetting(name, f"feature {name} of the group {group}", low=0.0, high=1.0)
            for group, names in self.groups.items()
            for name in names
        )

    def bind(self, vocabulary: Any) -> None:
        """Bind the bank to a tokenizer and probe every feature.

        Raises:
            UserError: a feature that lacks what it needs, returns anything but [B, T] in [0, 1], or looks ahead.
        """
        self.vocabulary, self.finder = vocabulary, WordFinder(self.lexicon, vocabulary)
        for feature in self.features.values():
            feature.bind(self.lexicon, vocabulary)
        self._probe()

    def _probe(self) -> None:
        """Compare the values of prefixes with those of whole rows, on rows full of lexicon words."""
        generator = torch.Generator().manual_seed(0)
        spelled = [ids for spellings in self.finder.spellings for ids in spellings[:1]]
        rows = []
        for _ in range(4):
            row: list[int] = []
            while len(row) < 16:
                pick = int(torch.randint(2 * len(spelled), (1,), generator=generator))
                drawn = torch.randint(len(self.vocabulary), (2,), generator=generator).tolist()
                row += spelled[pick] if pick < len(spelled) else drawn
            rows.append(row[:16])
        # include marks: a feature may look ahead for something rare
        marks = [i for feature in self.features.values() for i in getattr(feature, "ids", [])]
        for place, mark in enumerate(marks):
            rows[place % 4][15 - place // 4 % 8] = mark
        ids_BT = torch.tensor(rows, device=self.centres_3.device)
        for name, feature in self.features.items():
            whole_BT = feature.values(self._reading(ids_BT))
            if whole_BT.shape != ids_BT.shape or not bool(((whole_BT >= 0) & (whole_BT <= 1)).all()):
                raise UserError(f"feature '{name}' must give one number from 0 to 1 for each position [B, T]")
            for end in range(1, ids_BT.shape[1]):
                prefix_BT = feature.values(self._reading(ids_BT[:, :end]))
                if not torch.allclose(prefix_BT, whole_BT[:, :end], atol=1e-6):
                    raise UserError(
                        f"feature '{name}' looks ahead: its value at a token changes with what comes after position "
                        f"{end}; a feature may read the tokens up to its own position only"
                    )

    def _reading(self, ids_BT: Tensor) -> Reading:
        return Reading(ids_BT, self.finder, self.vocabulary)

    def values(self, ids_BT: Tensor) -> dict[str, Tensor]:
        """Return the raw value [B, T] of every feature."""
        reading = self._reading(ids_BT)
        return {name: feature.values(reading) for name, feature in self.features.items()}

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return the features of every prefix, [B, T, F]."""
        return self._columns(self.values(ids_BT), self._members)

    def _columns(self, values: Mapping[str, Tensor], spread: Any) -> Tensor:
        parts = [
            value.unsqueeze(-1) if self.features[name].membership == "identity" else spread(value)
            for name, value in values.items()
        ]
        return torch.cat(parts, dim=-1)

    def _members(self, value_BT: Tensor) -> Tensor:
        return membership(value_BT.unsqueeze(-1), self.centres_3, self.temperature)

    def _nearest(self, value_BT: Tensor) -> Tensor:
        """Return 1 in the column of the nearest centre (the higher of two: .8 is high), all 0 for a value of 0."""
        middles_2 = (self.centres_3[:-1] + self.centres_3[1:]) / 2 - 1e-6  # rounding must not make .8 less than .8
        nearest_BT = torch.bucketize(value_BT, middles_2)
        chosen = nn.functional.one_hot(nearest_BT, len(LEVELS)).float()
        return chosen * (value_BT > 0).unsqueeze(-1)

    def hindsight(self, ids_BT: Tensor) -> Tensor:
        """Return what a user would have asked for at each position, [B, T, F]; columns outside the groups are 0."""
        values = self.values(ids_BT)
        wanted: dict[str, Tensor] = {}
        for name, value_BT in values.items():
            feature = self.features[name]
            if feature.group is None:
                wanted[name] = torch.zeros_like(value_BT)
            elif feature.hindsight == "any":
                wanted[name] = value_BT.amax(1, keepdim=True).expand_as(value_BT)
            elif feature.hindsight == "rest":
                after_BT = value_BT.flip(1).cumsum(1).flip(1) - value_BT
                count_T = torch.arange(value_BT.shape[1] - 1, -1, -1, device=value_BT.device).clamp(min=1)
                wanted[name] = after_BT / count_T
            else:
                members = [n for n, f in self.features.items() if f.group == feature.group and f.hindsight == "next"]
                event_BT = torch.stack([values[n] > 0 for n in members]).any(0)
                wanted[name] = at_next(value_BT, event_BT)
        return self._columns(wanted, self._nearest)
