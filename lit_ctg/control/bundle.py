"""Bundles: a control as a folder of ``control.json``, safetensors, a model card and the run record. No pickle.

``control.json`` holds the kind, the settings, the model and tokenizer that it fits, its origin, and the sha256 of every
other file; its own content has a checksum too. Reading a bundle executes nothing: the kind names a class of this
package, and ``config`` holds plain values.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

import lit_ctg
from lit_ctg.control.card import card
from lit_ctg.control.code import CODE, REQUIREMENTS, code_of
from lit_ctg.control.shipped import bundles
from lit_ctg.errors import UserError, check_known, did_you_mean, one_line, refuse, within
from lit_ctg.files import bring_back, check_regular, files_in, plain_name, reading, replacing, writing
from lit_ctg.network.pretrained import MODELS, prefer_cache

if TYPE_CHECKING:
    from lit_ctg.control.base import Control, ControlT

FORMAT = 1
CONTROL, TENSORS, CARD, RECORD = "control.json", "control.safetensors", "README.md", "run.json"
# what `lit-ctg memory fit` measured, beside a fitted memory
FIT = "fit.json"
# of a file that holds no tensors
MOST_BYTES = 2**26
# suffixes of files that a loader might execute
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".npy", ".npz", ".joblib", ".dill")
VERSIONED = ("lit-ctg", "torch", "transformers", "safetensors")
# types of tensors, and how a small bundle writes them
WIDE = {"float32": torch.float16, "float64": torch.float16, "int64": torch.int32}
# how the types of our architectures begin
OUR_MODELS = "lit_ctg_"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
REMEDY = "download or export it again"
# what ``control.json`` holds besides the format, by type
MANIFEST: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("kind", "name"), str),
    **dict.fromkeys(("config", "shape", "files", "versions"), dict),
    "tokenizer": (str, type(None)),
}


@dataclass(frozen=True)
class Origin:
    """Where a control comes from.

    Attributes:
        record: the run record it was exported from, as in ``run.json``; None if made by hand.
        tokenizer: fingerprint of the tokenizer whose ids it uses; None if it is stored as text.
        versions: of the packages that wrote the bundle.
        checksum: of the bundle that was read, from its ``control.json``; None where none was.
    """

    record: dict[str, Any] | None = None
    tokenizer: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    checksum: str | None = None


CarriedT = TypeVar("CarriedT", bound="Carried")


class Carried:
    """What can be saved as a bundle: the base of every control."""

    kind: ClassVar[str]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the bundle: ``control.json``, ``control.safetensors``, ``README.md`` and any run record.

        Raises:
            UserError: see ``bundle.save``.
        """
        save(self, folder)  # type: ignore[arg-type]  # a control is its only subclass

    @classmethod
    def from_pretrained(cls: type[CarriedT], name: str | Path, *, revision: str | None = None) -> CarriedT:
        """Read a bundle from a folder or the hub; ``Control.from_pretrained`` reads any kind. Nothing is executed.

        Raises:
            UserError: see ``bundle.load``; a bundle of a kind other than this class.
        """
        found = load(name, revision=revision)
        if not isinstance(found, cls):
            raise UserError(f"{name} holds a control of the kind {found.kind}, not {cls.kind}")
        return found

    def push_to_hub(self, repository: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the bundle to the hub; return its address there.

        Raises:
            UserError: the hub refuses it.
        """
        return push(self, repository, private=private, token=token)  # type: ignore[arg-type]  # as above


def check_weights(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite real numbers.

    Raises:
        ValueError: names the first.
    """
    for name, value in tensors.items():
        if value.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(f"{name} is of {value.dtype}, not of real numbers")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} is not finite")


def fingerprint(tokens: Any) -> str:
    """Return the sha256 of a vocabulary in id order.

    Args:
        tokens: a Hugging Face tokenizer, or the tokens in id order (``vocabulary.tokens`` of ours).
    """
    if hasattr(tokens, "get_vocab"):
        words = {number: token for token, number in tokens.get_vocab().items()}
        # an unused id still takes a place (as in data/huggingface_tokenizer.py)
        tokens = [words.get(number, f"<id {number}>") for number in range(max(words, default=-1) + 1)]
    return hashlib.sha256("\n".join(tokens).encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def kinds() -> dict[str, type[Control]]:
    """Return every kind of control: those of ``lit_ctg/control`` and of ``papers/<paper>/control.py``.

    A paper whose module cannot be imported is left out; ``kind_named`` mentions it.
    """
    return _found()[0]


@functools.cache
def _found() -> tuple[dict[str, type[Control]], dict[str, str]]:
    package = Path(lit_ctg.__file__).parent
    modules = [f"lit_ctg.control.{path.stem}" for path in sorted((package / "control").glob("*.py"))]
    modules += [f"lit_ctg.papers.{path.parent.name}.control" for path in sorted(package.glob("papers/*/control.py"))]
    found: dict[str, type[Control]] = {}
    broken: dict[str, str] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            broken[name] = one_line(error)
            continue
        for member in vars(module).values():
            own = isinstance(member, type) and issubclass(member, Carried) and member.__module__ == name
            if own and not inspect.isabstract(member) and "kind" in vars(member):
                found[member.kind] = member
    return found, broken


def kind_named(kind: str) -> type[Control]:
    """Return the class of a kind."""
    known, broken = _found()
    left_out = "".join(f"; {name} is left out: {why}" for name, why in broken.items())
    check_known("kind of control", kind, known, f"there are {', '.join(sorted(known))}{left_out}")
    return known[kind]


def versions() -> dict[str, str]:
    """Return the versions of the packages that a bundle depends on."""
    return {name: lit_ctg.__version__ if name == "lit-ctg" else metadata.version(name) for name in VERSIONED}


def save(control: Control, folder: str | Path, code: Mapping[str, str] | None = None, *, small: bool = False) -> None:
    """Write a bundle, whole or not at all; it may only replace another bundle (or nothing).

    Args:
        control: what to write.
        folder: of the bundle.
        code: path -> content of what makes it work without lit_ctg (``custom_generate.code_of``).
        small: write numbers in half precision and small integers in 32 bits; they are read back as wide as they were.

    Raises:
        UserError: the folder holds something else, or cannot be written; the control's numbers are not finite.
    """
    target = Path(folder)
    with writing(target):
        bring_back(target)
        full = target.exists() and (not target.is_dir() or any(target.iterdir()))
        if full and not (target / CONTROL).is_file():
            raise UserError(f"{folder} exists and holds no control: give a new or empty folder")
        if full:
            _check_ours(target)
    with replacing(target, whole=True) as temporary:  # of an older bundle
        temporary.mkdir()
        _write(control, temporary, small)
        for name, content in (code or {}).items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(content, encoding="utf-8")


def _narrow(value: Tensor) -> Tensor:
    """Return numbers in half precision (11 bits), integers in 32 bits; as they are where one does not fit."""
    narrow = WIDE.get(str(value.dtype).removeprefix("torch."))
    if narrow is None:
        return value
    most = torch.finfo(narrow).max if narrow.is_floating_point else torch.iinfo(narrow).max
    return value.to(narrow) if bool(value.abs().le(most).all()) else value


def _check_ours(folder: Path) -> None:
    """Refuse a bundle with files of somebody else beside it, which would be deleted with it."""
    manifest = _read_json(folder / CONTROL)
    own = {CONTROL, FIT, CODE, REQUIREMENTS, *(manifest.get("files", ()) if isinstance(manifest, dict) else ())}
    if foreign := [name for name in files_in(folder) if name not in own]:
        raise UserError(f"{folder} holds {foreign[0]}, which is not part of its control: give a new or empty folder")


def _write(control: Control, folder: Path, small: bool) -> None:
    from safetensors.torch import save_file

    origin = control.origin or Origin()
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": control.kind,
        "name": control.name,
        "paper": control.paper,
        "regime": (origin.record or {}).get("regime"),
        "settings": [asdict(setting) for setting in control.settings],
        "config": control.config(),
        "shape": control.shape(),
        "tokenizer": origin.tokenizer,
        "run": None,
        "versions": versions(),
    }
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in control.tensors().items()}
    if small:
        narrow = {name: _narrow(value) for name, value in tensors.items()}
        manifest["narrowed"] = {
            name: str(tensors[name].dtype).removeprefix("torch.")
            for name, value in narrow.items()
            if value.dtype != tensors[name].dtype
        }
        tensors = narrow
    try:
        _check_numbers(type(control), manifest["config"], tensors)
    except ValueError as error:
        raise UserError(f"control {control.name} cannot be saved: {one_line(error)}") from error
    if tensors:
        save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
    if origin.record is not None:
        (folder / RECORD).write_text(json.dumps(origin.record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        manifest["run"] = {key: origin.record.get(key) for key in ("experiment", "size", "seed", "config_hash")}
        manifest["run"]["sha256"] = _checksum(folder / RECORD)
    (folder / CARD).write_text(card(control, origin.record), encoding="utf-8")
    manifest["files"] = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    manifest["sha256"] = _own_checksum(manifest)
    (folder / CONTROL).write_text(_json(manifest, indent=1) + "\n", encoding="utf-8")


def load(name: str | Path, *, revision: str | None = None) -> Control:
    """Read a bundle from a folder, or by its name on the hub.

    Raises:
        UserError: no bundle there; changed, truncated, of another version or program; pickles; an unknown kind.
    """
    folder = _folder(str(name), revision)
    manifest = manifest_of(folder)
    if OUR_MODELS in (folder / CONTROL).read_text(encoding="utf-8"):
        register_ours()  # a control that holds models may hold exported ones
    control = restored(kind_named(str(manifest["kind"])), folder, manifest)
    assert control.origin is not None
    if RECORD in manifest["files"]:
        control.origin = replace(control.origin, record=_read_json(folder / RECORD))
    return control


def load_named(word: str) -> Control:
    """Return the control of ``folder`` or ``name=folder`` (``UserError``: see ``load``, or it cannot be called so)."""
    name, equals, folder = word.partition("=")
    if not equals or Path(word).exists():
        return load(word)
    control = load(folder)
    with within(f"controls={word}"):
        control.rename(name)
    return control


def restored(kind: type[ControlT], folder: Path, manifest: Mapping[str, Any]) -> ControlT:
    """Return the control in a folder whose ``control.json`` is known; the run record is not read."""
    tensors = checked_tensors(folder, manifest)
    # missing or misshapen tensors or settings can raise anything
    with reading(folder, f"a control of the kind {kind.kind}", REMEDY, Exception):
        for name, dtype in manifest.get("narrowed", {}).items():
            if tensors[name].dtype != WIDE[dtype]:
                raise ValueError(f"{name} is not of {WIDE[dtype]}")
            tensors[name] = tensors[name].to(getattr(torch, dtype))
        _check_numbers(kind, manifest["config"], tensors)
        control = kind.restore(manifest["config"], tensors)
        control.rename(manifest["name"])
        control.values({}, 1)  # its defaults
        if control.shape() != manifest["shape"]:
            raise ValueError(f"{CONTROL} states a shape that its tensors do not have")
    control.origin = Origin(None, manifest["tokenizer"], manifest["versions"], manifest["sha256"])
    return control


def _check_numbers(kind: type[Control], config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights and settings that are not finite; ``ValueError`` says which."""
    json.dumps({key: value for key, value in config.items() if key != "models"}, allow_nan=False)
    check_weights({name: value for name, value in tensors.items() if not re.fullmatch(kind.not_weights, name)})


def register_ours(model: str = "") -> None:
    """Register the architectures of ``papers/<paper>/portable.py`` with transformers, so that no folder's code runs.

    Args:
        model: the one that is to be loaded; nothing is imported for a folder or a name whose architecture is not ours.
    """
    held = Path(model).expanduser() / "config.json"
    if model in MODELS or (model and held.is_file() and OUR_MODELS not in held.read_text(errors="replace")):
        return
    from transformers import AutoConfig, AutoModelForCausalLM

    for path in sorted((Path(lit_ctg.__file__).parent / "papers").glob("*/portable.py")):
        name = f"lit_ctg.papers.{path.parent.name}.portable"
        for kind in vars(importlib.import_module(name)).values():
            config = getattr(kind, "config_class", None)
            if isinstance(kind, type) and kind.__module__ == name and config is not None:
                AutoConfig.register(config.model_type, config, exist_ok=True)
                AutoModelForCausalLM.register(config, kind, exist_ok=True)


def _folder(name: str, revision: str | None) -> Path:
    """Return the folder of a bundle: one that exists, one that comes with the package, or one from the hub."""
    folder, ours = Path(name).expanduser(), bundles()
    bring_back(folder)
    if folder.is_dir():
        return folder
    if name in ours:
        return ours[name]
    if not HUB_NAME.fullmatch(name):
        raise UserError(
            f"no control at {name}{did_you_mean(name, ours)}: give a folder that save_pretrained or lit-ctg export "
            f"wrote, a hub name, or one of {', '.join(ours)}"
        )
    from huggingface_hub import snapshot_download

    prefer_cache()
    try:
        files = [CONTROL, TENSORS, CARD, RECORD]
        return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except Exception as error:  # errors of the hub, the network, the disk
        raise UserError(
            f"no control at {name}: no such folder, and the hub has none either ({one_line(error)[:160]})"
        ) from error


def manifest_of(folder: Path, *, whole: bool = True) -> dict[str, Any]:
    """Return the checked content of ``control.json``; not ``whole``: before its other files have arrived."""
    pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix.lower() in PICKLES]
    here, ours = folder / CONTROL, "give the folder of a bundle"
    refuse({
        f"{folder} holds {', '.join(pickles[:1])}, which may be a pickle: a control has none, delete it": pickles,
        f"{folder} holds no {CONTROL}, so it is not a control of lit_ctg: {ours}": not here.is_file(),
    })  # fmt: skip
    manifest = _read_json(here)
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise UserError(f"{here} was not written by lit_ctg: {ours}")
    version = manifest["format"]
    wrong = [key for key, kind in MANIFEST.items() if not isinstance(manifest.get(key), kind)]
    differs = bool(wrong) or manifest.get("sha256") != _own_checksum(manifest)
    refuse({
        f"{folder} has the bundle format {version}, this version reads {FORMAT}: {REMEDY}": version != FORMAT,
        f"{here} was changed ({', '.join(wrong) or 'its checksum'} does not agree): {REMEDY}": differs,
    })  # fmt: skip
    for name, checksum in manifest["files"].items():
        path = folder / plain_name(name, f"{here}: a file", REMEDY)
        if not whole:
            continue
        size = path.stat().st_size if path.is_file() else -1
        refuse({
            f"{folder} lacks {name}: {REMEDY}": size < 0,
            f"{path} is larger than {MOST_BYTES // 2**20} MiB: {REMEDY}": name != TENSORS and size > MOST_BYTES,
        })  # fmt: skip
        if _checksum(path) != checksum:
            raise UserError(f"{path} was changed or cut off (its checksum does not agree): {REMEDY}")
    return manifest


def checked_tensors(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a bundle.

    Raises:
        UserError: not a safetensors file.
    """
    if TENSORS not in manifest["files"]:
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reading(folder / TENSORS, "a safetensors file", REMEDY, SafetensorError):
        return load_file(folder / TENSORS)


def push(control: Control, repository: str, *, private: bool, token: str | None) -> str:
    """Upload a bundle to the hub, with the code that steers without lit_ctg; return its address there."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "bundle"
        save(control, folder, code_of(control)[0])
        api = HfApi(token=token)
        try:
            made = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=made.repo_id, folder_path=str(folder))
        except Exception as error:  # errors of the hub or the network
            raise UserError(f"{repository} could not be uploaded: {one_line(error)[:200]}") from error
    return str(made)


def check_tokenizer(control: Control, tokenizer: Any) -> None:
    """Refuse a tokenizer whose ids the control does not know.

    Raises:
        UserError: its tokens differ from those that the control was made with.
    """
    known = control.origin.tokenizer if control.origin is not None else None
    if known is not None and fingerprint(tokenizer) != known:
        raise UserError(
            f"control {control.name} was made with another tokenizer (fingerprint {known[:12]}, this one "
            f"{fingerprint(tokenizer)[:12]}): use it with the model of its export"
        )


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_checksum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(_json(rest, sort_keys=True).encode()).hexdigest()


def _json(value: Any, **layout: Any) -> str:
    # ranges of settings may be infinite; Python reads back the names it writes
    return json.dumps(value, ensure_ascii=False, **layout)


def _read_json(path: Path) -> Any:
    with reading(path, "JSON", REMEDY):
        check_regular(path)
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES // 2**20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
