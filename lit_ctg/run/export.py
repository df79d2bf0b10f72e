"""`lit-ctg export`: the control of a finished run as a bundle."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import lit_ctg
from lit_ctg.control import Control, Origin, fingerprint
from lit_ctg.control.bundle import CODE, save, versions
from lit_ctg.control.code import code_of
from lit_ctg.control.lora import LoRA
from lit_ctg.core.batch import Vocabulary
from lit_ctg.errors import UserError
from lit_ctg.files import plain_name
from lit_ctg.limits import Choice, check_value
from lit_ctg.network.huggingface import HuggingFaceBackbone, adapters_of
from lit_ctg.run.build import build_datamodule, build_model, instantiate
from lit_ctg.run.checkpoint import compose_with_checkpoint
from lit_ctg.run.directory import RECORD, run_status
from lit_ctg.terminal import Console


@dataclass(frozen=True)
class Exported:
    """The controls of a finished run, and where they come from.

    Attributes:
        controls: all of them; the paper's choice first.
        module, datamodule: the trained model and its corpus.
        record: of the run.
        steps: of its training.
    """

    controls: list[Control]
    module: Any
    datamodule: Any
    record: dict[str, Any]
    steps: int


def control_of(overrides: list[str]) -> Exported:
    """Return the controls of the run that ``overrides`` name, as ``papers/<paper>/control.py:of_run`` makes them.

    Raises:
        UserError: no finished run, a paper or run without a control.
    """
    cfg, checkpoint = compose_with_checkpoint(overrides)
    name = f"lit_ctg.papers.{plain_name(cfg.paper, 'the paper of this run', 'train again')}.control"
    if not (Path(lit_ctg.__file__).parent / "papers" / cfg.paper / "control.py").is_file():
        raise UserError(
            f"{cfg.paper} has no control that can be carried: lit_ctg/papers/{cfg.paper}/control.py makes one"
        )
    record = checkpoint.path.absolute().parent.parent / RECORD  # the path may be relative to a folder inside the run
    if run_status(record) != "DONE":
        raise UserError(f"{record.parent} holds no finished run ({RECORD} does not say DONE): export one that is done")
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    checkpoint.load_into(module, datamodule)
    decoding = None if cfg.decoding is None else instantiate(cfg.decoding, "decoding")
    found = importlib.import_module(name).of_run(module, datamodule, decoding)
    controls = with_adapters([found] if isinstance(found, Control) else list(found), module)
    return Exported(controls, module, datamodule, json.loads(record.read_text(encoding="utf-8")), checkpoint.steps)


def export(overrides: list[str], out: str, kind: str | None = None) -> Control:
    """Write the control of the run that ``overrides`` name to the folder ``out``; return it.

    Where a run has several, ``kind`` chooses.

    Raises:
        UserError: see ``control_of``; a folder that holds something else.
    """
    found = control_of(overrides)
    control = _wanted(found.controls, kind)
    tokens = fingerprint(cast(Vocabulary, found.module.vocabulary).tokens) if control.of_ids else None
    console = Console(soft_wrap=True, highlight=False)
    write_bundle(control, Path(out), Origin(found.record, tokens, versions()), console)
    if notes := note(control, found.controls, found.module):
        console.print(notes, markup=False)
    return control


def write_bundle(control: Control, folder: Path, origin: Origin, console: Console) -> None:
    """Write a control with where it comes from and, where it can be carried, its own code; say what was written.

    Raises:
        UserError: see ``bundle.save``.
    """
    control.origin = origin
    code, left_out = code_of(control)
    save(control, folder, code)
    console.print(f"exported: {control.name} ({control.kind}) to {folder}", markup=False)
    if left_out:
        console.print(f"without {CODE}: {left_out}", markup=False)


def with_adapters(controls: Sequence[Control], module: Any) -> list[Control]:
    """Return the controls of a run with the low-rank adapters that were trained beside them, if there are any."""
    backbone = getattr(module, "backbone", None)
    adapters = adapters_of(backbone.model) if isinstance(backbone, HuggingFaceBackbone) else {}
    return [*controls, LoRA(adapters)] if adapters else list(controls)


def note(control: Control, controls: Sequence[Control], module: Any) -> str:
    """Return what to know about a control of a run, "" for nothing: its other controls, and the model it is for."""
    notes = [f"this run also has {each.kind} (kind={each.kind})" for each in controls if each is not control]
    backbone = getattr(module, "backbone", None)
    if isinstance(backbone, HuggingFaceBackbone) and not backbone.frozen and "hidden_size" in control.shape():
        beside = ", or backbone.path with the control lora" if adapters_of(backbone.model) else ""
        notes.append(f"its states are those of the model that was trained on: lit-ctg export-model{beside}")
    return "; ".join(notes)


def _wanted(controls: Sequence[Control], kind: str | None) -> Control:
    """Return the control of a kind, the first where none is named.

    Raises:
        UserError: the run has none of that kind.
    """
    by_kind = {control.kind: control for control in controls}
    check_value("kind", kind, Annotated[str, Choice(by_kind)] | None)
    return controls[0] if kind is None else by_kind[kind]
