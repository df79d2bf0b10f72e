"""NSLM as a LightningModule: one multi-task language model with the heads of NNLM, HNLM, CRNN and NSLM (sec. 3, 5.3).

Shape letters: B streams, T positions, N counted positions, D hidden size, V vocabulary, C classes, K members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.nslm.cache import NeuralCache
from lit_ctg.papers.nslm.character import CharacterRNNs
from lit_ctg.papers.nslm.construction import before_others, class_table, read_classes
from lit_ctg.papers.nslm.distribution import distributions
from lit_ctg.papers.nslm.grounding import grounded_dimensions, read_vectors
from lit_ctg.papers.nslm.heads import make_heads
from lit_ctg.papers.nslm.occurrence import Contexts, ContextTracker, Occurrences
from lit_ctg.papers.nslm.optimisation import clip_apart, sgd_with_decay
from lit_ctg.papers.nslm.recogniser import Recogniser
from lit_ctg.papers.nslm.recurrent import RecurrentBackbone, forget
from lit_ctg.papers.nslm.selection import Selection, select
from lit_ctg.papers.nslm.stream import Stream
from lit_ctg.papers.nslm.token_scores import TokenScores, score_batch


class NSLMModule(LitLanguageModel):
    """NNLM, HNLM, CRNN and NSLM over one backbone and one table of word rows.

    Args:
        vocabulary: of the corpus.
        backbone: a ``RecurrentBackbone`` (its state is carried through streams), or any causal stack whose
            ``forward(embedded_BTD)`` gives hidden states.
        classes: name -> recogniser.
        class_file: YAML with classes of one's own (``read_classes``): see ``before_others``.
        within_documents: the previous member of a class must be in the same document (needs ``data.documents``); False:
            anywhere earlier in the text.
        init_range: of embeddings and output rows.
        samples: words of the sampled softmax in training; None for the full one. Evaluation is always exact.
        cutoffs: of an adaptive softmax (``AdaptiveHeads``) instead.
        sum_over_time: the cost of a step is the sum over its T positions, mean over the streams (Zaremba et al.), so
            that the rate means what it meant there; False: mean over positions.
        optimizer: sgd (rate times ``rate_decay`` each epoch after ``constant_epochs``) or adamw (warm-up and cosine).
        learning_rate, rate_decay, constant_epochs: of sgd.
        warmup_fraction, weight_decay: of adamw.
        character_dim: hidden size of the character RNNs, 0 for none.
        character_every: steps whose class tokens are gathered for one step of the character RNNs.
        character_rate: their rate, in units of ``learning_rate`` (for the mean cost of a class token, a sum over its
            characters: more than 1 diverges).
        renormalise_characters: the character RNN's probabilities are renormalised over the class vocabulary.
        cache: window, weight and temperature of the neural cache.
        mixture_weight: of Eq. 4 in the final mixture with the NNLM; None: tuned on validation text.
        bases, blend: see ``select``.
        grounding: fixed embedding dimensions with values or coordinates (Table 6).
        embedding_file: text file of vectors that embeddings start from (Table 5).

    Attributes:
        table: classes over the vocabulary.
        micro_models: the chosen micro-model of each class, in the table's order; None until ``choose_micro_models``.
        mixture_weight: the present weight, a tensor that checkpoints keep.

    Raises:
        UserError: no word of the vocabulary is in a class, an option that does not exist, or a pretrained backbone.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        backbone: Any,
        classes: Mapping[str, Recogniser],
        within_documents: bool,
        init_range: float,
        sum_over_time: bool,
        optimizer: str,
        learning_rate: float,
        rate_decay: float,
        constant_epochs: int,
        renormalise_characters: bool,
        cache: Mapping[str, float],
        mixture_weight: float | None,
        samples: int | None = None,
        cutoffs: Sequence[int] | None = None,
        character_dim: int = 48,
        character_every: int = 4,
        character_rate: float = 0.3,
        bases: tuple[str, ...] = ("uniform",),
        blend: bool = False,
        grounding: bool = False,
        embedding_file: str | None = None,
        class_file: str | None = None,
        warmup_fraction: float = 0.02,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__()
        if optimizer not in ("sgd", "adamw"):
            raise UserError(f"model.optimizer={optimizer}: use sgd or adamw{did_you_mean(optimizer, ('sgd', 'adamw'))}")
        if mixture_weight is not None and not 0 <= mixture_weight <= 1:
            raise UserError(
                f"model.mixture_weight={mixture_weight} is outside [0, 1]; null tunes it on validation text"
            )
        if isinstance(backbone, HuggingFaceBackbone):
            raise UserError(
                "backbone=huggingface: NSLM has word rows of its own, which a pretrained model does not know; use "
                "backbone=recurrent or gpt2, or put the micro-models on the model's own vocabulary with "
                "lit_ctg.papers.nslm.rule.MicroModelRule (docs/papers/nslm.md)"
            )
        self.vocabulary, self.backbone = vocabulary, backbone
        own = {} if class_file is None else read_classes(class_file)
        self.table = class_table(vocabulary.tokens, before_others(own, classes))
        self.tracker = ContextTracker(self.table)
        self.within_documents, self.sum_over_time = within_documents, sum_over_time
        self.learning_rate, self.rate_decay, self.constant_epochs = learning_rate, rate_decay, constant_epochs
        self.warmup_fraction, self.weight_decay = warmup_fraction, weight_decay
        self.optimizer_name, self.bases, self.blend = optimizer, tuple(bases), blend
        self.character_rate = character_rate
        window, weight, temperature = (cache[name] for name in ("window", "weight", "temperature"))
        self.cache = NeuralCache(int(window), float(weight), float(temperature))
        self.tuned = mixture_weight is None
        self.register_buffer("mixture_weight", torch.tensor(0.5 if self.tuned else mixture_weight, dtype=torch.float64))
        sparse = (samples is not None or cutoffs is not None) and optimizer == "sgd"
        grounded_VG = grounded_dimensions(self.table, len(vocabulary)) if grounding else torch.zeros(len(vocabulary), 0)
        self.register_buffer("grounded_VG", grounded_VG, persistent=False)
        self.embedding = nn.Embedding(len(vocabulary), backbone.dim - grounded_VG.shape[1], sparse=sparse)
        nn.init.uniform_(self.embedding.weight, -init_range, init_range)
        if embedding_file is not None:
            vectors_VD, found_V = read_vectors(embedding_file, vocabulary.tokens, self.embedding.embedding_dim)
            self.embedding.weight.data[found_V] = vectors_VD[found_V]
        self.heads = make_heads(
            dim=backbone.dim, table=self.table, init_range=init_range, samples=samples, cutoffs=cutoffs, sparse=sparse
        )
        self.characters = CharacterRNNs(
            [part.tokens for part in self.table.classes] if character_dim else [],
            context_dim=backbone.dim,
            dim=character_dim,
            every=character_every,
            renormalise=renormalise_characters,
        )
        self.micro_models: list[Any] | None = None
        self.selection: Selection | None = None
        self.streams = {"train": Stream(), "evaluation": Stream()}

    # micro-models --------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Choose the micro-models on the data module's training and validation text (once)."""
        if self.micro_models is None:
            self.choose_micro_models(self.trainer.datamodule)

    def choose_micro_models(self, datamodule: Any) -> Selection:
        """Fit every candidate pair to training text, keep the best of each class on validation text (sec. 3.3)."""
        train, validation = (self.occurrences(datamodule, split) for split in ("train", "val"))
        self.selection = select(self.table, train, validation, bases=self.bases, blend=self.blend)
        self.micro_models = list(self.selection.models.values())
        return self.selection

    def occurrences(self, datamodule: Any, split: str) -> Occurrences:
        """Return the class tokens of a split, with what came before."""
        packed = datamodule.prepare()
        begin_N = packed.table(split, "begin") if self.within_documents else np.zeros(1, dtype=np.int64)
        return Occurrences.from_documents(packed.ids(split), begin_N, self.table)

    # the network ---------------------------------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [..., D], grounded dimensions last."""
        return torch.cat((self.embedding(ids), self.grounded_VG[ids]), -1)

    def contexts(self, batch: Batch, stream: Stream) -> Contexts:
        """Return what stands before the targets of a stretch; the stream goes on behind it."""
        reset = batch.get("reset_B")
        document = batch.get("document_BT") if self.within_documents else None
        if self.within_documents and document is None:
            raise UserError(
                "model.within_documents=true needs data.documents=true: batches do not say where one begins"
            )
        contexts, stream.contexts = self.tracker.read(
            batch["input_ids_BT"].cpu().numpy(),
            None if document is None else document.cpu().numpy(),
            stream.contexts,
            None if reset is None else reset.cpu().numpy(),
        )
        return contexts

    def _run(self, batch: Batch, stream: Stream) -> tuple[Tensor, Contexts]:
        """Return hidden states of a stretch and what stands before its targets; the stream goes on behind it."""
        stream.enter(batch)
        embedded_BTD = self.embed(batch["input_ids_BT"])
        if isinstance(self.backbone, RecurrentBackbone):
            state = None if stream.state is None else forget(stream.state, batch["reset_B"])
            hidden_BTD, stream.state = self.backbone.run(embedded_BTD, state)
        else:
            hidden_BTD = self.backbone(embedded_BTD)
        return hidden_BTD, self.contexts(batch, stream)

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position by the final mixture; the rows of the batch are taken as texts that begin here."""
        hidden_BTD, contexts = self._run(batch, Stream())
        return LMOutput(distributions(self, hidden_BTD, contexts, ("nslm",))["nslm"], hidden_BTD)

    # training ------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        """Begin the text anew, so that a run resumed here equals an uninterrupted one."""
        self.streams["train"] = Stream()
        self.characters.forget()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cost of a step, and nats a token of NNLM and tag, nats a class token of the others.

        All heads have weight 1; character RNNs learn from the states, which do not learn from them.
        """
        hidden_BTD, contexts = self._run(batch, self.streams["train"])
        mask_BT = batch["mask_target_BT"]
        counted_BT = mask_BT.cpu().numpy()
        hidden_ND, target_N = hidden_BTD[mask_BT], batch["target_ids_BT"][mask_BT]
        state_N = torch.from_numpy(contexts.state_BT[counted_BT]).to(target_N.device)
        sums = self.heads.losses(hidden_ND, target_N, state_N)
        tokens = max(1, len(target_N))
        found = contexts.occurrences(batch["target_ids_BT"].cpu().numpy(), counted_BT)
        losses = {"nnlm": sums["nnlm"] / tokens, "tag": sums["tag"] / tokens}
        losses["within"] = sums["within"] / max(1, len(found))
        total = sums["nnlm"] + sums["tag"] + sums["within"]
        loss = total / (len(mask_BT) if self.sum_over_time else tokens)
        if len(self.characters) and len(found):
            position_X = torch.from_numpy(found.position_N).to(hidden_BTD.device)
            self.characters.gather(hidden_BTD.flatten(0, 1)[position_X], found.class_N, found.index_N)
        if self.characters.ready:
            losses["characters"] = self.characters.cost()
            loss = loss + self.character_rate * losses["characters"]
        return {"loss": loss, **losses}

    def configure_optimizers(self) -> Any:
        """SGD with a rate that falls after some epochs (sec. 5.2), or AdamW."""
        if self.optimizer_name == "adamw":
            return adamw_warmup_cosine(
                self.parameters(),
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                decay_matrices_only=True,
                warmup_fraction=self.warmup_fraction,
                warmup_from_zero=False,
                total_steps=int(self.trainer.estimated_stepping_batches),
            )
        return sgd_with_decay(
            self.parameters(),
            learning_rate=self.learning_rate,
            rate_decay=self.rate_decay,
            constant_epochs=self.constant_epochs,
        )

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by the norm of all gradients, sparse ones included; character RNNs are networks of their own."""
        if gradient_clip_val is not None:
            clip_apart(self, self.characters, gradient_clip_val)

    # evaluation ----------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Begin the text anew."""
        self.streams["evaluation"] = Stream()

    def on_test_epoch_start(self) -> None:
        """Begin the text anew."""
        self.streams["evaluation"] = Stream()

    def validation_step(self, batch: Batch, batch_idx: int) -> TokenScores:  # type: ignore[override]
        """Return what all models but the character RNNs say about the targets of the next stretch."""
        return self.token_scores(batch, characters=False)

    def test_step(self, batch: Batch, batch_idx: int) -> TokenScores:  # type: ignore[override]
        """Return what all models say about the targets of the next stretch."""
        return self.token_scores(batch, characters=bool(self.characters))

    def token_scores(self, batch: Batch, *, characters: bool) -> TokenScores:
        """Return exact log-probabilities of the targets of the next stretch of the evaluation streams."""
        stream = self.streams["evaluation"]
        hidden_BTD, contexts = self._run(batch, stream)
        cache = self.cache.start(hidden_BTD) if stream.cache is None else stream.cache
        word_BT = batch["target_ids_BT"].masked_fill(~batch["mask_target_BT"], -1)
        cached_BT, stream.cache = self.cache.target(hidden_BTD, word_BT, cache)
        return score_batch(self, batch, hidden_BTD, contexts, cached_BT, characters)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: Any = None) -> Stream:
        """Return the state of empty texts."""
        return Stream(contexts=self.tracker.start(batch_size))

    def step(self, ids_B1: Tensor, state: Stream) -> tuple[Tensor, Stream]:
        """Take the newest token of each row; return the final mixture's scores [B, V] of the next ones."""
        contexts, carry = self.tracker.read(ids_B1.cpu().numpy(), None, state.contexts)
        hidden_BD, grown = self.backbone.step(self.embed(ids_B1[:, 0]), state.state)
        scores_B1V = distributions(self, hidden_BD.unsqueeze(1), contexts, ("nslm",))["nslm"]
        return scores_B1V[:, 0], Stream(grown, carry)
