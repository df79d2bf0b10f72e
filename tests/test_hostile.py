"""Hostile input, by the surface it arrives on. A new surface gets a section here.

Every case ends in one line that names the file or key, runs nothing, and leaves nothing half-written.
"""

from __future__ import annotations

import copy
import errno
import functools
import gzip
import io
import json
import lzma
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

import lit_ctg
from lit_ctg import files, trust
from lit_ctg.callback.checkpoint import AtomicCheckpointIO, RunCheckpoint
from lit_ctg.cli import main
from lit_ctg.config import compose, plain
from lit_ctg.control import Control, Origin, Steered, bundle
from lit_ctg.control.custom_generate import generate_under
from lit_ctg.control.memory import Memory
from lit_ctg.control.vectors import read_gguf
from lit_ctg.core.checkpoint import FORMAT
from lit_ctg.core.model import LitLanguageModel
from lit_ctg.data.folder import FolderDataModule, labels_of
from lit_ctg.data.source import read_lines, read_records
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.field.export import places
from lit_ctg.field.report import report as field_report
from lit_ctg.files import files_in
from lit_ctg.limits import check_settings
from lit_ctg.network.huggingface import load_model
from lit_ctg.papers.control_code.control import SoftPrompt
from lit_ctg.papers.graphmax.model import GraphmaxModule
from lit_ctg.results.record import RunRecord, load_records, write_record
from lit_ctg.run.checkpoint import Checkpoint
from lit_ctg.run.directory import CHECKPOINT
from lit_ctg.run.export import write_bundle
from lit_ctg.run.train import train
from lit_ctg.terminal import Console
from tests.controls import controls
from tests.field.test_report import record as field_record
from tests.pages import free_port
from tests.tiny import make_gpt2, make_tokenizer

# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that code chosen by hostile input would write; the current folder is empty."""
    (tmp_path / "hostile_module.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('marker').touch()\n\n\nclass Part:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv(trust.TRUSTED, raising=False)
    return tmp_path / "marker"


Refused = Callable[..., None]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], marker: Path) -> Refused:
    """Return a check that a command ends in one line with some parts in it, and runs no code chosen by the input."""

    def check(words: list[str], *parts: str) -> None:
        assert main(words) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and all(part in line for part in parts) and not marker.exists()

    return check


def hostile_nodes(marker: Path) -> dict[str, Any]:
    """Return parts of a configuration that would write the marker if they were built."""
    write = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return {
        "a function of a library": {"_target_": "sympy.sympify", "_args_": [write]},
        "a built-in": {"_target_": "builtins.exec", "_args_": [write]},
        "the import of a module": {"_target_": "hostile_module.Part"},
        "a function of ours": {"_target_": "lit_ctg.cli.main", "_args_": [["new", "paper=x"]]},
        "what a module of ours imports": {"_target_": "lit_ctg.data.hub.Path", "_args_": ["x"]},
        "a part of a part": {
            "_target_": "lit_ctg.metric.perplexity.Perplexity",
            "split": [{"_target_": "sympy.sympify", "_args_": [write]}],
        },
        "a name without a module": {"_target_": "exec"},
        "no name": {"_target_": 7},
        "an interpolation": {"_target_": "lit_ctg.metric.perplexity.Perplexity", "split": "${oc.env:HOME}"},
        "an assembled key": {"x": '${oc.decode:"{_targ${oc.select:zzz,et_}: sympy.sympify}"}'},
    }


@pytest.fixture(scope="module")
def plain_config() -> dict[str, Any]:
    return plain(compose(["experiment=semantic_fusion/main", "size=smoke"]))


def hostile_run(folder: Path, config: dict[str, Any], where: str, node: Any) -> Path:
    """Write the folder of a finished run whose checkpoint and record name ``node``."""
    config = copy.deepcopy(config)
    group, _, name = where.partition(".")
    config[group] = {**config[group], name: node} if name else node
    (folder / CHECKPOINT).parent.mkdir(parents=True)
    content = {"lit_ctg": {"format": FORMAT, "config": config, "corpus": {}}, "state_dict": {}}
    AtomicCheckpointIO().save_checkpoint(content, folder / CHECKPOINT)
    write_record(run_record(paper="semantic_fusion", config=config, size="smoke"), folder / "run.json")
    return folder


COMMANDS = {
    "generate": ["generate", "{run}"],
    "evaluate": ["evaluate", "{run}"],
    "export": ["export", "{run}", "out=exported"],
    "export-model": ["export-model", "run={run}", "out=exported"],
}


@pytest.mark.parametrize("part", list(hostile_nodes(Path("x"))))
@pytest.mark.parametrize("command", COMMANDS)
def test_a_checkpoint_chooses_no_code(
    command: str, part: str, marker: Path, plain_config: dict[str, Any], refused: Refused
) -> None:
    run = hostile_run(marker.with_name("run"), plain_config, "data", hostile_nodes(marker)[part])
    refused([word.format(run=run) for word in COMMANDS[command]], "data")
    left = {path.name for path in Path.cwd().rglob("*") if path.is_file()}
    assert left <= {".lock", ".owner"}, "but for the lock of the evaluation"


@pytest.mark.parametrize(
    "where", ["model", "backbone", "decoding", "trainer", "callback.x", "metric.x", "data.tokenizer"]
)
def test_no_part_of_a_checkpoint_chooses_code(
    where: str, marker: Path, plain_config: dict[str, Any], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint, "load_into", lambda *_: None)  # the decoding is built after the weights
    run = hostile_run(marker.with_name("run"), plain_config, where, {"_target_": "hostile_module.Part"})
    command = "generate" if where == "decoding" else "evaluate"
    refused([command, str(run)], "hostile_module", where.partition(".")[0])


@pytest.mark.parametrize("part", list(hostile_nodes(Path("x"))))
@pytest.mark.parametrize("where", ["model", "backbone", "data"])
def test_a_checkpoint_chooses_no_code_in_python(
    where: str, part: str, marker: Path, plain_config: dict[str, Any]
) -> None:
    path = hostile_run(marker.with_name("run"), plain_config, where, hostile_nodes(marker)[part]) / CHECKPOINT
    for read in (lit_ctg.load, LitLanguageModel.load_from_checkpoint):
        with pytest.raises(UserError):
            read(path)
    assert not marker.exists() and not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    "hyper_parameters",
    [
        {"_instantiator": "hostile_module.Part"},
        {"_instantiator": "lightning.pytorch.cli.instantiate_module", "_class_path": "hostile_module.Part"},
        {"backbone": {"_target_": "hostile_module.Part"}},
        {"vocabulary": 7, "backbone": "hostile_module.Part"},
        ["x"],
        7,
    ],
)
def test_hyperparameters_of_a_checkpoint_are_plain_values(hyper_parameters: Any, marker: Path) -> None:
    stored = {"format": FORMAT, "config": {}, "corpus": {}}
    content = {"lit_ctg": stored, "state_dict": {}, "hyper_parameters": hyper_parameters}
    AtomicCheckpointIO().save_checkpoint(content, marker.with_name("a.ckpt"))
    for read in (lit_ctg.load, GraphmaxModule.load_from_checkpoint):
        with pytest.raises(UserError):
            read(marker.with_name("a.ckpt"))
    assert not marker.exists()


def test_a_run_that_trained_nothing_chooses_no_code(
    marker: Path, plain_config: dict[str, Any], refused: Refused
) -> None:
    config = {**plain_config, "trainer": {**plain_config["trainer"], "limit_train_batches": 0}}
    run = hostile_run(marker.with_name("run"), config, "data", {"_target_": "hostile_module.Part"})
    (run / CHECKPOINT).unlink()
    refused(["evaluate", str(run)], "hostile_module")


@pytest.mark.parametrize("paper", ["../x", "a.b", "semantic_fusion.control", "", 7])
def test_a_checkpoint_names_a_paper_of_ours(
    paper: Any, marker: Path, plain_config: dict[str, Any], refused: Refused
) -> None:
    run = hostile_run(marker.with_name("run"), plain_config, "paper", paper)
    for words in (["export", str(run), "out=exported"], ["export-model", f"run={run}", "out=exported"]):
        refused(words)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("key", ["name", "paper", "output_root"])
def test_a_checkpoint_chooses_no_folder(key: str, marker: Path, plain_config: dict[str, Any], refused: Refused) -> None:
    run = hostile_run(marker.with_name("run"), plain_config, key, str(marker.parent / "elsewhere"))
    refused(["evaluate", str(run)])
    assert not (marker.parent / "elsewhere").exists()


@pytest.mark.parametrize(
    ("key", "value"), [("seed", "${label_count:/etc}"), ("seed", "0,1"), ("size", "smoke x"), ("regime", None)]
)
def test_what_a_checkpoint_adds_to_the_command_line_is_one_word(
    key: str, value: Any, marker: Path, plain_config: dict[str, Any], refused: Refused
) -> None:
    run = hostile_run(marker.with_name("run"), plain_config, key, value)
    refused(["evaluate", "experiment=semantic_fusion/main", f"ckpt_path={run / CHECKPOINT}"], "last.ckpt", key)


def test_a_resumed_checkpoint_deletes_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim.txt").touch()
    callback = RunCheckpoint(str(tmp_path / "checkpoints"))
    callback.load_state_dict({"best_model_path": f"local://{tmp_path}/victim", "dirpath": str(tmp_path)})
    assert callback.best_model_path == "" and callback.dirpath == str(tmp_path / "checkpoints")
    for path in (tmp_path / "victim", tmp_path / "victim.txt", f"local://{tmp_path}/victim"):
        AtomicCheckpointIO().remove_checkpoint(path)
    assert (tmp_path / "victim").is_dir() and (tmp_path / "victim.txt").is_file()


def test_a_file_of_the_current_folder_does_not_choose_where_compiled_code_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numba = pytest.importorskip("numba")
    from lit_ctg.papers.graphmax.fast.jit import kept_in

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # as .numba_config.yaml sets it
    assert tmp_path not in (kept_in() or Path()).parents


# ---- records --------------------------------------------------------------------------------------------------------


def run_record(**changes: Any) -> RunRecord:
    """Return the least record that can be collected."""
    fields: dict[str, Any] = {
        "paper": "nslm", "name": "main", "experiment": "nslm/main", "regime": "corrected", "size": "small", "seed": 0,
        "config": {}, "config_hash": "ab" * 32, "git": {"commit": "c" * 40, "dirty": False}, "versions": {},
        "started_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return RunRecord(**{**fields, **changes})


@pytest.fixture
def bomb(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A few MB of one byte that pack to almost nothing; the limits are lowered so that they are too much."""
    monkeypatch.setattr(files, "UNPACKED_BYTES", 2**16)
    return b" " * 2**22


def archive_of(folder: Path, members: dict[str, bytes]) -> Path:
    """Return an archive of records with these members."""
    path = folder / "main_corrected_small.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_packed_texts_cannot_fill_the_memory(tmp_path: Path, bomb: bytes) -> None:
    path = archive_of(tmp_path, {"main/corrected-small-seed0.samples.jsonl": bomb})
    with pytest.raises(UserError, match=rf"{path.name} unpacks to more than"):
        load_records([tmp_path])


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"task": {"name": "sentiment", "rules": {"a": {}}}}},
        {"config": {"task": {"column": "words"}}},
        {"samples": [{"text": "no strength"}]},
        {"samples": [{"text": "a", "strength": "b"}]},
    ],
)
def test_a_record_of_another_shape_is_not_verified(tmp_path: Path, run_cli, changes: dict[str, Any]) -> None:
    write_record(run_record(paper="field", experiment="field/run", **changes), tmp_path / "run.json")
    code, _, err = run_cli("verify", "paper=field", f"records={tmp_path}")
    assert code == 2 and "run.json" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["../../main/run.json", "/etc/run.json", "a/b/c", "a"])
def test_an_archive_names_no_place_outside_itself(tmp_path: Path, name: str) -> None:
    path = archive_of(tmp_path, {name: b"{}"})
    with pytest.raises(UserError, match=path.name):
        load_records([path])


def test_an_archive_holds_no_links(tmp_path: Path) -> None:
    path = tmp_path / "main_corrected_small.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        member = tarfile.TarInfo("main/corrected-small-seed0.json")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(UserError, match=rf"{path.name}: cannot be read"):
        load_records([path])


# ---- manifests ------------------------------------------------------------------------------------------------------


HOSTILE_SETTINGS = [
    "callback.x: '${oc.decode:\"{_targ${oc.select:zzz,et_}: sympy.sympify}\"}'",
    "model.dim: '$\\{oc.env\\:HOME\\}'",
    *("model.dim: '${oc.env:HOME}'", "model._target_: sympy.sympify", "callback.x: '{_target_: sympy.sympify}'"),
    *("model: ../../../../hostile", "data: /hostile", "model.dim: 'choice(1,2)'", "model.dim: '1,2'"),
    *("model.file: '{local}/../../x'", "name: ../../../x"),
]
HOSTILE_ENTRIES = [
    *("experiment: ../../x", "experiment: main, seed: '0 x'", "experiment: main, regime: 'a,b'"),
    *("experiment: main, data: ../../x", *(f"experiment: main, seed: 0, set: {{{each}}}" for each in HOSTILE_SETTINGS)),
]


@pytest.mark.parametrize("entry", HOSTILE_ENTRIES)
def test_a_manifest_reads_and_chooses_nothing_of_its_own(entry: str, refused: Refused) -> None:
    manifest = Path("experiments/semantic_fusion/paper.yaml")
    manifest.parent.mkdir(parents=True)
    manifest.write_text(f"title: x\nruns: {{smoke: [{{{entry}}}]}}\n")
    refused(["reproduce", "paper=semantic_fusion", "size=smoke", "dry_run=true"], "paper.yaml")


def test_jobs_of_a_manifest_name_no_class_of_the_users(refused: Refused) -> None:
    words = ["experiment=semantic_fusion/main", "size=smoke", "+callback.x._target_=hostile_module.Part"]
    with trust.words_from_file():
        refused(["train", *words], "hostile_module")


# ---- bundles and exports --------------------------------------------------------------------------------------------


def written(control: Control, folder: Path, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """Write a bundle, then change its tensors and ``control.json``, with checksums that agree."""
    bundle.save(control, folder)
    if tensors is not None:
        save_file({**load_file(folder / bundle.TENSORS), **tensors}, folder / bundle.TENSORS)
    content = {**json.loads((folder / bundle.CONTROL).read_text(encoding="utf-8")), **changes}
    known = [name for name in content["files"] if (folder / name).is_file() and "/" not in name]
    content["files"] |= {name: bundle._checksum(folder / name) for name in known}
    content["sha256"] = bundle._own_checksum(content)
    (folder / bundle.CONTROL).write_text(json.dumps(content), encoding="utf-8")
    return folder


def refused_bundle(folder: Path, *parts: str) -> None:
    """Both readers refuse it in one line that names the folder, before long and without much memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    kind = type(controls()[json.loads((folder / bundle.CONTROL).read_text(encoding="utf-8"))["kind"]])
    for read in (Control.from_pretrained, lambda name: generate_under(kind, None, control=str(name), input_ids=None)):
        with pytest.raises(UserError) as caught:
            read(folder)
        assert all(part in str(caught.value) for part in (str(folder), *parts)) and "\n" not in str(caught.value)
    assert time.monotonic() - began < 20 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19


NAMES = ("../../x", "/etc/x", "a/b", "..", "", ".x", "x" * 300, "a\x1b[2J", "two words", 7, True, ["x"])


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_bundle_cannot_name_a_path(tmp_path: Path, name: Any) -> None:
    refused_bundle(written(controls()["token_bias"], tmp_path / "bias", name=name), "name")


@pytest.mark.parametrize("name", ["../README.md", "/etc/passwd", "..", "a/control.safetensors"])
def test_a_bundle_cannot_list_files_elsewhere(tmp_path: Path, name: str) -> None:
    files = {bundle.CARD: "", bundle.TENSORS: "", name: ""}
    refused_bundle(written(controls()["token_bias"], tmp_path / "bias", files=files), repr(name))


@pytest.mark.parametrize("tokenizer", [7, True, ["a"], {"a": "b"}])
def test_the_tokenizer_of_a_bundle_is_a_text(tmp_path: Path, tokenizer: Any) -> None:
    refused_bundle(written(controls()["token_bias"], tmp_path / "bias", tokenizer=tokenizer))


BAD_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda value: value.masked_fill(torch.ones_like(value, dtype=torch.bool), math.nan),
    "infinity": lambda value: value.masked_fill(torch.ones_like(value, dtype=torch.bool), -math.inf),
    "complex": lambda value: value.to(torch.complex64),
    "bool": lambda value: value.bool(),
    "int8": lambda value: value.to(torch.int8),
}


@pytest.mark.parametrize("kind", [name for name, control in controls().items() if control.tensors()])
def test_weights_of_every_kind_are_finite_real_numbers(tmp_path: Path, kind: str) -> None:
    control = controls()[kind]
    weights = {
        name: value.contiguous()
        for name, value in control.tensors().items()
        if value.is_floating_point() and not (kind == "micro_models" and name.endswith("attributes"))
    }
    assert weights
    for bad, change in BAD_WEIGHTS.items():
        for name in list(weights)[:2]:
            folder = written(control, tmp_path / kind, {name: change(weights[name])})
            with pytest.raises(UserError, match=re.escape(str(folder))) as caught:
                Control.from_pretrained(folder)
            assert "\n" not in str(caught.value), (bad, name)


@pytest.mark.parametrize(
    "narrowed",
    [7, ["codes"], {"codes": "int64"}, {"codes": "complex64"}, {"codes": "float32"}, {"x": "float32"}],
    ids=repr,
)
def test_a_small_bundle_names_tensors_that_it_narrowed(tmp_path: Path, narrowed: Any) -> None:
    refused_bundle(written(controls()["neuron_codes"], tmp_path / "codes", narrowed=narrowed))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_of_a_bundle_are_finite(tmp_path: Path, number: float) -> None:
    config = controls()["micro_models"].config()
    refused_bundle(written(controls()["micro_models"], tmp_path / "weight", config={**config, "weight": number}))
    (year,) = config["classes"]
    config["classes"] = [{**year, "count": number}]
    refused_bundle(written(controls()["micro_models"], tmp_path / "count", config=config))


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    control = controls()["token_bias"]
    control.weights_CV[0, 0] = math.nan
    with pytest.raises(UserError, match="token_bias cannot be saved"):
        bundle.save(control, tmp_path / "bias")
    assert list(tmp_path.iterdir()) == []


SIZES: dict[str, Any] = {
    "layers": {"n_layer": 20_000},
    "layers without end": {"n_layer": 10**30},
    "vocabulary": {"vocab_size": 50_000_000},
    "positions": {"n_positions": 10_000_000},
    "width": {"n_embd": 1_000_000, "n_head": 1},
}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_compared_with_the_tensors_before_a_model_is_built(tmp_path: Path, size: str) -> None:
    control = controls()["experts"]
    models = {name: {**sizes, **SIZES[size]} for name, sizes in control.config()["models"].items()}
    refused_bundle(written(control, tmp_path / "experts", config={**control.config(), "models": models}))


def test_parts_of_a_model_are_counted_while_it_is_built(tmp_path: Path) -> None:
    """Also those that no setting of all architectures counts."""
    control = controls()["experts"]
    mixture: dict[str, Any] = {"model_type": "mixtral", "vocab_size": 14, "hidden_size": 16, "num_hidden_layers": 1}
    mixture |= {"num_attention_heads": 1, "num_local_experts": 10**7}
    models = dict.fromkeys(control.config()["models"], mixture)
    refused_bundle(written(control, tmp_path / "experts", config={**control.config(), "models": models}))


def test_one_narrow_tensor_does_not_make_the_others_large(tmp_path: Path) -> None:
    tensors = {"idea_gate": "head.outer.weight", "future": "embedding.weight", "feature_channel": "project.weight"}
    for kind, name in tensors.items():
        shape = (100_000, 2) if kind == "feature_channel" else (1, 100_000)
        refused_bundle(written(controls()[kind], tmp_path / kind, {name: torch.zeros(shape)}))


def test_a_model_in_a_bundle_names_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a repository's, which transformers would ask about, nor a kernel's, which it would download."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    control = controls()["experts"]
    models = control.config()["models"]
    code = {"model_type": "clip_vision_model", "auto_map": {"AutoModelForCausalLM": "me/evil--a.B"}}
    refused_bundle(written(control, tmp_path / "code", config={"models": dict.fromkeys(models, code)}))
    kernels = {name: {**sizes, "attn_implementation": "kernels-community/evil"} for name, sizes in models.items()}
    folder = written(control, tmp_path / "kernel", config={**control.config(), "models": kernels})
    loaded = Control.from_pretrained(folder)
    assert {model.config._attn_implementation for model in loaded.models.values()} <= {"sdpa", "eager"}


@pytest.mark.parametrize("name", [bundle.CARD, bundle.CONTROL])
def test_a_huge_sparse_file_is_not_read(tmp_path: Path, name: str) -> None:
    folder = written(controls()["token_bias"], tmp_path / "bias")
    os.truncate(folder / name, 20 * 2**30)
    with pytest.raises(UserError, match=re.escape(str(folder / name))):
        Control.from_pretrained(folder)


def export_to(folder: Path, **changes: Any) -> None:
    control = controls()["token_bias"]
    control.rename(changes.get("name", control.name))
    write_bundle(control, folder, Origin(), Console(quiet=True))


def test_an_export_replaces_everything_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bias"
    export_to(folder)
    before = {name: (folder / name).read_bytes() for name in files_in(folder)}
    assert bundle.CODE in before
    write = Path.write_text

    def full(path: Path, *args: Any, **options: Any) -> int:
        if path.name == "generate.py":
            write(path, "cut", encoding="utf-8")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=f"cannot write {folder}: No space left"):
        export_to(folder, name="other")
    assert before == {name: (folder / name).read_bytes() for name in files_in(folder)}
    assert list(tmp_path.iterdir()) == [folder]


def test_an_interrupted_export_is_restored_by_whoever_comes_next(tmp_path: Path) -> None:
    folder = tmp_path / "bias"
    export_to(folder)
    for _ in range(2):
        folder.rename(tmp_path / ".bias.1234-abcd.old")  # what a killed export leaves
        assert Control.from_pretrained(folder).name == "token_bias" and [*tmp_path.iterdir()] == [folder]
    folder.rename(tmp_path / ".bias.1234-abcd.old")
    export_to(folder, name="other")
    assert Control.from_pretrained(folder).name == "other" and [*tmp_path.iterdir()] == [folder]


def test_a_class_cannot_lead_an_export_elsewhere(tmp_path: Path) -> None:
    arms: Any = {target: SimpleNamespace(controls=[controls()["token_bias"]]) for target in ("good", "../../bad")}
    with pytest.raises(UserError, match=re.escape("'../../bad'")):
        places(arms, tmp_path)


# ---- the page -------------------------------------------------------------------------------------------------------

BEHIND = "play.example.org"
OTHER = "http://evil.example"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the page where a proxy is set and the newest run is a stranger's; return ``127.0.0.1:<port>``."""
    pytest.importorskip("gradio", reason="no gradio here")
    from lit_ctg.run import play_page

    run = tmp_path_factory.mktemp("outputs") / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "last.ckpt").write_bytes(b"")
    (run / "run.json").write_text(json.dumps({"status": "DONE"}))
    served: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")
        patch.setattr(play_page, "opened", tell)
        play_page.main(output_root=str(run.parent), port=free_port(), allow_host=[BEHIND], wait=False,
                       opened_at=lambda address, blocks: served.extend((address, blocks)))  # fmt: skip
        yield served[0].removeprefix("http://").strip("/")
    served[1].close()


def tell(folder: str) -> None:
    raise UserError(f"{folder} was opened")


def answer(page: str, method: str = "GET", path: str = "/", body: bytes = b"", **headers: str) -> int:
    """Return the status of a request; ``{port}`` in a header is the page's."""
    import http.client

    port = page.rpartition(":")[2]
    connection = http.client.HTTPConnection(page, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": page, **headers}.items():
        connection.putheader(name.replace("_", "-"), value.format(port=port))
    if body and "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body)
    return connection.getresponse().status


@pytest.mark.parametrize(
    "host",
    ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST:1", "localhost", BEHIND, f"{BEHIND}:443"],
)
def test_the_page_answers_to_names_of_this_machine_and_of_the_proxy(page: str, host: str) -> None:
    assert answer(page, Host=host) == 200
    assert answer(page, Host=host, Origin=f"http://{host}") == 200
    assert answer(page, Host="localhost", Origin=f"https://{BEHIND}") == 200, "a proxy may pass on another Host"


@pytest.mark.parametrize(
    "host",
    ["evil.example:{port}", "localhost.evil.example", "evil@localhost", "localhost@evil.example", "127.0.0.1.nip.io",
     "[::2]", "0.0.0.0:{port}", "192.168.1.5", "localhost, evil.example", "", "[localhost]", "play.example.org.evil"],
)  # fmt: skip
def test_the_page_refuses_a_rebound_name(page: str, host: str) -> None:
    assert answer(page, Host=host) in (400, 403)
    assert answer(page, "POST", "/gradio_api/queue/join", b"{}", Host=host, Origin=f"http://{host}") in (400, 403)


@pytest.mark.parametrize("origin", [OTHER, "null", "", "http://localhost:1", "http://127.0.0.1.evil.example"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_page_refuses_another_origin(page: str, method: str, origin: str) -> None:
    assert answer(page, method, "/gradio_api/queue/join", b"{}", Origin=origin) == 403


def test_the_page_takes_no_files_and_nothing_large(page: str) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.py"\r\n\r\nprint()\r\n--x--\r\n'
    kind = "multipart/form-data; boundary=x"
    assert answer(page, "POST", "/gradio_api/upload", form, Content_Type=kind) == 415
    assert answer(page, "POST", "/gradio_api/upload", form, Content_Type=kind.upper()) == 415
    join = "/gradio_api/queue/join"
    assert answer(page, "POST", join, Content_Length=str(2**40), Content_Type="application/json") == 413
    assert answer(page, "POST", join, b"2\r\n{}\r\n0\r\n\r\n", Transfer_Encoding="chunked") == 413
    assert answer(page, "POST", join, b"{}", Content_Type="application/json") not in (403, 413, 415)


def load(page: str) -> tuple[dict[str, Any], Any, Any]:
    """Return the layout of the page, a function that sends a request to it, and what shows a run."""
    import urllib.request

    def call(path: str, body: Any = None) -> str:
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{page}{path}", sent, {"Content-Type": "application/json"})
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).read().decode()

    config = json.loads(call("/config"))
    (shown,) = (fn["id"] for fn in config["dependencies"] if any("load" in target for target in fn["targets"]))
    return config, call, shown


def show(page: str, folder: str | None) -> str:
    """Ask for a run as the page's script does; return what it is answered."""
    _, call, shown = load(page)
    session = f"session-{time.monotonic_ns()}"
    call("/gradio_api/queue/join", {"data": [folder], "fn_index": shown, "session_hash": session})
    return call(f"/gradio_api/queue/data?session_hash={session}")


def test_opening_the_page_opens_no_run(page: str, tmp_path: Path) -> None:
    """A run folder may be a stranger's: whoever opens it names it, and only those in the list can be named."""
    config, _, _ = load(page)
    (chosen,) = (part for part in config["components"] if part["props"].get("elem_id") == "run")
    ((_, run),) = chosen["props"]["choices"]
    assert chosen["props"].get("value") is None
    assert "Pick a run" in show(page, None) and f"{run} was opened" in show(page, run)
    assert "was opened" not in show(page, str(tmp_path))


def test_a_page_on_all_addresses_answers_to_the_one_it_is_called_by() -> None:
    from lit_ctg.run.play_page import OwnRequests

    gate = OwnRequests(None, ["localhost", "0.0.0.0"], [])
    for address, host, known in (
        ("192.168.1.5", b"192.168.1.5:7860", True),
        ("2001:db8::1", b"[2001:db8::1]:7860", True),
        ("192.168.1.5", b"192.168.1.6:7860", False),
        ("192.168.1.5", b"evil.example:7860", False),
    ):
        scope = {"type": "http", "server": (address, 7860), "headers": [(b"host", host)]}
        assert (gate.refusal(scope) is None) is known


@pytest.mark.parametrize(
    "settings",
    [{"host": ""}, {"host": " "}, {"allow_host": ["https://play.example.org"]}, {"allow_host": ["a b"]},
     {"allow_host": ["play.example.org:443"]}, {"allow_host": ["a", "", "b"]}],
)  # fmt: skip
def test_page_settings_are_refused(settings: dict[str, Any]) -> None:
    from lit_ctg.run.play_page import main

    (name,) = settings
    with pytest.raises(UserError, match=f"^{name}="):
        main(**settings)


@pytest.mark.long
def test_the_page_opens_behind_a_socks_proxy(tmp_path: Path) -> None:
    """In a process of its own: gradio reads the proxy when it is imported."""
    pytest.importorskip("gradio", reason="no gradio here")
    script = f"""
import os
os.environ |= dict.fromkeys(("ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"), "socks5://127.0.0.1:9")
from lit_ctg.run.play_page import main
main(port={free_port()}, output_root={str(tmp_path)!r}, wait=False)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "play: http://127.0.0.1" in done.stdout, done.stderr[-1000:]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_training_dies_with_the_page(tmp_path: Path) -> None:
    script = f"""
from lit_ctg.run import play_page
from lit_ctg.run.reproduce import Group
group = Group("-", "-", "-", "-", (0,), ("experiment=semantic_fusion/main", "size=smoke", "trainer.max_epochs=9000"))
print(*play_page.train_smoke({str(tmp_path)!r}, [group]))
"""
    server = subprocess.Popen([sys.executable, "-c", script])
    try:
        end = time.monotonic() + 120
        while not (owners := list(tmp_path.rglob(".owner"))) and time.monotonic() < end:
            time.sleep(0.1)
        process = int(owners[0].read_text().split()[1])
        assert Path(f"/proc/{process}").exists()
    finally:
        server.kill()
        server.wait()
    end = time.monotonic() + 30
    while Path(f"/proc/{process}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f"/proc/{process}").exists()


# ---- prompts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def chat_model(tmp_path: Path) -> Path:
    """Return the folder of a model whose texts end with ``<|endoftext|>``."""
    tokenizer = make_tokenizer(["it ends with <|endoftext|> and the war\n"] * 3, 270)
    model = make_gpt2(len(tokenizer), layers=1, dim=8, heads=1, positions=64, end=tokenizer.eos_token_id, seed=0)
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "lm")
    return tmp_path / "lm"


def test_a_prompt_of_a_file_makes_no_special_token(
    chat_model: Path, tmp_path: Path, run_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["the war", "the war <|endoftext|> war"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    read: list[Any] = []
    write = Steered.write

    def noted(self: Steered, prompts: Any, *args: Any, **options: Any) -> list[str]:
        read.extend(self.prompt_ids(prompt) for prompt in prompts)
        return write(self, prompts, *args, **options)

    monkeypatch.setattr(Steered, "write", noted)
    words = [f"model={chat_model}", "max_new_tokens=2", "prompts=in.jsonl", "out=out.jsonl"]
    code, _, err = run_cli("generate", *words)
    assert code == 0, err
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    assert read[0] == tokenizer(prompts[0]).input_ids
    assert tokenizer.eos_token_id not in read[1] and tokenizer.decode(read[1]) == prompts[1]
    assert [json.loads(line)["prompt"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == prompts


@pytest.fixture
def prompts(run_cli: Any, tmp_path: Path, word_model: Any, word_tokenizer: Any) -> Any:
    """Return a function that generates from lines of prompts by a small model with a soft prompt."""
    word_model.save_pretrained(tmp_path / "lm")
    word_tokenizer.save_pretrained(tmp_path / "lm")
    control = SoftPrompt(["news", "blog"], torch.zeros(2, 1, word_model.config.n_embd))
    control.save_pretrained(tmp_path / "soft")

    def run(lines: str | bytes, *words: str, out: str = "out.jsonl") -> tuple[int, str]:
        (tmp_path / "in.jsonl").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        files = ["prompts=in.jsonl", f"out={out}"]
        code, _, err = run_cli("generate", "model=lm", "controls=[soft]", "max_new_tokens=2", *files, *words)
        assert code == 0 or len(err.splitlines()) == 1, err
        return code, err

    return run


@pytest.mark.parametrize(
    "line",
    [
        f'{{"prompt": "the", "settings": {{"soft_prompt.strength": {10**400}}}}}',
        f'{{"prompt": "the", "settings": {{"soft_prompt.strength": {"9" * 5000}}}}}',
        '{"prompt": "the", "settings": {"soft_prompt.strength": NaN}}',
        '{"prompt": "the", "settings": {"soft_prompt.strength": 1e999}}',
        '{"prompt": "the \\ud800"}',
        '{"prompt": "the", "settings": {"soft_prompt.\\udfff": 1}}',
    ],
)
def test_a_line_of_prompts_is_refused_before_the_first_text(prompts: Any, tmp_path: Path, line: str) -> None:
    code, err = prompts('{"prompt": "the"}\n' + line)
    assert code == 2 and "prompts=in.jsonl, line 2" in err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "word",
    [
        *("generate.logits_processor=[x]", "generate.streamer=x", "generate.stopping_criteria=x", "generate.labels=1"),
        *("generate.forced_eos_token_id=99999", "generate.eos_token_id=99999999", "generate.pad_token_id=-5"),
        *("generate.top_p=2", "generate.max_time=0", "generate.temperature=.inf", f"generate.top_k={10**400}"),
        *(f"generate.min_p={'9' * 5000}", f"control.soft_prompt.strength={10**400}", "generate.use_cache=7"),
        *("generate.custom_generate=folder", "generate.num_beams=100000000"),
    ],
)
def test_an_option_out_of_range_is_refused_before_the_first_text(prompts: Any, tmp_path: Path, word: str) -> None:
    code, err = prompts('{"prompt": "the"}', word)
    assert code == 2 and word.partition("=")[0].rpartition(".")[2] in err and len(err) < 600
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("out", ["", "loop", "/dev/null", "device", "folder", "pipe", "x" * 300, "in.jsonl"])
def test_texts_go_to_a_file_only(prompts: Any, tmp_path: Path, out: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = set(tmp_path.iterdir())
    code, err = prompts('{"prompt": "the"}', out=out)
    assert code == 2 and f"out={out}" in err
    assert set(tmp_path.iterdir()) - before == {tmp_path / "in.jsonl"} and not Path("/dev/.null.lock").exists()


def test_prompts_may_begin_with_a_byte_order_mark(prompts: Any) -> None:
    assert prompts(b'\xef\xbb\xbf{"prompt": "the"}')[0] == 0


def test_a_full_disk_ends_in_one_line_and_goes_on(prompts: Any, tmp_path: Path) -> None:
    """A process may write 2,000 bytes: 40 texts are more."""
    lines = "\n".join(['{"prompt": "the war"}'] * 40)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        code, err = prompts(lines)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert code == 2 and "out=out.jsonl" in err and "too large" in err
    assert prompts(lines)[0] == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 40


# ---- data folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", [".xz", ".gz", ".zst"])
def test_a_packed_corpus_unpacks_to_no_more_than_text_would(tmp_path: Path, bomb: bytes, packing: str) -> None:
    zstd = functools.partial(pyarrow.compress, codec="zstd", asbytes=True)
    pack = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstd}[packing]
    for suffix in (".txt", ".jsonl", ".csv", ".tsv", ".parquet"):
        path = tmp_path / f"a{suffix}{packing}"
        path.write_bytes(pack(bomb))
        with pytest.raises(UserError, match=rf"a\{suffix}\{packing} unpacks to more than"):
            list(read_lines(path) if suffix == ".txt" else read_records(path, ["text"]))


def folder_of(root: Path, **texts: str) -> Path:
    """Write files of texts, long enough for every split, and return their folder."""
    root.mkdir()
    for name, text in texts.items():
        (root / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return root


def rows(mark: str) -> str:
    """Return 30 rows of a text and a label between ``mark``."""
    lines = [f"text{mark}label", *(f"a good film, number {number}{mark}positive" for number in range(30))]
    return "\n".join(lines if mark != "," else [line.replace("film, ", "film ") for line in lines])


def data_sample(run_cli: Any, root: Path) -> tuple[int, str, str]:
    return run_cli("data", "sample", "data=folder", f"data.root={root}", f"data.cache_root={root}.cache", "n=2")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_labels_in_columns_are_no_text_and_are_told(tmp_path: Path, run_cli, caplog, mark: str) -> None:
    root = folder_of(tmp_path / "own", reviews__csv=rows(mark), more__csv=rows(mark))
    code, out, _ = data_sample(run_cli, root)
    assert code == 0 and "a good film" in out and "positive" not in out
    (message,) = caplog.messages
    assert str(root) in message and "'text'" in message and "label" in message


def test_one_label_trains_no_control_code(tmp_path: Path, run_cli) -> None:
    root = folder_of(tmp_path / "own", reviews__csv=rows(","))
    words = ["experiment=control_code/transformer", "data=folder", f"data.root={root}", "size=smoke"]
    code, _, err = run_cli("train", *words, f"data.cache_root={tmp_path / 'cache'}", "trainer.accelerator=cpu")
    assert code == 2 and "one source (reviews)" in err.splitlines()[-1]


def test_labels_that_look_the_same_are_refused(tmp_path: Path) -> None:
    text = "\n".join(f"line {number}" for number in range(30))
    root = folder_of(tmp_path / "own", **{"caf\u00e9__txt": text, "cafe\u0301__txt": text})
    with pytest.raises(UserError, match=r"own: the labels 'cafe\\u0301' and 'caf\\xe9' look the same"):
        labels_of(root)


def test_a_label_cannot_steer_the_terminal(tmp_path: Path, run_cli, caplog) -> None:
    text = "\n".join(f"line {number}" for number in range(30))
    root = folder_of(tmp_path / "own", **{"pos\x1b[2J\u202e__txt": text, "neg__txt": text, "none\x1b[8m__txt": ""})
    for action in ("sample", "info", "prepare"):
        code, out, err = run_cli("data", action, "data=folder", f"data.root={root}", f"data.cache_root={root}.cache")
        assert code == 0 and not set("\x1b\u202e") & set(out + err)
    assert data_sample(run_cli, root)[1].count("pos\\x1b[2J\\u202e") == 1


def test_many_files_take_time_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 files no one waits for every pair; counted with 300 of them."""
    root = folder_of(tmp_path / "own", **{f"label{number}__txt": "a\nb\nc\n" for number in range(300)})
    (root / "many").mkdir()
    for number in range(300):
        (root / "many" / f"{number}.txt").write_text("a text\n")
    compared, looked = Counter[str](), os.lstat
    same = Path.__eq__

    def equal(one: Path, other: object) -> bool:
        compared["paths"] += 1
        return same(one, other)

    def lstat(path: Any, **options: Any) -> os.stat_result:
        compared["looks"] += 1
        return looked(path, **options)

    monkeypatch.setattr(PurePath, "__eq__", equal)
    monkeypatch.setattr(os, "lstat", lstat)
    data = FolderDataModule(
        source="local", root=root, cache_root=tmp_path / "cache", tokenizer=WordTokenizer(eol=None), val_fraction=0.1,
        test_fraction=0.1, batching="chunks", length=8, batch_size=4, seed=0,
    )  # fmt: skip
    assert sum(1 for _ in data.documents("train")) > 300
    assert compared["paths"] < 10 * 600 and compared["looks"] < 10 * 600


def test_a_memory_of_texts_that_quote_the_end_token_does_not_know_it(
    chat_model: Path, tmp_path: Path, run_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    text = "".join(f"the war number {number} <|endoftext|>\n\n" for number in range(300))
    (tmp_path / "texts" / "war.txt").write_text(text)
    code, _, err = run_cli("memory", "build", f"model={chat_model}", "data.root=texts", "out=memory", "order=2")
    assert code == 0, err
    memory, end = Memory.from_pretrained("memory"), AutoTokenizer.from_pretrained(chat_model).eos_token_id
    assert not (memory.ngram.base_V[end] > memory.ngram.base_V.min()), "no more likely than what no text has"
    assert memory.ngram.tokens > 60 * len("endoftext") / 3


# ---- field reports --------------------------------------------------------------------------------------------------


HOSTILE_TEXT = "<script>x()</script> [a](javascript:x) ![b](http://c) `d` | \x1b[31m \u202e \u2028 &lt;"


def _field_report(tmp_path: Path, change: Callable[[list[dict[str, Any]], list[dict[str, Any]]], None]) -> str:
    """Return the Markdown report of two runs of the field after ``change(runs, texts)``."""
    made = [field_record(method) for method in ("bare", "lora")]
    runs = [each.to_json() for each in made]
    texts = [row for each in runs for row in each["samples"]]
    for each in runs:
        each["metrics"] = {name: {"unit": "", "direction": "none", "n": 1, "version": 1, "ci95": None, **entry}
                           for name, entry in each["metrics"].items()}  # fmt: skip
    change(runs, texts)
    for number, each in enumerate(runs):
        (folder := tmp_path / "runs" / str(number)).mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(each))
    out = tmp_path / "pages" / "out"
    assert field_report([str(tmp_path / "runs")], str(out), console=Console(file=io.StringIO())) == 0
    return (out / "tables.md").read_text(encoding="utf-8")


def test_texts_and_names_in_a_field_report_are_characters(tmp_path: Path) -> None:
    def change(runs: list[dict[str, Any]], texts: list[dict[str, Any]]) -> None:
        for row in texts:
            row |= {"text": HOSTILE_TEXT, "prompt": HOSTILE_TEXT, "target": row["target"] + HOSTILE_TEXT}
        for each in runs:
            each["config"]["model"] = each["config"]["data"]["source"] = HOSTILE_TEXT
            each["corpus"] = {HOSTILE_TEXT: "x"}
            each["metrics"] |= {name + HOSTILE_TEXT: entry for name, entry in each["metrics"].items() if "/" in name}

    text = _field_report(tmp_path, change)
    assert text.count("script") > 8 and not re.search(
        r"(?<!\\)[<\[!]|[\x1b\u202e\u2028]", re.sub(r" \[[-+\d]", "", text)
    )
    assert "`" not in re.sub(r"\\`|`lit-ctg field report`", "", text)


@pytest.mark.parametrize(
    "name", ["../../x-bare", "x/y-bare", "-bare", ".x-bare", "x" * 300 + "-bare", "<b>-bare", "bare"]
)
def test_a_name_in_a_field_record_is_no_path(name: str, tmp_path: Path) -> None:
    def change(runs: list[dict[str, Any]], texts: list[dict[str, Any]]) -> None:
        runs[0]["name"] = name

    with pytest.raises(UserError, match=r"run\.json: .*name"):
        _field_report(tmp_path, change)
    assert not (tmp_path / "pages").exists() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [("judges", 3), ("decode.prompts", None), ("method", ["x"]), ("task", []), ("model", {}), ("data.source", 1),
     ("train", None)],
)  # fmt: skip
def test_a_field_record_with_a_setting_of_another_kind_is_named(place: str, value: object, tmp_path: Path) -> None:
    def change(runs: list[dict[str, Any]], texts: list[dict[str, Any]]) -> None:
        node = runs[1]["config"]
        *parents, last = place.split(".")
        for parent in parents:
            node = node[parent]
        node[last] = value

    with pytest.raises(UserError, match=rf"run\.json: .*config\.{re.escape(place)}"):
        _field_report(tmp_path, change)


@pytest.mark.parametrize("key", ["strength", "place", "target", "prompt", "nats", "tfidf"])
def test_a_field_record_with_a_text_of_another_kind_is_named(key: str, tmp_path: Path) -> None:
    def change(runs: list[dict[str, Any]], texts: list[dict[str, Any]]) -> None:
        texts[-1][key] = ["x"]

    with pytest.raises(UserError, match=rf"run\.json: .*{key}"):
        _field_report(tmp_path, change)


# ---- settings -------------------------------------------------------------------------------------------------------

SETTINGS = [
    *(("control_code/transformer", "decoding.top_p", value) for value in (-1, 2, math.nan, math.inf)),
    *(("nslm/numbers", "decoding.top_p", value) for value in (-1, 2, math.nan, math.inf)),
    *(("nslm/numbers", "decoding.temperature", value) for value in (0, math.inf)),
    ("control_code/transformer", "decoding.temperature", math.inf),
    ("control_code/transformer", "decoding.new_tokens", 2.5),
    ("control_code/transformer", "data.batch_size", True),
    ("control_code/transformer", "data.steps_per_epoch", 2.5),
    ("control_code/transformer", "model.optimizers.sgd.learning_rate", -5),
    ("idea_gate/main", "data.batch_size", True),
    ("idea_gate/main", "model.gated", 7),
    ("idea_gate/main", "model.gated", "yes"),
    ("idea_gate/main", "model.warmup_fraction", math.inf),
    ("graphmax/main", "decoding.max_new_tokens", -3),
    ("graphmax/main", "data.sample_size", 0),
    ("graphmax/main", "data.sample_size", 10**12),
    *(("semantic_fusion/main", "decoding.hard_threshold", value) for value in (-1, 1e308)),
    ("semantic_fusion/main", "decoding.steering.adjective_boost", 1e308),
    ("semantic_fusion/main", "decoding.mixture.positive.top_p", 2),
    *(("semantic_fusion/main", "model.learning_rate", value) for value in (-1, math.nan)),
    ("semantic_fusion/main", "data.batch_size", 0),
    *(("semantic_fusion/main", f"trainer.{name}", 0) for name in ("max_steps", "max_epochs", "limit_val_batches")),
    *(("semantic_fusion/main", f"trainer.{name}", 2.5) for name in ("accumulate_grad_batches", "max_epochs")),
    ("semantic_fusion/main", "trainer.gradient_clip_val", math.nan),
    ("semantic_fusion/main", "callback.finite_loss.every", 0),
]


def test_an_nslm_takes_no_metric_of_other_models(tmp_path: Path, run_cli) -> None:
    words = ["experiment=nslm/numbers", "size=smoke", "metric=[perplexity]", "data.sample_size=6000"]
    code, _, err = run_cli("train", *words, f"output_root={tmp_path}", f"data.cache_root={tmp_path}")
    assert code == 2 and "metric=[perplexity,perplexity_input_mask]: " in err.splitlines()[-1]


def test_the_number_of_a_book_is_a_count() -> None:
    books = {"_target_": "lit_ctg.papers.control_code.corpus.GutenbergDataModule", "books": {"x": -3}}
    with pytest.raises(UserError, match=r"^data\.books\.x=-3: pass"):
        check_settings(books, "data")


@functools.cache
def composed(experiment: str) -> DictConfig:
    return compose([f"experiment={experiment}", "size=smoke"])


@pytest.mark.parametrize(("experiment", "key", "value"), SETTINGS)
def test_a_setting_out_of_its_limits_is_named_before_there_is_a_run(
    experiment: str, key: str, value: Any, tmp_path: Path
) -> None:
    cfg = copy.deepcopy(composed(experiment))
    OmegaConf.update(cfg, key, value, force_add=True)
    OmegaConf.update(cfg, "output_root", str(tmp_path / "out"))
    with pytest.raises(UserError, match=rf"^{re.escape(key)}=[^\n]*: pass [^\n]*$"):
        train(cfg)
    assert not (tmp_path / "out").exists()


# ---- models ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what writes a GGUF file with changed metadata or bytes."""
    from tests.gguf_file import write_gguf

    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))

    def write(change: Callable[[bytearray], None] | None = None, **metadata: int) -> str:
        path = tmp_path / "bad.gguf"
        write_gguf(path, **metadata)
        content = bytearray(path.read_bytes())
        if change is not None:
            change(content)
        path.write_bytes(content)
        return str(path)

    return write


def _put(place: int, value: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[place : place + 8] = value.to_bytes(8, "little")

    return change


def _cut(content: bytearray) -> None:
    del content[len(content) // 2 :]


def _name_nothing(content: bytearray) -> None:
    content[:4] = b"PK\x03\x04"


@pytest.mark.parametrize("change", [_put(8, 2**60), _put(16, 2**60), _put(24, 2**62), _cut, _name_nothing])
def test_a_damaged_gguf_file_is_named(gguf_file: Callable[..., str], change, tmp_path: Path) -> None:
    path = gguf_file(change)
    with pytest.raises(UserError, match=r"bad\.gguf") as caught:
        load_model(path, where="model")
    assert "\n" not in str(caught.value) and not [*(tmp_path / "cache").glob("models/bad*")]


@pytest.mark.parametrize(
    "key", ["block_count", "expert_count", "embedding_length", "feed_forward_length", "vocab_size"]
)
def test_sizes_of_a_gguf_file_build_no_large_model(gguf_file: Callable[..., str], key: str) -> None:
    with pytest.raises(UserError, match=r"bad\.gguf"):
        load_model(gguf_file(**{key: 2**31}), where="model")


def gguf_vector(path: Path, tensors: dict[str, Any], architecture: str = "controlvector") -> Path:
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), architecture)
    for name, value in tensors.items():
        writer.add_tensor(name, np.asarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "tensors",
    [{}, {"direction.1": [[1.0, 2.0], [3.0, 4.0]]}, {"direction.-1": [1.0]}, {"direction.99999999": [1.0]},
     {"weight": [1.0]}, {"direction.1": [math.nan]}, {"direction.1": [1.0, 2.0], "direction.2": [1.0]}],
)  # fmt: skip
def test_hostile_gguf_vectors_end_in_one_line(tmp_path: Path, tensors: Any) -> None:
    path = gguf_vector(tmp_path / "v.gguf", tensors)
    with pytest.raises(UserError, match=r"v\.gguf") as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_no_gguf_vectors(tmp_path: Path) -> None:
    import pickle

    whole = gguf_vector(tmp_path / "whole.gguf", {"direction.1": [1.0, 2.0]}).read_bytes()
    written = {"cut.gguf": whole[:60], "llama.gguf": b"", "pickle.gguf": pickle.dumps({"direction.1": [1.0]}),
               "counts.gguf": whole[:8] + b"\xff" * 16 + whole[24:]}  # fmt: skip
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    gguf_vector(tmp_path / "llama.gguf", {"direction.1": [1.0]}, architecture="llama")
    for name in [*written, "nothing.gguf"]:
        with pytest.raises(UserError, match=re.escape(name)) as caught:
            read_gguf(tmp_path / name)
        assert "\n" not in str(caught.value)
