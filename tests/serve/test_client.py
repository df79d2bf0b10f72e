"""`lit-ctg serve` and what uses a running server, without vLLM: a server of the small engine answers as vLLM's does."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.cli import Serve
from lit_ctg.control import Steered
from lit_ctg.control.generator import SteeredGenerator
from lit_ctg.core.trace import compare
from lit_ctg.errors import UserError
from lit_ctg.serve.batch import load_served
from lit_ctg.serve.client import ServedGenerator, complete, without_weights
from lit_ctg.serve.command import arguments
from lit_ctg.serve.processor import ControlProcessor
from tests.controls import controls
from tests.serve.engine import Engine, Text, engine_config

KINDS = ("token_bias", "memory")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, word_model: Any, word_tokenizer: Any) -> Path:
    """A model and two bundles."""
    place = tmp_path_factory.mktemp("client")
    word_model.save_pretrained(place / "model")
    word_tokenizer.save_pretrained(place / "model")
    for kind in KINDS:
        controls()[kind].save_pretrained(place / kind)
    return place


@pytest.fixture
def server(folder: Path, word_model: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a server that writes greedily, and answers settings it does not know with 400."""
    words = [str(folder / kind) for kind in KINDS]
    monkeypatch.setenv("LIT_CTG_SERVED", ",".join(words))
    config = engine_config(word_model, str(folder / "model"), additional_config={"lit_ctg_controls": words})
    processor, lock = ControlProcessor(config, torch.device("cpu"), False), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, code: int, content: Any) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = Text(body["prompt"], body["vllm_xargs"], body["max_tokens"])
            try:
                processor.validate_params(text.params)
            except ValueError as error:
                return self.answer(400, {"error": {"message": str(error)}})
            with lock:
                engine = Engine(word_model, processor)
                engine.write([text])
                token = body.get("logprob_token_ids", [0])[0]
                log_p = float(engine.scores.log_softmax(-1)[0, token])
            shown = {"top_logprobs": [{f"token_id:{token}": log_p}]}
            return self.answer(200, {"choices": [{"token_ids": text.output, "logprobs": shown}]})

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(ThreadingHTTPServer, "request_queue_size", 99)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_server_compares_texts_as_the_model_itself_does(
    server: str, folder: Path, word_model: Any, word_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / kind) for kind in KINDS]
    monkeypatch.setattr("lit_ctg.serve.client.resolve", lambda *_: str(folder / "model"))
    monkeypatch.setattr("lit_ctg.data.huggingface_tokenizer.resolve", lambda *_: str(folder / "model"))
    here = SteeredGenerator(Steered(word_model, load_served(tuple(words)), tokenizer=word_tokenizer), max_new_tokens=9)
    there = ServedGenerator(server, "tiny", words, max_new_tokens=9)
    control = {"token_bias.to_good": 1.0, "memory.strength": 0.5}
    ours, theirs = (each.generate(1, "the acid", control, seed=None) for each in (here, there))
    assert ours[0].ids == theirs[0].ids and ours[0].text == theirs[0].text
    ids = ours[0].ids[ours[0].prompt_length :]
    log_p = [each.log_probs("the acid", ids, [control, here.bare()]) for each in (here, there)]
    torch.testing.assert_close(*log_p, atol=1e-5, rtol=0)
    found = compare(there, "the acid", control, seed=1, max_new_tokens=4)
    assert len(found.tokens) == 4 and {"memory.strength", "token_bias.to_good"} <= set(found.tokens[0].by)


def test_a_server_that_is_not_there_or_refuses_ends_in_one_line(server: str, folder: Path) -> None:
    with pytest.raises(UserError, match="model=other: the server at"):
        ServedGenerator(server, "other", [], max_new_tokens=9)
    with pytest.raises(UserError, match="lit-ctg serve"):
        ServedGenerator("http://127.0.0.1:9", "tiny", [], max_new_tokens=9)
    generator = ServedGenerator.__new__(ServedGenerator)
    generator.url = server
    body = {"prompt": [1], "vllm_xargs": {"lit_ctg.memry.strength": 1}, "max_tokens": 1}
    with pytest.raises(UserError, match="answers 400"):
        generator._ask("/v1/completions", body)


def test_settings_are_completed_as_steered_has_them(folder: Path) -> None:
    steered = without_weights(str(folder / "model"), [str(folder / kind) for kind in KINDS])
    given = {"memory.mixture": "product", "token_bias.to_good": None}
    assert complete(steered, given) == {"memory.mixture": "product", "token_bias.strength": 1.0}
    assert complete(steered, {}) == {"memory.strength": 1.0, "token_bias.strength": 1.0}
    # as a file of prompts gives them, of which another line sets the memory
    assert complete(steered, {"memory.strength": None}) == {"memory.strength": 1.0, "token_bias.strength": 1.0}
    assert steered.check("the acid", {"memory.strength": 1}, max_new_tokens=3) == 0


def test_serve_listens_on_this_machine_alone(folder: Path) -> None:
    model, bundle = str(folder / "model"), str(folder / "memory")
    command = Serve.parse([f"model={model}", f"controls=[{bundle}]", "engine.max_model_len=64"])
    words = arguments(command.model, command.controls, command.host, command.port, command.dtype, command.engine)
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--model"], pairs["--host"], pairs["--max-model-len"]) == (model, "127.0.0.1", "64")
    assert "--enforce-eager" not in words
    assert "--enforce-eager" in arguments(model, ["on_topic"], "127.0.0.1", 1, "auto", {})
    assert "--no-enable-prefix-caching" in arguments(model, [], "::1", 1, "auto", {"enable_prefix_caching": False})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["serve", "model=MODEL", "controls=[nothing]"], "nothing"),
        (["serve", "model=MODEL"], "pip install vllm"),
        (["generate", "model=MODEL", "engine=vllm", "prompt=the"], "pip install vllm"),
        (["play", "url=http://127.0.0.1:9"], "model="),
    ],
)
def test_what_is_missing_is_named(
    words: list[str], named: str, folder: Path, run_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code, _, err = run_cli(*(word.replace("MODEL", str(folder / "model")) for word in words))
    assert code == 2 and named in err and err.count("\n") == 1
