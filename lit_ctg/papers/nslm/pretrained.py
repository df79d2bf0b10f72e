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
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.nslm.classes import Recogniser
from lit_ctg.papers.nslm.control import Member, MicroModels, RedistributeClassMass, WordReader
from lit_ctg.papers.nslm.corpus import join_numbers
from lit_ctg.papers.nslm.evaluation import Articles, ClassPerplexity
from lit_ctg.papers.nslm.from_text import Fitted, fit
from lit_ctg.papers.nslm.heads import moved
from lit_ctg.papers.nslm.micro_model import mixture_weights
from lit_ctg.papers.nslm.selection import entry

# tokens whose scores exist at a time
BLOCK = 256
# nodes of a class's spellings that the model reads at a time, and in all: of a large class fewer members are enumerated
TREE, NODES = 1024, 200_000
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
        chances: of each member the log-probability [A] within its class under each arm.
        forms: of each member the trie that has its spelling.
        ids: the tokens.
    """

    own_N: np.ndarray
    log_AN: np.ndarray
    members: list[Member]
    pieces: list[np.ndarray]
    chances: list[np.ndarray]
    forms: list[int]
    ids: list[int]

    def token(self, arm: int, weight: float) -> np.ndarray:
        """Return the log-probability of every token under an arm at a weight."""
        return mixed(self.log_AN[arm], self.own_N, weight)

    def member(self, arm: int, weight: float) -> np.ndarray:
        """Return the log-probability of every member."""
        own = [mixed(piece_AP[1 + arm], piece_AP[0], weight).sum() for piece_AP in self.pieces]
        return np.array(own, dtype=np.float64)


@dataclass(frozen=True)
class ClassTree:
    """First spellings of members of a class as a tree, which a model reads at once: a token sees those above it.

    Attributes:
        token_U, parent_U: of each node below the root; the root is node -1.
        depth_U: from 0.
        sees_UU: whether a node sees another: those on its path, and itself.
        member_M, node_M: the members that end in the tree, and where.
    """

    token_U: np.ndarray
    parent_U: np.ndarray
    depth_U: np.ndarray
    sees_UU: np.ndarray
    member_M: np.ndarray
    node_M: np.ndarray

    @classmethod
    def of(cls, reader: WordReader, form: int, number: int) -> list[ClassTree]:
        """Return the members of a class in one of their forms, as trees of up to ``TREE`` nodes and a path."""
        trie, first, last = reader.tries[form], reader.first_W[number], reader.first_W[number + 1]
        # token, members that end, depth; a node comes behind its parent and before those that are not below it
        nodes: list[tuple[int, list[int], int]] = []
        waiting = [(0, -1, -1)]
        while waiting:
            at, token, depth = waiting.pop()
            nodes.append((token, [word - first for word in trie.ends[at] if first <= word < last], depth))
            for one, child in zip(*(each.tolist() for each in trie.children(at)), strict=True):
                if any(first <= word < last for word in reader.members_below(form, child)):
                    waiting.append((child, one, depth + 1))
        trees, path = [], list[tuple[int, list[int], int]]()
        for start in range(1, len(nodes), TREE):
            part = nodes[start : start + TREE]
            # the path to the first node of a part has ended its members in an earlier one
            above = [(token, list[int](), depth) for token, _, depth in path[: part[0][2]]]
            trees.append(cls._made([*above, *part]))
            for node in part:
                path[node[2] :] = [node]
        return trees

    @classmethod
    def _made(cls, nodes: Sequence[tuple[int, list[int], int]]) -> ClassTree:
        path, parent_U, sees_UU = list[int](), np.zeros(len(nodes), dtype=np.int64), np.eye(len(nodes), dtype=bool)
        for place, (_, _, depth) in enumerate(nodes):
            path[depth:] = [place]
            parent_U[place] = path[depth - 1] if depth else -1
            sees_UU[place, path] = True
        ends = np.array([(member, place) for place, (_, members, _) in enumerate(nodes) for member in members])
        member_M, node_M = ends.reshape(-1, 2).astype(np.int64).T
        token_U, depth_U = (np.array([node[own] for node in nodes], dtype=np.int64) for own in (0, 2))
        return cls(token_U, parent_U, depth_U, sees_UU, member_M, node_M)

    def log_probs(self, backbone: HuggingFaceBackbone, reader: WordReader, root_D: Tensor, cache: Any) -> np.ndarray:
        """Return the log-probability [M] of each member, with its end, behind a text that ``cache`` holds.

        Args:
            root_D: the last hidden state of the text.
            cache: keys and values of it, as they were when this returns.
        """
        behind, size = cache.get_seq_length(), len(self.token_U)
        sees_UT = np.concatenate([np.ones((size, behind), dtype=bool), self.sees_UU], axis=1)
        ids_U, place_U, sees = (moved(each, root_D) for each in (self.token_U, behind + self.depth_U, sees_UT))
        hidden_1UD, cache = backbone.extend(
            backbone.embed(ids_U[None]), cache, positions=place_U[None], sees=sees[None, None]
        )
        cache.crop(-size)
        hidden_ND = torch.cat([root_D[None], hidden_1UD[0]])  # N: the root, then the nodes
        log_U, end_N = np.zeros(size), np.zeros(1 + size)
        for first in range(0, 1 + size, BLOCK):
            log_BV = backbone.head(hidden_ND[first : first + BLOCK]).float().log_softmax(-1).cpu()
            row_U = self.parent_U + 1 - first
            below_U = (row_U >= 0) & (row_U < len(log_BV))
            log_U[below_U] = log_BV[row_U[below_U], self.token_U[below_U]].numpy()
            over_V = ~reader.tries[0].continuing(log_BV.shape[1])
            end_N[first : first + BLOCK] = log_BV[:, over_V].logsumexp(-1).numpy()
        closed_U = np.array([not reader.tries[0].is_open(token) for token in self.token_U.tolist()])
        for place, above in enumerate(self.parent_U.tolist()):
            log_U[place] += log_U[above] if above >= 0 else 0
        return (log_U + np.where(closed_U, 0, end_N[1:]))[self.node_M]


def mixed(ruled_N: np.ndarray, own_N: np.ndarray, weight: float) -> np.ndarray:
    """Return the logarithm of the mixture of two probabilities, nats."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(ruled_N + np.log(weight), own_N + np.log1p(-weight))


class MicroModelTrial(Checked, Callback):
    """Measure micro-models on a pretrained model, in the last validation of a run.

    Args:
        classes: name -> recogniser; null: leave the class out.
        total: name of the tokens of all classes.
        weight: of the micro-models as published (the paper prints none).
        rarity: lower bounds of the groups of members by count in training text (Fig. 3).
        length: maximum tokens read of an article.
        fitted_on: tokens of validation text on which the weights are fitted; null: all.
        most: tokens of test text that are read; null: all.
        folds: parts of the test text, by article; the values of each are kept.
        enumerated: most members a class, spread over the test text, whose class is enumerated.

    Attributes:
        results: ``test/<model>/<group>`` perplexities of a member (of a token in ``global``). Groups: a class,
            ``total``, ``first``, ``later``, ``rarity_<from>_<to>``. Models: ``bare``; ``<arm>`` at its fitted weight
            and ``<arm>_published`` at ``weight``; ``<arm>_alone`` at weight 1. ``change/test/<model>/bare/<group>`` in
            percent, its interval over articles. ``inside/<model>/<class>``: perplexity of a member given its class, of
            ``bare`` and each arm, over the ``enumerated`` ones. ``weight/<arm>``, 0 where it does not help.
    """

    def __init__(
        self,
        *,
        classes: Mapping[str, Recogniser | None],
        total: str,
        weight: Fraction,
        rarity: Sequence[Whole],
        length: Count,
        fitted_on: Count | None,
        most: Count | None = None,
        folds: Count = 5,
        enumerated: Count = 200,
    ) -> None:
        super().__init__()
        self.classes = {name: each for name, each in classes.items() if each is not None}
        self.total, self.weight, self.rarity = total, weight, tuple(rarity)
        self.length, self.fitted_on, self.most, self.folds = length, fitted_on, most, folds
        self.enumerated = enumerated
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
            assert arms[0].reader is not None
            inside = self._inside(module, arms[0].reader, reads)
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
        self.results |= inside

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
        chances = [
            np.log([rule.reader.chances(each.number, readings[each.begin].next_contexts)[each.index] for rule in rules])
            for each in members
        ]
        forms = [readings[each.begin + 1].form for each in members]
        return Read(own_T[1:], log_AT[:, 1:], members, pieces, chances, forms, ids)

    def _inside(self, module: PretrainedModel, reader: WordReader, reads: Sequence[Read]) -> dict[str, Any]:
        """Return the perplexities of a member given its class, of members spread evenly over the text."""
        backbone = cast(HuggingFaceBackbone, module.backbone)
        chosen, trees = set[tuple[int, int]](), dict[tuple[int, int], list[ClassTree]]()
        for number in range(len(reader.classes)):
            trees |= {(form, number): ClassTree.of(reader, form, number) for form in range(len(reader.tries))}
            own = [
                (article, place)
                for article, read in enumerate(reads)
                for place, each in enumerate(read.members)
                if each.number == number
            ]
            nodes = sum(len(tree.token_U) for tree in trees[0, number])
            most = min(len(own), self.enumerated, max(1, NODES // max(nodes, 1)))
            spread = np.linspace(0, len(own) - 1, most).astype(int)
            chosen |= {own[place] for place in spread}
        found: dict[int, list[tuple[int, np.ndarray]]] = {number: [] for number in range(len(reader.classes))}
        read_at, hidden_TD, cache = -1, torch.empty(0), cast(Any, None)
        # from the last member of an article to its first, so the cache only gets shorter
        for article, place in steps(
            sorted(chosen, key=lambda at: (at[0], -at[1])), "members whose class is enumerated"
        ):
            read, each = reads[article], reads[article].members[place]
            if article != read_at:
                ids_1T = torch.tensor([read.ids[: each.begin]], device=module.device)
                hidden_1TD, cache = backbone.extend(backbone.embed(ids_1T), None)
                read_at, hidden_TD = article, hidden_1TD[0]
            elif more := cache.get_seq_length() - each.begin:
                cache.crop(-more)
            log_K = np.full(len(reader.classes[each.number].texts), -np.inf)
            for tree in trees[read.forms[place], each.number]:
                log_K[tree.member_M] = tree.log_probs(backbone, reader, hidden_TD[each.begin - 1], cache)
            inside = log_K[each.index] - np.logaddexp.reduce(log_K)
            found[each.number].append((article, np.array([inside, *read.chances[place]])))
        results: dict[str, Any] = {}
        for number, rows in found.items():
            article_N = np.array([article for article, _ in rows], dtype=np.int64)
            log_NA = np.array([row for _, row in rows]).reshape(-1, 1 + len(ARMS))
            for model, log_N in zip(("bare", *ARMS), log_NA.T, strict=True):
                name = f"inside/{model}/{reader.classes[number].name}"
                results |= self._perplexities(log_N, np.ones((len(log_N), 1), dtype=bool), article_N, [name])
        return results

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
