"""`lit-ctg generate`: build, load, generate, print."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from lit_ctg.config import plain
from lit_ctg.core.generation import GeneratedText, Generator
from lit_ctg.errors import UserError
from lit_ctg.run.build import build_datamodule, build_model, instantiate
from lit_ctg.run.checkpoint import compose_with_checkpoint
from lit_ctg.run.waiting import tokens
from lit_ctg.terminal import Console

# a paper's ``decoding.choice`` that takes the likeliest token
GREEDY = "greedy"
# of texts that are drawn in its place
SHOWN_TEMPERATURE = 0.7


def load(words: list[str]) -> tuple[DictConfig, Generator[Any]]:
    """Return a run's configuration and the generator of its model; ``words`` as on the command line.

    Texts that are shown are drawn, unless the words choose otherwise: greedy ones repeat themselves.

    Raises:
        UserError: no checkpoint, its corpus is gone, or the experiment generates nothing.
    """
    cfg, checkpoint = compose_with_checkpoint(words)
    if cfg.decoding is None:
        raise UserError(f"experiment {cfg.paper}/{cfg.name} sets no decoding, so there is nothing to generate with")
    given = {word.partition("=")[0].lstrip("+") for word in words}
    if cfg.decoding.get("choice") == GREEDY and "decoding.choice" not in given:
        shown = {"choice": "sample", "temperature": SHOWN_TEMPERATURE}
        cfg.decoding.update({key: value for key, value in shown.items() if f"decoding.{key}" not in given})
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    checkpoint.load_into(module, datamodule)
    return cfg, instantiate(cfg.decoding, "decoding").generator(module, datamodule)


def generate(words: list[str]) -> list[GeneratedText]:
    """Print ``n`` continuations of ``prompt`` under ``control`` along the routes of the decoding, and notes below them.

    Text i is a function of (seed, i) and the checkpoint.

    Raises:
        UserError: no checkpoint, an unknown control, a value out of range, a prompt the model cannot take.
    """
    cfg, generator = load(words)
    with tokens(getattr(generator, "max_new_tokens", 0), Console(stderr=True)) as watch:
        texts = generator.generate(
            cfg.n,
            prompt=cfg.prompt,
            control=plain(cfg)["control"],
            routes=cfg.decoding.get("routes"),
            seed=cfg.seed,
            watch=watch,
        )
    console = Console(soft_wrap=True, highlight=False)
    if cfg.n > 1 and generator.draws(cfg.seed) is None and len({text.text for text in texts}) == 1:
        Console(stderr=True, soft_wrap=True).print(f"n={cfg.n}: the same text each time, as decoding.choice={GREEDY}")
    for text in texts:
        console.print(text.text, markup=False)
        if found := text.note():
            console.print(f"    {found}", markup=False)
    return texts
