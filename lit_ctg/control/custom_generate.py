"""What ``custom_generate/generate.py`` in an exported bundle does (``code.py`` writes that file).

Hugging Face's ``model.generate(custom_generate=<folder or hub name>, trust_remote_code=True, ...)`` executes it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from transformers.utils import cached_file

from lit_ctg.control.base import Control
from lit_ctg.control.bundle import CONTROL, manifest_of, restored
from lit_ctg.control.steered import Steered
from lit_ctg.errors import UserError


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
        settings: values by name, ``{"alpha": [0, 1]}``; one for all prompts or a list with one each.
        tokenizer: of the model; needed for controls stored as text.
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
        for file in manifest_of(folder, whole=False)["files"]:
            cached_file(name, file)
    manifest = manifest_of(folder)
    other = f"{name} holds a control of the kind {manifest['kind']}, this code is for {kind.kind}"
    if manifest["kind"] != kind.kind:
        raise UserError(other)
    made = restored(kind, folder, manifest)
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
