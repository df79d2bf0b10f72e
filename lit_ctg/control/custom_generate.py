"""The code of ``custom_generate/generate.py`` in an exported bundle, which makes it work without lit_ctg.

Hugging Face's ``model.generate(custom_generate=<folder or hub name>, trust_remote_code=True, ...)`` executes that file.
``lit-ctg export`` and ``push_to_hub`` write it: this module's function with all its dependencies, copied from our
source (``lit_ctg/standalone.py``), and the control's own class.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from transformers.utils import cached_file

from lit_ctg.control.base import Control
from lit_ctg.control.bundle import CODE, CONTROL, REQUIREMENTS, restored, told_by
from lit_ctg.control.steered import Steered
from lit_ctg.errors import UserError, one_line
from lit_ctg.standalone import standalone

PRESENT = {"torch", "numpy", "transformers", "safetensors"}  # with any Hugging Face model
# others that a control may ask for: import -> package
PACKAGES = {"scipy": "scipy", "sklearn": "scikit-learn", "pyarrow": "pyarrow", "yaml": "pyyaml", "entmax": "entmax"}
_GENERATE = "lit_ctg.control.custom_generate"
_HUB = ("save_pretrained", "from_pretrained", "push_to_hub")  # they are for bundles of an installed lit_ctg
_ENTRY = """

def generate(model, **arguments):
    return generate_under({kind}, model, **arguments)
"""


def generate_under(
    kind: type[Control],
    model: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    seed: int | None = None,
    control: str | None = None,
    **arguments: Any,
) -> Any:
    """Do what ``Steered.generate`` does, under the control in the folder that ``generate`` was given.

    Args:
        kind: of the control.
        model: passed by ``model.generate``.
        settings: values by name, ``{"alpha": [0, 1]}``; one for all prompts or a list with one each.
        tokenizer: of the model; needed for controls stored as text.
        seed: see ``Steered.generate``.
        control: folder or hub name of the bundle; by default the value of ``custom_generate``.
        arguments: of ``model.generate``, including ``input_ids`` (or ``inputs``).

    Returns:
        what ``model.generate`` returns.

    Raises:
        UserError: no ids, a changed bundle, or whatever ``Steered`` refuses.
    """
    name = control or _asked_for()
    if name is None:
        raise UserError("custom_generate: which bundle? give control=<folder or hub name>")
    folder = Path(str(cached_file(name, CONTROL))).parent
    if not Path(name).expanduser().is_dir():
        for file in told_by(folder, whole=False)["files"]:
            cached_file(name, file)
    told = told_by(folder)
    if told["kind"] != kind.kind:
        raise UserError(f"{name} holds a control of the kind {told['kind']}, this code is for {kind.kind}")
    made = restored(kind, folder, told)
    given = {key: value for key, value in arguments.items() if value is not None}
    ids_BT = given.pop("input_ids", given.pop("inputs", None))
    if ids_BT is None:
        raise UserError("custom_generate: give the prompts as input_ids")
    prompts = {"input_ids": ids_BT}
    if (mask_BT := given.pop("attention_mask", None)) is not None:
        prompts["attention_mask"] = mask_BT
    own = {f"{made.name}.{key}": value for key, value in (settings or {}).items()}
    return Steered(model, [made], tokenizer=tokenizer).generate(prompts, own, seed=seed, **given)


def _asked_for() -> str | None:
    """Return the caller's ``custom_generate`` argument: transformers runs a copy of the file and does not pass it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_locals.get("custom_generate")
        if frame.f_code.co_name == "generate" and isinstance(name, str):
            return name
        frame = frame.f_back
    return None


def code_of(control: Control) -> tuple[dict[str, str], str]:
    """Return the files of ``custom_generate/``, with which ``model.generate`` needs no lit_ctg.

    Returns:
        path in the bundle -> content; and why there are none, "" where there are.
    """
    kind = type(control)
    if not kind.__module__.startswith("lit_ctg."):
        return {}, f"{kind.__name__} is a class of your own, outside lit_ctg"
    try:
        source = source_of(kind)
    except UserError as error:
        return {}, f"the control's code does not fit into one file ({one_line(error)})"
    needed = sorted(PACKAGES.get(name, name) for name in _imported(source) - sys.stdlib_module_names - PRESENT)
    if needed and not set(needed) <= set(PACKAGES.values()):
        return {}, f"its code needs {', '.join(needed)}"
    requirements = {REQUIREMENTS: "\n".join(needed) + "\n"} if needed else {}
    return {CODE: source, **requirements}, ""


def source_of(kind: type[Control]) -> str:
    """Return the code for a kind of control.

    Raises:
        UserError: it does not fit into one file, see ``standalone``.
    """
    title = f"A control of the kind {kind.kind} in `model.generate(custom_generate=<this bundle>, ...)`."
    source = standalone(kind.__module__, [kind.__name__], title, also=[(_GENERATE, "generate_under")], without=_HUB)
    return source + _ENTRY.format(kind=kind.__name__)


def _imported(source: str) -> set[str]:
    """Return the packages that a file imports, inside functions too."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found
