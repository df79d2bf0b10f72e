"""The commands of the README and the docs, run in order as they are written, at size=smoke."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# a reader replaces these: <model>, FOLDER, $REVIEWS, ...
PLACEHOLDER = re.compile(r"<[\w ]+>|\b(?:FOLDER|MODEL|RUN|REVIEWS|TASKS)\b|\$\w|\.\.\.")
# other machines, accounts or a browser
ELSEWHERE = re.compile(
    r"data\.source=hub|logger\.wandb\.offline=false|target=wandb entity|trainer=ddp|^lit-ctg (?:play|lab|model) "
    r"|=(?:smollm2|gemma3-270m|minilm)\b"  # `make test-real` has the models
)


@dataclass(frozen=True)
class Example:
    """A command of a page, and the lines below it in a ``console`` block, which it must print."""

    line: str
    output: tuple[str, ...]

    @property
    def runs_here(self) -> bool:
        return not (PLACEHOLDER.search(self.line) or ELSEWHERE.search(self.line))

    @property
    def words(self) -> list[str]:
        """Its words at size=smoke."""
        _, *words = (re.sub(r"^size=\w+", "size=smoke", word) for word in shlex.split(self.line, comments=True))
        sized = words[0] in ("train", "generate", "evaluate", "export", "export-model", "field")
        named = any(word.startswith(("experiment=", "task=")) for word in words)
        return [*words, "size=smoke"] if sized and named and "size=smoke" not in words else words


def examples(text: str) -> Iterator[Example]:
    """Yield the commands of a page's blocks."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M):
        if kind not in ("", "sh", "console"):
            continue
        for part in re.split(r"^(?=lit-ctg )", block.replace("\\\n", " "), flags=re.M):
            line, *output = part.splitlines() or [""]
            if line.startswith("lit-ctg "):
                yield Example(line, tuple(filter(None, output)) if kind == "console" else ())


def run_page(text: str, run_cli: Callable[..., Any], here: Path) -> int:
    """Run a page's commands in ``here``; return how many."""
    texts_of_the_tour(here / "texts")
    count = 0
    for example in examples(text):
        if example.runs_here:
            code, out, err = run_cli(*example.words)
            assert code == 0, f"{example.line}: {err}"
            shown = {" ".join(line.split()) for line in out.splitlines()}
            assert {" ".join(line.split()) for line in example.output} <= shown, f"{example.line}: {out}"
            count += 1
    return count


def free_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def module_at(path: Path) -> ModuleType:
    """Return the module of a file that lies in no package."""
    spec = importlib.util.spec_from_file_location(path.stem.strip("_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts_of_the_tour(folder: Path) -> None:
    """Write the two files of the tour, thirty sentences each."""
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = [text for cell in cells if "HARBOUR = " in (text := "".join(cell["source"]))]
    names: dict[str, str] = {}
    exec(source[: source.index("texts = Path")], names)
    folder.mkdir()
    for label in ("harbour", "kitchen"):
        (folder / f"{label}.txt").write_text("\n\n".join(names[label.upper()].splitlines()) + "\n", encoding="utf-8")
