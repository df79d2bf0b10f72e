"""One language model per class, as experts (DExperts) or as a generative classifier (GeDi).

DExperts (Liu et al., 2021, Eq. 1): softmax(z + alpha (z+ - z-)), of the tokens in the nucleus of z alone (sec. 2.2;
``filter_p``); with more than two classes z- is the mean of the others.

GeDi (Krause et al., 2021): p(x_t) p(c | x_1..x_t)^omega, where by Bayes' rule p(c | x_1..x_t) is proportional to
p(x_1..x_t | c)^(1/t), with equal prior probabilities of the classes. Theirs is one model that a control code tells the
class, trained with a discriminative loss beside, and drops tokens whose posterior is low; neither is done here.

Shape letters: B prompts, N rows, T prefix tokens, V vocabulary, C classes.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from lit_ctg.control.base import NO_TOKEN, Prefix, Stage, Values, generating, like_inputs, model_shape, row_values
from lit_ctg.control.bundle import check_weights
from lit_ctg.control.token_bias import ClassControl, check_classes, class_shares
from lit_ctg.decoding.filters import nucleus
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.limits import Nucleus
from lit_ctg.network.layers import heard

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

ClassModelsT = TypeVar("ClassModelsT", bound="ClassModels")


# of a prompt, whose scores are in memory at a time: [N, POSITIONS, V]
POSITIONS = 64


class Reader:
    """Reads prefixes with a causal language model, incrementally where possible.

    A prefix that does not extend the last one by a token (another batch, reordered beams) is read from its start, so
    the result depends only on the prefixes. So is every prefix by a model without a cache of keys and values (Mamba,
    or user-defined layers), and by one with a learned prompt of PEFT, which it would put before each new token again.

    Args:
        likelihood: also sum the log-likelihoods of the prefixes, for which every position needs scores.
    """

    def __init__(self, model: Any, *, likelihood: bool) -> None:
        self.model, self.likelihood = model, likelihood
        learned_prompt = bool(getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False))
        keeps = "logits_to_keep" in inspect.signature(generating(model).forward).parameters
        self._keep = {"logits_to_keep": 1} if keeps and not likelihood else {}
        self._caches = not learned_prompt  # until a pass returns no cache
        self._seen_NT: Tensor | None = None
        self._cache: Any = None
        self._log_p_NV = self._total_N = torch.empty(0)

    @torch.no_grad()
    def __call__(self, ids_NT: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log-probabilities of the next token [N, V], log-likelihood of the prefix after its first token [N]).

        Without ``likelihood`` the latter is 0.

        Args:
            ids_NT: prefixes, ``NO_TOKEN`` at padding (on the left).
        """
        seen_NT, length = self._seen_NT, ids_NT.shape[1]
        longer = self._cache is not None and seen_NT is not None and torch.equal(ids_NT[:, :-1], seen_NT)
        start = length - 1 if longer else 0
        while start < length:
            end = min(start + POSITIONS, length) if self._caches and not self._keep else length
            self._read(ids_NT, start, end)
            start = end if self._caches or end == length else 0  # without a cache the next piece needs the whole text
        self._seen_NT = ids_NT.clone()
        return self._log_p_NV, self._total_N

    @torch.no_grad()
    def states_after(self, ids_NT: Tensor, next_NK: Tensor, block: int | None) -> Tensor:
        """Return the states [N, K, D] after each of K next tokens of every prefix; see ``heard``."""
        self(ids_NT)
        cache, many = None, next_NK.shape[1]
        whole_XT = torch.cat([ids_NT.repeat_interleave(many, dim=0), next_NK.reshape(-1, 1)], dim=1)
        if self._cache is not None:
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(many)
        real_XT = whole_XT != NO_TOKEN
        place_XT, given_XT = (real_XT.long().cumsum(1) - 1).clamp(min=0), whole_XT.where(real_XT, 0)
        start = 0 if cache is None else -1
        with heard(self.model, block) as found:
            self.model(
                input_ids=given_XT[:, start:], attention_mask=real_XT.long(), position_ids=place_XT[:, start:],
                use_cache=cache is not None, **({} if cache is None else {"past_key_values": cache}),
            )  # fmt: skip
        return found[0][:, -1].view(len(ids_NT), many, -1)

    def _read(self, ids_NT: Tensor, start: int, end: int) -> None:
        """Read the columns from ``start`` to ``end``, those before them from the cache."""
        real_NT = ids_NT != NO_TOKEN
        place_NT = (real_NT.long().cumsum(1) - 1).clamp(min=0)
        given_Nt = ids_NT[:, start:end].where(real_NT[:, start:end], 0)
        out = self.model(
            input_ids=given_Nt,
            attention_mask=real_NT[:, :end].long(),
            position_ids=place_NT[:, start:end],
            use_cache=True,
            **({"past_key_values": self._cache} if start else {}),
            **self._keep,
        )
        self._cache = getattr(out, "past_key_values", None) if self._caches else None
        self._caches = self._cache is not None
        log_p_NtV = out.logits.float().log_softmax(-1)
        if not start:
            self._total_N = log_p_NtV.new_zeros(len(ids_NT))
        elif self.likelihood:
            first_N = self._log_p_NV.gather(1, given_Nt[:, :1]).squeeze(1)
            self._total_N = self._total_N + first_N.masked_fill(~real_NT[:, start - 1], 0.0)
        if self.likelihood:
            said_Nt = log_p_NtV[:, :-1].gather(2, given_Nt[:, 1:].unsqueeze(2)).squeeze(2)
            self._total_N = self._total_N + said_Nt.masked_fill(~real_NT[:, start : end - 1], 0.0).sum(1)
        self._log_p_NV = log_p_NtV[:, -1]


class ClassModels(ClassControl):
    """Holds one causal language model per class, with the vocabulary of the steered model.

    Args:
        models: class -> model, in evaluation mode.

    Raises:
        UserError: fewer than two classes, or models of different vocabularies.
    """

    stage = Stage.LOGITS
    not_weights = ".*"  # tables of a model may hold anything

    def __init__(self, models: Mapping[str, Any], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.classes = check_classes(list(models))
        self.models = {each: model.eval().requires_grad_(False) for each, model in models.items()}
        sizes = {model_shape(model)["vocab_size"] for model in self.models.values()}
        if len(sizes) > 1:
            raise UserError(f"control {self.name}: its models have different vocabularies ({sorted(sizes)} tokens)")
        self.size = sizes.pop()

    def check_model(self, model: Any) -> None:
        """Refuse a model that is one of the classes' own, which would be read under the controls."""
        super().check_model(model)
        for name, each in self.models.items():
            if each is model:
                raise UserError(f"control {self.name}: the model of {name} is the steered one: give it a copy")

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        """Bring the models to the device of the steered one; they are called by the rule."""
        steered = like_inputs(model)
        for each in self.models.values():
            if like_inputs(each).device != steered.device:
                each.to(steered.device)
        return ()

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.size}

    def config(self) -> dict[str, Any]:
        return {"models": {name: _plain(model.config) for name, model in self.models.items()}}

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{name}/{key}": value.clone()  # a tied head shares the embedding's tensor, which a file cannot hold twice
            for name, model in self.models.items()
            for key, value in model.state_dict().items()
        }

    @classmethod
    def restore(cls: type[ClassModelsT], config: dict[str, Any], tensors: dict[str, Tensor]) -> ClassModelsT:
        models = {}
        for name, settings in config["models"].items():
            own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
            models[name] = _rebuilt(settings, own)
        return cls(models)


# of what a model computes beside its weights (masks by position), where the file has fewer bytes
MOST_BUFFER_BYTES = 2**28


def _rebuilt(settings: Mapping[str, Any], own: Mapping[str, Tensor]) -> Any:
    """Return a model, after a copy without memory has shown that it has just these tensors."""
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    kind = settings["model_type"]
    layers = settings.get(CONFIG_MAPPING[kind].attribute_map.get("num_hidden_layers", "num_hidden_layers"))
    if isinstance(layers, int) and layers > len(own):
        raise ValueError(f"{layers} layers, but {len(own)} tensors")
    sizes = AutoConfig.for_model(kind, **{key: value for key, value in settings.items() if key != "model_type"})
    precision = next((value.dtype for value in own.values() if value.is_floating_point()), torch.float32)

    def build() -> Any:
        # not ``.to(precision)``, which would also round other values, such as the frequencies of positions
        return AutoModelForCausalLM.from_config(
            copy.deepcopy(sizes),
            dtype=precision,
            trust_remote_code=False,
            attn_implementation=None,
            experts_implementation=None,
        )

    with torch.device("meta"), _no_more_parameters_than(2 * len(own) + 16):
        model = build()
    for name, value in model.state_dict().items():
        if (
            name not in own
            or own[name].shape != value.shape
            or own[name].dtype.is_floating_point != value.dtype.is_floating_point
        ):
            raise ValueError(f"{name} is missing or of another shape or type")
    if len(own) != len(model.state_dict()):
        raise ValueError("it has tensors that the model lacks")
    if sum(buffer.nbytes for buffer in model.buffers()) > MOST_BUFFER_BYTES + sum(
        value.nbytes for value in own.values()
    ):
        raise ValueError("its tables are larger than its weights")
    model = build()
    check_weights({name: own[name] for name, _ in model.named_parameters(remove_duplicate=False)})
    model.load_state_dict(own)
    return model


@contextmanager
def _no_more_parameters_than(most: int) -> Iterator[None]:
    """Stop this thread from building a network whose configuration states more parts than its file has."""
    thread, count = threading.get_ident(), 0

    def counted(module: Any, name: str, parameter: Any) -> None:
        nonlocal count
        count += parameter is not None and threading.get_ident() == thread
        if count > most:
            raise ValueError("it states more parts than it has tensors")

    handle = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()


def _plain(config: Any) -> dict[str, Any]:
    """Return the values of a Hugging Face configuration that differ from its class's defaults, and its type."""
    settings = config.to_diff_dict()
    return {
        key: value for key, value in settings.items() if key not in ("architectures", "transformers_version", "dtype")
    }


class Experts(ClassModels):
    """Adds strength times the difference between the expert of a class and the mean of the others (DExperts).

    Args:
        filter_p: only the nucleus of this mass of the scores before is kept (sec. 2.2; 0.9 in the authors' code); 1:
            all tokens.
    """

    kind = "experts"

    def __init__(self, models: Mapping[str, Any], *, filter_p: Nucleus = 0.9, name: str | None = None) -> None:
        super().__init__(models, name=name)
        self.filter_p = float(filter_p)

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        return _Expert(self.models, class_shares(self.classes, values), values["strength"], self.filter_p)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "filter_p": self.filter_p}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Experts:
        models = super().restore(config, tensors).models
        return cls(models, filter_p=config.get("filter_p", 1.0))  # bundles from before it existed keep all tokens


class GenerativeClassifier(ClassModels):
    """Multiplies the model's distribution by p(class | text so far)^strength, from models of the classes (GeDi)."""

    kind = "generative_classifier"

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        return _Bayes(self.models, class_shares(self.classes, values), values["strength"])


class _OfModels(ScoreRule):
    likelihood = True

    def __init__(self, models: Mapping[str, Any], shares_BC: Tensor, strength_B: Tensor) -> None:
        self.readers = [Reader(model, likelihood=self.likelihood) for model in models.values()]
        self.shares_BC, self.strength_B = shares_BC, strength_B

    def read(self, input_ids: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-probabilities [N, C, V], log-likelihoods [N, C], shares [N, C] and strengths [N, 1]."""
        found = [reader(input_ids) for reader in self.readers]
        shares_NC = row_values(self.shares_BC, len(scores)).to(scores)
        strength_N1 = row_values(self.strength_B, len(scores)).unsqueeze(1).to(scores)
        return (
            torch.stack([log_p for log_p, _ in found], 1),
            torch.stack([t for _, t in found], 1),
            shares_NC,
            strength_N1,
        )


class _Expert(_OfModels):
    likelihood = False

    def __init__(self, models: Mapping[str, Any], shares_BC: Tensor, strength_B: Tensor, filter_p: float) -> None:
        super().__init__(models, shares_BC, strength_B)
        self.filter_p = filter_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.filter_p < 1:
            scores = nucleus(scores, self.filter_p, keep_crossing=True)
        log_p_NCV, _, shares_NC, strength_N1 = self.read(input_ids, scores)
        others_NC = (1 - shares_NC) / (shares_NC.shape[1] - 1)  # shares sum to 1, so these do too
        pull_NV = torch.einsum("nc,ncv->nv", shares_NC - others_NC, log_p_NCV.to(scores))
        return scores + strength_N1 * pull_NV


class _Bayes(_OfModels):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        log_p_NCV, total_NC, shares_NC, strength_N1 = self.read(input_ids, scores)
        # the first token of a text of t tokens has no probability, the next token is the t-th
        length_N11 = (input_ids != NO_TOKEN).sum(1).clamp(min=1).view(-1, 1, 1)
        posterior_NCV = ((total_NC.unsqueeze(2) + log_p_NCV) / length_N11).log_softmax(1)
        wanted_NV = torch.einsum("nc,ncv->nv", shares_NC, posterior_NCV.to(scores))
        return scores.log_softmax(-1) + strength_N1 * wanted_NV
