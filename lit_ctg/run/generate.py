"""`lit-ctg generate`: build, load, generate, print."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from lit_ctg.config import plain
from lit_ctg.core.generation import GeneratedText, Generator
from lit_ctg.errors import UserError
from lit_ctg.run.build import build_datamodule, build_model, instantiate
from lit_ctg.run.checkpoint import compose_with_checkpoint


def generate(words: list[str]) -> list[Any]:
    """Print ``n`` texts continuing ``prompt`` under ``control`` along the control paths in ``path``; notes below them.

    Sentence i is a function of (seed, i) and the checkpoint.

    Raises:
        UserError: no checkpoint, an unknown control, a value out of range, a prompt the model cannot take.
    """
    cfg, checkpoint = compose_with_checkpoint(words)
    if cfg.decoding is None:
        raise UserError(f"experiment {cfg.paper}/{cfg.name} sets no decoding, so there is nothing to generate with")
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    checkpoint.load_into(module, datamodule)
    decoding = instantiate(cfg.decoding, "decoding")
    generator = decoding.generator(module, datamodule)
    routes = cfg.decoding.get("routes")
    chosen = {"prompt": cfg.prompt, "control": plain(cfg)["control"], "seed": cfg.seed}
    if isinstance(generator, Generator):
        texts = generator.generate(cfg.n, routes=routes, **chosen)
    else:  # a paper that is not yet on the contract of core/generation.py
        texts = generator.generate(cfg.n, paths=dict.fromkeys(routes or (), True), **chosen)
    console = Console(soft_wrap=True, highlight=False)
    for text in texts:
        console.print(text.text, markup=False)
        if found := note(text):
            console.print(f"    {found}", markup=False)
    return texts


def note(text: Any) -> str:
    """Return in one line what a text says of itself (``GeneratedText.note``), "" where that is nothing."""
    if isinstance(text, GeneratedText):
        return text.note()
    fired = getattr(text, "fired", ())
    return ", ".join(f"{token}: {kind}" + (f" after {before}" if before else "") for token, kind, before in fired)
