"""NSLM: one multi-task language model with the heads of NNLM, HNLM, CRNN and NSLM (sec. 3, 5.3).

Top to bottom: mixtures in log space; every model's scores of each token; the module, which owns the method (heads,
table of classes, micro-models, weight of the mixture) with ``log_probs``, ``score`` and ``tune``; plain SGD.

Shape letters: B streams, T positions, N counted positions, X some of them, D hidden size, V vocabulary, C classes,
K members of a class.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from lit_ctg.core.batch import require
from lit_ctg.core.checkpoint import KEY, load_checked
from lit_ctg.core.metric_callback import MetricCallback
from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine, datamodule_of
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, Fields, Fraction, NonNegative, Whole, checked, grouped
from lit_ctg.network.backbone import check_backbone
from lit_ctg.network.huggingface import HuggingFaceBackbone, weights_digest
from lit_ctg.papers.nslm.baselines import (
    CharacterRNNs,
    NeuralCache,
    RecurrentBackbone,
    StatefulBackbone,
    forget,
    grounded_dimensions,
    read_vectors,
)
from lit_ctg.papers.nslm.classes import ClassTable, Recogniser, before_others, class_table, read_classes
from lit_ctg.papers.nslm.corpus import HOST
from lit_ctg.papers.nslm.heads import OutputHeads, Words, make_heads, moved
from lit_ctg.papers.nslm.micro_model import BASES, arc
from lit_ctg.papers.nslm.occurrences import Carry, Contexts, ContextTracker, Evidence, Occurrences, occurring
from lit_ctg.papers.nslm.recorded import RECORDERS, Recorded, RecordedCharacters, StepCosts
from lit_ctg.papers.nslm.selection import REFERENCES, Selection, select
from lit_ctg.statistics import exp_or_inf

_logger = logging.getLogger(__name__)

EARTH_RADIUS_KM = 6371.0  # mean radius
FINAL = "val/perplexity"
CARRIED = "nslm_carried"  # key in checkpoints of the state carried from step to step
MODELS = ("nnlm", "hnlm", "crnn", "nslm_alone", "nslm")
# models whose best guess at the member is measured
GUESSERS = ("nnlm", "hnlm", "nslm", "mixture")


def mix(log_a_N: np.ndarray, log_b_N: np.ndarray, weight_b: float) -> np.ndarray:
    """Return log((1 - weight_b) exp(log_a) + weight_b exp(log_b)), exact for weights 0 and 1 and for -inf."""
    if weight_b == 0.0:
        return np.asarray(log_a_N)
    if weight_b == 1.0:
        return np.asarray(log_b_N)
    return np.logaddexp(math.log1p(-weight_b) + log_a_N, math.log(weight_b) + log_b_N)


def likeliest_weight(log_a_N: np.ndarray, log_b_N: np.ndarray) -> float:
    """Return the weight of b in [0, 1] that makes the tokens most likely (the cost is convex in it)."""

    def cost(weight: float) -> float:
        return -float(np.mean(mix(log_a_N, log_b_N, weight)))

    inner = minimize_scalar(cost, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-4})
    candidates = (0.0, float(inner.x), 1.0)
    return min(candidates, key=cost)


def with_cache(log_model_N: np.ndarray, log_cache_N: np.ndarray, weight: float) -> np.ndarray:
    """Return the mixture with the cache; NaN in ``log_cache_N`` marks an empty cache, which gets weight 0."""
    empty_N = np.isnan(log_cache_N)
    mixed_N = mix(log_model_N, np.where(empty_N, -np.inf, log_cache_N), weight)
    return np.where(empty_N, log_model_N, mixed_N)


@dataclass(frozen=True)
class TokenScores:
    """One row per target, float64 log-probabilities in nats.

    Attributes:
        target_N: token ids.
        class_N: their classes in their context, -1 for none.
        document_N: their documents, -1 if batches do not say.
        first_N: no earlier member of the class in the document (False outside the classes).
        repeat_N: the member is the previous one of its class in the document (False outside the classes).
        nnlm_N, tag_N, mass_N: see ``HeadScores``.
        within_N, characters_N, micro_N: log P(w | c) of HNLM, character RNN (NaN: not computed) and micro-model; 0
            outside the classes.
        cache_N: log P of the neural cache; NaN where it is empty.
        error_NG: distance of the best guess at the member (years, km, ...) from the target, one column for each of
            ``GUESSERS``; NaN outside the classes and where members have no numbers.
        reference_NR: log P(w | c) of each of ``REFERENCES``; 0 outside the classes.
    """

    target_N: np.ndarray
    class_N: np.ndarray
    document_N: np.ndarray
    first_N: np.ndarray
    repeat_N: np.ndarray
    nnlm_N: np.ndarray
    tag_N: np.ndarray
    mass_N: np.ndarray
    within_N: np.ndarray
    characters_N: np.ndarray
    micro_N: np.ndarray
    cache_N: np.ndarray
    error_NG: np.ndarray
    reference_NR: np.ndarray

    def __len__(self) -> int:
        return len(self.target_N)

    @classmethod
    def join(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Concatenate the rows of several batches."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @classmethod
    def of_all(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Return the rows of this process's batches and of all others', the same in each."""
        joined = cls.join(parts)
        if not dist.is_initialized():
            return joined
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, joined)
        return cls.join(every)

    def models(self, weight: float, reference_weights: Mapping[str, float] = {}) -> dict[str, np.ndarray]:
        """Return log P(w) of each model, [N]: the columns of Tables 2 and 3.

        ``nslm_alone`` is Eq. 4; ``nslm`` is its mixture with the NNLM, the paper's final model; ``summed`` sums P(c)
        over the NNLM's members instead of using a tag; ``nslm_<reference>`` is the final model with a simpler
        micro-model.

        Args:
            weight: of Eq. 4 in the mixture.
            reference_weights: the same for the requested ones of ``REFERENCES``.
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
        for name, own in reference_weights.items():
            inside_N = self.reference_NR[:, REFERENCES.index(name)]
            models[f"nslm_{name}"] = mix(self.nnlm_N, self.tag_N + inside_N, own)
        return {name: values_N for name, values_N in models.items() if not np.isnan(values_N).any()}

    def inside(self) -> dict[str, np.ndarray]:
        """Return log P(w | c) of HNLM (``hnlm``), the chosen micro-models (``micro``) and the simpler ones, [N]."""
        references = dict(zip(REFERENCES, self.reference_NR.T, strict=True))
        return {"hnlm": self.within_N, "micro": self.micro_N, **references}

    def cached(self, models: dict[str, np.ndarray], weight: float) -> dict[str, np.ndarray]:
        """Return the same models mixed with the neural cache."""
        return {f"{name}_cache": with_cache(values_N, self.cache_N, weight) for name, values_N in models.items()}


def distance(guess_XD: np.ndarray, truth_XD: np.ndarray) -> np.ndarray:
    """Return absolute differences of values, or kilometres on the globe between (latitude, longitude) pairs, [X]."""
    if truth_XD.shape[1] == 1:
        return np.abs(guess_XD - truth_XD)[:, 0]
    return EARTH_RADIUS_KM * arc(np.radians(guess_XD), np.radians(truth_XD))


def _host(batch: Batch, name: str) -> np.ndarray:
    """Return a part of a batch in the processor's memory: as it was before the batch was moved, if that was kept."""
    parts = cast(dict[str, Any], batch)
    return parts[HOST + name] if HOST + name in parts else parts[name].cpu().numpy()


def _documents(batch: Batch) -> np.ndarray:
    """Return the document of each target of a batch, [B, T]; -1 if the batch does not say."""
    if "document_BT" in batch:
        return _host(batch, "document_BT")
    return np.full(batch["target_ids_BT"].shape, -1)


def _counted(values_BT: Tensor, counted_BT: np.ndarray) -> Tensor:
    """Return the values at some positions, row by row; unlike an index of bools it does not wait for the device."""
    if counted_BT.all():
        return values_BT.flatten(0, 1)
    return values_BT.flatten(0, 1)[moved(np.flatnonzero(counted_BT), values_BT)]


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


@dataclass
class Stream:
    """State of the network, the preceding contexts, and the neural cache; None at the beginning.

    In generation it also has each row's weight of Eq. 4 in the mixture; None: the module's.
    """

    state: Any = None
    contexts: Carry | None = None
    cache: Any = None
    weight_B: Tensor | None = None

    def plain(self) -> dict[str, Any]:
        """Return state and contexts as tensors, for a checkpoint."""
        state = None if self.state is None else [part.detach() for part in self.state]
        contexts = None if self.contexts is None else list(map(torch.from_numpy, dataclasses.astuple(self.contexts)))
        return {"state": state, "contexts": contexts}

    @classmethod
    def of_plain(cls, kept: Mapping[str, Any]) -> Stream:
        """Return a stream that continues where ``plain`` was called."""
        state = None if kept["state"] is None else tuple(kept["state"])
        contexts = None if kept["contexts"] is None else Carry(*(part.numpy() for part in kept["contexts"]))
        return cls(state, contexts)

    def enter(self, batch: Batch) -> None:
        """Forget everything if the rows are not streams, or are different streams: those start afresh each time."""
        reset = batch.get("reset_B")
        if reset is None or self.contexts is None or len(self.contexts.document_B) != len(reset):
            self.state = self.contexts = self.cache = None


@checked
@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """The training of the network.

    Attributes:
        sum_over_time: the cost of a step is the sum over its T positions and the mean over the streams (Zaremba et
            al.), so that the learning rate has the same meaning as there; False: mean over positions.
        optimizer: sgd (rate times ``rate_decay`` each epoch after ``constant_epochs``) or adamw (warm-up and cosine).
        learning_rate, rate_decay, constant_epochs: of sgd.
        warmup_fraction, weight_decay: of adamw.
    """

    sum_over_time: bool
    optimizer: Literal["sgd", "adamw"]
    learning_rate: NonNegative
    rate_decay: NonNegative
    constant_epochs: Whole
    warmup_fraction: Fraction = 0.02
    weight_decay: NonNegative = 0.01


@checked
@dataclass(frozen=True, kw_only=True)
class CharacterSettings:
    """The character RNNs.

    Attributes:
        renormalise_characters: their probabilities are renormalised over the class vocabulary.
        character_dim: hidden size, 0 for none.
        character_every: number of steps whose class tokens make one step of theirs.
        character_rate: their rate, in units of ``learning_rate`` (for the mean cost of a class token, a sum over its
            characters: more than 1 diverges).
    """

    renormalise_characters: bool
    character_dim: Whole = 48
    character_every: Count = 4
    character_rate: NonNegative = 0.3


@checked
@dataclass(frozen=True, kw_only=True)
class MicroModelSettings:
    """The choice of micro-models.

    Attributes:
        mixture_weight: of Eq. 4 in the final mixture with the NNLM; None: tuned on validation text.
        bases, blend, repeat: see ``select``.
    """

    mixture_weight: Fraction | None
    bases: Sequence[Annotated[str, Choice(BASES)]] = ("uniform",)
    blend: bool = False
    repeat: bool = False


class NSLMModule(LitLanguageModel):
    """NNLM, HNLM, CRNN and NSLM over one backbone and one table of word rows.

    Args:
        vocabulary: of the corpus.
        backbone: a ``StatefulBackbone`` (its state is carried through streams), or any causal stack whose
            ``forward(embedded_BTD)`` gives hidden states.
        classes: name -> recogniser.
        class_file: YAML with the user's own classes (``read_classes``): see ``before_others``.
        within_documents: the previous member of a class must be in the same document (needs ``data.documents``); False:
            anywhere earlier in the text.
        cache: window, weight and temperature of the neural cache.
        start_from: checkpoint of another run, whose networks this one begins with (``+model.start_from=<file>``: not in
            the configuration, whose hash finished runs have). Micro-models and mixture are chosen anew; they are all
            that ``as_published`` and ``corrected`` differ in, so that with ``trainer.limit_train_batches=0`` one
            training serves both.
        corpus: the data module; classes that do not occur in its training text are left out with a message. None: all
            stay.
        settings: fields of ``Words``, ``Optimisation``, ``CharacterSettings`` and ``MicroModelSettings``.

    Attributes:
        table: classes over the vocabulary.
        micro_models: the chosen micro-model of each class, in the table's order; None until ``choose_micro_models``.
        mixture_weight: the current weight, a tensor stored in checkpoints.
        reference_weights: the same for the simpler micro-models of ``REFERENCES``.
        validation: scores of the validation text so far; joined into one once its epoch is over.
        given_weights: SHA-256 of the networks of ``start_from``; only with one.

    Raises:
        UserError: no word of the vocabulary is in a class, a pretrained backbone, or a checkpoint that cannot be read
            or has another shape.
    """

    mixture_weight: Tensor
    grounded_VG: Tensor

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        backbone: Any,
        classes: Mapping[str, Recogniser],
        within_documents: bool,
        cache: Annotated[Mapping[str, float], Fields(NeuralCache)],
        class_file: str | None = None,
        start_from: str | None = None,
        corpus: Any = None,
        **settings: Annotated[
            Any, Fields(Words), Fields(Optimisation), Fields(CharacterSettings), Fields(MicroModelSettings)
        ],
    ) -> None:
        super().__init__()
        if isinstance(backbone, HuggingFaceBackbone):
            raise UserError(
                "backbone=huggingface: NSLM trains its word rows, which a pretrained model does not know; use "
                "backbone=recurrent or gpt2, or put the micro-models on the model as a control (docs/papers/nslm.md)"
            )
        check_backbone(backbone, "dim", "step")
        groups = grouped(settings, Words, Optimisation, CharacterSettings, MicroModelSettings)
        words, optimisation, character_settings, choice = groups
        self.vocabulary, self.backbone = vocabulary, backbone
        own = {} if class_file is None else read_classes(class_file)
        self.recognisers = before_others(own, classes)
        self.within_documents, self.optimisation, self.choice = within_documents, optimisation, choice
        # of the training text, if it was read for the table; dropped once the micro-models are chosen
        self._read: Occurrences | None = None
        self.table = class_table(vocabulary.tokens, self.recognisers) if corpus is None else self._table_of(corpus)
        self.tracker = ContextTracker(self.table)
        self.learning_rate, self.weight_decay = optimisation.learning_rate, optimisation.weight_decay
        self.character_rate = character_settings.character_rate
        self.cache = NeuralCache(int(cache["window"]), cache["weight"], cache["temperature"])
        self.tuned = choice.mixture_weight is None
        weight = 0.5 if choice.mixture_weight is None else choice.mixture_weight
        self.reference_weights = dict.fromkeys(REFERENCES, weight)
        self.register_buffer("mixture_weight", torch.tensor(weight, dtype=torch.float64))
        sampled = words.samples is not None or words.cutoffs is not None
        # a step sees a few hundred words
        sparse = optimisation.optimizer == "sgd" and not words.tied and (sampled or words.fast == "auto")
        size = len(vocabulary)
        grounded_VG = grounded_dimensions(self.table, size) if words.grounding else torch.zeros(size, 0)
        self.register_buffer("grounded_VG", grounded_VG, persistent=False)
        self.embedding = nn.Embedding(size, backbone.dim - grounded_VG.shape[1], sparse=sparse)
        nn.init.uniform_(self.embedding.weight, -words.init_range, words.init_range)
        if words.embedding_file is not None:
            vectors_VD, found_V = read_vectors(words.embedding_file, vocabulary.tokens, self.embedding.embedding_dim)
            self.embedding.weight.data[found_V] = vectors_VD[found_V]
        self.heads = make_heads(words, dim=backbone.dim, table=self.table, sparse=sparse)
        if words.tied:
            self.heads.word_VD = cast(nn.Parameter, self.embedding.weight)
        self.characters = CharacterRNNs(
            [part.tokens for part in self.table.classes] if character_settings.character_dim else [],
            context_dim=backbone.dim,
            dim=character_settings.character_dim,
            every=character_settings.character_every,
            renormalise=character_settings.renormalise_characters,
        )
        self.micro_models: list[Any] | None = None
        self.selection: Selection | None = None
        self.streams = {"train": Stream(), "evaluation": Stream()}
        self.validation: list[TokenScores] = []
        self._tested: list[TokenScores] = []
        self._carried: dict[str, Any] | None = None
        # the parameters that are clipped together, kept since collecting them visits all modules
        self._clipped: list[list[nn.Parameter]] | None = None
        self._recorded: Recorded | None = None
        self._recorded_characters = RecordedCharacters(self.characters)
        self._given: tuple[str, dict[str, str]] | None = None
        if start_from is not None:
            self._start_from(start_from)

    def _start_from(self, path: str) -> None:
        """Load the networks of a checkpoint."""
        content = load_checked(Path(path))
        own = {name: value.shape for name, value in self.state_dict().items() if name != "mixture_weight"}
        given = {name: value for name, value in content["state_dict"].items() if name != "mixture_weight"}
        shapes = {name: getattr(value, "shape", None) for name, value in given.items()}
        differs = [name for name in {**own, **shapes} if own.get(name) != shapes.get(name)]
        tied = getattr(self.heads, "word_VD", None) is self.embedding.weight
        if differs or (tied and not torch.equal(given["embedding.weight"], given["heads.word_VD"])):
            raise UserError(
                f"model.start_from={path} has other networks ({[*differs, 'heads.word_VD'][0]}): give the checkpoint "
                "of a run with the same backbone, classes, corpus and model.tied"
            )
        self.load_state_dict(given, strict=False)
        self.given_weights = weights_digest(nn.ModuleList([self.backbone, self.embedding, self.heads, self.characters]))
        self._given = path, dict(content[KEY]["corpus"])

    # micro-models --------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Choose the micro-models on the data module's training and validation text (once).

        Raises:
            UserError: a metric that reads scores of every word; see also ``bind_data``.
        """
        for callback in getattr(self.trainer, "callbacks", ()):
            if isinstance(callback, MetricCallback) and callback.metrics:
                raise UserError(
                    f"metric=[{','.join(callback.metrics)}]: an NSLM is measured by callback.nslm_evaluation; leave "
                    "metric= out"
                )
        strategy = getattr(self.trainer, "strategy", None)
        if isinstance(strategy, ParallelStrategy):  # it cannot gather sparse gradients
            self.embedding.sparse = False
            vars(self.heads)["sparse"] = False
        if isinstance(strategy, DDPStrategy):  # a process may meet classes that another does not
            strategy._ddp_kwargs.setdefault("find_unused_parameters", True)
        if self.micro_models is None:
            self.bind_data(datamodule_of(self.trainer))

    def configure_callbacks(self) -> list[Any]:
        """Return none: the module logs its own numbers."""
        return []

    def bind_data(self, datamodule: Any) -> None:
        """Choose the micro-models, unless they are chosen.

        Raises:
            UserError: the checkpoint of ``start_from`` has other words, or the data module has no packed text.
        """
        if self.micro_models is None:
            require(datamodule, "prepare")
            if self._given is not None and self._given[1].get("vocabulary") != datamodule.fingerprint()["vocabulary"]:
                raise UserError(f"model.start_from={self._given[0]} has other words: give the corpus it was trained on")
            self.choose_micro_models(datamodule)

    def choose_micro_models(self, datamodule: Any) -> Selection:
        """Fit every candidate pair to training text, and keep the best of each class on validation text (sec. 3.3)."""
        train = self._read if self._read is not None else self.occurrences(datamodule, "train")
        self._read, validation = None, self.occurrences(datamodule, "val")
        self.selection = select(
            self.table, train, validation, bases=self.choice.bases, blend=self.choice.blend, repeat=self.choice.repeat
        )
        self.micro_models = list(self.selection.models.values())
        return self.selection

    def occurrences(self, datamodule: Any, split: str, table: ClassTable | None = None) -> Occurrences:
        """Return the class tokens of a split with their evidence; of ``table`` instead of the module's own."""
        packed = datamodule.prepare()
        begin_N = packed.table(split, "begin") if self.within_documents else np.zeros(1, dtype=np.int64)
        return Occurrences.from_documents(packed.ids(split), begin_N, self.table if table is None else table)

    def _table_of(self, corpus: Any) -> ClassTable:
        """Return the classes that occur in the training text, and report those that do not."""
        table, self._read, absent = occurring(
            self.vocabulary.tokens, self.recognisers, lambda table: self.occurrences(corpus, "train", table)
        )
        if absent and len(table):
            left = ", ".join(table.names)
            _logger.warning(f"model.classes: left out {', '.join(absent)}: the training text has none; {left} remain")
        return table

    # the network ---------------------------------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [..., D], grounded dimensions last."""
        # clipping sums the rows of a sparse gradient first, and would wait for a device to count them
        sparse = self.embedding.sparse and ids.device.type == "cpu"
        return torch.cat((F.embedding(ids, self.embedding.weight, sparse=sparse), self.grounded_VG[ids]), -1)

    def contexts(self, batch: Batch, stream: Stream) -> Contexts:
        """Return the contexts of a stretch's targets, and advance the stream."""
        reset = batch.get("reset_B")
        document = batch.get("document_BT") if self.within_documents else None
        if self.within_documents and document is None:
            raise UserError(
                "model.within_documents=true needs data.documents=true: batches do not say where one begins"
            )
        contexts, stream.contexts = self.tracker.read(
            _host(batch, "input_ids_BT"),
            None if document is None else _host(batch, "document_BT"),
            stream.contexts,
            None if reset is None else _host(batch, "reset_B"),
        )
        return contexts

    def _run(self, batch: Batch, stream: Stream) -> tuple[Tensor, Contexts]:
        """Return the hidden states of a stretch and the contexts of its targets, and advance the stream."""
        stream.enter(batch)
        embedded_BTD = self.embed(batch["input_ids_BT"])
        if isinstance(self.backbone, StatefulBackbone):
            state = None if stream.state is None else forget(stream.state, batch["reset_B"])
            hidden_BTD, stream.state = self.backbone.run(embedded_BTD, state)
        else:
            hidden_BTD = self.backbone(embedded_BTD)
        return hidden_BTD, self.contexts(batch, stream)

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position by the final mixture; the rows of the batch are treated as texts that start here."""
        hidden_BTD, contexts = self._run(batch, Stream())
        return LMOutput(self.log_probs(hidden_BTD, contexts, ("nslm",))["nslm"], hidden_BTD)

    # the method ----------------------------------------------------------------------------------------------------

    def log_probs(
        self, hidden_BTD: Tensor, contexts: Contexts, names: Sequence[str] = MODELS, weight_B: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return log P of the whole vocabulary [B, T, V] under some of ``MODELS``, float32.

        Args:
            hidden_BTD: states of the positions.
            contexts: of the token after each.
            names: of ``MODELS`` (see ``TokenScores.models``).
            weight_B: of Eq. 4 in the mixture of each row; None: the current weight in all.
        """
        hidden_ND = hidden_BTD.flatten(0, 1)
        state_N = torch.from_numpy(contexts.state_BT.reshape(-1)).to(hidden_ND.device)
        words_NV, outside_NV, tags_NC = self.heads.log_probs(hidden_ND, state_N)
        result = {"nnlm": words_NV}
        for name in names:
            if name == "nnlm":
                continue
            log_NV = outside_NV.clone()
            for number, members in enumerate(self.table.classes):
                rows_X = self.heads.available_SC[state_N, number].nonzero().squeeze(1)
                inside_XK = self._inside(name, hidden_ND[rows_X], contexts, rows_X, number)
                columns_K = torch.from_numpy(members.ids_K).to(rows_X.device)
                log_NV[rows_X.unsqueeze(1), columns_K] = tags_NC[rows_X, number].unsqueeze(1) + inside_XK
            if name == "nslm":
                own_B = self.mixture_weight.expand(len(hidden_BTD)) if weight_B is None else weight_B
                weight_N1 = own_B.float().repeat_interleave(hidden_BTD.shape[1]).unsqueeze(1)
                log_NV = torch.logaddexp((1 - weight_N1).log() + words_NV, weight_N1.log() + log_NV)
            result[name] = log_NV
        return {name: result[name].unflatten(0, hidden_BTD.shape[:2]) for name in names}

    def _inside(self, name: str, hidden_XD: Tensor, contexts: Contexts, rows_X: Tensor, number: int) -> Tensor:
        """Return log P(w | c) of one class under one model, [X, K]."""
        if name == "hnlm":
            return self.heads.within_class(hidden_XD, number)
        if name == "crnn":
            return self.characters.log_probs(hidden_XD, number)
        assert self.micro_models is not None, "choose_micro_models comes first"
        chosen_BT = np.zeros(contexts.state_BT.shape, dtype=bool)
        chosen_BT.reshape(-1)[rows_X.cpu().numpy()] = True
        evidence = contexts.evidence(number, chosen_BT)
        return torch.from_numpy(self.micro_models[number].log_prob(evidence)).to(hidden_XD)

    def score(self, batch: Batch, *, characters: bool) -> TokenScores:
        """Return exact log-probabilities of the targets of the next stretch of the evaluation streams.

        Args:
            batch: from the data module.
            characters: whether to include the character RNNs.
        """
        stream = self.streams["evaluation"]
        hidden_BTD, contexts = self._run(batch, stream)
        cache = self.cache.start(hidden_BTD) if stream.cache is None else stream.cache
        mask_BT = batch["mask_target_BT"]
        word_BT = batch["target_ids_BT"].masked_fill(~mask_BT, -1)
        cached_BT, stream.cache = self.cache.target(hidden_BTD, word_BT, cache)
        return self.score_states(batch, hidden_BTD, contexts, _numpy(cached_BT[mask_BT]), characters=characters)

    def score_states(
        self, batch: Batch, hidden_BTD: Tensor, contexts: Contexts, cache_N: np.ndarray, *, characters: bool
    ) -> TokenScores:
        """Return the scores of a batch's counted targets, row by row.

        Args:
            batch: from the data module.
            hidden_BTD: states of its positions.
            contexts: of the token after each.
            cache_N: log-probabilities of the neural cache.
            characters: whether to include the character RNNs.
        """
        mask_BT = batch["mask_target_BT"]
        counted_BT = mask_BT.cpu().numpy()
        hidden_ND, targets_N = hidden_BTD[mask_BT], batch["target_ids_BT"][mask_BT]
        state_N = contexts.state_BT[counted_BT]
        heads = self.heads.score(hidden_ND, targets_N, torch.from_numpy(state_N).to(targets_N.device))
        target_N = targets_N.cpu().numpy()
        class_N, nothing_N = self.table.class_of_SV[state_N, target_N], np.zeros(len(target_N))
        scores = TokenScores(
            target_N,
            class_N,
            document_N=_documents(batch)[counted_BT],
            first_N=nothing_N.astype(bool),
            repeat_N=nothing_N.astype(bool),
            nnlm_N=_numpy(heads.nnlm_N),
            tag_N=_numpy(heads.tag_N),
            mass_N=_numpy(heads.mass_N),
            within_N=nothing_N.copy(),
            characters_N=nothing_N.copy() if characters else np.where(class_N >= 0, np.nan, 0.0),
            micro_N=nothing_N.copy(),
            cache_N=cache_N,
            error_NG=np.full((len(target_N), len(GUESSERS)), np.nan),
            reference_NR=np.zeros((len(target_N), len(REFERENCES))),
        )
        places_N = np.flatnonzero(counted_BT)
        for number in np.unique(class_N[class_N >= 0]):
            rows_X = np.flatnonzero(class_N == number)
            inside_BT = np.zeros(counted_BT.shape, dtype=bool)
            inside_BT.reshape(-1)[places_N[rows_X]] = True
            evidence = contexts.evidence(number, inside_BT)
            self._score_class(scores, rows_X, number, hidden_ND[torch.from_numpy(rows_X)], evidence, characters)
        return scores

    def _score_class(
        self,
        scores: TokenScores,
        rows_X: np.ndarray,
        number: int,
        hidden_XD: Tensor,
        evidence: Evidence,
        characters: bool,
    ) -> None:
        """Fill in the scores of the targets of one class."""
        assert self.micro_models is not None and self.selection is not None, "choose_micro_models comes first"
        members, each_X = self.table.classes[number], np.arange(len(rows_X))
        index_X = self.table.index_CV[number, scores.target_N[rows_X]]
        micro_XK = self.micro_models[number].log_prob(evidence)
        within_XK = _numpy(self.heads.within_class(hidden_XD, number))
        scores.micro_N[rows_X], scores.within_N[rows_X] = micro_XK[each_X, index_X], within_XK[each_X, index_X]
        scores.first_N[rows_X], scores.repeat_N[rows_X] = evidence.previous_N < 0, evidence.previous_N == index_X
        for column, name in enumerate(REFERENCES):
            reference = self.selection.references[name][members.name]
            scores.reference_NR[rows_X, column] = reference.log_prob_of(index_X, evidence)
        if characters:
            log_X = self.characters.log_prob_of(hidden_XD, index_X, number)
            scores.characters_N[rows_X] = _numpy(log_X)
        attributes_KD = members.attributes_KD
        if attributes_KD.shape[1] and not np.isnan(attributes_KD).any():
            neural_XK = _numpy(self.heads.conditional(hidden_XD, number))
            mass_X1, tag_X1 = scores.mass_N[rows_X, None], scores.tag_N[rows_X, None]
            mixed_XK = mix(mass_X1 + neural_XK, tag_X1 + micro_XK, float(self.mixture_weight))
            for column, guess_XK in enumerate((neural_XK, within_XK, micro_XK, mixed_XK)):
                guess_XD = attributes_KD[guess_XK.argmax(1)]
                scores.error_NG[rows_X, column] = distance(guess_XD, attributes_KD[index_X])

    def tune(self, scores: TokenScores) -> None:
        """Set the weight of Eq. 4 in the mixture to make these tokens most likely, unless it was given."""
        if not self.tuned:
            return
        self.mixture_weight.fill_(likeliest_weight(scores.nnlm_N, scores.tag_N + scores.micro_N))
        for name, inside_N in zip(REFERENCES, scores.reference_NR.T, strict=True):
            self.reference_weights[name] = likeliest_weight(scores.nnlm_N, scores.tag_N + inside_N)

    # training ------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        """Restart the text, so that a run resumed here equals an uninterrupted one."""
        self.streams["train"] = Stream()
        self.characters.forget()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state carried from step to step, so that a run can resume within an epoch."""
        super().on_save_checkpoint(checkpoint)
        gathered = [
            (hidden_XD, torch.from_numpy(class_X), torch.from_numpy(index_X))
            for hidden_XD, class_X, index_X in self.characters.gathered
        ]
        checkpoint[CARRIED] = {"stream": self.streams["train"].plain(), "gathered": gathered}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore it; the start of an epoch drops it."""
        self._carried = checkpoint.get(CARRIED)

    def on_train_start(self) -> None:
        """Resume within the epoch, on the training device."""
        if self._carried is None or self.trainer.fit_loop.epoch_loop.batch_progress.current.ready == 0:
            return
        kept, self._carried = self.transfer_batch_to_device(self._carried, self.device, 0), None
        contexts = kept["stream"]["contexts"]
        if contexts is not None:
            kept["stream"]["contexts"] = [part.cpu() for part in contexts]
        self.streams["train"] = Stream.of_plain(kept["stream"])
        self.characters.gathered = [
            (hidden_XD, class_X.cpu().numpy(), index_X.cpu().numpy())
            for hidden_XD, class_X, index_X in kept["gathered"]
        ]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cost of a step, nats per token of NNLM and tag, per class token of the others, and ``penalty``.

        All heads have weight 1; character RNNs learn from the states, but send no gradient to them.
        """
        counted_BT, target_BT = _host(batch, "mask_target_BT"), _host(batch, "target_ids_BT")
        hidden_BTD, contexts, sums = self._costs(batch, counted_BT, target_BT)
        tokens = max(1, int(counted_BT.sum()))
        found = contexts.occurrences(target_BT, counted_BT)
        losses: dict[str, Tensor] = {name: sums[name] / tokens for name in ("nnlm", "tag") if name in sums}
        if "within" in sums:
            losses["within"] = sums["within"] / max(1, len(found))
        loss = sums["all"] / (len(counted_BT) if self.optimisation.sum_over_time else tokens)
        if len(self.characters) and len(found):
            position_X = moved(found.position_N, hidden_BTD)
            self.characters.gather(hidden_BTD.flatten(0, 1)[position_X], found.class_N, found.index_N)
        if self.characters.ready:
            losses["characters"] = self._character_cost(*self.characters.collected())
            loss = loss + self.character_rate * losses["characters"]
        if isinstance(self.backbone, StatefulBackbone) and (penalty := self.backbone.penalty()) is not None:
            losses["penalty"] = penalty
            loss = loss + penalty
        return {"loss": loss, **losses}

    def _costs(
        self, batch: Batch, counted_BT: np.ndarray, target_BT: np.ndarray
    ) -> tuple[Tensor, Contexts, dict[str, Tensor]]:
        """Return the hidden states of a stretch of training text, the contexts of its targets, and the heads' costs."""
        stream = self.streams["train"]
        if self._repeats(batch, counted_BT):
            return self._repeat(batch, stream)
        hidden_BTD, contexts = self._run(batch, stream)
        hidden_ND, target_N = _counted(hidden_BTD, counted_BT), _counted(batch["target_ids_BT"], counted_BT)
        state_N = moved(contexts.state_BT[counted_BT], target_N)
        class_N = contexts.class_of(target_BT)[counted_BT]
        return hidden_BTD, contexts, self.heads.losses(hidden_ND, target_N, state_N, class_N)

    def _repeats(self, batch: Batch, counted_BT: np.ndarray) -> bool:
        """Return whether a step is a repetition of ``StepCosts`` as recorded, or the one to be recorded.

        Recorded gradients lie where those of the step before lay, so they cannot be added to them.
        """
        trainer: Any = self._trainer
        return (
            (trainer is None or trainer.accumulate_grad_batches == 1)
            and batch["input_ids_BT"].device.type in RECORDERS
            and isinstance(self.backbone, RecurrentBackbone)
            and type(self.heads) is OutputHeads
            and self.heads.in_one_pass
            and "reset_B" in batch
            and bool(counted_BT.all())
            and (self._recorded is None or self._recorded.shape == counted_BT.shape)
        )

    def _repeat(self, batch: Batch, stream: Stream) -> tuple[Tensor, Contexts, dict[str, Tensor]]:
        """Return the same as ``_costs``, by the recorded step."""
        assert isinstance(self.backbone, RecurrentBackbone) and isinstance(self.heads, OutputHeads)
        stream.enter(batch)
        input_BT = batch["input_ids_BT"]
        state = self.backbone.start(len(input_BT)) if stream.state is None else map(Tensor.detach, stream.state)
        contexts = self.contexts(batch, stream)
        context_BT = moved(contexts.state_BT, input_BT)
        inputs = (input_BT, batch["target_ids_BT"], context_BT, batch["reset_B"], *state)
        if self._recorded is None:
            self._recorded = Recorded(StepCosts(self.embedding, self.embed, self.backbone, self.heads), inputs)
        sums, hidden_BTD, stream.state = self._recorded(*inputs)
        return hidden_BTD, contexts, sums

    def _character_cost(self, hidden_XD: Tensor, class_X: np.ndarray, index_X: np.ndarray) -> Tensor:
        """Return the cost of the character RNNs, recorded where steps are.

        A recorded graph gives a class without tokens a gradient of 0 instead of none, which SGD takes for the same.
        """
        if self._recorded is None or self._recorded.shape is None or self.optimisation.optimizer != "sgd":
            return self.characters.cost(hidden_XD, class_X, index_X)
        return self._recorded_characters.cost(hidden_XD, class_X, index_X)

    def on_train_end(self) -> None:
        """Drop the recorded graphs, which hold memory of the device, and the last step's, which no copy can hold."""
        self.streams["train"] = Stream.of_plain(self.streams["train"].plain())
        self._recorded = None
        self._recorded_characters = RecordedCharacters(self.characters)

    def configure_optimizers(self) -> Any:
        """SGD with a rate that decays after some epochs (sec. 5.2), or AdamW."""
        if self.optimisation.optimizer == "adamw":
            return adamw_warmup_cosine(
                self.parameters(),
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                warmup_fraction=self.optimisation.warmup_fraction,
                total_steps=int(self.trainer.estimated_stepping_batches),
            )
        return sgd_with_decay(
            self.parameters(),
            learning_rate=self.learning_rate,
            rate_decay=self.optimisation.rate_decay,
            constant_epochs=self.optimisation.constant_epochs,
        )

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by the norm of all gradients, including sparse ones; character RNNs are clipped separately."""
        if gradient_clip_val is not None:
            if self._clipped is None:
                self._clipped = parameters_apart(self, self.characters)
            for parameters in self._clipped:
                clip_by_norm(parameters, gradient_clip_val)

    # evaluation ----------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Restart the text."""
        self.streams["evaluation"], self.validation = Stream(), []

    def on_test_epoch_start(self) -> None:
        """Restart the text."""
        self.streams["evaluation"], self._tested = Stream(), []

    on_predict_epoch_start = on_test_epoch_start

    def on_test_batch_end(self, outputs: Any, *_: Any) -> None:
        """Keep the scores until the end of the text."""
        self._tested.append(outputs)

    def on_test_epoch_end(self) -> None:
        """Log the results on the whole text."""
        self._log_scores(TokenScores.of_all(self._tested), "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return log P of the targets of the next stretch under the final mixture, float64 [B, T]; 0 at padding."""
        scores, mask_BT = self.score(batch, characters=False), batch["mask_target_BT"].cpu()
        log_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
        log_BT[mask_BT] = torch.from_numpy(scores.models(float(self.mixture_weight))["nslm"])
        return log_BT

    def validation_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return ``TokenScores`` of all models except the character RNNs for the targets of the next stretch."""
        self.validation.append(self.score(batch, characters=False))
        return self.validation[-1]

    def on_validation_epoch_end(self) -> None:
        """Tune the mixture on the text just scored; log its perplexity and weight."""
        scores = TokenScores.of_all(self.validation)
        self.validation = [scores]
        self.tune(scores)
        self._log_scores(scores, "val")
        self.log("val/mixture_weight", float(self.mixture_weight))

    def _log_scores(self, scores: TokenScores, stage: str) -> None:
        """Log the cost of the final mixture, and the perplexity of every model."""
        cost = {name: -log_N.mean() for name, log_N in scores.models(float(self.mixture_weight)).items()}
        perplexities = {f"{stage}/{name}/perplexity": exp_or_inf(nats) for name, nats in cost.items()}
        final = {f"{stage}/loss": cost["nslm"], f"{stage}/perplexity": exp_or_inf(cost["nslm"])}
        self.log_dict(final | perplexities)

    def test_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return ``TokenScores`` of all models for the targets of the next stretch."""
        return self.score(batch, characters=bool(self.characters))

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: Any = None) -> Stream:
        """Return the state of empty texts; ``controls`` are the rows' weights of Eq. 4 in the mixture, [B], or None."""
        return Stream(contexts=self.tracker.start(batch_size), weight_B=controls)

    def step(self, ids_B1: Tensor, state: Stream) -> tuple[Tensor, Stream]:
        """Take the newest token of each row; return the final mixture's scores [B, V] of the next ones."""
        contexts, carry = self.tracker.read(ids_B1.cpu().numpy(), None, state.contexts)
        hidden_BD, grown = self.backbone.step(self.embed(ids_B1[:, 0]), state.state)
        scores_B1V = self.log_probs(hidden_BD.unsqueeze(1), contexts, ("nslm",), state.weight_B)["nslm"]
        return scores_B1V[:, 0], Stream(grown, carry, weight_B=state.weight_B)


def sgd_with_decay(
    parameters: Iterable[nn.Parameter], *, learning_rate: float, rate_decay: float, constant_epochs: int
) -> dict[str, Any]:
    """Return SGD whose rate is multiplied by ``rate_decay`` each epoch after ``constant_epochs`` (Zaremba et al. 2014).

    The form is that of ``configure_optimizers``.
    """
    optimizer = torch.optim.SGD(parameters, lr=learning_rate)

    def factor(epoch: int) -> float:
        return rate_decay ** max(0, epoch + 1 - constant_epochs)

    return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, factor)}


def parameters_apart(whole: nn.Module, apart: Iterable[nn.Module]) -> list[list[nn.Parameter]]:
    """Return the parameters of each of some parts, after those of everything else."""
    parts = [list(part.parameters()) for part in apart]
    own = {parameter for part in parts for parameter in part}
    return [[parameter for parameter in whole.parameters() if parameter not in own], *parts]


def clip_by_norm(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """Scale all gradients so that their joint norm is at most ``largest``; torch's function refuses sparse ones."""
    grads = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            grads.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    if not grads:
        return
    if grads[0].device.type != "cpu":
        scale_to_norm(grads, largest)
        return
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
    if norm > largest:
        factor = largest / norm
        for grad in grads:
            grad.mul_(factor)


def scale_to_norm(grads: Sequence[Tensor], largest: float) -> None:
    """Scale tensors as ``clip_by_norm`` does, in few kernels and without waiting for the norm."""
    factor = (largest / torch.nn.utils.get_total_norm(grads)).clamp(max=1.0)
    torch._foreach_mul_(list(grads), factor)
