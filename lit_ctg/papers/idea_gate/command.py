"""`lit-ctg data export-base`: write a trained plain model as the folder of a Hugging Face GPT-2 (ours)."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import OmegaConf
from rich.console import Console

from lit_ctg.command import Command, Setting
from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.idea_gate.model import IdeaGateModule
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.checkpoint import read

# largest difference of a logit that is put down to the order of additions
TOLERANCE = 1e-5


def main(words: list[str], console: Console | None = None) -> Path:
    """Export the checkpoint ``ckpt_path`` to ``out``, by default ``export`` in its run directory; return the folder.

    Raises:
        UserError: a word that is none of these, or what ``export`` raises.
    """
    given = COMMAND.parse(words)
    checkpoint = read(Path(given["ckpt_path"]))
    cfg = OmegaConf.create(checkpoint.config)
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    if not isinstance(module, IdeaGateModule):
        raise UserError(
            f"{given['ckpt_path']} is a {type(module).__name__}: only models of idea_gate/base can be exported"
        )
    checkpoint.load_into(module, datamodule)
    folder = Path(given["out"]) if "out" in given else checkpoint.path.parent.parent / "export"
    export(module, folder)
    (console or Console(soft_wrap=True, highlight=False)).print(f"exported: {folder}")
    return folder


@torch.no_grad()
def export(module: IdeaGateModule, folder: Path) -> None:
    """Write ``GPT2LMHeadModel`` and a fast tokenizer, read both again and compare.

    Raises:
        UserError: a gated model or another backbone, which GPT-2's layout cannot hold; a tokenizer without an engine of
            the tokenizers library; logits that differ by more than ``TOLERANCE``.
    """
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    backbone, vocabulary = module.backbone, module.vocabulary
    if module.gated or not isinstance(backbone, GPT2Backbone) or module.embedding is None:
        raise UserError("only a model without a gate on backbone=gpt2 is a GPT-2: export a run of idea_gate/base")
    engine = getattr(vocabulary, "engine", None)
    if engine is None:
        raise UserError(f"data.tokenizer={vocabulary.kind} is no byte-level BPE: it cannot be saved for Hugging Face")
    end = vocabulary.tokens[vocabulary.eos_id]
    sizes = backbone.sizes()
    config = GPT2Config(
        vocab_size=len(vocabulary), bos_token_id=vocabulary.eos_id, eos_token_id=vocabulary.eos_id, **sizes
    )
    theirs = GPT2LMHeadModel(config).eval()
    state = {f"transformer.{name}": value for name, value in backbone.to_hugging_face().items()}
    state["transformer.wte.weight"] = state["lm_head.weight"] = module.embedding.weight
    theirs.load_state_dict(state)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=engine, bos_token=end, eos_token=end, unk_token=end, model_max_length=backbone.context
    )
    folder.mkdir(parents=True, exist_ok=True)
    theirs.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    text = "The chemical reaction of the acid with the solution produced heat, and the market fell."
    ids = vocabulary.encode(text)
    if AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(text).input_ids != ids:
        raise UserError(f"{folder}: the saved tokenizer cuts text in another way than ours")
    ids_1T = torch.tensor([ids[: backbone.context]])
    ours = module.eval()({"input_ids_BT": ids_1T}).scores_BTV
    theirs = GPT2LMHeadModel.from_pretrained(folder, trust_remote_code=False).eval()
    change = float((theirs(ids_1T).logits - ours.cpu()).abs().max())
    if not change <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise UserError(f"{folder}: its logits differ from ours by {change:.2g}")


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
