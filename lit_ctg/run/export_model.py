"""`lit-ctg export-model`: the language model of a finished run as a Hugging Face folder that does not need lit_ctg."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import lit_ctg
from lit_ctg.control.card import of_record
from lit_ctg.core.generation import evaluating
from lit_ctg.data.huggingface_tokenizer import fast_tokenizer
from lit_ctg.errors import UserError
from lit_ctg.files import bring_back, files_in, plain_name, replacing
from lit_ctg.network.portable import Portable
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.checkpoint import read
from lit_ctg.run.directory import CHECKPOINT, RECORD
from lit_ctg.standalone import standalone
from lit_ctg.terminal import Console
from lit_ctg.trust import stored

# largest difference of a logit, as a share of the largest one (or of 1), attributed to the order of additions
TOLERANCE = 1e-5
FOLDER = "export"
# what an export has written, so that nothing else is deleted with it
LISTING = "lit_ctg_export.json"
# copied from the run's decoding to generation_config.json where they are plain numbers
DECODING = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")
# where a run's decoding has no such cut; left out, transformers would draw from the 50 likeliest tokens
UNCUT = {"top_k": 0, "top_p": 1.0}


def main(
    run: str,
    out: str | None = None,
    console: Console | None = None,
    accept: Callable[[Portable], None] | None = None,
) -> Path:
    """Export a run's model; return the folder.

    Args:
        run: a run directory, or a checkpoint.
        out: the folder to write, by default ``export`` in the run directory. An earlier export there is replaced.
        accept: raises for a model that the caller does not want, before anything is written.

    Raises:
        UserError: no run there, a model that cannot be exported (the line says why), a folder with other contents,
            logits that differ by more than ``TOLERANCE``.
    """
    path = Path(run)
    checkpoint = read(path / CHECKPOINT if path.is_dir() else path)
    home = checkpoint.path.absolute().parent.parent  # the path may be relative to a folder inside the run
    target = Path(out) if out is not None else home / FOLDER
    check_target(target)
    cfg = stored(checkpoint.config, checkpoint.path)
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    checkpoint.load_into(module, datamodule)
    record = json.loads((home / RECORD).read_text(encoding="utf-8")) if (home / RECORD).is_file() else None
    with evaluating(module), torch.no_grad():
        made = portable(cfg.paper, module, datamodule)
        if accept is not None:
            accept(made)
        put(made, module, target, checkpoint.config, record)
    (console or Console(soft_wrap=True, highlight=False)).print(f"exported: {target}", markup=False)
    return target


def check_target(target: Path) -> None:
    """Refuse a folder whose contents an export would delete: anything but an earlier export.

    Raises:
        UserError: names a file there.
    """
    bring_back(target)
    if not target.exists():
        return
    listing = target / LISTING
    try:
        own = json.loads(listing.read_text(encoding="utf-8"))["files"] if listing.is_file() else []
    except (ValueError, KeyError, TypeError):
        own = []
    foreign = [name for name in files_in(target) if name not in (*own, LISTING)]
    if foreign or not target.is_dir():
        holds = f"holds {foreign[0]}, which is not part of an earlier export" if foreign else "is a file"
        raise UserError(f"{target} {holds}: give a new or empty folder")


def put(made: Portable, module: Any, target: Path, config: Mapping[str, Any], record: Mapping[str, Any] | None) -> None:
    """Write an export whole or not at all, in place of nothing, an empty folder or an earlier export.

    Raises:
        UserError: see ``check_target`` and ``compare``.
    """
    check_target(target)
    compare(made, target)
    with replacing(target, whole=True) as temporary:  # of an earlier export
        write(made, module, temporary, config, record)
        (temporary / LISTING).write_text(json.dumps({"files": files_in(temporary)}, indent=1) + "\n", encoding="utf-8")


def portable(paper: str, module: Any, datamodule: Any) -> Portable:
    """Return the model of a run as its paper's ``portable.py`` makes it.

    Raises:
        UserError: the paper has none, or cannot export this model.
    """
    plain_name(paper, "the checkpoint's paper", "train again")
    if not (Path(lit_ctg.__file__).parent / "papers" / paper / "portable.py").is_file():
        raise UserError(f"paper {paper} has no portable.py that says how its models are exported: write one")
    return importlib.import_module(f"lit_ctg.papers.{paper}.portable").portable(module, datamodule)


def compare(made: Portable, where: Path | str) -> None:
    """Refuse a model whose logits differ from the run's; ``UserError`` says by how much."""
    size = made.model.config.vocab_size
    length = min(24, getattr(made.model.config, "max_position_embeddings", None) or 24)
    ids_BT = torch.randint(0, size, (2, length), generator=torch.Generator().manual_seed(0))
    ours_BTV, theirs_BTV = made.ours(ids_BT), made.model(input_ids=ids_BT, **made.options).logits
    change = float((ours_BTV - theirs_BTV).abs().max())
    if not change <= TOLERANCE * max(1.0, float(ours_BTV.abs().max())):
        raise UserError(f"{where}: the exported model's logits differ from the run's by {change:.2g}: not written")


def write(
    made: Portable, module: Any, folder: Path, config: Mapping[str, Any], record: Mapping[str, Any] | None
) -> None:
    """Write weights, configuration, code (where the architecture is ours), tokenizer, generation settings and card."""
    model = made.model
    longest = getattr(model.config, "max_position_embeddings", None)
    tokenizer, note = (made.tokenizer, "") if made.tokenizer is not None else fast_tokenizer(module.vocabulary, longest)
    own = type(model).__module__.startswith("lit_ctg.")
    if own:
        code = f"modeling_{model.config.model_type.removeprefix('lit_ctg_')}"
        names = type(model.config).__name__, type(model).__name__
        model.config.auto_map = {"AutoConfig": f"{code}.{names[0]}", "AutoModelForCausalLM": f"{code}.{names[1]}"}
    settings = model.generation_config
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(settings, name, getattr(tokenizer, name))
    for name, value in generation(made, config.get("decoding") or {}).items():
        setattr(settings, name, value)
    # a model with our own code reads the whole row at every step
    settings.use_cache = not own or hasattr(model, "transformer")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if own:
        source = standalone(type(model).__module__, names, f"{names[1]}: a language model of lit_ctg.")
        (folder / f"{code}.py").write_text(source, encoding="utf-8")
    (folder / "README.md").write_text(card(model, made.about, note, own, record), encoding="utf-8")


def generation(made: Portable, decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation settings of a run's decoding, as transformers names them."""
    # a truth value is none
    numbers = {name: decoding[name] for name in DECODING if type(decoding.get(name)) in (int, float)}
    return {"do_sample": True, **UNCUT, **numbers, **made.generation(decoding)}


def card(model: Any, about: str, note: str, own: bool, record: Mapping[str, Any] | None) -> str:
    """Return the model card; its facts about the run come from the record."""
    trust = ", trust_remote_code=True" if own else ""
    kind = "Its code is beside the weights." if own else "A stock architecture: transformers alone loads it."
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags: [lit_ctg]", "---", ""]
    lines += [f"# {type(model).__name__}", "", " ".join(filter(None, (kind, about, note))), "", "```python"]
    lines += ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    lines += [f'model = AutoModelForCausalLM.from_pretrained("<this folder>"{trust})']
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("<this folder>"{trust})', "```", ""]
    return "\n".join([*lines, *of_record(record)])
