"""`lit-ctg data export-base`: `lit-ctg export-model` for the plain base models that experiments start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lit_ctg.command import Command, Setting
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.portable import portable
from lit_ctg.run import export_model


def main(words: list[str], console: Console | None = None) -> Path:
    """Export the checkpoint ``ckpt_path`` to ``out``, by default ``export`` in its run directory; return the folder.

    Raises:
        UserError: a word that is none of these, or what ``export`` raises.
    """
    given = COMMAND.parse(words)
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
    export_model.put(made, module, folder, {}, None)


def _run(words: list[str]) -> int:
    main(words)
    return 0


COMMAND = Command(
    "data export-base",
    "write a trained model without a gate as the folder of a Hugging Face GPT-2",
    _run,
    (
        Setting("ckpt_path", "<run>/checkpoints/last.ckpt", required=True),
        Setting("out", "the folder to write (default: export in the run's folder)"),
    ),
    examples=("data export-base ckpt_path=<run>/checkpoints/last.ckpt out=base",),
)

# found by `lit-ctg data`
DATA_COMMANDS = {"export-base": main}
