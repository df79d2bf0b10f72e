"""Do micro-models help a model that has read the web? Tables 2 and 3 and Fig. 3 on a pretrained model (ours).

The model is not trained. A member of a class is several of its tokens: its probability is the product over them, times
the probability that no token continues it. Micro-models are fitted on training text, their weight on validation text.

Shape letters: B rows, T positions, V vocabulary, N predicted tokens or members, S stretches of tokens.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lit_ctg.callback.progress import steps
from lit_ctg.control.base import added_ids
from lit_ctg.core.chat import text_ids
from lit_ctg.core.generation import evaluating
from lit_ctg.core.metric import token_nll
from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, datamodule_of
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.limits import Checked, Count, Fraction, Whole
from lit_ctg.network.backbone import Backbone, PretrainedBackbone, check_backbone
from lit_ctg.papers.nslm.classes import Recogniser
from lit_ctg.papers.nslm.control import Member, MicroModels, RedistributeClassMass
from lit_ctg.papers.nslm.corpus import join_numbers
from lit_ctg.papers.nslm.evaluation import Articles, ClassPerplexity, entry
from lit_ctg.papers.nslm.from_text import Fitted, fit
from lit_ctg.papers.nslm.micro_model import mixture_weights

# tokens whose scores exist at a time
BLOCK = 256
# micro-models that are tried: those that the corrected regime chooses, those that the tables print, and two references
ARMS = ("nslm", "printed", "unigram", "repeat")
# WikiText writes marks apart, and hyphens within words as @-@
_MARKS = (
    (re.compile(r" @([-–])@ "), r"\1"),
    (re.compile(r" ([,.;:!?)\]%])"), r"\1"),
    (re.compile(r"([(\[$£€]) "), r"\1"),
)


def readable(text: str) -> str:
    """Return WikiText as people write it, as far as its marks allow."""
    text = join_numbers(text)
    for pattern, written in _MARKS:
        text = pattern.sub(written, text)
    return text


class PretrainedModel(LitLanguageModel):
    """A pretrained model as it is: nothing is trained.

    Args:
        vocabulary: its tokenizer.
        backbone: with its own embedding and output head.

    Raises:
        UserError: a backbone without them.
    """

    learning_rate = 0.0

    def __init__(self, *, vocabulary: Tokenizer, backbone: Backbone) -> None:
        super().__init__()
        check_backbone(backbone, "embed", "head")
        self.vocabulary, self.backbone = vocabulary, cast(PretrainedBackbone, backbone)

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position."""
        hidden_BTD = self.hidden(batch["input_ids_BT"])
        return LMOutput(self.backbone.head(hidden_BTD), hidden_BTD)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Return the last hidden states [B, T, D]."""
        return cast(nn.Module, self.backbone)(self.backbone.embed(ids_BT)).float()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy, nats a token."""
        nll_BT = token_nll(self(batch).scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])
        loss = nll_BT.sum() / batch["mask_target_BT"].sum()
        return {"loss": loss, "token_loss": loss.detach()}

    def configure_optimizers(self) -> None:
        """Return nothing to train with."""


@dataclass(frozen=True)
class Read:
    """A text that the model has read, and its class members.

    Attributes:
        own_N: log-probability of every token, nats.
        log_AN: the same under each arm at weight 1.
        members: in order.
        pieces: of each member the log-probabilities [1 + A, P] of its tokens and of its end: the model's, each arm's.
    """

    own_N: np.ndarray
    log_AN: np.ndarray
    members: list[Member]
    pieces: list[np.ndarray]

    def token(self, arm: int, weight: float) -> np.ndarray:
        """Return the log-probability of every token under an arm at a weight."""
        return mixed(self.log_AN[arm], self.own_N, weight)

    def member(self, arm: int, weight: float) -> np.ndarray:
        """Return the log-probability of every member."""
        own = [mixed(piece_AP[1 + arm], piece_AP[0], weight).sum() for piece_AP in self.pieces]
        return np.array(own, dtype=np.float64)


def mixed(ruled_N: np.ndarray, own_N: np.ndarray, weight: float) -> np.ndarray:
    """Return the logarithm of the mixture of two probabilities, nats."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(ruled_N + np.log(weight), own_N + np.log1p(-weight))


class MicroModelTrial(Checked, Callback):
    """Measure micro-models on a pretrained model, in the last validation of a run.

    Args:
        classes: name -> recogniser.
        total: name of the tokens of all classes.
        weight: of the micro-models as published (the paper prints none).
        rarity: lower bounds of the groups of members by count in training text (Fig. 3).
        length: maximum tokens read of an article.
        fitted_on: tokens of validation text on which the weights are fitted; null: all.
        most: tokens of test text that are read; null: all.
        folds: parts of the test text, by article; the values of each are kept.

    Attributes:
        results: ``test/<model>/<group>`` perplexities of a member (of a token in ``global``). Groups: a class,
            ``total``, ``first``, ``later``, ``rarity_<from>_<to>``. Models: ``bare``; ``<arm>`` at its fitted weight
            and ``<arm>_published`` at ``weight``; ``<arm>_alone`` at weight 1. ``change/test/<model>/bare/<group>`` in
            percent, its interval over articles. ``weight/<arm>``, 0 where it does not help.
    """

    def __init__(
        self,
        *,
        classes: Mapping[str, Recogniser],
        total: str,
        weight: Fraction,
        rarity: Sequence[Whole],
        length: Count,
        fitted_on: Count | None,
        most: Count | None = None,
        folds: Count = 5,
    ) -> None:
        super().__init__()
        self.classes, self.total, self.weight, self.rarity = dict(classes), total, weight, tuple(rarity)
        self.length, self.fitted_on, self.most, self.folds = length, fitted_on, most, folds
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            with torch.inference_mode(), evaluating(pl_module):
                self.run(trainer, cast(PretrainedModel, pl_module), datamodule_of(trainer))

    def run(self, trainer: Trainer, module: PretrainedModel, data: Any) -> None:
        """Fit the micro-models, read validation and test text, and set ``results``."""
        train, validation, test = (
            [readable(document.text) for document in data.documents(split)] for split in ("train", "val", "test")
        )
        fitted = fit(self.classes, train, validation, bases=("uniform", "unigram"))
        found = {"nslm": fitted.selection.models, **fitted.selection.references}
        arms = [fitted.control({**fitted.selection.models, **found[name]}) for name in ARMS]
        engine = cast(HuggingFaceTokenizer, module.vocabulary).engine
        for arm in arms:
            arm.bind(engine)
        with trainer.precision_plugin.forward_context():
            known = list(self._read(module, arms, validation, self.fitted_on, "validation text"))
            reads = list(self._read(module, arms, test, self.most, "test text"))
        weights = [self._fit(known, number) for number in range(len(ARMS))]
        n = sum(len(read.own_N) for read in known)
        self.results = {f"weight/{name}": entry(weight, "weight", n)
                        for name, weight in zip(ARMS, weights, strict=True)}  # fmt: skip
        settings: dict[str, tuple[int, float]] = {"bare": (0, 0.0)}
        for number, (name, weight) in enumerate(zip(ARMS, weights, strict=True)):
            settings |= {
                name: (number, weight),
                f"{name}_published": (number, self.weight),
                f"{name}_alone": (number, 1),
            }
        self._measure(reads, fitted, settings)

    def _read(
        self, module: PretrainedModel, arms: Sequence[MicroModels], texts: Sequence[str], most: int | None, what: str
    ) -> Iterator[Read]:
        """Yield the readings of texts, up to ``most`` tokens in all."""
        engine, left = cast(HuggingFaceTokenizer, module.vocabulary).engine, most
        start, _ = added_ids(engine)
        for ids in steps(text_ids(engine, texts), what):
            if left is not None and left <= 0:
                return
            ids = (start + ids)[: self.length if left is None else min(self.length, left)]
            left = None if left is None else left - len(ids)
            if len(ids) > 1:
                yield self._one(module, arms, ids)

    def _one(self, module: PretrainedModel, arms: Sequence[MicroModels], ids: list[int]) -> Read:
        rules = [RedistributeClassMass(cast(Any, arm.reader), torch.ones(1)) for arm in arms]
        reader = rules[0].reader
        readings = reader.readings(ids)
        members = [each for each in reader.members(readings) if each.begin > 0]
        wanted = {place for each in members for place in range(each.begin, each.stop + 1)}
        begun = {int(number) for form in range(len(reader.tries)) for number in reader.below(form, 0).ids_J}
        # elsewhere the rule leaves the probability of the next token as it is
        wanted |= {place for place in range(1, len(ids)) if readings[place].node or ids[place] in begun}
        ids_1T = torch.tensor([ids], device=module.device)
        hidden_TD = module.hidden(ids_1T)[0]
        own_T, log_AT = np.zeros(len(ids)), np.zeros((len(arms), len(ids)))
        ends: dict[int, np.ndarray] = {}
        stops = {each.stop for each in members}
        for first in range(1, len(ids) + 1, BLOCK):
            places = range(first, min(first + BLOCK, len(ids) + 1))
            log_SV = module.backbone.head(hidden_TD[first - 1 : places.stop - 1]).double().log_softmax(-1).cpu().numpy()
            for place, log_V in zip(places, log_SV, strict=True):
                inside = place < len(ids)
                if inside:
                    own_T[place] = log_AT[:, place] = log_V[ids[place]]
                if place not in wanted:
                    continue
                ruled = [log_V.copy() for _ in rules]
                for rule, changed_V in zip(rules, ruled, strict=True):
                    rule.redistribute(changed_V, readings[place])
                if inside:
                    log_AT[:, place] = [changed_V[ids[place]] for changed_V in ruled]
                if place in stops:
                    over_V = ~reader.tries[0].continuing(len(log_V)).numpy() | (not readings[place].open)
                    ends[place] = np.array([np.logaddexp.reduce(each[over_V]) for each in (log_V, *ruled)])
        own_AT = np.concatenate([own_T[None], log_AT])
        pieces = [np.column_stack([own_AT[:, each.begin : each.stop], ends[each.stop]]) for each in members]
        return Read(own_T[1:], log_AT[:, 1:], members, pieces)

    def _fit(self, reads: Sequence[Read], arm: int) -> float:
        """Return the weight under which validation text is most likely; 0 where that does not help."""
        own_N = np.concatenate([read.own_N for read in reads])
        ruled_N = np.concatenate([read.log_AN[arm] for read in reads])
        changed_N = np.abs(ruled_N - own_N) > 1e-9
        if not changed_N.any():
            return 0.0
        weight = float(mixture_weights(np.stack([ruled_N, own_N], axis=1)[changed_N])[0])
        return weight if weight > 1e-6 else 0.0

    def _measure(self, reads: Sequence[Read], fitted: Fitted, settings: Mapping[str, tuple[int, float]]) -> None:
        names = [each.name for each in fitted.table.classes]
        bounds = {
            f"rarity_{low}_{'more' if high == math.inf else high - 1}": (low, high)
            for low, high in itertools.pairwise((*self.rarity, math.inf))
        }
        groups = [*names, self.total, "first", "later", *bounds]
        rows, articles = [], []
        for number, read in enumerate(reads):
            seen: set[int] = set()
            for each in read.members:
                count = int(fitted.members[names[each.number]][each.index])
                rows.append([
                    *(each.number == own for own in range(len(names))), True,
                    each.number not in seen, each.number in seen,
                    *(low <= count < high for low, high in bounds.values()),
                ])  # fmt: skip
                seen.add(each.number)
                articles.append(number)
        member_NG, article_N = np.array(rows, dtype=bool).reshape(-1, len(groups)), np.array(articles, dtype=np.int64)
        token_N = np.concatenate([np.full(len(read.own_N), number) for number, read in enumerate(reads)])
        values = {
            name: (
                np.concatenate([read.member(*at) for read in reads]),
                np.concatenate([read.token(*at) for read in reads]),
            )
            for name, at in settings.items()
        }
        by_member, by_token = Articles(article_N), Articles(token_N)
        everywhere_N1 = np.ones((len(token_N), 1), dtype=bool)
        for name, (member_N, each_N) in values.items():
            own = self._perplexities(member_N, member_NG, article_N, groups)
            own |= self._perplexities(each_N, everywhere_N1, token_N, ["global"])
            self.results |= {f"test/{name}/{group}": value for group, value in own.items()}
            if name == "bare":
                continue
            base_N, base_all_N = values["bare"]
            change = f"change/test/{name}/bare"
            for place, group in enumerate(groups):
                if member_NG[:, place].any():
                    found = by_member.change(member_N, base_N, member_NG[:, place])
                    self.results[f"{change}/{group}"] = found.to_dict()
            self.results[f"{change}/global"] = by_token.change(each_N, base_all_N, everywhere_N1[:, 0]).to_dict()

    def _perplexities(
        self, log_N: np.ndarray, member_NG: np.ndarray, article_N: np.ndarray, groups: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return perplexities by group, with those of each fold of articles."""
        metric = ClassPerplexity(groups=groups, sync_on_compute=False)
        metric.update(torch.from_numpy(log_N), torch.from_numpy(member_NG), torch.from_numpy(article_N))
        found = {name: result.to_dict() for name, result in metric.named().items()}
        for place, name in enumerate(groups):
            folds = []
            for fold in range(self.folds):
                chosen_N = member_NG[:, place] & (article_N % self.folds == fold)
                folds.append(float(np.exp(-log_N[chosen_N].mean())) if chosen_N.any() else float("nan"))
            if np.isfinite(folds).all():
                found[name]["folds"] = folds
        return {name: value for name, value in found.items() if value["n"]}
