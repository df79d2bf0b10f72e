"""`lit-ctg export`: the control of a finished run as a bundle."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
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


def export(overrides: list[str], out: str, kind: str | None = None) -> Control:
    """Write the control of the run that ``overrides`` name to the folder ``out``; return it.

    ``papers/<paper>/control.py:of_run`` says what the control of a run is; where it has several, ``kind`` chooses.

    Raises:
        UserError: no finished run, a paper or run without a control (of that kind), a folder that holds something else.
    """
    folder = Path(out)
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
    control = _wanted(controls, kind)
    tokens = fingerprint(cast(Vocabulary, module.vocabulary).tokens) if control.of_ids else None
    console = Console(soft_wrap=True, highlight=False)
    write_bundle(control, folder, Origin(json.loads(record.read_text(encoding="utf-8")), tokens, versions()), console)
    if notes := note(control, controls, module):
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
