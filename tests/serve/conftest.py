"""Bundles for SmolLM2 of every kind that vLLM serves, and settings that change its texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Control, Steered
from lit_ctg.control.future import Future, FutureClassifier
from lit_ctg.control.token_bias import TokenBias
from lit_ctg.control.vectors import ActivationVector
from lit_ctg.network.pretrained import models_folder
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.serve.plugin import VARIABLE
from tests.controls import controls

V, D = 49152, 576
# of the bundles that come with the package, and of those made here
SERVED: dict[str, dict[str, float]] = {
    "polarity": {"to_polarity": 1.0, "strength": 6.0},
    "alice": {"strength": 2.0},
    "on_topic": {"alpha": 2.0},
    "sentiment": {"positive": 1.0, "strength": 2.0},
    "activation_vector": {"to_good": 1.0, "strength": 0.4},
    "token_bias": {"to_good": 1.0, "strength": 4.0},
    "grammar": {"strength": 1.0},
    "graphmax": {"strength": 1.0},
    "micro_models": {"strength": 1.0},
    "future": {"to_good": 1.0, "strength": 4.0},
}


def bundles(folder: Path) -> list[str]:
    """Write those that the package does not have; return the words for ``LIT_CTG_CONTROLS``."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(8)
    classifier = FutureClassifier(V, 2, 6)
    torch.nn.init.normal_(classifier.head.weight, std=8.0)
    own = controls()
    random = torch.randint(1000, 2000, (30, 12), generator=generator).tolist()
    made: list[Control] = [
        TokenBias({name: torch.randn(V, generator=generator) for name in ("good", "bad")}),
        own["grammar"],
        Graphmax(CooccurrenceGraph.from_token_ids(random, V)),
        own["micro_models"],
        Future(classifier, ["good", "bad"]),
        ActivationVector(["good", "bad"], {block: torch.randn(2, D, generator=generator) for block in (5, 12)}),
    ]
    for control in made:
        control.save_pretrained(folder / control.name)
    return ["polarity", "alice", "on_topic", "sentiment", *(str(folder / control.name) for control in made)]


# with them keys and values of a text depend on its settings
IN_LAYERS = ("sentiment", "activation_vector")


def setting(name: str, **more: float) -> dict[str, float]:
    """Return the settings of one control."""
    return {f"{name}.{key}": value for key, value in {**SERVED[name], **more}.items()}


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def steered(words: list[str]) -> Steered:
    """SmolLM2 under the same controls in transformers, float32."""
    from lit_ctg.network.pretrained import Loading
    from lit_ctg.run.steer import load_steered

    return load_steered("smollm2", words, loading=Loading(device="cpu", dtype="float32"))


def written(steered: Steered, prompt: Any, settings: dict[str, float], length: int) -> tuple[list[int], float]:
    """Return what ``Steered`` writes greedily, and by how much its closest choice was decided, in nats."""
    off = {f"{control.name}.{control.strength}": 0.0 for control in steered.controls}
    options = {"do_sample": False, "max_new_tokens": length, "output_scores": True, "return_dict_in_generate": True}
    made = steered.generate([prompt], {**off, **settings}, **options)
    top = [scores.log_softmax(-1)[0].topk(2).values for scores in made.scores]
    ids = made.sequences[0, -len(made.scores) :].tolist()
    return ids, min(float(pair[0] - pair[1]) for pair in top)


# a choice closer than this may fall either way by rounding
TIE = 1e-3
PROMPTS = ("The acid", "Once upon a time", " the acid began in", "I went to the cinema and", "Alice was")
LENGTH = 10


def start(words: Sequence[str], folder: Path | None = None, **options: Any) -> Any:
    """Return vLLM's engine on the model of a folder, SmolLM2 by default."""
    vllm = pytest.importorskip("vllm")
    os.environ[VARIABLE] = ",".join(words)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # a minute less
    own = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 16, "seed": 0}
    own |= {"distributed_executor_backend": "uni"}
    return vllm.LLM(str(folder or models_folder() / "smollm2"), **(own | options))


def close(engine: Any) -> None:
    engine.llm_engine.engine_core.shutdown()


def ask(engine: Any, asked: Sequence[tuple[Any, dict[str, float]]], length: int = LENGTH) -> list[list[int]]:
    from vllm import SamplingParams

    params = [SamplingParams(temperature=0, max_tokens=length, extra_args={"lit_ctg": each}) for _, each in asked]
    made = engine.generate([prompt for prompt, _ in asked], params, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in made]


def check(
    steered: Steered, asked: Sequence[tuple[Any, dict[str, float]]], made: list[list[int]], length: int = LENGTH
) -> None:
    """Compare with ``Steered``; a text with a tie is compared no further."""
    ties = 0
    for (prompt, settings), ids in zip(asked, made, strict=True):
        expected, apart = written(steered, prompt, settings, length)
        if ids != expected:
            assert apart < TIE, f"{prompt} {settings}: {steered.tokenizer.decode(ids)}"
            ties += 1
    assert ties <= len(asked) // 10
