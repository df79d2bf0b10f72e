"""`lit-ctg data export-base`: `lit-ctg export-model` for the plain base models that experiments start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_ctg.command import Command, option
from lit_ctg.errors import UserError

if TYPE_CHECKING:  # it imports torch, and help is to be there at once
    from lit_ctg.network.portable import Portable


def only_plain(made: Portable) -> None:
    """Refuse any model but a stock GPT-2.

    Raises:
        UserError: a gated model, or another paper's.
    """
    from transformers import GPT2LMHeadModel

    if type(made.model) is not GPT2LMHeadModel:
        raise UserError("only a model without a gate is a stock GPT-2: lit-ctg export-model writes this one")


class ExportBase(Command):
    """write a trained model without a gate as the folder of a Hugging Face GPT-2"""

    words = "data export-base"
    examples = ("data export-base ckpt_path=<run>/checkpoints/last.ckpt out=base",)
    ckpt_path: str = option("<run>/checkpoints/last.ckpt")
    out: str | None = option("the folder to write (default: export in the run's folder)", None)

    def execute(self) -> None:
        from lit_ctg.run import export_model

        export_model.main(self.ckpt_path, self.out, accept=only_plain)


# found by `lit-ctg data`
COMMANDS = (ExportBase,)
