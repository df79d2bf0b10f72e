"""Neuron-level codes as an adapter on a frozen Hugging Face model, compared with soft prompts of equal parameters.

The paper's question for a pretrained model. A frozen layer computes x W_x + b; the neuron arm adds c W_c (sec. 3.3) in
both matrices of every feed-forward part and in the output. The prompt arm puts the code before the text, as long as the
neuron arm's number of parameters allows. Both start as the unchanged model.

Shape letters: B sequences, T positions, S sources, C code size, D hidden size, P places, O outputs of a layer, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.control.base import row_values
from lit_ctg.core.model import AdamW, Batch, LMOutput
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, Fields, Whole, grouped
from lit_ctg.network.backbone import check_backbone, vocabulary_size
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.network.layers import feed_forward_layers, linear_sizes
from lit_ctg.papers.control_code.control import NeuronCodes, SoftPrompt, output_size
from lit_ctg.papers.control_code.model import CodeState, SourceModel, check_length, mean_cross_entropy

ARMS = ("neuron", "prompt")


class CodeAdapterModule(SourceModel):
    """A frozen language model with one of the two arms.

    Args:
        vocabulary: the model's own tokenizer.
        corpus: name of the corpus, for run names and messages.
        codes: number of sources S.
        injection: ``neuron`` or ``prompt``.
        code_dim: size C of the code; None is S, without loss (S codes span no more).
        layers: suffixes of the names of the linear layers that take the code; None: the feed-forward part of every
            block.
        output: the output layer also takes it.

    Attributes:
        places: P in the prompt arm, 0 in the other.

    Raises:
        UserError: an option that does not exist or does not fit.
    """

    def __init__(
        self,
        *,
        vocabulary: Any,
        backbone: HuggingFaceBackbone,
        corpus: str,
        codes: Count,
        injection: Annotated[str, Choice(ARMS)],
        code_dim: Count | None,
        layers: Sequence[str] | None,
        output: bool,
        seed: Whole,
        **settings: Annotated[Any, Fields(AdamW)],
    ) -> None:
        super().__init__()
        check_backbone(backbone, "vocabulary_size", "model")
        if not (backbone.frozen or backbone.adapters):
            # an exported control contains the codes, but not a changed model
            raise UserError("backbone.frozen=false: codes are for a model that stays as it is; leave it true")
        vocabulary_size(vocabulary, backbone)
        (self.adamw,) = grouped(settings, AdamW)
        self.vocabulary, self.backbone, self.corpus, self.injection = vocabulary, backbone, corpus, injection
        self.codes = codes
        taking = code_layers(backbone.model, layers, output)
        size = codes if code_dim is None else code_dim
        parameters = codes * size + size * sum(taking.values())
        self.places = 0 if injection == "neuron" else max(1, round(parameters / (codes * backbone.dim)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if injection == "neuron":
                self.code = nn.Parameter(torch.randn(codes, size))
                # zeros: the unchanged model, until something is learned
                self.code_weights = nn.ParameterList(nn.Parameter(torch.zeros(o, size)) for o in taking.values())
            else:
                drawn = torch.randint(len(vocabulary), (codes, self.places))
                self.prompts = nn.Parameter(backbone.embed(drawn).detach().clone())
        self.paths = tuple(taking)

    # codes -----------------------------------------------------------------------------------------------------------

    @property
    def output(self) -> nn.Module:
        return self.backbone.model.get_output_embeddings()

    @property
    def context(self) -> int | None:
        """The maximum tokens of a text; None if the model has no limit."""
        return None if self.backbone.context is None else self.backbone.context - self.places

    def start(self, batch_size: int, controls: Tensor | None = None) -> CodeState:
        """Return the state of empty prefixes under weights [B, S] of the sources."""
        controls = self.required(controls)
        if self.injection == "neuron":
            return CodeState(controls.to(self.code) @ self.code)
        return CodeState(token_BD=torch.einsum("bs,spd->bpd", controls.to(self.prompts), self.prompts))

    @contextmanager
    def _coded(self, state: CodeState) -> Iterator[None]:
        """Feed the code of each row into the layers."""
        if state.code_BC is None:
            yield
            return
        known = dict(self.backbone.model.named_modules())
        with ExitStack() as stack:
            for path, weight in zip(self.paths, self.code_weights, strict=True):
                added_BO = F.linear(state.code_BC, weight)

                def add(_module: nn.Module, _inputs: Any, output: Tensor, added_BO: Tensor = added_BO) -> Tensor:
                    # some layers (OPT's) see the positions as rows, those of a row next to each other: [B T, O]
                    added_NO = row_values(added_BO, len(output))
                    return output + (added_NO.unsqueeze(1) if output.dim() == 3 else added_NO)

                stack.callback(known[path].register_forward_hook(add).remove)
            yield

    # the network -----------------------------------------------------------------------------------------------------

    def hidden(self, ids_BT: Tensor, state: CodeState, *, causal: bool = True, alone: bool = False) -> Tensor:
        """Return the last states [B, T, D] of texts, without those of the soft prompt.

        Raises:
            UserError: ``causal=False``, which a pretrained model does not support, or a text longer than ``context``.
        """
        check_length(ids_BT.shape[1], self.context)
        if not causal:
            raise UserError("decoding.causal=false: a pretrained model cannot see what comes after; set it to true")
        embedded_BTD = self.backbone.embed(ids_BT)
        if state.token_BD is not None:
            embedded_BTD = torch.cat([state.token_BD.to(embedded_BTD), embedded_BTD], dim=1)
        with self._coded(state):
            return self.backbone(embedded_BTD)[:, self.places :]

    def scores(self, hidden_BTD: Tensor, state: CodeState) -> Tensor:
        """Return the logits [B, T, V]."""
        with self._coded(state):
            return self.backbone.head(hidden_BTD)

    def forward(self, batch: Batch) -> LMOutput:
        ids_BT = batch["input_ids_BT"]
        state = self.start(len(ids_BT), self.weights(batch))
        hidden_BTD = self.hidden(ids_BT, state)
        return LMOutput(self.scores(hidden_BTD, state), hidden_BTD)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        scores_BTV = self(batch).scores_BTV
        return {"loss": mean_cross_entropy(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])}

    def configure_optimizers(self) -> Any:
        """AdamW with warm-up and cosine for the trained parameters."""
        return self.adamw.configure(self)

    # generation (a StepModel of decoding/loop.py) --------------------------------------------------------------------

    def step(self, ids_B1: Tensor, state: CodeState) -> tuple[Tensor, CodeState]:
        """Take the newest tokens; return the scores [B, V] of the next ones."""
        cache = state.cache
        with self._coded(state):
            if state.token_BD is not None and cache is None:
                _, cache = self.backbone.extend(state.token_BD, None)
            hidden_BTD, cache = self.backbone.extend(self.backbone.embed(ids_B1), cache)
            scores_BV = self.backbone.head(hidden_BTD)[:, -1]
        return scores_BV, CodeState(state.code_BC, state.token_BD, state.length + 1, cache)

    def control(self) -> NeuronCodes | SoftPrompt:
        """Return what was learned as a portable control of the frozen model."""
        if self.injection == "prompt":
            return SoftPrompt(self.sources, self.prompts)
        return NeuronCodes(self.sources, self.code, dict(zip(self.paths, self.code_weights, strict=True)))


def code_layers(model: Any, ends: Sequence[str] | None, output: bool) -> dict[str, int]:
    """Return the layers of a model that take a code, with their output sizes.

    Args:
        ends: suffixes of the names of linear layers; None: the feed-forward part of every block.

    Raises:
        UserError: a suffix without a layer, one that is not of linear layers, or no layer at all.
    """
    layers, head = dict(model.named_modules()), model.get_output_embeddings()
    if ends is None:
        paths = feed_forward_layers(model)
    else:
        paths = [path for path in layers if any(f".{path}".endswith(f".{end}") for end in ends)]
    missing = [end for end in ends or () if not any(f".{path}".endswith(f".{end}") for path in paths)]
    if missing or (ends is None and not paths):
        linear = {path.rpartition(".")[2]: 0 for path, layer in layers.items()
                  if linear_sizes(layer) and layer is not head}  # fmt: skip
        named = f"{missing}: the model has no layer whose name ends so" if missing else "null: none was found"
        raise UserError(f"model.layers={named}; give ends of names, of {', '.join(linear) or 'which none is linear'}")
    if output:
        paths += [path for path, layer in layers.items() if layer is head and path not in paths]
    if not paths:
        raise UserError("model.layers=[] and model.output=false: no layer takes a code; name one")
    return {path: output_size(layers[path]) for path in paths}
