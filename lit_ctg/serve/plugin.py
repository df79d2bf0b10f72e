"""What vLLM calls in each of its processes: reads which controls are wanted, and refuses engines they cannot follow."""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any

from lit_ctg.errors import UserError, refuse
from lit_ctg.serve.batch import IN_LAYERS, READS_STATES, VARIABLE, load_served

# architectures whose hidden states controls can read and change (network.py)
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# what the engine that was started last loads, for the check of requests in its front end
SERVED = "LIT_CTG_SERVED"
# the key in --additional-config
OPTION = "lit_ctg_controls"


def named(vllm_config: Any = None) -> tuple[str, ...]:
    """Return the folders or names of the bundles that an engine is to load; by default the one started last."""
    extra = getattr(vllm_config, "additional_config", None)
    given = extra.get(OPTION) if isinstance(extra, dict) else os.environ.get(SERVED) if vllm_config is None else None
    given = os.environ.get(VARIABLE, "") if given is None else given
    words = given.split(",") if isinstance(given, str) else given
    return tuple(word.strip() for word in words if word.strip())


def shared(vllm_config: Any) -> Any:
    """Return what the processor and the model of one engine know of each other.

    ``served``, ``slots``: the processor's; ``states``: what the output layer read; ``head``: its weight.
    """
    own = vars(vllm_config)
    return own.setdefault("_lit_ctg", SimpleNamespace(served=None, slots={}, states=None, head=None))


def check_engine(vllm_config: Any, words: tuple[str, ...]) -> None:
    """Refuse an engine that drops the controls or in which they would act wrongly.

    Raises:
        UserError: names the setting.
    """
    kinds = {control.kind for control in load_served(words)}
    layers, states = kinds & IN_LAYERS, kinds & (IN_LAYERS | READS_STATES)
    architecture = (vllm_config.model_config.architectures or ["?"])[0]
    parallel = vllm_config.parallel_config
    v2 = bool(vllm_config.use_v2_model_runner)
    split = parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1
    refuse({
        "controls cannot follow speculative decoding: leave speculative_config out": vllm_config.speculative_config,
        "the V1 runner hides the newest token from controls: start with --no-async-scheduling":
            not v2 and vllm_config.scheduler_config.async_scheduling,
        f"{', '.join(sorted(states))} reads or changes hidden states, served in {', '.join(ARCHITECTURES)}, not in a "
        f"{architecture}": states and architecture not in ARCHITECTURES,
        f"{', '.join(sorted(states))} needs layers that run as they are: start with --enforce-eager":
            states and not vllm_config.model_config.enforce_eager,
        f"{', '.join(sorted(layers))} changes what the cache keeps: start with --no-enable-prefix-caching":
            layers and vllm_config.cache_config.enable_prefix_caching,
        f"{', '.join(sorted(layers))} changes whole layers: use a tensor and pipeline parallel size of 1":
            layers and split,
        f"{', '.join(sorted(layers))} needs the V1 runner: set VLLM_USE_V2_MODEL_RUNNER=0": layers and v2,
    })  # fmt: skip


def register() -> None:
    """Entry point of ``vllm.general_plugins``: called in every process, perhaps several times."""
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is not None and not hasattr(arguments.EngineArgs.create_engine_config, "__wrapped__"):
        arguments.EngineArgs.create_engine_config = _checked(arguments.EngineArgs.create_engine_config)
    if named():
        _register_models()


def _register_models() -> None:
    from vllm import ModelRegistry

    for name in ARCHITECTURES:
        ModelRegistry.register_model(name, f"lit_ctg.serve.network:{name}")


def _checked(create: Any) -> Any:
    """Return ``EngineArgs.create_engine_config`` that chooses what controls need and refuses what they cannot follow.

    V1 drops processors without a word where it decodes speculatively, so the processor cannot refuse it.
    """

    @functools.wraps(create)
    def checked(args: Any, *rest: Any, **options: Any) -> Any:
        words = named(args)
        os.environ[SERVED] = ",".join(words)
        if not words:
            return create(args, *rest, **options)
        try:
            kinds = {control.kind for control in load_served(words)}
            if kinds & (READS_STATES | IN_LAYERS):
                _register_models()
            if args.enable_prefix_caching is None and kinds & IN_LAYERS:
                args.enable_prefix_caching = False
            if args.async_scheduling is None:
                args.async_scheduling = False
            config = create(args, *rest, **options)
            check_engine(config, words)
        except UserError as error:
            raise ValueError(str(error)) from None
        return config

    return checked
