"""`lit-ctg generate model=<folder or hub name> controls=[<folder>,...]`: any causal language model under controls."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.markup import escape

from lit_ctg.control import Steered
from lit_ctg.control.base import added_ids
from lit_ctg.control.bundle import load_named, register_ours
from lit_ctg.control.steered import NUMBERS, OF_THE_PROMPT, SWITCHES, TOKENS, UNSUPPORTED, WHOLE
from lit_ctg.core.chat import chat_ids, check_messages, quoted_special, text_ids
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.errors import UserError, refuse, within
from lit_ctg.files import check_regular, reading, try_lock, write_atomic, writing
from lit_ctg.limits import Count, check_mapping
from lit_ctg.network.huggingface import load_model
from lit_ctg.network.pretrained import PLAIN, Loading, origin
from lit_ctg.run.quiet import quiet
from lit_ctg.terminal import Bars, Console

# options of ``generate`` that are plain values and change the texts; what no control can follow is refused later
OPTIONS = {
    *(*WHOLE, *NUMBERS, *SWITCHES, *TOKENS, *UNSUPPORTED),
    *("bad_words_ids", "sequence_bias", "stop_strings", "top_h", "early_stopping", "cache_implementation"),
    *("max_new_tokens", "do_sample"),
}
_LIMITS = {"num_return_sequences": Count, "max_new_tokens": Count, "do_sample": bool | None}


class Request(Protocol):
    """What a command line asks for; ``cli.Steer`` says what each option means."""

    model: str
    controls: list[str]
    revision: str | None
    prompt: str | None
    prompts: str | None
    chat: bool | None
    system: str | None
    out: str | None
    n: int
    seed: int
    batch_size: int
    max_new_tokens: int
    do_sample: bool | None
    control: dict[str, Any]
    generate: dict[str, Any]
    engine: Literal["transformers", "vllm"]

    @property
    def loading(self) -> Loading: ...


def _conflicts(request: Request, beams_draw: bool) -> Iterator[str]:
    """Yield what excludes each other."""
    if beams_draw:
        yield "do_sample=true: beams draw together, so texts would depend on each other; leave out it or num_beams"
    if (request.prompts is None) != (request.out is None):
        yield "prompts=<file.jsonl> and out=<file.jsonl> go together"
    if request.prompts is not None and request.prompt is not None:
        yield "prompt= is for one prompt, prompts= for a file of them: leave one out"
    varied = any(isinstance(value, list) for value in request.control.values()) or "num_beams" in request.generate
    if request.n > 1 and request.do_sample is False and not varied:
        yield f"n={request.n} with do_sample=false: the likeliest text is the same each time; leave one of them out"
    if request.system is not None and not request.chat and request.prompts is None:
        yield "system= needs chat=true"


def _copies(options: Mapping[str, Any]) -> int:
    """Return the texts of each of ``n``, such as the best few beams."""
    return int(options.get("num_return_sequences", 1))


def steer(request: Request) -> list[str]:
    """Print (or write) continuations of prompts by a model under controls; text i is a function of (seed, i).

    Raises:
        UserError: options that exclude each other; a model, control, prompt or setting that does not exist or fit.
    """
    check_mapping("generate", request.generate, dict.fromkeys(OPTIONS, Any))
    options = {"max_new_tokens": request.max_new_tokens, "do_sample": request.do_sample, **request.generate}
    check_mapping("generate", options, dict.fromkeys(OPTIONS, Any) | _LIMITS)
    beams = options.get("num_beams") not in (None, 1)
    refuse(_conflicts(request, beams and options["do_sample"] is True))
    options = {**options, "do_sample": not beams if options["do_sample"] is None else options["do_sample"]}
    lines = [] if request.prompts is None else read_lines(Path(request.prompts), request.control)
    if request.out is not None and request.prompts is not None:
        _check_out(Path(request.out), Path(request.prompts))
    steered = _loader(request.engine)(request.model, request.controls, request.revision, loading=request.loading)
    chat = request.chat or any(line.key == "messages" for line in lines)
    refuse({f"chat=false, but prompts={request.prompts} holds messages: leave chat=false out":
            chat and request.chat is False})  # fmt: skip
    if chat:
        options["reply_only"] = True
    lines = _at_nats(steered, lines, request)
    for control in steered.controls if not lines else ():
        unset = [f"control.{control.name}.{each.name}=1" for each in control.settings if each.default is None]
        given = any(key.startswith(f"{control.name}.") for key in request.control)
        if unset and not given and bool(control.off(control.values({}, 1)).all()):
            said = f"{control.name} is off: set {' or '.join(unset[:4])}"
            Console(stderr=True, soft_wrap=True).print(said, markup=False, highlight=False)
    if lines:
        return _file(steered, lines, request, options)
    prompt: str | Sequence[int] = request.prompt or ""
    if chat:
        prompt = chat_ids(steered.tokenizer, prompt, request.system, "chat=true")
    texts = []
    for start in range(0, request.n, request.batch_size):
        rows = list(range(start, min(start + request.batch_size, request.n)))
        settings = {key: _of_rows(key, value, rows, request.n) for key, value in request.control.items()}
        texts += _texts(steered, [prompt] * len(rows), settings, rows, request.seed, options)
    console = Console(soft_wrap=True, highlight=False)
    for text in texts:
        console.print(text if chat else (request.prompt or "") + text, markup=False)
    return texts


def _loader(engine: str) -> Callable[..., Steered]:
    """Return what loads a model under controls for an engine."""
    if engine == "transformers":
        return load_steered
    from lit_ctg.serve.client import Engine

    return Engine


def _at_nats(steered: Steered, lines: list[Line], request: Request) -> list[Line]:
    """Find the strengths that are given as ``kl:<nats>``, in ``request.control`` and the lines.

    What the bare model writes after the first prompts, and the settings of the first text, are measured.
    """
    asked = {key: value for key, value in request.control.items() if isinstance(value, str) and value.startswith("kl:")}
    if not asked:
        return lines
    first = {**request.control, **(lines[0].settings if lines else {})}
    settings = {key: value[0] if isinstance(value, list) and value else value for key, value in first.items()}
    settings = {key: value for key, value in settings.items() if key not in asked}
    prompts = [line.prompt for line in lines[:8]] or [request.prompt or ""]
    if any(not isinstance(prompt, str) for prompt in prompts) or request.chat:
        raise UserError(f"control.{min(asked)}={asked[min(asked)]}: nats are measured on prompts, not on a chat")
    written = Steered(steered.model, [], tokenizer=steered.tokenizer).write(
        prompts, max_new_tokens=32, do_sample=True, seed=request.seed
    )
    texts = [prompt + new for prompt, new in zip(prompts, written, strict=True)]
    number = dict[str, float]()
    for key, value in asked.items():
        name, _, own = key.partition(".")
        strengths = {each.strength for each in steered.controls if each.name == name}
        nats = value.removeprefix("kl:")
        if own not in strengths or not nats.replace(".", "", 1).isdecimal():
            raise UserError(f"control.{key}={value}: give kl:<nats> for the strength of a control, such as kl:1.0")
        number[key] = steered.strength_for(name, nats=float(nats), texts=texts, settings={**settings, **number})
        print(f"control.{key}={number[key]:.4g}: {nats} nats a token", file=sys.stderr)
    request.control.update(number)
    return [
        replace(line, settings={key: number.get(key, value) if value == asked.get(key) else value
                                for key, value in line.settings.items()})
        for line in lines
    ]  # fmt: skip


def load_steered(
    model: str, controls: Sequence[str], revision: str | None = None, *, loading: Loading = PLAIN
) -> Steered:
    """Return a model under controls, each a folder or a name on the hub.

    Args:
        model: folder or name of the model, whose tokenizer is used.
        controls: folders or names of the bundles; ``name=folder`` calls one so, as two of a kind need it.
        revision: of the model on the hub.
        loading: device and precision of the model.
    """
    register_ours(model)
    loaded = [load_named(word) for word in controls]
    with quiet():
        network = load_model(model, where="model", revision=revision, loading=loading).eval()
        tokenizer = load_tokenizer(model, revision, "model")
    return Steered(network, loaded, tokenizer=tokenizer)


def _of_rows(key: str, value: Any, rows: Sequence[int], n: int) -> Any:
    """Return a setting's values for some of the texts."""
    if not isinstance(value, list):
        return value
    refuse({f"control.{key} has {len(value)} values for n={n} texts: give one for all or one each": len(value) != n})
    return [value[row] for row in rows]


def _texts(
    steered: Steered,
    prompts: Sequence[str | Sequence[int]],
    settings: Mapping[str, Any],
    rows: Sequence[int],
    seed: int,
    options: Mapping[str, Any],
) -> list[str]:
    draws: dict[str, Any] = {}
    if options["do_sample"] and (options.get("num_beams") or 1) == 1:
        own = [row * _copies(options) + copy for row in rows for copy in range(_copies(options))]
        draws = {"seed": seed, "rows": own}
    try:
        return steered.write(prompts, settings, **options, **draws)  # type: ignore[arg-type] # texts beside ids
    except (ValueError, TypeError) as error:  # for options that Hugging Face refuses
        raise UserError(f"generate: {' '.join(str(error).split())[:300]}; check generate.*") from error


# a file of prompts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One line of ``prompts``: the prompt (a text or the messages of a chat), its settings, and its place."""

    prompt: Any
    settings: dict[str, Any]
    where: str

    @property
    def key(self) -> str:
        """The name of the prompt in the files."""
        return "prompt" if isinstance(self.prompt, str) else "messages"


def read_lines(path: Path, settings: Mapping[str, Any]) -> list[Line]:
    """Read lines ``{"prompt": "...", "settings": {"<control>.<setting>": value}}``, or with ``"messages": [...]`` in
    place of the prompt; the command line's settings apply where a line has none.

    Raises:
        UserError: no such file, or a line that is not such an object; names it.
    """
    with reading(f"prompts={path}", "text", "give another file"):
        check_regular(path)
        # JSON strings may hold what splitlines() cuts at
        texts = path.read_text(encoding="utf-8-sig").split("\n")
    lines = []
    for number, text in enumerate(texts, 1):
        if text.strip():
            where = f"prompts={path}, line {number}"
            with reading(where, "JSON", "correct it"):
                found = json.loads(text)
                json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is not a character
            key = "messages" if isinstance(found, dict) and "messages" in found else "prompt"
            check_mapping(where, found, {key: str if key == "prompt" else list, "settings": dict[str, Any]}, (key,))
            prompt = found[key] if key == "prompt" else check_messages(found[key], where)
            lines.append(Line(prompt, {**settings, **found.get("settings", {})}, where))
    refuse({f"prompts={path} is empty: give one JSON object per line": not lines})
    return lines


def _file(steered: Steered, lines: Sequence[Line], request: Request, options: Mapping[str, Any]) -> list[str]:
    n = request.n * _copies(options)
    out = Path(request.out or "")
    # options that would take a shorter prompt's padding for text
    padding_counts = any(
        options.get(name, getattr(steered.model.generation_config, name, None)) not in unchanged
        for name, unchanged in {**OF_THE_PROMPT, "min_length": (None, 0)}.items()
    )
    columns = []
    if "reply_only" in options:
        prompts: list[Any] = [chat_ids(steered.tokenizer, line.prompt, request.system, line.where) for line in lines]
    else:
        tokenizer = steered.tokenizer
        quotes, (start, _) = quoted_special(tokenizer), added_ids(tokenizer)
        prompts = [[*start, *text_ids(tokenizer, [line.prompt])[0]] if quotes.search(line.prompt) else line.prompt
                for line in lines]  # fmt: skip
    for line, prompt in zip(lines, prompts, strict=True):  # before the first text, not hours later
        with within(line.where):
            hidden = steered.check(prompt, line.settings, **options)
            columns.append((hidden, len(steered.prompt_ids(prompt)) if padding_counts else 0))
    kept = {key: getattr(request, key) for key in ("model", "revision", "controls", "n", "seed")}
    kept |= {key: options[key] for key in ("max_new_tokens", "do_sample")}
    held = {
        "system": request.system,
        "dtype": str(steered.model.dtype),
        "load": request.loading.load,
        "origin": origin(request.model),
        "engine": request.engine,
    }
    kept |= {key: value for key, value in held.items() if value not in ("torch.float32", "transformers", None, "")}
    others = {key: value for key, value in options.items() if key not in kept}
    bundles = [control.origin.checksum for control in steered.controls if control.origin is not None]
    asked = {**kept, "options": others, "bundles": bundles}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:12]
    if (lock := try_lock(out.with_name(f".{out.name}.lock"), remedy="give another out=")) is None:
        raise UserError(f"out={out}: another process is writing it; wait until it ends, or give another file")
    try:
        with writing(f"out={out}", remedy="make room, and the same command continues where it stopped"):
            done = _done(out, lines, n, digest)
            texts = _append(out, done, steered, lines, prompts, request, options, digest, columns)
    finally:
        lock.release()
    Console(soft_wrap=True, highlight=False).print(
        f"{len(lines)} prompts, {len(lines) * n} texts: {out}" + (f" ({done} prompts were there)" if done else ""),
        markup=False,
    )
    return texts


def _check_out(out: Path, prompts: Path) -> None:
    """Refuse a file of texts that is none, before a lock file is put beside it."""
    with writing(f"out={out}", remedy="give another file"):
        try:
            check_regular(out, f"out={out}")
            same = out.samefile(prompts)
        except FileNotFoundError:
            return
    refuse({f"out={out} is the file of prompts: give another file": same})


def _append(
    out: Path,
    done: int,
    steered: Steered,
    lines: Sequence[Line],
    prompts: Sequence[str | Sequence[int]],
    request: Request,
    options: Mapping[str, Any],
    digest: str,
    columns: Sequence[tuple[int, int]],
) -> list[str]:
    """Write the texts of all prompts but the first ``done``, and return them."""
    texts, n = [], request.n * _copies(options)
    console = Console(stderr=True)
    with open(out, "a", encoding="utf-8") as file, Bars(console=console) as bars:
        task = bars.add_task(escape(out.name), total=len(lines), completed=done)
        for batch in _batches(range(done, len(lines)), request.batch_size, columns):
            known = list(dict.fromkeys(key for place in batch for key in lines[place].settings))
            rows = [place * request.n + copy for place in batch for copy in range(request.n)]
            own = [lines[row // request.n] for row in rows]
            settings = {key: [_only(line.settings.get(key)) for line in own] for key in known}
            made = _texts(steered, [prompts[row // request.n] for row in rows], settings, rows, request.seed, options)
            for number, text in enumerate(made, batch[0] * n):
                line = lines[number // n]
                entry = {"line": number // n, "copy": number % n, line.key: line.prompt, "settings": line.settings,
                        "text": text, "run": digest}  # fmt: skip
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            file.flush()
            texts += made
            bars.advance(task, len(batch))
    return texts


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _batches(places: range, size: int, columns: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield neighbouring places, at most ``size``, of the same columns: before the text, and of it if that counts."""
    batch: list[int] = []
    for place in places:
        if batch and (len(batch) == size or columns[place] != columns[batch[0]]):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _done(out: Path, lines: Sequence[Line], n: int, digest: str) -> int:
    """Return the number of prompts whose n texts are all in ``out``; an incomplete rest by a killed command is removed.

    Raises:
        UserError: it holds something else, or texts of another command.
    """
    if not out.exists():
        return 0
    with reading(f"out={out}", "texts", "give another file"):
        check_regular(out)
        content = out.read_bytes()
        lined, end, rest = content.rpartition(b"\n")  # the rest is an incomplete line, or nothing
        whole = lined.decode().split("\n") if end else []
    other = UserError(f"out={out} holds texts of another command or of other prompts: give another file")
    key = lines[min(len(whole) // n, len(lines) - 1)].key
    begun = f'{{"line": {len(whole) // n}, "copy": {len(whole) % n}, "{key}": '.encode()
    if not (begun.startswith(rest) or rest.startswith(begun)):
        raise other
    for number, text in enumerate(whole):
        try:
            entry = json.loads(text)
            line = lines[number // n]
            same = (entry["run"], entry["line"], entry["copy"]) == (digest, number // n, number % n)
            same = same and entry[line.key] == line.prompt and entry["settings"] == line.settings
        except (ValueError, KeyError, TypeError, IndexError):
            raise other from None
        if not same:
            raise other
    done = len(whole) // n
    kept = "".join(line + "\n" for line in whole[: done * n])
    if kept.encode() != content:
        write_atomic(out, kept)
    return done
