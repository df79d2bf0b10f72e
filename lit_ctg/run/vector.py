"""`lit-ctg control vector`: an activation vector of a folder of texts, or from one format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lit_ctg.command import listed
from lit_ctg.config import compose, quoted
from lit_ctg.control import vectors
from lit_ctg.control.base import Control
from lit_ctg.control.bundle import CONTROL, Origin, load
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.errors import UserError, refuse
from lit_ctg.network.huggingface import load_model
from lit_ctg.network.pretrained import Loading, origin
from lit_ctg.run.build import build_datamodule
from lit_ctg.run.quiet import quiet

NAMED = ("middle", "all", "best")


def vector(
    data: str, out: str, model: str | None, layers: str, condition: str | None, device: Any, dtype: Any,
    device_map: Any, load: Any, **options: Any,
) -> list[str]:  # fmt: skip
    """Make a vector, or read one, and write it as a bundle or a GGUF file; return what was done, in words.

    Raises:
        UserError: no texts or no such file, no model for texts, a class that has no name of a setting.
    """
    loading = Loading(device, dtype, device_map, load)
    network: Any = None
    made: Control
    if model is not None:
        with quiet():
            network = load_model(model, where="model", loading=loading).eval()
    if not Path(data).is_dir() and data.endswith(".gguf"):
        made = vectors.read_gguf(data)
    elif (Path(data) / CONTROL).is_file():
        made = _bundle(data)
    elif network is None:
        raise UserError(f"data={data}: texts need model=<name, folder or hub name>")
    else:
        asked: Any = layers or None
        if layers and layers not in NAMED:
            asked = [_whole(word) for word in listed(layers)]
        tokenizer = load_tokenizer(str(model), None, "model")
        both = None if condition is None else _texts(condition)
        named = both is None or set(both) == {"fires", "rest"}
        refuse({f"condition={condition}: name its two files or subfolders fires and rest": not named})
        texts = _texts(data)
        with quiet():
            where = None if both is None else (both["fires"], both["rest"])
            made = vectors.of_texts(network, tokenizer, texts, layers=asked, condition=where, **options)
        counts = {name: len(own) for name, own in texts.items()}
        made.origin = Origin({"vector": {**options, "model": model, "origin": origin(str(model)), "texts": counts}})
    assert isinstance(made, vectors.ActivationVector)
    if out.endswith(".gguf"):
        vectors.write_gguf(made, out, network)
    else:
        made.save_pretrained(out)
    blocks = ", ".join(map(str, made.directions))
    asked_for = f"control.{made.name}.to_{made.classes[0]}=1"
    return [f"{out}: {made.form} at block {blocks}; lit-ctg generate model=... controls=[{out}] {asked_for}"]


def _bundle(folder: str) -> Control:
    made: Control = load(folder)
    if not isinstance(made, vectors.ActivationVector):
        raise UserError(f"data={folder} holds a control of the kind {made.kind}: give vectors")
    return made


def _whole(word: str) -> int:
    if not word.isdecimal():
        raise UserError(f"layers={word}: give {', '.join(NAMED)}, or numbers of blocks such as [12,13]")
    return int(word)


def _texts(folder: str) -> dict[str, list[str]]:
    """Return the texts of each file or subfolder of a folder."""
    given = ["data=folder", f"data.root={quoted(folder)}", "data.val_fraction=0", "data.test_fraction=0"]
    found: dict[str, list[str]] = {}
    datamodule: Any = build_datamodule(compose(given, experiment=False))
    for document in datamodule.documents("train"):
        found.setdefault(document.source, []).append(document.text.strip())
    return found
