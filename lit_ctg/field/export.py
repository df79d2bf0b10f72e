"""`lit-ctg field export`: what a method has learned on a task, as controls that any command takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lit_ctg.config import plain
from lit_ctg.control import Control, Origin, fingerprint
from lit_ctg.control.bundle import versions
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.command import combinations, compose
from lit_ctg.field.methods import method_named
from lit_ctg.field.run import PAPER, build_bench
from lit_ctg.files import plain_name
from lit_ctg.results.record import config_hash
from lit_ctg.run.directory import RECORD, finished, run_stem
from lit_ctg.run.export import write_bundle
from lit_ctg.run.quiet import quiet
from lit_ctg.run.train import SameCorpus
from lit_ctg.terminal import Console


def export(cfg: DictConfig, out: str, console: Console) -> list[Path]:
    """Learn as ``lit-ctg field run`` does (or read what it learned) and write the method's controls as bundles.

    A control that steers to every class by a setting is written to ``out/<control>``; where each class has its own, to
    ``out/<class>/<control>``. The finished record of the same settings and texts is copied if there is one.

    Args:
        console: where to print the paths and how they are used.

    Returns:
        the bundles' folders.

    Raises:
        UserError: no folder, a method without a control or one that changes the model, a folder that holds something
            else.
    """
    if not out:
        raise UserError("field export: give out=<folder>, where the controls are to go")
    with quiet():
        bench = build_bench(cfg)
        bench.bundle = cfg.bundle
        method = method_named(cfg.method)
        arms = method.arms(bench)
        if not all(arm.controls for arm in arms.values()):
            raise UserError(f"{cfg.name} steers without a control: take a method that steers while decoding")
        strengths = {label: bench.strengths(arm, [1.0])[0] for label, arm in arms.items()}
    record, tokens = _record(cfg, bench), fingerprint(bench.tokenizer)
    folders: dict[int, Path] = {}
    for folder, control in places(arms, Path(out).expanduser()):
        write_bundle(control, folder, Origin(record, tokens if control.of_ids else None, versions()), console)
        folders[id(control)] = folder
    for target, arm in arms.items():
        bundles = ",".join(str(folders[id(control)]) for control in arm.controls)
        settings = " ".join(f"control.{key}={value:g}" for key, value in arm.settings(strengths[target]).items())
        console.print(
            f"{target}: lit-ctg generate model={cfg.model} controls=[{bundles}] {settings} prompt=...", markup=False
        )
    console.print("these strengths move the next token's distribution by 1 nat on average", markup=False)
    return list(folders.values())


def places(arms: Mapping[str, Arm], out: Path) -> list[tuple[Path, Control]]:
    """Return every control once, with its folder."""
    places: dict[int, tuple[Path, Control]] = {}
    for target, arm in arms.items():
        for control in arm.controls:
            shared = all(any(control is each for each in other.controls) for other in arms.values())
            # a class is called after a file of the corpus
            own = plain_name(target, "a class of the task", "rename its texts")
            folder = out / control.name if shared else out / own / control.name
            places.setdefault(id(control), (folder, control))
    return list(places.values())


def _record(cfg: DictConfig, bench: Bench) -> dict[str, Any] | None:
    """Return the finished record of the same settings and texts, None without one."""
    stem = run_stem(Path(cfg.output_root), PAPER, cfg.name, cfg.regime.name, cfg.size.name, cfg.seed,
                    config_hash(plain(cfg)))  # fmt: skip
    same = SameCorpus(lambda: {"text": bench.task.data.checksum()})
    done = [path for path in finished(stem) if same(path / RECORD)]
    if not done:
        return None
    record: dict[str, Any] = json.loads((done[-1] / RECORD).read_text(encoding="utf-8"))
    return record


def export_one(overrides: Sequence[str], out: str) -> None:
    """Export the controls of one combination to a folder.

    Raises:
        UserError: several, or see ``export.export``.
    """
    if len(combinations(overrides)) > 1 or "method=all" in overrides or "task=all" in overrides:
        raise UserError("field export: give one task, one method and one seed")
    export(compose(overrides), out, Console(soft_wrap=True, highlight=False))
