"""`lit-ctg serve` as docs/serve.md has it: the commands of the page, many clients, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.errors import UserError
from lit_ctg.serve.client import ServedGenerator
from tests.pages import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(?:sh|json)\n(.*?)^```", PAGE, flags=re.S | re.M)
SERVE, CURL = (next(block for block in BLOCKS if block.startswith(word)) for word in ("lit-ctg serve", "curl"))
ENVIRONMENT = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def started(command: str, port: int) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own; return it when it answers."""
    words = command.split()
    script = str(Path(sys.executable).with_name("lit-ctg"))
    more = [f"port={port}", "engine.max_model_len=256", "engine.max_num_seqs=16", "dtype=float32"]
    process = subprocess.Popen([script, *words[1:], *more], env=ENVIRONMENT, start_new_session=True)
    answers(port, process)
    return process


def answers(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    for _ in range(900):
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return
        except OSError:
            time.sleep(1)
    raise AssertionError("the server does not answer")


def ended(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    os.killpg(process.pid, number)
    process.wait(60)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that the page's command starts."""
    found = free_port()
    process = started(SERVE, found)
    yield found
    ended(process)


def curl(port: int, block: str, **changes: Any) -> tuple[int, Any]:
    """Run the page's curl, perhaps with other settings; return the status and the answer."""
    words = shlex.split(block.replace("\\\n", " ").replace(":8000", f":{port}"))
    words[-1] = json.dumps(json.loads(words[-1]) | changes)
    made = subprocess.run([*words, "-w", "\n%{http_code}"], capture_output=True, text=True, timeout=300, check=True)
    answer, _, code = made.stdout.rpartition("\n")
    return int(code), json.loads(answer) if answer.startswith("{") else answer


def test_the_pages_request_is_steered_and_a_bad_one_is_answered_with_400(port: int) -> None:
    code, steered = curl(port, CURL)
    assert code == 200
    code, bare = curl(port, CURL, vllm_xargs={})
    assert code == 200 and bare["choices"][0]["text"] != steered["choices"][0]["text"]
    code, refused = curl(port, CURL, vllm_xargs={"lit_ctg.polarty.strength": 1})
    assert code == 400 and "polarity" in refused["error"]["message"]
    assert curl(port, CURL)[1]["choices"] == steered["choices"]


def test_a_client_that_goes_away_costs_its_request_alone(port: int) -> None:
    before = curl(port, CURL)[1]["choices"][0]["text"]
    body = json.dumps({"model": "smollm2", "prompt": "Once", "max_tokens": 200, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    request.add_header("Content-Type", "application/json")
    with pytest.raises(OSError, match="timed out"):
        urllib.request.urlopen(request, timeout=0.3)
    assert curl(port, CURL)[1]["choices"][0]["text"] == before


def test_play_uses_the_server(port: int) -> None:
    words = ["polarity", "alice"]
    generator = ServedGenerator(f"http://127.0.0.1:{port}", "smollm2", words, max_new_tokens=6)
    control = {"polarity.to_polarity": 1.0, "polarity.strength": 6.0}
    (text,) = generator.generate(1, "The food was", control, seed=None)
    log_p = generator.log_probs("The food was", text.ids[text.prompt_length :], [control, generator.bare()])
    assert (log_p[0].exp() > 0.02).all() and (log_p[0] != log_p[1]).any()
    with pytest.raises(UserError, match="answers 400"):
        generator._ask("/v1/completions", {**generator._body([1], {}, 1), "vllm_xargs": {"lit_ctg.x.y": 1}})


def test_of_two_servers_behind_the_router_a_killed_one_costs_its_own_requests(port: int) -> None:
    router = Path(sys.executable).with_name("vllm-router")
    if not router.exists():
        pytest.skip("vllm-router is not installed")
    other, front = free_port(), free_port()
    second = started(SERVE, other)
    urls = [f"http://127.0.0.1:{each}" for each in (port, other)]
    words = [str(router), "--worker-urls", *urls, "--policy", "round_robin", "--port", str(front), "--disable-retries"]
    words += ["--health-check-interval-secs", "1", "--health-failure-threshold", "1"]
    process = subprocess.Popen(words, start_new_session=True)
    try:
        answers(front, process)
        settings = [{"lit_ctg.polarity.to_polarity": 1, "lit_ctg.polarity.strength": place} for place in range(12)]

        def ask(place: int, at: int = front, **more: Any) -> Any:
            code, answer = curl(at, CURL, vllm_xargs=settings[place], **more)
            return answer["choices"][0]["text"] if code == 200 else code

        with ThreadPoolExecutor(12) as pool:
            alone = [ask(place, port) for place in range(12)]
            assert list(pool.map(ask, range(12))) == alone
            long = [pool.submit(ask, place, max_tokens=60, ignore_eos=True) for place in range(12)]
            time.sleep(2)
            os.killpg(second.pid, signal.SIGKILL)
            codes = [each.result() for each in long]
        lost = [place for place, text in enumerate(codes) if not isinstance(text, str)]
        assert 0 < len(lost) <= 6, "half of the requests at most"
        kept = [place for place in range(12) if place not in lost]
        assert [codes[place] for place in kept] == [ask(p, port, max_tokens=60, ignore_eos=True) for p in kept]
        time.sleep(5)
        assert [ask(place) for place in range(4)] == alone[:4], "later requests go to the server that is left"
    finally:
        ended(process, signal.SIGKILL)
        if second.poll() is None:
            ended(second, signal.SIGKILL)


def test_a_file_of_prompts_is_continued_by_an_engine_as_by_transformers(tmp_path: Path) -> None:
    lines = [
        {"prompt": "The food was", "settings": {"polarity.to_polarity": 1, "polarity.strength": 6}},
        {"prompt": "Alice was", "settings": {"alice.strength": 2}},
        {"prompt": "Once upon a time", "settings": {}},
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    script, texts = str(Path(sys.executable).with_name("lit-ctg")), []
    for engine in ("vllm", "transformers"):
        out = tmp_path / f"{engine}.jsonl"
        words = ["model=smollm2", "controls=[polarity,alice]", f"prompts={tmp_path / 'prompts.jsonl'}", f"out={out}"]
        words += [f"engine={engine}", "dtype=float32", "device=cpu", "do_sample=false", "max_new_tokens=8"]
        subprocess.run([script, "generate", *words], env=ENVIRONMENT, check=True, timeout=900)
        texts.append([json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()])
    assert texts[0] == texts[1] and len(texts[0]) == 3
