"""Texts from a running server, for `lit-ctg play url=...`, and from an engine of our own, for `engine=vllm`.

Both know the controls as ``Steered`` does, on the model without weights.

Shape letters: B ways to set the controls, T tokens of a continuation.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from lit_ctg.control.generator import SteeredGenerator
from lit_ctg.control.steered import Steered
from lit_ctg.core.generation import NO_END, Batch, Controls
from lit_ctg.errors import UserError, one_line, refuse
from lit_ctg.network.pretrained import PLAIN, Loading, resolve
from lit_ctg.serve.batch import IN_LAYERS, KEY, READS_STATES, REPLY, VARIABLE, ServedControls
from lit_ctg.serve.command import need_vllm

# options of ``generate`` that vLLM has, under its names
OPTIONS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
OPTIONS |= {"min_new_tokens": "min_tokens"}
REQUESTS = 32  # at a time
SECONDS = 600.0


def without_weights(model: str, words: Sequence[str], revision: str | None = None) -> Steered:
    """Return a model without weights under its controls, which checks prompts and settings but writes nothing."""
    from transformers import AutoConfig, GenerationConfig

    from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer

    folder = resolve(model, "model")
    tokenizer = load_tokenizer(model, revision, "model")
    try:
        config = AutoConfig.from_pretrained(folder, revision=revision, trust_remote_code=False)
        steered = ServedControls(words, config, tokenizer).steered
        own = GenerationConfig.from_pretrained(folder, revision=revision, trust_remote_code=False)
        steered.model.generation_config = own
    except (OSError, ValueError) as error:
        raise UserError(f"model={model}: {one_line(error)[:200]}; give another folder or name") from error
    return steered


def complete(steered: Steered, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the defaults of the controls that have none: a server leaves those off."""
    # in a file of prompts, a line's settings are None where only other lines have one
    settings = {name: value for name, value in settings.items() if value is not None}
    given = steered.settings_of(settings)
    defaults = {
        f"{control.name}.{each.name}": each.default
        for control in steered.controls
        for each in control.settings
        if each.name == control.strength and not given[control.name]
    }
    return defaults | settings


def seed_of(seed: int, row: int) -> int:
    """Return the seed of one text's draws."""
    return (seed * 1_000_003 + row) % 2**31


class ServedGenerator(SteeredGenerator):
    """Continues prompts by a running server.

    Args:
        url: of the server, without the path.
        model: as the server was told.

    Raises:
        UserError: no server there, or it has another model.
    """

    def __init__(self, url: str, model: str, words: Sequence[str], **options: Any) -> None:
        self.url = url.rstrip("/")
        served = [each["id"] for each in self._ask("/v1/models")["data"]]
        if model not in served:
            raise UserError(f"model={model}: the server at {url} has {', '.join(served)}: give that")
        self.model = model
        super().__init__(without_weights(model, words), **options)

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            raise UserError(f"url={self.url}: the server answers {error.code}: {one_line(Exception(said))}") from error
        except (OSError, ValueError) as error:
            raise UserError(f"url={self.url}: no server answers there ({one_line(error)}); lit-ctg serve") from error

    def _each(self, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the first choice of the answer to each request."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            return [made["choices"][0] for made in pool.map(lambda body: self._ask("/v1/completions", body), bodies)]

    def _body(self, prompt: Sequence[int], control: Mapping[str, Any], length: int) -> dict[str, Any]:
        settings = {f"{KEY}.{name}": value for name, value in complete(self.steered, control).items()}
        settings |= {f"{KEY}.{REPLY}": 1} if self.chat else {}
        plain = {"model": self.model, "prompt": list(prompt), "max_tokens": length, "vllm_xargs": settings}
        return plain | {"temperature": 1.0, "top_p": 1.0, "top_k": 0}

    def draw(self, batch: Batch) -> list[list[int]]:
        rows = range(len(batch.prompts)) if batch.rows is None else batch.rows
        bodies = []
        for prompt, control, row in zip(batch.prompts, batch.controls, rows, strict=True):
            greedy = batch.seed is None
            draws: dict[str, Any] = {"temperature": 0} if greedy else {"seed": seed_of(batch.seed or 0, row)}
            draws |= {"return_token_ids": True, "ignore_eos": batch.eos_id == NO_END}
            bodies.append({**self._body(prompt, control, batch.length), **draws})
        made = self._each(bodies)
        return [[*prompt, *choice["token_ids"]] for prompt, choice in zip(batch.prompts, made, strict=True)]

    def log_probs(
        self, prompt: str, ids: Sequence[int], controls: Sequence[Controls], *, routes: Collection[str] | None = None
    ) -> Tensor:
        """Return log P of each token under each of several controls, [B, T]: a request of one token for each."""
        begin, ways = self.prompt_ids(prompt), [self.checked(control) for control in controls]
        asked = {"logprobs": 1, "return_token_ids": True}
        bodies = [
            {**self._body([*begin, *ids[:place]], way, 1), **asked, "logprob_token_ids": [token]}
            for way in ways
            for place, token in enumerate(ids)
        ]
        found = [_log_p(choice, token) for choice, token in zip(self._each(bodies), [*ids] * len(ways), strict=True)]
        return torch.tensor(found, dtype=torch.float64).view(len(ways), len(ids))


def _log_p(choice: Any, token: int) -> float:
    return float(choice["logprobs"]["top_logprobs"][0].popitem()[1])


class Engine(Steered):
    """Controls inside an engine of this process, for files of prompts.

    Args:
        model: folder or name of the model, whose tokenizer is used.
        words: folders or names of the bundles.

    Raises:
        UserError: vLLM is missing; a model or bundle is missing or does not fit.
    """

    def __init__(
        self, model: str, words: Sequence[str], revision: str | None = None, *, loading: Loading = PLAIN
    ) -> None:
        need_vllm()
        bare = without_weights(model, words, revision)
        super().__init__(bare.model, bare.controls, tokenizer=bare.tokenizer)
        import vllm

        os.environ[VARIABLE] = ",".join(words)
        eager = any(control.kind in IN_LAYERS | READS_STATES for control in self.controls)
        folder = resolve(model, "model")
        self.engine = vllm.LLM(folder, revision=revision, dtype=loading.dtype, enforce_eager=eager)

    def write(self, prompts: Any, settings: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
        """Return continuations as ``Steered.write`` does; drawn texts are a function of (seed, row) in vLLM's way."""
        from vllm import SamplingParams

        seed, rows, reply = (options.pop(name, None) for name in ("seed", "rows", "reply_only"))
        length, draws = options.pop("max_new_tokens"), options.pop("do_sample")
        refuse(f"generate.{name}: engine=vllm takes {', '.join(OPTIONS)}" for name in options if name not in OPTIONS)
        own = {name: options.get(name, getattr(self.model.generation_config, name, None)) for name in OPTIONS}
        kept = {OPTIONS[name]: value for name, value in own.items() if value is not None}
        kept |= {} if draws else {"temperature": 0}
        ids = [self.prompt_ids(prompt) for prompt in prompts]
        params = []
        for place in range(len(ids)):
            each = {key: value[place] if isinstance(value, list) else value for key, value in (settings or {}).items()}
            extra = {**complete(self, each), **({REPLY: 1} if reply else {})}
            drawn = {"seed": seed_of(seed or 0, rows[place])} if rows is not None else {}
            params.append(SamplingParams(max_tokens=length, extra_args={KEY: extra}, **kept, **drawn))
        made = self.engine.generate([{"prompt_token_ids": each} for each in ids], params, use_tqdm=False)
        new = [list(each.outputs[0].token_ids) for each in made]
        return [self.continuation(before, after) for before, after in zip(ids, new, strict=True)]
