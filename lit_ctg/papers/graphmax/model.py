"""The global language model below graphmax: GPT-2-shaped, trained here, with a choice of output layers.

Shape letters: B rows, T positions, N positions that count, V vocabulary, D hidden size, M senses per word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, cast

import entmax
import torch
from annotated_types import Interval
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.core.model import AdamW, Batch, LitLanguageModel, LMOutput
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, Fields, NonNegative, Positive, checked, grouped
from lit_ctg.network.backbone import Backbone, PretrainedBackbone, check_backbone
from lit_ctg.papers.graphmax.equation import graphmax, warn_uncertified
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph, SceneGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne, check_runs
from lit_ctg.papers.graphmax.variant import Variant, VariantName, chosen, variants

# Kernelised Bayesian softmax (Miao et al. 2019), a baseline of Fig. 5: an output layer with several senses per word.
#
# The paper names the layer without settings. Here every word has the same fixed number of senses, each with its own
# variance; the original moves senses from words that do not need them to words that do.


@checked
class KernelBayesianSoftmax(nn.Module):
    """``p(w | h) = sum_m exp K(h, e_wm) / sum over all senses``, with a kernel that is wider for a larger theta.

    ``K(h, e) = |h| |e| a (exp(-theta cos(h, e)) - 1)`` with ``a = -theta / (2 (exp(-theta) + theta - 1))``; as theta
    tends to 0 it is the inner product, so one sense per word with theta 0 is softmax.

    Args:
        vocab_size, dim: V and D.
        senses: M.
        theta: initial value of every sense's theta, above 0.
        std: of the initial sense vectors.
    """

    def __init__(
        self, vocab_size: Count, dim: Count, *, senses: Count = 2, theta: Positive = 0.1, std: NonNegative = 0.02
    ):
        super().__init__()
        self.vocab_size, self.senses = vocab_size, senses
        self.sense_MVD = nn.Parameter(torch.randn(senses, vocab_size, dim) * std)
        # theta = exp of this, so that it stays above 0
        self.log_theta_MV = nn.Parameter(torch.full((senses, vocab_size), theta).log())

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Return log-probabilities ``[N, V]``."""
        score_NV = torch.logsumexp(torch.stack([self._kernel(hidden_ND, m) for m in range(self.senses)]), dim=0)
        return score_NV.log_softmax(dim=-1)

    def _kernel(self, hidden_ND: Tensor, m: int) -> Tensor:
        theta_V = self.log_theta_MV[m].exp()
        # the denominator is theta^2 / 2 near 0: float32 would lose it
        wide_V = theta_V.double()
        a_V = (-wide_V / (2 * (torch.expm1(-wide_V) + wide_V))).to(theta_V)
        sense_VD = self.sense_MVD[m]
        cosine_NV = F.normalize(hidden_ND, dim=-1) @ F.normalize(sense_VD, dim=-1).T
        length_NV = hidden_ND.norm(dim=-1, keepdim=True) * sense_VD.norm(dim=-1)
        return length_NV * a_V * torch.expm1(-theta_V * cosine_NV)


# The language model.


TRAINING_OUTPUTS = ("softmax", "graphmax", "sparsemax", "bayesian")
EMBEDDING_STD = 0.02


@dataclass
class GraphmaxOutput(LMOutput):
    """The model's output besides scores and hidden states.

    Attributes:
        logits_BTV: z, before any output layer; padding is not masked.
    """

    logits_BTV: Tensor


class GraphmaxModule(LitLanguageModel):
    """Embedding, backbone and tied head; ``forward`` scores with the chosen output layer.

    Args:
        vocabulary: the data module's.
        backbone: causal, from embedded tokens to hidden states; a pretrained one has ``embed`` and ``head``, whose
            tokens beyond the vocabulary are left out.
        output: the layer of ``forward``: a variant's name, with logits for ``softmax``. With
            ``training_output=bayesian`` the logits are that layer's log-probabilities.
        training_output: the layer of the loss.
        fine_tuning: share of the run, at its end, that trains through ``training_output``; softmax before it (1: the
            whole run). The Bayesian layer has its own vectors and is trained from the start.
        strength: lambda of Eq. 3, for ``output`` and ``training_output``.
        training_positions: positions of a batch used by a loss through graphmax, redrawn at each step.
        scene: the source of the scene graph; None for a model that needs none.
        published: numbers of Algorithm 1, for ``output=algorithm_one``.
        senses: senses per word of the Bayesian layer.
        adamw: fields of ``AdamW``.

    Raises:
        UserError: an unknown output layer, or one whose graph is missing.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        backbone: Backbone,
        output: VariantName = "softmax",
        training_output: Annotated[str, Choice(TRAINING_OUTPUTS)] = "softmax",
        fine_tuning: Annotated[float, Interval(gt=0, le=1)] = 1.0,
        strength: NonNegative = 1.0,
        training_positions: Count = 256,
        scene: SceneGraph | None = None,
        published: AlgorithmOne | None = None,
        senses: Count = 2,
        **adamw: Annotated[Any, Fields(AdamW)],
    ):
        super().__init__()
        if scene is None and {output, training_output} - {"softmax", "bayesian"} - {"sparsemax"}:
            raise UserError(f"model.output={output}, training_output={training_output}: give model.scene its corpus")
        check_runs(published, "model.published", needed=output == "algorithm_one")
        check_backbone(backbone, "dim", "step")
        self.vocabulary, self.backbone, self.scene, self.published = vocabulary, backbone, scene, published
        self.output, self.training_output, self.fine_tuning = output, training_output, fine_tuning
        self.strength, self.training_positions = strength, training_positions
        usual = {"weight_decay": 0.01, "warmup_fraction": 0.05, "final_fraction": 0.1}
        (self.adamw,) = grouped(usual | adamw, AdamW)
        self.embedding = None
        if not hasattr(backbone, "embed"):
            self.embedding = nn.Embedding(len(vocabulary), backbone.dim)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        elif (rows := cast(PretrainedBackbone, backbone).vocabulary_size) < len(vocabulary):
            raise UserError(
                f"the backbone has {rows} tokens, the corpus {len(vocabulary)}: they need one "
                "tokenizer, data/tokenizer=huggingface with the model's own path"
            )
        bayesian = training_output == "bayesian"
        self.bayesian = KernelBayesianSoftmax(len(vocabulary), backbone.dim, senses=senses) if bayesian else None

    @cached_property
    def graph(self) -> CooccurrenceGraph:
        """The scene graph over this model's vocabulary; counted (or read) when first needed.

        Raises:
            UserError: the model has no scene.
        """
        if self.scene is None:
            raise UserError("this model has no scene graph: give model.scene its corpus or a path")
        return self.scene.graph(self.vocabulary)

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """Every output layer over the scene graph by name."""
        return variants(self.graph, published=self.published)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states ``[B, T, D]`` that the head reads."""
        return self.backbone(self._embed(batch["input_ids_BT"]))

    def _embed(self, ids: Tensor) -> Tensor:
        return cast(PretrainedBackbone, self.backbone).embed(ids) if self.embedding is None else self.embedding(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return z, ``[..., V]``, of hidden states ``[..., D]``."""
        if self.bayesian is None:
            if self.embedding is None:
                return cast(PretrainedBackbone, self.backbone).head(hidden)[..., : len(self.vocabulary)]
            return F.linear(hidden, self.embedding.weight)
        return self.bayesian(hidden.reshape(-1, hidden.shape[-1])).reshape(*hidden.shape[:-1], -1)

    def forward(self, batch: Batch) -> GraphmaxOutput:
        """Score every position."""
        hidden_BTD = self.hidden(batch)
        logits_BTV = self.logits(hidden_BTD)
        scores_BTV = logits_BTV if self.output == "softmax" else self._through_output(logits_BTV, batch)
        real_BT1 = batch["mask_input_BT"].unsqueeze(-1)
        return GraphmaxOutput(scores_BTV * real_BT1, hidden_BTD * real_BT1, logits_BTV)

    def _through_output(self, logits_BTV: Tensor, batch: Batch) -> Tensor:
        real_BT = batch["mask_input_BT"]
        scores_BTV = torch.zeros_like(logits_BTV, dtype=torch.float32)
        variant = chosen(self.output, self.variants)
        scores_BTV[real_BT] = variant(logits_BTV[real_BT].float(), batch["input_ids_BT"][real_BT], self.strength)
        return scores_BTV

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the negative log-likelihood (sparsemax: its own loss) through the training output layer."""
        counts_BT = batch["mask_target_BT"]
        hidden_ND, target_N = self.hidden(batch)[counts_BT], batch["target_ids_BT"][counts_BT]
        kind = self.training_output if self._is_fine_tuning() else "softmax"
        if kind == "graphmax":
            some_N = torch.randperm(len(target_N), device=target_N.device)[: self.training_positions]
            found = graphmax(self.logits(hidden_ND[some_N]).float(), self.graph, self.strength)
            warn_uncertified(found, "training through graphmax")
            return {
                "loss": F.nll_loss(found.log_probs_BV, target_N[some_N]),
                "gap": found.gap_B.mean().float(),
                "certified": found.converged_B.float().mean(),
            }
        logits_NV = self.logits(hidden_ND)
        if kind == "sparsemax":
            return {"loss": entmax.sparsemax_loss(logits_NV.float(), target_N).mean()}
        return {"loss": F.cross_entropy(logits_NV, target_N)}

    def _is_fine_tuning(self) -> bool:
        if self.training_output in ("softmax", "bayesian") or self.fine_tuning == 1.0:
            return True
        return self.trainer.global_step >= (1 - self.fine_tuning) * self.trainer.estimated_stepping_batches

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig | None:
        """AdamW with warm-up and cosine; None for a frozen model, which is only evaluated."""
        if not any(parameter.requires_grad for parameter in self.parameters()):
            return None
        return self.adamw.configure(self)

    def start(self, batch_size: int, controls: Any = None) -> None:
        """Return the state of empty prefixes (see ``decoding/loop.py``)."""

    def step(self, ids_B1: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return z ``[B, V]`` of the token after the newest one, and the cache; the output layer is a score rule."""
        hidden_BD, state = self.backbone.step(self._embed(ids_B1[:, 0]), state)
        return self.logits(hidden_BD), state
