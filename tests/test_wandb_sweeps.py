"""Every paper's W&B sweep is made of commands that compose; the commands are those that W&B's own agent would start."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_ctg.config import compose, plain
from lit_ctg.errors import UserError
from lit_ctg.results.report import write_sweep
from lit_ctg.results.spec import load_manifest, papers

ROOT = Path(__file__).resolve().parents[1] / "experiments"
SWEEPS = {name: sweep for name in papers(ROOT) if (sweep := load_manifest(ROOT, name).sweep) is not None}


def values(parameter: dict[str, Any]) -> list[Any]:
    """Return all values, or the ends of a range."""
    return parameter["values"] if "values" in parameter else [parameter["min"], parameter["max"]]


def commands(sweep: dict[str, Any]) -> list[list[str]]:
    """Return commands in which every value of every parameter stands at least once."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    columns = [[(name, value) for value in values(parameter)] for name, parameter in sweep["parameters"].items()]
    rows = [
        [value or column[-1] for column, value in zip(columns, row, strict=True)]
        for row in itertools.zip_longest(*columns)
    ]
    made = []
    for row in rows:
        given = create_sweep_command_args({"args": {name: {"value": value} for name, value in row}})
        words: list[str] = []
        for word in create_sweep_command(list(sweep["command"])):
            words += given[word[2:-1]] if word.startswith("${") else [word]
        made.append(words)
    return made


def test_a_sweep_is_written_for_the_client(tmp_path: Path) -> None:
    name = next(iter(SWEEPS))
    out = write_sweep(name, tmp_path / "sweep.yaml")
    written = yaml.safe_load(out.read_text("utf-8"))
    assert written == SWEEPS[name] and list(written) == list(SWEEPS[name]), "in the paper's order"
    with pytest.raises(UserError, match="out=<file>"):
        write_sweep(name, None)


@pytest.mark.long
@pytest.mark.parametrize("paper", sorted(SWEEPS))
def test_its_commands_compose(paper: str) -> None:
    sweep = SWEEPS[paper]
    assert sweep["method"] in ("grid", "random", "bayes")
    assert sweep["metric"]["goal"] in ("minimize", "maximize")
    for parameter in sweep["parameters"].values():
        assert set(parameter) in ({"values"}, {"distribution", "min", "max"})
        assert sweep["method"] != "grid" or "values" in parameter
    for command in commands(sweep):
        assert command[:2] == [sweep["program"], "train"] == ["lit-ctg", "train"]
        config = plain(compose(command[2:]))
        assert config["paper"] == paper
        assert config["logger"]["wandb"]["offline"] is False
        assert config["logger"]["wandb"]["project"] == sweep["project"]
        for name in sweep["parameters"]:
            assert [word.startswith(f"{name}=") for word in command].count(True) == 1
        # what is searched by is measured, by a metric of its own or by the evaluation of all models of a run
        kind, _, metric = sweep["metric"]["name"].partition("/")
        if kind == "bleu":
            scene, method, name = metric.split("/")
            trial = config["callback"]["graphmax_trial"]
            assert trial["scenes"][scene] and method in trial["parts"]["generation"]["sampler"]["methods"]
            assert name in [f"bleu_{order}" for order in range(2, 6)]
        else:
            assert metric in (config["metric"] or {}) or "nslm_evaluation" in config["callback"]


@pytest.mark.long
def test_a_value_reaches_its_place() -> None:
    last = commands(SWEEPS["idea_gate"])[-1]
    config = plain(compose(last[2:]))
    assert config["model"]["window"] == 40 and config["model"]["alpha"] == 1.0
