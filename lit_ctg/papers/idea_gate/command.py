"""`lit-ctg data export-base`: `lit-ctg export-model` for the plain base models that experiments start from."""

from __future__ import annotations

from pathlib import Path

from lit_ctg.command import Command, Setting
from lit_ctg.errors import UserError
from lit_ctg.network.portable import Portable
from lit_ctg.run import export_model
from lit_ctg.terminal import Console


def main(words: list[str], console: Console | None = None) -> Path:
    """Export the checkpoint ``ckpt_path`` to ``out``, by default ``export`` in its run directory; return the folder.

    Raises:
        UserError: a word that is none of these, or what ``only_plain`` and ``export_model`` raise.
    """
    given = COMMAND.parse(words)
    return export_model.main(given["ckpt_path"], given.get("out"), console, only_plain)


def only_plain(made: Portable) -> None:
    """Refuse what is no stock GPT-2.

    Raises:
        UserError: a gated model, or another paper's.
    """
    from transformers import GPT2LMHeadModel

    if type(made.model) is not GPT2LMHeadModel:
        raise UserError("only a model without a gate is a stock GPT-2: lit-ctg export-model writes this one")


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
