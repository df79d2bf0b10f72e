"""`lit-ctg export`: the control of a finished run as a bundle."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rich.console import Console

from lit_ctg.control import Control, Origin, fingerprint
from lit_ctg.control.bundle import save, versions
from lit_ctg.core.batch import Vocabulary
from lit_ctg.errors import UserError, did_you_mean, one_line
from lit_ctg.run.build import build_datamodule, build_model, instantiate
from lit_ctg.run.checkpoint import compose_with_checkpoint
from lit_ctg.run.directory import RECORD, run_status
from lit_ctg.run.standalone import standalone

CODE = "custom_generate"  # transformers looks for it
PRESENT = {"torch", "numpy", "transformers", "safetensors"}  # with any Hugging Face model
# others that a control may ask for: import -> package
PACKAGES = {"scipy": "scipy", "sklearn": "scikit-learn", "pyarrow": "pyarrow", "yaml": "pyyaml", "entmax": "entmax"}
_GENERATE = "lit_ctg.control.custom_generate"
_HUB = ("save_pretrained", "from_pretrained", "push_to_hub")  # they are for bundles of an installed lit_ctg
_ENTRY = """

def generate(model, **arguments):
    return generate_under({kind}, model, **arguments)
"""


def export(words: list[str]) -> Control:
    """Write the control of the run that ``words`` name to ``out=<folder>``; return it.

    ``papers/<paper>/control.py:of_run`` says what the control of a run is; where it has several, ``kind=`` chooses.

    Raises:
        UserError: no ``out``, no finished run, a paper or run without a control (of that kind), a folder that holds
            something else.
    """
    own = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith(("out=", "kind="))}
    if not own.get("out"):
        raise UserError("lit-ctg export: give out=<folder>, where the control is to go")
    folder = Path(own["out"])
    cfg, checkpoint = compose_with_checkpoint([word for word in words if not word.startswith(("out=", "kind="))])
    name = f"lit_ctg.papers.{cfg.paper}.control"
    if importlib.util.find_spec(name) is None:
        raise UserError(
            f"{cfg.paper} has no control that can be carried: lit_ctg/papers/{cfg.paper}/control.py makes one"
        )
    record = checkpoint.path.parent.parent / RECORD
    if run_status(record) != "DONE":
        raise UserError(f"{record.parent} holds no finished run ({RECORD} does not say DONE): export one that is done")
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    checkpoint.load_into(module, datamodule)
    decoding = None if cfg.decoding is None else instantiate(cfg.decoding, "decoding")
    control = _wanted(importlib.import_module(name).of_run(module, datamodule, decoding), own.get("kind"))
    tokens = fingerprint(cast(Vocabulary, module.vocabulary).tokens) if control.of_ids else None
    control.origin = Origin(json.loads(record.read_text(encoding="utf-8")), tokens, versions())
    save(control, folder)
    left_out = write_custom_generate(control, folder)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"exported: {control.name} ({control.kind}) to {folder}", markup=False)
    if left_out:
        console.print(f"without {CODE}: {left_out}", markup=False)
    return control


def _wanted(found: Control | Sequence[Control], kind: str | None) -> Control:
    """Return the control of a kind, the first where none is named.

    Raises:
        UserError: the run has none of that kind.
    """
    controls = [found] if isinstance(found, Control) else list(found)
    by_kind = {control.kind: control for control in controls}
    if kind is not None and kind not in by_kind:
        raise UserError(f"kind={kind}{did_you_mean(kind, by_kind)}: this run has {', '.join(by_kind)}")
    return controls[0] if kind is None else by_kind[kind]


def write_custom_generate(control: Control, folder: Path) -> str:
    """Put ``custom_generate/`` beside a bundle, with which ``model.generate`` needs no lit_ctg.

    Returns:
        why there is none, "" where there is.
    """
    kind = type(control)
    title = f"A control of the kind {control.kind} in `model.generate(custom_generate=<this bundle>, ...)`."
    try:
        source = standalone(kind.__module__, [kind.__name__], title, also=[(_GENERATE, "generate_under")], without=_HUB)
    except UserError as error:
        return f"the control's code does not fit into one file ({one_line(error)})"
    source += _ENTRY.format(kind=kind.__name__)
    needed = sorted(PACKAGES.get(name, name) for name in _imported(source) - sys.stdlib_module_names - PRESENT)
    if needed and not set(needed) <= set(PACKAGES.values()):
        return f"its code needs {', '.join(needed)}"
    (folder / CODE).mkdir(exist_ok=True)
    (folder / CODE / "generate.py").write_text(source, encoding="utf-8")
    if needed:
        (folder / CODE / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")
    return ""


def _imported(source: str) -> set[str]:
    """Return the packages that a file imports, inside functions too."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found
