"""Any Hugging Face causal language model as a backbone: frozen, with LoRA adapters, or fully trained.

Shape letters: B rows, T positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.errors import UserError, only_errors_of, refuse
from lit_ctg.limits import Pretrained, checked
from lit_ctg.network.layers import attention_layers, feed_forward_layers, linear_sizes
from lit_ctg.network.pretrained import MODELS, PLAIN, Loading, origin, resolve

# a model of fewer parameters gains nothing by half precision
LARGE = 50_000_000
# largest difference between the model's logits and ours, as a share of the largest logit
TOLERANCE = 1e-3
# owner/name, or a word such as gpt2
HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


@checked
class HuggingFaceBackbone(nn.Module):
    """Embedding, stack and output head of a pretrained model.

    Attributes:
        dim: hidden size D.
        context: maximum number of positions; None when its configuration does not say.
        vocabulary_size: rows V of its output head (often more than its tokenizer has tokens).
        matrix_head: its logits are ``head_weight`` times the last hidden state: no bias, scale or cap.
        given_weights: SHA-256 of the weights as they were loaded.
        origin: name, source, checksum and precision of a model that is there by name or from a GGUF file, else "".
    """

    causal = True

    def __init__(
        self,
        *,
        path: Pretrained,
        frozen: bool = True,
        lora: Mapping[str, Any] | None = None,
        revision: str | None = None,
        plain_head: bool = False,
        where: str = "backbone.path",
    ) -> None:
        """Load the model in float32 and check that it has the parts that the papers need.

        Args:
            frozen: train none of its weights; it then also runs without dropout.
            lora: train low-rank adapters and nothing else (with ``frozen=False``): keys ``rank``, ``alpha``,
            ``dropout`` and ``targets`` (names of layers; null takes peft's choice for this architecture, else the
            layers of the attention).
            plain_head: refuse a bias, a scale and a cap on logits.
            where: the setting that messages about ``path`` name.

        Raises:
            UserError: no such folder or model, not a causal LM, logits that are not those of ``head``, a refused head,
                or adapters that do not fit.
        """
        super().__init__()
        if frozen and lora is not None:
            raise UserError("backbone.lora trains adapters: give backbone.frozen=false with it")
        self.frozen, self.adapters = frozen, lora is not None
        self.model = load_model(path, revision=revision, where=where)
        self.origin = origin(path)
        self.given_weights = weights_digest(self.model)
        head = self.model.get_output_embeddings()
        if head is None:
            raise UserError(f"{where}={path}: the model has no output head, so it gives no next token")
        self.vocabulary_size, self.dim = head.weight.shape
        config = self.model.config
        # Cohere multiplies its logits, Granite divides them, Gemma 2 caps them
        self.scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        self.cap = getattr(config, "final_logit_softcapping", None)
        self.matrix_head = self.scale == 1 and self.cap is None and getattr(head, "bias", None) is None
        self.context = getattr(self.model.config, "max_position_embeddings", None)
        if plain_head and not self.matrix_head:
            raise UserError(f"{where}={path}: its logits have a bias, a scale or a cap; set backbone.plain_head=false")
        self._check(f"{where}={path}")
        if frozen:
            self.model.requires_grad_(False)
        if lora is not None:
            add_adapters(self.model, lora)
        self.model.train(not frozen)

    @torch.no_grad()
    def _check(self, named: str) -> None:
        """Compare the model's own logits with ours, and check that earlier positions do not see later ones."""
        ids_BT = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]]) % self.vocabulary_size
        self.model.eval()
        hidden_BTD = self(self.embed(ids_BT))
        if not torch.allclose(hidden_BTD[0, :3], hidden_BTD[1, :3], atol=1e-4, rtol=1e-3):
            raise UserError(f"{named}: earlier positions see later ones, so it is not a causal model")
        theirs_BTV = self.model(input_ids=ids_BT).logits
        ours_BTV = self.head(hidden_BTD)
        if (theirs_BTV - ours_BTV).abs().max() > TOLERANCE * theirs_BTV.abs().max().clamp(min=1e-3):
            raise UserError(
                f"{named}: its logits are not its output layer of its last hidden state, scaled or capped as its "
                "configuration says: use another model"
            )

    @property
    def head_weight(self) -> Tensor:
        """The output head [V, D]."""
        return self.model.get_output_embeddings().weight

    def head(self, hidden: Tensor) -> Tensor:
        """Return the model's own logits [..., V] of last hidden states [..., D]."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the model's own embedding [..., D] of token ids."""
        return self.model.get_input_embeddings()(ids)

    def train(self, mode: bool = True) -> HuggingFaceBackbone:
        """Set the mode; a frozen model never uses dropout."""
        return super().train(mode and not self.frozen)

    def forward(self, embedded_BTD: Tensor) -> Tensor:
        """Return the last hidden states [B, T, D], the input of the output head."""
        return self.model.base_model(inputs_embeds=embedded_BTD, use_cache=False).last_hidden_state

    def step(self, embedded_BD: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Run the newest position of each row on cached keys and values.

        Args:
            cache: what the previous step returned, which grows in place; None at the first position.

        Returns:
            Hidden states [B, D] and the cache for the next step.
        """
        hidden_B1D, cache = self.extend(embedded_BD.unsqueeze(1), cache)
        return hidden_B1D[:, 0], cache

    def extend(
        self, embedded_BTD: Tensor, cache: Any, *, positions: Tensor | None = None, sees: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Run several new positions of each row as ``step`` runs one; return hidden states [B, T, D] and the cache.

        Args:
            positions: [B, T], where they do not go on from the cache.
            sees: which positions, cached and new, each new one reads, [B, 1, T, cached + T]; None: all before it.
        """
        output = self.model.base_model(
            inputs_embeds=embedded_BTD, past_key_values=cache, use_cache=True, return_dict=True,
            position_ids=positions, attention_mask=sees,
        )  # fmt: skip
        return output.last_hidden_state, output.past_key_values


def weights_digest(model: nn.Module) -> str:
    """Return SHA-256 of a model's weights, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_model(path: str, *, where: str, revision: str | None = None, loading: Loading = PLAIN) -> Any:
    """Return a causal language model; if it is missing or of another kind, the error is one line.

    Args:
        path: a folder written by ``save_pretrained``, a GGUF file, a name of ``lit-ctg model list`` or one on the hub.
        where: the setting that named it, for messages.
        loading: its device and precision, float32 on the processor by default.

    Raises:
        UserError: there is none, it is of another kind or damaged, or weights of it are missing; no such device.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if path in MODELS and not MODELS[path].writes and not os.path.isdir(path):
        names = ", ".join(name for name, model in MODELS.items() if model.writes)
        raise UserError(f"{where}={path}: {MODELS[path].about}; give a causal language model such as {names}")
    place = resolve(path, where)
    if place == path and not os.path.isdir(place) and not HUB_NAME.fullmatch(path):
        names = ", ".join(MODELS)
        raise UserError(f"{where}={path}: no such folder; give one written by save_pretrained, {names} or a hub name")
    try:
        with _quiet_loading():
            config = AutoConfig.from_pretrained(place, revision=revision, trust_remote_code=False)
            model, report = AutoModelForCausalLM.from_pretrained(
                place, revision=revision, config=config, trust_remote_code=False, output_loading_info=True,
                **_held(config, loading),
            )  # fmt: skip
    except UserError:
        raise
    except Exception as error:  # those of safetensors, torch and the hub have no common class
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        kind = "is not a causal language model" if "AutoModelForCausalLM" in str(error) else "cannot be loaded"
        raise UserError(f"{where}={path} {kind}: {reason}") from error
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{where}={path} lacks weights of a {type(model).__name__} ({missing[0]}{more}), which would be drawn at "
            "random: give a whole causal language model"
        )
    return model


def _held(config: Any, loading: Loading) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that place a model of this configuration.

    Raises:
        UserError: a device that torch does not find, settings that exclude each other, a package that is missing.
    """
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    device = next(name for name, there in usable.items() if there) if loading.device == "auto" else loading.device
    chosen = loading.device_map is not None and loading.device != "auto"
    refuse({
        f"device={device}: torch finds none here; give device=cpu": not usable[device],
        f"device_map={loading.device_map} chooses the devices itself: leave device={device} out": chosen,
    })  # fmt: skip
    options: dict[str, Any] = {"dtype": _precision(config, loading, device)}
    if loading.load is not None:
        options["quantization_config"] = _quantization(loading.load, options["dtype"])
    # without a map transformers loads to the processor, and quantised weights cannot be moved later
    if loading.device_map is not None or device != "cpu" or loading.load is not None:
        options["device_map"] = loading.device_map or {"": device}
    return options


def _precision(config: Any, loading: Loading, device: str) -> torch.dtype:
    if loading.dtype == "auto" and loading.load == "8bit" and find_spec("bitsandbytes") is not None:
        return torch.float16  # to which it casts all inputs
    if loading.dtype != "auto":
        found: torch.dtype = getattr(torch, loading.dtype)
        return found
    if device == "mps" or (device == "cpu" and not has_bfloat16_units()):
        return torch.float32
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
    if parameters < LARGE:
        return torch.float32
    return torch.float16 if device == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16


def has_bfloat16_units(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Return whether the processor multiplies in bfloat16; elsewhere it is slower than float32."""
    try:
        with open(cpuinfo, encoding="utf-8") as file:
            return re.search(r"\b(avx512_bf16|amx_bf16)\b", file.read()) is not None
    except OSError:
        return False


def _quantization(load: str, dtype: torch.dtype) -> Any:
    """Return the configuration of quantised weights by a package that is installed; heads stay as they are."""
    from transformers import BitsAndBytesConfig, TorchAoConfig

    if find_spec("bitsandbytes") is not None:
        return BitsAndBytesConfig(
            load_in_8bit=load == "8bit", load_in_4bit=load == "4bit", bnb_4bit_compute_dtype=dtype
        )
    if load != "8bit" or find_spec("torchao") is None:
        other = ", or torchao" if load == "8bit" else ""
        raise UserError(f"load={load} needs a package that quantises: pip install bitsandbytes{other}")
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


@contextlib.contextmanager
def _quiet_loading() -> Iterator[None]:
    from transformers.utils import logging

    # without a terminal the bar would print control codes into the log
    hidden = not sys.stderr.isatty() and logging.is_progress_bar_enabled()
    if hidden:
        logging.disable_progress_bar()
    try:
        # one process holds the whole model: the note that its layers are not sharded does not matter
        with only_errors_of("transformers.distributed.tensor_parallel"):
            yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def adapters_of(model: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return a model's adapters: path of a layer -> A [R, I] and B [O, R], the scale in B; {} where it has none."""
    found = {}
    for path, layer in model.named_modules():
        for name in getattr(layer, "scaling", ()) if hasattr(layer, "lora_A") else ():
            down, up = layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach()
            found[path] = down, up * layer.scaling[name]
    return found


def add_adapters(model: Any, lora: Mapping[str, Any]) -> None:
    """Add LoRA adapters (Hu et al. 2021) to the model in place; nothing else in it is then trained.

    Raises:
        UserError: an unknown setting, or layers that the model does not have.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as PEFT_TARGETS
    except ImportError as error:
        raise UserError("backbone.lora needs peft: pip install 'lit-ctg[lora]'") from error

    known = {"rank", "alpha", "dropout", "targets"}
    if set(lora) - known or not {"rank", "alpha"} <= set(lora):
        raise UserError(f"backbone.lora has {', '.join(lora)}: give rank and alpha, and if needed dropout and targets")
    targets = lora.get("targets")
    if targets is None and getattr(model.config, "model_type", "") not in PEFT_TARGETS:
        # layers whose names end alike take an adapter each
        layers = attention_layers(model) or [path for path in feed_forward_layers(model) if _reads_states(model, path)]
        targets = sorted({path.rpartition(".")[2] for path in layers})
    config = LoraConfig(
        r=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora.get("dropout") or 0.0,
        target_modules=None if targets is None else list(targets),
        # GPT-2 stores its matrices transposed
        fan_in_fan_out=getattr(model.config, "model_type", "") == "gpt2",
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        raise UserError(
            f"backbone.lora: {str(error).splitlines()[0][:160]}; give backbone.lora.targets=[...]"
        ) from error


def _reads_states(model: Any, path: str) -> bool:
    sizes = linear_sizes(model.get_submodule(path))
    return sizes is not None and sizes[0] == model.get_input_embeddings().weight.shape[1]
