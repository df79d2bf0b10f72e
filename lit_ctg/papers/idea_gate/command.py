"""`lit-ctg data export-base`: `lit-ctg export-model` for the plain base models that experiments start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.portable import portable
from lit_ctg.run import export_model

USAGE = "lit-ctg data export-base ckpt_path=<run>/checkpoints/last.ckpt [out=FOLDER]"


def main(words: list[str], console: Console | None = None) -> Path:
    """Export the checkpoint ``ckpt_path`` to ``out``, by default ``export`` in its run directory; return the folder.

    Raises:
        UserError: a word that is none of these, or what ``export`` raises.
    """
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    unknown = next((name for name in given if name not in ("ckpt_path", "out")), None)
    if unknown is not None or not given.get("ckpt_path"):
        told = f"no option '{unknown}'" if unknown is not None else "ckpt_path is missing"
        raise UserError(f"data export-base: {told}; usage: {USAGE}")
    return export_model.main(given["ckpt_path"], given.get("out"), console)


@torch.no_grad()
def export(module: Any, folder: Path) -> None:
    """Write a module without a gate as a stock ``GPT2LMHeadModel`` with its tokenizer.

    Raises:
        UserError: a gated module, or what ``export_model`` raises.
    """
    if module.gated:
        raise UserError("only a model without a gate is a stock GPT-2: lit-ctg export-model writes this one")
    made = portable(module, None)
    export_model.compare(made, folder)
    folder.mkdir(parents=True, exist_ok=True)
    export_model.write(made, module, folder, {}, None)


DATA_COMMANDS = {"export-base": main}
