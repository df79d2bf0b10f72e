"""The files of ``custom_generate/`` in an exported bundle, which make it work without lit_ctg.

``lit-ctg export`` and ``push_to_hub`` write them: ``custom_generate.generate_under`` with all its dependencies, copied
from our source (``lit_ctg/standalone.py``), and the control's own class.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from lit_ctg.errors import UserError, one_line
from lit_ctg.standalone import standalone

if TYPE_CHECKING:
    from lit_ctg.control.base import Control

CODE, REQUIREMENTS = "custom_generate/generate.py", "custom_generate/requirements.txt"
PRESENT = {"torch", "numpy", "transformers", "safetensors"}  # with any Hugging Face model
# others that a control may ask for: import -> package
PACKAGES = {"scipy": "scipy", "sklearn": "scikit-learn", "pyarrow": "pyarrow", "yaml": "pyyaml", "entmax": "entmax"}
_GENERATE = "lit_ctg.control.custom_generate"
# for an installed lit_ctg: bundles of the hub, tokenizers by name
_INSTALLED = ("save_pretrained", "from_pretrained", "push_to_hub", "HuggingFaceTokenizer.__init__",
              "divergence", "strength_for", "_halves", "_next", "_moved")  # fmt: skip
_ENTRY = """

def generate(model, **arguments):
    return generate_under({kind}, model, **arguments)
"""


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
    """Return the code for a kind of control (``UserError``: it does not fit into one file, see ``standalone``)."""
    title = f"A control of the kind {kind.kind} in `model.generate(custom_generate=<this bundle>, ...)`."
    source = standalone(
        kind.__module__, [kind.__name__], title, also=[(_GENERATE, "generate_under")], without=_INSTALLED
    )
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
